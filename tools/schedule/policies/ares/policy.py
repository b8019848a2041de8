"""Ares: elastic fair queuing. Serve jobs in the order in which equal sharing would have finished them.

Ares (ACM TACO 2025), sections 3 and 4; symbols as there. :class:`VirtualTime` is the reference system, GPS,
which gives each job its virtual finish time F; :mod:`allocation` gives GPUs out in order of F, within the
sizes that scaling control allows; :mod:`unknown_demand` serves jobs of unknown demand. Departures from the
paper: sizes that are not powers of two where that keeps the cluster busy (see :mod:`allocation`); decisions
at every event instead of every 60 s. GPS shares all GPUs that are up, those of the pool included. A job that
no GPU type can run at any of its sizes is rejected and takes no share of GPS.

On mixed types a waiting job takes the type on which it is fastest then; a running job stays on its type as
long as that offers at least the size it holds, however fast another one is: each move costs a rescale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from pliant.schemas.errors import UsageError
from pliant.tools.schedule.demand import demand_gpu_s, sizes_below
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.ares.allocation import (
    Free,
    Queue,
    QueuedJob,
    SizesByJob,
    consolidations,
)
from pliant.tools.schedule.policies.ares.unknown_demand import Share, UnknownDemand, explain_unknown
from pliant.tools.schedule.policies.common import reject_impossible
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.runinfo import PromisedBounds

_WITHDRAWN = ("cancelled", "failed", "rejected")
"""Ends that equal sharing would have seen as well; a job that finished stays in GPS until its F."""


class Ares(Policy):
    """Least mean JCT under a bounded delay against equal sharing (elastic fair queuing).

    alpha: the least efficiency per GPU, relative to the requested size, that a job may grow to (section 3.3).
    pool: GPUs for jobs of unknown demand while there are any: a number, or a fraction below one of all.
    compact_s: seconds that moving a running job costs; with it, an otherwise quiet decision gathers jobs on
    fewer nodes where they end the sooner for it. Off unless given.

    Reasons name F, when equal sharing would have finished the job. The smallest F goes first, so a later job
    that is shorter may take GPUs from an earlier one.

    Late changes are applied at the time of the last change already seen: what GPS has served stays served, so
    the state depends on the log alone.
    """

    name: ClassVar[str] = "ares"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        priority_means="",
        weight_means="a job of weight 2 has the fair share of two jobs",
        unknown_work="gives such jobs equal shares of its pool, whichever came first",
        elasticity="size",
    )

    def __init__(self, alpha: float = 0.75, pool: float = 0.1, compact_s: float | None = None) -> None:
        if not 0 < alpha <= 1:
            raise UsageError(f'policy "ares": alpha {alpha:g} is not above 0 and at most 1')
        if not (0 < pool < 1 or (pool >= 1 and pool == int(pool))):
            raise UsageError(
                f'policy "ares": pool {pool:g} is neither a number of GPUs nor a fraction below 1'
            )
        if compact_s is not None and compact_s < 0:
            raise UsageError(f'policy "ares": compact_s {compact_s:g} is not a number of seconds')
        self.alpha = alpha
        self.pool = pool
        self.compact_s = compact_s
        self._gps = VirtualTime()
        # F of the active jobs of known demand.
        self._finish: dict[str, float] = {}
        # Made from the active jobs at the first decision, then kept up to date by the changes.
        self._queue: Queue | None = None
        # Those of the session; `_queue` was made for them.
        self._speeds: Speeds | None = None
        self._unknown: dict[str, JobState] = {}
        self._up: Free = ()
        # Jobs whose state may differ from what the queue last said.
        self._look_again: list[str] = []
        # Whether jobs have come for which that is to be found out.
        self._some_may_never_run = False

    @property
    def bounds(self) -> PromisedBounds:
        """Section 3.4: no job ends later than in GPS by more than (1/α − 1) · 𝓛."""
        from pliant.schemas.runinfo import PromisedBounds

        return PromisedBounds(gps_delay=1 / self.alpha - 1)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        queue = self._follow(snapshot)
        rejected = self._reject(snapshot, queue) if self._some_may_never_run else {}
        for job_id in self._look_again:
            entry = queue.by_id.get(job_id)
            if entry is not None and self._target(entry.job, entry.kind, entry.gpus, queue.sizes.gpu_types):
                queue.mark_stale(entry)
        shares, capacity = self._capacity(snapshot, queue)
        targets = self._targets(snapshot, queue.allocate(capacity), shares, queue.sizes.gpu_types)
        if self.compact_s is not None and not targets:
            targets = consolidations(snapshot, [entry.job for entry in queue.entries], self.compact_s)
        self._look_again = list(targets)
        outlasts_ends = queue.has_enough and not self._unknown and self.compact_s is None
        return Decision(targets, rejected, outlasts_ends=outlasts_ends)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        if self._queue is None:
            return {}
        return self._queue.explain() | explain_unknown(self._unknown.values())

    def dump_state(self) -> dict[str, Any]:
        return {
            "time_s": self._gps.time_s,
            "virtual": self._gps.virtual,
            "gps": dict(sorted(self._gps.active.items())),
            "jobs": dict(sorted(self._finish.items())),
            **({"weights": dict(sorted(self._gps.weights.items()))} if self._gps.weights else {}),
        }

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._gps = VirtualTime(state["time_s"], state["virtual"], state["gps"], state.get("weights"))
        self._finish = dict(state["jobs"])
        self._queue = None

    def _reject(self, snapshot: Snapshot, queue: Queue) -> dict[str, str]:
        """Turn away the jobs that no GPU type can run; returns why."""
        self._some_may_never_run = False
        rejected = reject_impossible(snapshot, lambda job: _all_sizes(job, snapshot.speeds))
        for job_id in rejected:
            queue.remove(job_id)
            self._unknown.pop(job_id, None)
        return rejected

    def _follow(self, snapshot: Snapshot) -> Queue:
        """Take up what has changed since the last decision; returns the queue as it is now."""
        gps, speeds = self._gps, snapshot.speeds
        queue = self._queue if self._speeds is speeds else None
        jobs, changes = snapshot.jobs, snapshot.changes
        gpus = snapshot.total_gpus - sum([gained for _, _, _, _, gained in changes])
        for time_s, kind, job, _, gained in changes:
            if gained:
                gps.advance(time_s, gpus)
                gpus += gained
                self._up = ()
            if job is None:
                continue
            if kind == "arrived":
                if job.known_samples is not None:
                    gps.advance(time_s, gpus)
                    self._finish[job.id] = gps.enter(job.id, demand_gpu_s(job, speeds), job.spec.weight)
                if queue is not None and job.id in jobs:
                    self._enter(queue, job)
            elif kind == "lost" and queue is not None:
                self._look_again.append(job.id)
            elif kind == "finished" or kind in _WITHDRAWN:
                if kind != "finished":
                    gps.advance(time_s, gpus)
                    gps.leave(job.id)
                self._finish.pop(job.id, None)
                if queue is not None:
                    self._unknown.pop(job.id, None)
                    queue.remove(job.id)
        if queue is None:
            self._speeds, queue = speeds, self._new_queue(snapshot)
            self._queue = queue
        return queue

    def _enter(self, queue: Queue, job: JobState) -> None:
        finish = self._finish.get(job.id)
        if finish is None:
            self._unknown[job.id] = job
        if finish is None or not queue.add(finish, job).can_run:
            self._some_may_never_run = True

    def _new_queue(self, snapshot: Snapshot) -> Queue:
        self._up, self._some_may_never_run = (), True
        known = [(self._finish[i], job) for i, job in snapshot.jobs.items() if i in self._finish]
        self._unknown = {i: job for i, job in snapshot.jobs.items() if i not in self._finish}
        return Queue(self._sizes(snapshot.speeds), known)

    def _sizes(self, speeds: Speeds) -> SizesByJob:
        return SizesByJob(speeds, self.alpha)

    def _batch(self, job: JobState, gpu_type: str, gpus: int) -> int:
        del gpu_type, gpus
        return job.reference_batch

    def _targets(
        self,
        snapshot: Snapshot,
        entries: Iterable[QueuedJob],
        shares: Mapping[str, Share],
        gpu_types: Sequence[str],
    ) -> dict[str, Target]:
        """What differs from what jobs hold: those of the queue in its order, then those of the pool."""
        changed = []
        for entry in entries:
            target = self._target(entry.job, entry.kind, entry.size + entry.extra, gpu_types)
            if target is not None:
                changed.append((entry.key, entry.job.id, target))
        if len(changed) > 1:
            changed.sort()
        targets = {job_id: target for _, job_id, target in changed}
        for job_id, (kind, gpus) in shares.items():
            target = self._target(snapshot.jobs[job_id], kind, gpus, gpu_types)
            if target is not None:
                targets[job_id] = target
        return targets

    def _target(self, job: JobState, kind: int, gpus: int, gpu_types: Sequence[str]) -> Target | None:
        """Returns None if the job holds that already."""
        if not gpus:
            return Target(0) if job.gpus else None
        gpu_type = gpu_types[kind]
        batch = self._batch(job, gpu_type, gpus)
        if gpus == job.gpus and gpu_type == job.gpu_type and batch == job.global_batch:
            return None
        return Target(gpus, gpu_type, batch)

    def _capacity(self, snapshot: Snapshot, queue: Queue) -> tuple[Mapping[str, Share], Free]:
        """Shares of the pool's jobs, and the GPUs that remain for the queue, by type."""
        if not self._up:
            up = snapshot.gpus_by_type()
            self._up = tuple(up.get(gpu_type, 0) for gpu_type in queue.sizes.gpu_types)
        if not self._unknown:
            return {}, self._up
        unknown = sorted(self._unknown.values(), key=lambda job: job.arrival)
        shares = UnknownDemand(self.pool, snapshot.speeds).share(unknown, self._up, alone=not queue.entries)
        left = list(self._up)
        for kind, gpus in shares.values():
            if gpus:
                left[kind] -= gpus
        return shares, tuple(left)


