"""Nodes that are reserved for a time, as the cluster file and ``pliant reserve`` say.

From the notice on, jobs that may not run in a window get none of its nodes, and those that can save leave
them; the others may end there until it begins. Before that, no job that cannot save starts there unless it
will have ended by then, as far as is known. While a window for maintenance lasts, its nodes are drained. A
job excludes the nodes that it may not use, as if its file did, and one that has too few left waits, hidden.

Everything follows from the cluster and the time: a log says nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pliant.schemas.cluster import Cluster, NodeReservation
from pliant.schemas.job import Job
from pliant.schemas.text import listed
from pliant.tools.schedule.jobs import SAMPLES_WITHOUT_GPU, JobState
from pliant.tools.schedule.session.book import JobBook
from pliant.tools.schedule.session.cluster import ClusterNodes
from pliant.tools.schedule.session.hidden import HiddenJobs
from pliant.tools.schedule.session.maintenance import Maintenance
from pliant.tools.schedule.snapshot import Change

_NO_NODES: Final = frozenset[str]()


@dataclass(frozen=True, slots=True)
class Window:
    """A reservation on the clock of a session."""

    of: NodeReservation
    nodes: frozenset[str]
    close_s: float
    begin_s: float
    end_s: float

    def admits(self, job: Job, cluster: Cluster) -> bool:
        """Whether a job may run in it."""
        shares = cluster.shares
        return job.user in self.of.users or (shares is not None and shares.team_of(job) in self.of.teams)


class Windows:
    """The reservations of a session's cluster."""

    def __init__(
        self,
        cluster: ClusterNodes,
        book: JobBook,
        maintenance: Maintenance,
        hidden: HiddenJobs,
        *,
        rigid: bool,
    ) -> None:
        """:param rigid: the policy gives each job the GPUs that it requests."""
        self._cluster = cluster
        self._book = book
        self._maintenance = maintenance
        self._hidden = hidden
        self._rigid = rigid
        self._all: tuple[Window, ...] = ()
        # When something begins or ends next.
        self.next_s = math.inf
        self.set_origin(0.0)

    def set_origin(self, origin_s: float) -> None:
        """Dates are UTC, and the session's clock is behind that by ``origin_s``."""
        self._all = tuple(
            Window(each, frozenset(each.nodes), *each.on_clock(origin_s))
            for each in self._cluster.spec.reservations
        )
        self.next_s = -math.inf if self._all else math.inf

    @property
    def any(self) -> bool:
        """Whether the cluster has reservations, be they over or to come."""
        return bool(self._all)

    def pass_borders(self, now_s: float) -> None:
        """Drain and return the nodes of windows for maintenance that are closed or have ended.

        A node on which a job may end until the window begins is drained only then.
        """
        borders = [at_s for each in self._all for at_s in (each.close_s, each.begin_s, each.end_s)]
        self.next_s = min((at_s for at_s in borders if at_s > now_s), default=math.inf)
        staying = {name for job in self._book.active.values() if job.stays for name, _ in job.placement}
        wanted = _NO_NODES.union(
            *(
                each.nodes if now_s >= each.begin_s else each.nodes - staying
                for each in self._all
                if each.close_s <= now_s < each.end_s and each.of.is_maintenance
            )
        )
        for name in sorted(wanted - self._cluster.state.reserved.keys()):
            self._maintenance.reserve(name, now_s)
        for name in sorted(self._cluster.state.reserved.keys() - wanted):
            self._maintenance.return_reserved(name, now_s)

    # Which nodes jobs may not use.

    def confine(self, time_s: float) -> list[Change]:
        """Say which nodes jobs may not use from now on; returns what the policy is to see of that."""
        changes = []
        coming = [each for each in self._all if time_s < each.end_s]
        for job in [*self._book.active.values()]:
            nodes = frozenset(self._closed_to(job, coming, time_s))
            changed = nodes != self._cluster.confined.get(job.id, _NO_NODES)
            if changed:
                self._book.confine(job, nodes)
            room = max((job.room or {}).values(), default=0) if nodes and job.requested else math.inf
            waits, was_seen = room < self._least(job), not self._hidden.hides(job.id)
            if not changed and waits == (job.id in self._hidden.reserved):
                continue
            self._hidden.reserved.pop(job.id, None)
            if waits:
                self._hidden.reserved[job.id] = self.words(job)
            changes += [Change(time_s, "cancelled", job)] if was_seen else []
            changes += [] if self._hidden.hides(job.id) else [Change(time_s, "arrived", job)]
        return changes

    def release(self, job: JobState) -> None:
        """No window keeps a job that ends or changes from nodes, until the next decision."""
        if job.id in self._cluster.confined:
            self._book.confine(job, _NO_NODES)

    def _closed_to(self, job: JobState, coming: Iterable[Window], time_s: float) -> Iterator[str]:
        for window in coming:
            if not window.admits(job.spec, self._cluster.spec) and self._is_closed_to(job, window, time_s):
                yield from window.nodes

    def _is_closed_to(self, job: JobState, window: Window, time_s: float) -> bool:
        if time_s >= window.close_s:
            return time_s >= window.begin_s or not job.stays
        if not job.is_pinned or job.gpus:
            return False
        return time_s + self._longest_s(job, time_s) > window.close_s

    def _longest_s(self, job: JobState, time_s: float) -> float:
        """How long a waiting job runs at most, by its limit and its work; infinity: not known."""
        limits, speeds = job.spec.limits, self._cluster.speeds
        most_s = math.inf if limits is None or limits.run_seconds is None else limits.run_seconds
        left = None if job.is_speed_guessed else job.remaining_samples(time_s)
        if left is None:
            return most_s
        rates = [speeds.rate(job, self._least(job), kind) for kind in speeds.gpu_types if job.may_use(kind)]
        slowest = min((rate for rate in rates if rate > 0), default=0.0)
        slowest = slowest if job.requested else SAMPLES_WITHOUT_GPU
        return min(most_s, left / slowest) if slowest else most_s

    def _least(self, job: JobState) -> int:
        return job.requested if self._rigid else job.min_gpus

    def words(self, job: JobState) -> str:
        """Why a job waits that these windows keep from nodes."""
        names = self._cluster.confined.get(job.id, _NO_NODES)
        now_s = self._cluster.now_s
        who = [each.of.name for each in self._all if now_s < each.end_s and not each.nodes.isdisjoint(names)]
        which = "reservation" if len(who) == 1 else "reservations"
        return f"kept off {listed(sorted(names))} by {which} {', '.join(who)}"
