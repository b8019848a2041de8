"""Gavel for other aims than max-min fairness: finish-time fairness and makespan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from scipy.optimize import brentq

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import samples_to_go
from pliant.tools.schedule.policies.contention import Contention, Stake
from pliant.tools.schedule.policies.gavel.fractions import Fractions, Kind, gain, max_min
from pliant.tools.schedule.policies.gavel.policy import ROUND_S, Gavel, capacity_of, kind_of
from pliant.tools.schedule.snapshot import Snapshot

_PRECISION = 1e-4
"""Of the ratio that is made least."""


class GavelMakespan(Gavel):
    """Gavel for the least makespan: the largest remaining time is made as small as it can be, by an LP.

    Gavel (OSDI '20), section 4.2. As ``gavel``, but the fractions make the largest of remaining samples over
    effective throughput as small as they can, at every round for what is left then. That counts as at least
    what the job trains in a round; a job of unknown work is expected to be half done.
    """

    name: ClassVar[str] = "gavel-makespan"

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> dict[str, Fractions]:
        kinds = {
            job.id: kind_of(job, samples_to_go(job, snapshot, self.round_s) or 1.0, snapshot) for job in jobs
        }
        found = max_min(Counter(kinds.values()), capacity_of(snapshot), levels=1)
        return {job_id: found[kind] for job_id, kind in kinds.items()}


class GavelFtf(Gavel):
    """Gavel for finish-time fairness: the largest ratio of JCT to isolated JCT is made least, by LPs.

    Gavel (OSDI '20), section 4.2, with the ratio of Themis (NSDI '20): expected JCT under these fractions
    over the JCT with 1/N of the cluster alone, where N is the mean number of active jobs since the job
    arrived. A ratio can be reached if a linear program of the throughputs that it takes can be solved; the
    least one is found by root finding, at every round. All else is as in ``gavel``.
    """

    name: ClassVar[str] = "gavel-ftf"

    def __init__(self, round_s: float = ROUND_S) -> None:
        super().__init__(round_s)
        self._contention = Contention()

    def dump_state(self) -> Any:
        """The accounts, and how many jobs were active."""
        return {"accounts": super().dump_state(), "contention": self._contention.dump()}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        """Take up what ``dump_state`` gave."""
        if state["accounts"] is not None:
            super().load_state(state["accounts"], jobs)
        self._contention = Contention.load(state["contention"])

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> dict[str, Fractions]:
        self._contention.follow(snapshot.changes, snapshot.time_s)
        capacity = capacity_of(snapshot)
        members = {}
        for job in jobs:
            stake, kind = self._contention.stake(job, snapshot, self.round_s), kind_of(job, 1.0, snapshot)
            if stake is not None and best_rate(kind, capacity) > 0:
                members[job.id] = (kind, stake)
        nothing = dict.fromkeys((job.id for job in jobs), (0.0,) * len(capacity))
        return nothing | least_ratio(members, capacity)


def least_ratio(members: Mapping[str, tuple[Kind, Stake]], capacity: Sequence[int]) -> dict[str, Fractions]:
    """Fractions that make the largest ρ least; ``gains`` of the kinds are samples per second."""
    alike = Counter(members.values())
    if not alike:
        return {}

    def solved(ratio: float) -> tuple[float, dict[tuple[Kind, Stake], Fractions]]:
        """How many times the throughputs that the ratio takes are possible, and the fractions for that."""
        kinds = {member: _towards(ratio, *member) for member in alike}
        counts: Counter[Kind] = Counter()
        for member, count in alike.items():
            counts[kinds[member]] += count
        found = max_min(counts, capacity, levels=1)
        return min(gain(kind, found[kind]) for kind in counts), {
            member: found[kind] for member, kind in kinds.items()
        }

    ratio = max(stake.rho(best_rate(kind, capacity)) for kind, stake in alike)
    times, fractions = solved(ratio)
    if times < 1 - _PRECISION:
        high = max(_ratio_at(times, ratio, stake) for _, stake in alike) * (1 + _PRECISION)
        ratio = brentq(lambda ratio: solved(ratio)[0] - 1, ratio, high, rtol=_PRECISION)
        fractions = solved(ratio)[1]
    return {job_id: fractions[member] for job_id, member in members.items()}


def _ratio_at(times: float, ratio: float, stake: Stake) -> float:
    """The ρ of a job that has ``times`` the throughput that takes it to ``ratio``."""
    return (stake.elapsed_s + (ratio * stake.isolated_s - stake.elapsed_s) / times) / stake.isolated_s


def _towards(ratio: float, kind: Kind, stake: Stake) -> Kind:
    """Gains relative to the throughput that ends the job at that ratio."""
    needed = stake.remaining_samples / (ratio * stake.isolated_s - stake.elapsed_s)
    return Kind(tuple(rate / needed for rate in kind.gains), kind.gpus)


def best_rate(kind: Kind, capacity: Sequence[int]) -> float:
    """The largest gain on a type that has enough GPUs; 0: there is none."""
    usable = (worth for worth, gpus in zip(kind.gains, capacity, strict=True) if kind.gpus <= gpus)
    return max(usable, default=0.0)