def _all_sizes(job: JobState, speeds: Speeds) -> Iterable[int]:
    """All sizes that a job may get, tried in order."""
    if job.known_samples is not None:
        return chain((job.requested,), sizes_below(job))
    least, most = job.min_gpus, max(speeds.gpu_types.values(), default=0)
    return reversed(job.spec.gpus.between(least, max(least, job.max_gpus(most))))


class VirtualTime:
    """Generalized processor sharing (GPS) in virtual time, the reference system: Ares, section 3.2.

    ``M`` GPUs are shared equally and without limit of divisibility by the ``N(t)`` jobs active *in GPS*.
    Virtual time grows by ``dV/dt = M/N(t)`` and stands still while no job (or no GPU) is there. A job of
    demand ``L`` that arrives at ``a`` gets the virtual finish time ``F = V(a) + L`` and leaves when ``V``
    reaches it. A job of weight ``w`` counts as ``w`` jobs: ``N(t)`` is the sum of all weights, and ``F`` is
    ``V(a) + L/w``.

    ``V`` is advanced only at events that change its slope, so asking in between leaves not even a rounding
    error in the state.
    """

    def __init__(
        self,
        time_s: float = 0.0,
        virtual: float = 0.0,
        active: Mapping[str, float] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        # Real time up to which `virtual` is known, seconds.
        self.time_s = time_s
        # V at `time_s`, GPU-seconds.
        self.virtual = virtual
        # F of the jobs that are active in GPS, by id.
        self.active: dict[str, float] = dict(active or {})
        # Of the active jobs that have another weight than 1.
        self.weights: dict[str, float] = dict(weights or {})
        self._heap = [(finish, job_id) for job_id, finish in self.active.items()]
        heapify(self._heap)

    def advance(self, to_s: float, gpus: int) -> list[tuple[float, str]]:
        """Go on to the real time ``to_s`` with ``gpus`` GPUs; returns (real time, id) of the departures.

        A time before ``time_s`` is taken as ``time_s``.
        """
        departures: list[tuple[float, str]] = []
        while self._heap and gpus and to_s > self.time_s:
            finish, job_id = self._heap[0]
            if self.active.get(job_id) != finish:  # withdrawn, and perhaps back with another F
                heappop(self._heap)
                continue
            share = gpus / self._weight
            leaves_s = self.time_s + (finish - self.virtual) / share
            if leaves_s > to_s:
                self.virtual = min(finish, self.virtual + (to_s - self.time_s) * share)
                break
            heappop(self._heap)
            self.leave(job_id)
            self.time_s, self.virtual = leaves_s, finish
            departures.append((leaves_s, job_id))
        self.time_s = max(self.time_s, to_s)
        return departures

    @property
    def _weight(self) -> float:
        """That of all active jobs."""
        if not self.weights:
            return len(self.active)
        return len(self.active) - len(self.weights) + math.fsum(self.weights.values())

    def enter(self, job_id: str, demand_gpu_s: float, weight: float = 1.0) -> float:
        """Returns the virtual finish time of a job that arrives now."""
        finish = self.virtual + demand_gpu_s / weight
        if weight != 1.0:
            self.weights[job_id] = weight
        self.active[job_id] = finish
        heappush(self._heap, (finish, job_id))
        return finish

    def leave(self, job_id: str) -> None:
        """A job ends before its time (cancelled, failed); does nothing if GPS has served it already."""
        self.active.pop(job_id, None)
        self.weights.pop(job_id, None)
