"""From a snapshot to jobs with several resources that take part, and from sizes back to a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import Grant, decision_from_grants
from pliant.tools.schedule.policies.multi_resource.fleet import Active
from pliant.tools.schedule.policies.multi_resource.nodes import Nodes
from pliant.tools.schedule.policies.multi_resource.rules import Holdings
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Member:
    """A job that takes part, and the GPU type that it takes part on."""

    job: JobState
    active: Active
    gpu_type: str


class View:
    """The servers of a snapshot, and its jobs as those of the rules."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes = Nodes(snapshot.nodes)
        self.servers = self._nodes.now()
        self._of_type = {kind: self._nodes.of_type(kind) for kind in snapshot.gpus_by_type()}

    def members(self, jobs: Sequence[JobState], *, requested: bool = False) -> list[Member]:
        """Jobs that run on a type, each on the one that it holds or on the emptiest of those it runs on.

        :param requested: at the requested size alone.
        """
        load = dict.fromkeys(self._of_type, 0)
        gpus = self._snapshot.gpus_by_type()
        found = []
        places = {job.id: place for place, job in enumerate(sorted(jobs, key=lambda job: job.arrival))}
        for job in sorted(jobs, key=lambda job: (not job.gpus, job.arrival)):
            least = job.spec.gpus.requested if requested else job.spec.min_gpus
            kinds = [job.gpu_type] if job.gpus and job.gpu_type in gpus else self._runs_on(job, least, gpus)
            if kinds:
                kind = min(
                    kinds, key=lambda kind: ((load[kind] + least) / max(1, gpus[kind]), kinds.index(kind))
                )
                load[kind] += least
                active = self._active(job, kind, least, places[job.id], requested=requested)
                found.append(Member(job, active, kind))
        return found

    def decision(self, members: Sequence[Member], holdings: Holdings, rejected: dict[str, str]) -> Decision:
        """The sizes of these holdings; the placement step chooses nodes, and a running job keeps its own."""
        grants = {}
        for member in members:
            placed = holdings.get(member.job.id)
            size = self._feasible(member, placed.size) if placed else 0
            if size:
                grants[member.job.id] = Grant(size, member.gpu_type)
        return decision_from_grants(self._snapshot, grants, rejected)

    def _runs_on(self, job: JobState, least: int, gpus: Mapping[str, int]) -> list[str]:
        """Types, the fastest first."""
        rates = [
            (-self._snapshot.speeds.rate(job, least, kind), kind) for kind in gpus if gpus[kind] >= least
        ]
        return [kind for rate, kind in sorted(rates) if rate < 0]

    def _feasible(self, member: Member, size: int) -> int:
        """The largest size up to this one at which the job runs; 0: none."""
        sizes = range(size, member.active.bid.least_workers - 1, -1)
        rate = self._snapshot.speeds.rate
        return next((each for each in sizes if rate(member.job, each, member.gpu_type) > 0), 0)

    def _active(self, job: JobState, kind: str, least: int, place: int, *, requested: bool) -> Active:
        total = self._snapshot.speeds.gpu_types[kind]
        most = least if requested else max(least, job.max_gpus(total))
        bid = replace(
            self._nodes.demands(job),
            arrival=place,
            work=most,
            most_workers=most,
            least_workers=least,
            servers=self._of_type[kind],
        )
        return Active(bid, most, job.spec.gpus.requested, self._nodes.holding(job))
