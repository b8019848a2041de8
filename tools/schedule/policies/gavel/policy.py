"""Gavel: fractions of time by a linear program, and rounds that give each job the time it is entitled to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import (
    GpuBudget,
    Grant,
    decision_from_grants,
    explain_gang,
    reject_impossible,
)
from pliant.tools.schedule.policies.gavel.entitlement import Account, Accounts
from pliant.tools.schedule.policies.gavel.fractions import Fractions, Kind, max_min
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

ROUND_S: Final = 360.0
_WHOLE: Final = 1 - 1e-4
_DIGITS: Final = 5
"""Significant digits of a fraction: more of them would be those of a solver and its version."""


class Gavel(Policy):
    """Max-min fairness over effective throughput, with GPU types that differ: fractions of time by an LP.

    Gavel (OSDI '20), sections 4.1 and 5. A linear program finds the fraction of time that each job spends on
    each GPU type. It makes the least normalised effective throughput as large as it can be, then the next
    larger one, and so on: throughput over the mean of the GPU types, times requested GPUs, so that one job on
    four GPUs counts as much as four on one. Rounds of 360 s follow the fractions: the pairs of job and GPU
    type go by the time that the fraction entitles the job to over the time it has received there, and a job
    gets what it requested or waits. Preemptive, needs no knowledge of the work.

    round_s: seconds between decisions; change it together with ``--interval``.

    Departures from the paper: time counts since a job arrived, not since the fractions changed last. GPUs
    that remain go to waiting jobs in the same order on types of fraction 0. No two jobs share a GPU.
    """

    name: ClassVar[str] = "gavel"
    knows: ClassVar[Knows] = "profile"
    priority_means: ClassVar[str] = ""
    default_interval_s: ClassVar[float | None] = ROUND_S
    rebuilds_state: ClassVar[bool] = False

    def __init__(self, round_s: float = ROUND_S) -> None:
        if round_s <= 0:
            raise ValueError("parameter round_s: expected a number above 0")
        self.round_s = round_s
        self._accounts: Accounts | None = None
        self._solved: tuple[object, dict[Kind, Fractions]] | None = None
        """The last problem and its solution."""

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Find the fractions, then serve the jobs that are furthest behind theirs."""
        rejected = reject_impossible(snapshot)
        jobs = sorted(
            (job for job in snapshot.jobs.values() if job.id not in rejected), key=lambda job: job.arrival
        )
        types = tuple(snapshot.speeds.gpu_types)
        if self._accounts is None or self._accounts.gpu_types != types:
            self._accounts = Accounts(types)
        fractions = self._fractions(jobs, snapshot)
        self._accounts.follow(jobs, _rounded(fractions), snapshot.time_s)
        grants = self._serve(jobs, self._accounts, snapshot)
        decision = decision_from_grants(snapshot, grants, rejected)
        if all(_has_all(job, grants, fractions[job.id], types) for job in jobs):
            decision.quiet_until_s = math.inf
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """Fraction and received time of each job by GPU type."""
        accounts = self._accounts
        if accounts is None:
            return {}
        known = [job for job in snapshot.jobs.values() if job.id in accounts.by_job]
        return {job.id: explain_gang(job, self._reason(accounts.by_job[job.id])) for job in known}

    def _reason(self, account: Account) -> str:
        """What a job is entitled to, what it received, and its best priority."""
        types = self._accounts.gpu_types if self._accounts else ()
        named = [
            f"{part:.0%} of the time on {gpu_type} ({account.received_s[index]:.0f} s received)"
            for index, (gpu_type, part) in enumerate(zip(types, account.fractions, strict=True))
            if part > 0
        ]
        priority = max((account.priority(index, self.round_s) for index in range(len(types))), default=0.0)
        return f"entitled to {' and '.join(named) or 'no time'}, priority {priority:.2g}"

    def dump_state(self) -> Any:
        """What jobs were entitled to and what they received."""
        return None if self._accounts is None else self._accounts.dump()

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        """Take up what ``dump_state`` gave."""
        self._accounts = Accounts.load(state)

    def _fractions(self, jobs: Sequence[JobState], snapshot: Snapshot) -> dict[str, Fractions]:
        """Fractions of time of each job, by GPU type."""
        kinds = {job.id: kind_of(job, _share(job, snapshot), snapshot) for job in jobs}
        problem = (dict(Counter(kinds.values())), capacity_of(snapshot))
        if self._solved is None or self._solved[0] != problem:
            self._solved = problem, max_min(*problem)
        return {job_id: self._solved[1][kind] for job_id, kind in kinds.items()}

    def _serve(self, jobs: Sequence[JobState], accounts: Accounts, snapshot: Snapshot) -> dict[str, Grant]:
        """Give GPUs away, first to the pairs of job and GPU type that are furthest behind."""
        by_id = accounts.by_job
        pairs = sorted(
            (part > 0, by_id[job.id].priority(index, self.round_s), part, -turn, -index)
            for turn, job in enumerate(jobs)
            for index, part in enumerate(by_id[job.id].fractions)
        )
        budget = GpuBudget(snapshot.gpus_by_type())
        grants: dict[str, Grant] = {}
        for _, _, _, turn, index in reversed(pairs):
            job, grant = jobs[-turn], Grant(jobs[-turn].spec.gpus.requested, accounts.gpu_types[-index])
            if (
                job.id not in grants
                and budget.left.get(grant.gpu_type, 0) >= grant.gpus
                and snapshot.speeds.rate(job, *grant) > 0
            ):
                budget.take(grant)
                grants[job.id] = grant
        return grants


def _share(job: JobState, snapshot: Snapshot) -> float:
    """Samples per second of equal time on all GPUs, for one of its GPUs."""
    return snapshot.speeds.rate(job, job.spec.gpus.requested) / job.spec.gpus.requested


def kind_of(job: JobState, need: float, snapshot: Snapshot) -> Kind:
    """A job whose gain is its throughput over ``need``."""
    gpus = job.spec.gpus.requested
    rates = (snapshot.speeds.rate(job, gpus, gpu_type) for gpu_type in snapshot.speeds.gpu_types)
    return Kind(tuple(rate / need for rate in rates), gpus)


def capacity_of(snapshot: Snapshot) -> list[int]:
    """GPUs that are up, by type."""
    up = snapshot.gpus_by_type()
    return [up.get(gpu_type, 0) for gpu_type in snapshot.speeds.gpu_types]


def _rounded(fractions: Mapping[str, Fractions]) -> dict[str, Fractions]:
    return {
        job_id: tuple(float(f"{part:.{_DIGITS}g}") for part in parts) for job_id, parts in fractions.items()
    }


def _has_all(job: JobState, grants: Mapping[str, Grant], fractions: Fractions, types: Sequence[str]) -> bool:
    """Whether a job has GPUs all of the time on the one type that it is entitled to."""
    grant = grants.get(job.id)
    return grant is not None and fractions[types.index(grant.gpu_type)] >= _WHOLE
