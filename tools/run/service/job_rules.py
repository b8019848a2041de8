"""The rules about jobs that run, applied: which are warned of, end, shrink or move."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.tools.run.backends.protocol import NodeInfo
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.reports import Report, idle_event, straggler_event
from pliant.tools.run.service.rules import IdleWatch, StepParts, Straggler, StragglerWatch
from pliant.tools.run.statedir.contract.liveness import use_of
from pliant.tools.run.statedir.log.events import cancel_event, timeout_event
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.schedule.session.quarantine import node_of
from pliant.tools.schedule.session.session import Session

LIMITS_LOOK_S: Final = 0.5
"""Seconds between two checks of the limits of jobs."""
SHRUNK_S: Final = 3600.0
"""Seconds for which an idle job keeps its smallest size."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What follows from a rule."""

    notes: Sequence[Event] = ()
    """Events by which no job changes."""
    end: Event | None = None
    """Event that ends a job."""
    report: Report | None = None
    """Report of a job that has other slots now."""


class JobRules:
    """Limits of jobs, and the cluster's rules about idle jobs and stragglers.

    :param clock: UTC seconds, as in the log.
    :param moves: whether jobs may leave the slots of stragglers.
    """

    def __init__(
        self,
        cluster: Cluster,
        session: Session,
        executor: Executor,
        clock: Callable[[], float],
        *,
        moves: bool,
    ) -> None:
        self._session = session
        self.executor = executor
        self._clock = clock
        self._moves = moves
        idle, slow = cluster.idle, cluster.stragglers
        self._idle_watch = None if idle is None else IdleWatch(idle)
        self._stragglers = None if slow is None else StragglerWatch(slow)
        # When limits are looked at again.
        self._limits_s = 0.0

    def timeouts(self, log: RunLog) -> list[Event]:
        """The ends of jobs that have reached a limit of their own."""
        now = self._clock()
        if now < self._limits_s:
            return []
        self._limits_s = now + LIMITS_LOOK_S
        limits = ((job_id, *job.next_limit(now)) for job_id, job in log.active.items() if job.job.limits)
        return [timeout_event(job_id, now, reason) for job_id, at_s, reason in limits if at_s <= now]

    def apply(self, log: RunLog) -> Iterator[RuleResult]:
        """What follows from the cluster's rules; the caller carries out each before it takes the next."""
        yield from self._of_idle_jobs()
        yield from self._of_stragglers(log)

    def _of_idle_jobs(self) -> Iterator[RuleResult]:
        watch, now_s = self._idle_watch, time.monotonic()
        if watch is None or not watch.is_due(now_s):
            return
        gangs = self.executor.gangs
        places = {job_id: frozenset(gang.target.slots) for job_id, gang in gangs.items()}
        for idle in watch.look(self.used(), now_s, places):
            job_id, then = idle.job_id, watch.rule.then if idle.for_s else "warn"
            if then == "end":
                words = f"ended by the rule about idle jobs: {idle.words}"
                yield RuleResult(end=cancel_event(job_id, self._clock(), words))
                continue
            words = f"shrunk by the rule about idle jobs: {idle.words}"
            targets = self.executor.targets
            report = targets.shrink_idle(job_id, words, SHRUNK_S) if then == "shrink" else None
            if report is not None:
                watch.forget(job_id)
                yield RuleResult(report=report)
            else:
                yield RuleResult([idle_event(job_id, self._clock(), idle)])

    def used(self) -> dict[str, float | None]:
        """The part of its slots that each job uses that trains; None where that is not known."""
        used, executor = dict[str, float | None](), self.executor
        for job_id, gang in executor.gangs.items():
            if gang.serves(executor.targets.get(job_id)) and not gang.target.job.on_cpus:
                slots = gang.target.slots
                use = use_of(gang.handle.files, gang.units)
                has_gpus = executor.nodes[slots[0].node].devices is not None
                used[job_id] = None if use is None else use.of_slots(len(slots), gpus=has_gpus)
        return used

    def _of_stragglers(self, log: RunLog) -> Iterator[RuleResult]:
        watch, now_s = self._stragglers, time.monotonic()
        if watch is None or not watch.is_due(now_s):
            return
        changed = watch.look(self._step_parts(log), now_s)
        yield RuleResult([straggler_event(self._clock(), each) for each in changed])
        if watch.rule.then == "move" and self._moves and self.executor.backend.in_place:
            for straggler in watch.named:
                if straggler.has_peers:
                    yield from self._move_off(straggler, log)

    def _step_parts(self, log: RunLog) -> Iterator[StepParts]:
        """What the workers of settled jobs need of a step, where that is known."""
        for job_id, gang in self.executor.gangs.items():
            progress = log.newest.get(job_id)
            if progress is not None and gang.serves(self.executor.targets.get(job_id)):
                parts = StepParts.of(gang.plan, progress)
                if parts is not None:
                    yield parts

    def _move_off(self, straggler: Straggler, log: RunLog) -> Iterator[RuleResult]:
        """A job leaves the slot of a straggler, once in its life, if another one is free."""
        job, session = self._session.jobs.get(straggler.job_id), self._session
        if job is None or log.jobs[straggler.job_id].use.straggled:
            return
        hidden, slow = session.quarantine.hidden_from(job.id), node_of(straggler.slot)
        free = {
            node.name: session.cluster.free.free_on(node.name) - hidden.get(node.name, 0)
            for node in session.cluster.nodes
            if node.gpu_type == job.gpu_type and node.name not in session.cluster.drained
        }
        own, nodes = dict(job.placement), self.executor.nodes
        names = sorted(
            (name for name, count in free.items() if count > 0),
            key=lambda name: (name != slow, name not in own, free[name], name),
        )
        slots = (slot for name in names for slot in _slots_on(nodes[name]))
        report = self.executor.targets.move_off(job.id, straggler.slot, slots, straggler.words)
        if report is not None:
            yield RuleResult(report=report)


def _slots_on(node: NodeInfo) -> Iterator[Slot]:
    return (Slot(node.name, index) for index in range(node.gpus))
