"""One attempt under way: its plans, its processes, deaths of workers, and the stages of a stop.

A gang says which plan it needs next; the executor publishes it, and then the gang switches to it.

:class:`Gang` is what all attempts have in common; two classes complete it:
:class:`~pliant.tools.run.service.elastic_gang.ElasticGang`, whose workers change while it trains, and
:class:`~pliant.tools.run.service.rigid_gang.RigidGang`, whose units stay as they were started.

A stop goes through stages, each with its own time: the plan says ``abort`` and the workers save and leave;
then SIGTERM; then SIGKILL, repeated until nothing is left. On a node that has to be left by a time
(:mod:`~pliant.tools.run.service.drain_notices`) the stages end with that time instead.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import ClassVar, Concatenate, Final, ParamSpec, TypeVar

from pliant.tools.profile.torchrun.start import last_lines, last_words
from pliant.tools.run.backends.protocol import Backend, Handle, UnitStatus
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.attempt_reports import AttemptReports
from pliant.tools.run.service.commands import aborted, assignment_of, next_plan
from pliant.tools.run.service.endings import Ending, broken, judge
from pliant.tools.run.service.members import GangMembers, WorkerFailure, slots_text
from pliant.tools.run.service.stop_stages import Stage, StopStages, Timeouts
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.plan import Member, Plan
from pliant.tools.run.statedir.contract.stacks import DUMP_GRACE_S, LastStacks

_TRACE_LINES: Final = 200
"""Lines at the end of a traceback in which its reason is looked for."""
_MORE_MEMORY: Final = (
    "; it would be again with as much: let it ask for more (--memory, or resources.worker.memory)"
)
_SENT: Final[dict[Stage, str]] = {"term": "SIGTERM", "kill": "SIGKILL"}
"""The signal that each stage of a stop sends."""
NextPlan = tuple[Plan, WorkerFailure | None]
"""Next plan of an attempt, and the slots that it does without."""
G = TypeVar("G", bound="Gang")
P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("pliant")


def as_its_user(work: Callable[Concatenate[G, P], T]) -> Callable[Concatenate[G, P], T]:
    """Work with the files of an attempt, which may be another account's."""

    @wraps(work)
    def done(gang: G, /, *args: P.args, **named: P.kwargs) -> T:
        with files_of(gang.handle.files):
            return work(gang, *args, **named)

    return done


class Gang(ABC):
    """The processes of one attempt, from their start until nothing of them is left."""

    writes_outcomes: ClassVar[bool]
    """Whether each worker writes how it ended."""
    reads: ClassVar[type[AttemptReports]]
    """Reader of its reports."""

    def __init__(
        self,
        handle: Handle,
        plan: Plan,
        target: Assignment,
        backend: Backend,
        *,
        timeouts: Timeouts,
        seen: int = 0,
    ) -> None:
        """:param seen: how many of its workers' events were read before."""
        self.handle = handle
        self.plan, self._workers = plan, plan.workers
        self.target = target
        self.files = handle.job_files
        self.statuses: tuple[UnitStatus, ...] = ()
        self._backend = backend
        self._timeouts = timeouts
        members = self._members = GangMembers(handle.files, plan)
        self._failure: WorkerFailure | None = None
        # Workers that were killed because they stood still.
        self._silenced = set[int]()
        self.reports = self.reads(handle, plan, seen, trains=members.trains() is not None)
        self.stages = StopStages(timeouts, partial(backend.stop, handle))
        self._at_break: tuple[UnitStatus, ...] = ()
        self._stacks = LastStacks(
            handle.files, lambda worker: str(members.slot(worker)), answers=self.writes_outcomes
        )
        # Units to kill, and when: their workers are asked for their stacks before.
        self._overdue: dict[int, float] = {}

    @property
    def stopping(self) -> bool:
        return self.stages.stage is not None

    @property
    def ended(self) -> bool:
        return all(status.state != "running" for status in self.statuses)

    @property
    @as_its_user
    def in_doubt(self) -> bool:
        """Whether a worker may stand still, which a few more looks would show."""
        return not self.stopping and not self.ended and self._members.in_doubt(self._timeouts)

    @property
    def starting(self) -> bool:
        """Whether this process is still to start one of its units."""
        return any(status.starting for status in self.statuses)

    @property
    def busy(self) -> set[Slot]:
        """Slots of its target, and all that its units run on, which may be more while it stops."""
        return set(self.target.slots) | self._slots_of(self._running)

    @property
    def leaving(self) -> set[Slot]:
        """Slots of units that still run although the plan goes on without their workers."""
        return self._slots_of(self._running.difference(self._workers))

    @property
    @abstractmethod
    def units(self) -> Sequence[int]:
        """The numbers of the units that its plan needs."""

    @abstractmethod
    def _slots_of(self, workers: Iterable[int]) -> set[Slot]:
        """Slots of workers beside those of the target."""

    def serves(self, target: Assignment | None) -> bool:
        """Whether it runs on exactly these slots with this cut of the batch, and is not stopping."""
        return (
            target is not None
            and not self.stopping
            and (target.slots == self.target.slots or set(target.slots) == set(self.target.slots))
            and target.allocation.cut == self.target.allocation.cut
        )

    @as_its_user
    def training(self) -> tuple[Plan | None, bool]:
        """The plan that its workers train under, None if they do not yet; and whether its script reports."""
        # looked at first: workers make known that they train before they report
        reports = self.handle.files.progress.exists()
        self._members.look()
        return self._members.trains(), reports

    @as_its_user
    def plan_to_stop(self, reason: str = "") -> Plan | None:
        """A plan to save and leave, with the reason for a relaunch. Returns None if it has one."""
        if self.plan.abort:
            return None
        self._members.look()
        trains = self._members.trains()
        members = self.plan.members if trains is None else trains.members
        return aborted(self.plan.model_copy(update={"members": members}), reason)

    def failure(self) -> WorkerFailure | None:
        """Slots on which new workers died since the last call."""
        failure, self._failure = self._failure, None
        return failure

    def plan_without(self, members: Sequence[Member], failure: WorkerFailure) -> NextPlan:
        """A plan to go on with these members; the failure names the slots that are left out."""
        trains = self._members.trains()
        old_size = trains is not None and {one.worker for one in members} == set(trains.workers)
        cut = trains.cut if trains is not None and old_size else self.plan.cut
        return next_plan(self.plan, members, cut), failure

    def switch_to(self, plan: Plan, failure: WorkerFailure | None = None) -> None:
        """Go on under a plan that its workers can read now, without the slots of a failure."""
        self.plan, self._workers = plan, plan.workers
        if not plan.abort:
            self.target = assignment_of(plan, self.target.job)
        self._members.add(plan)
        if failure is not None:
            self._failure = failure if self._failure is None else self._failure.and_also(failure)

    @as_its_user
    def stop(self, now_s: float) -> None:
        """Wait for the workers to save and leave; what reads no plans, or has not begun, gets SIGTERM now.

        :raises PliantError: a script cannot be asked.
        """
        leaves = self.reports.request_leave()
        waits = bool(self.statuses) and all(status.queued for status in self.statuses)
        self.stages.enter("abort" if leaves and not waits else "term", now_s)

    @as_its_user
    def watch(self, now_s: float) -> NextPlan | None:
        """Move on to the next stage when it is due; returns a plan to go on without workers that died.

        A worker that has ended well sets no deadline: rank 0 may evaluate for as long as it likes.
        """
        self._members.look()
        self._end_silent(now_s)
        self._end_lingering(now_s)
        if not self.stopping and any(status.memory and status.code for status in self.statuses):
            self._at_break = self._plan_units()  # the others have no more, and a new one would not either
            self.stages.enter("term", now_s, self._timeouts.broken_s)
        if not self.stopping and (rest := self._plan_without_lost(now_s)) is not None:
            return rest
        outcomes = self._members.outcomes()
        if not self.stopping and broken(self._plan_units(), outcomes):
            self._at_break = self._plan_units()
            self.stages.enter("term", now_s, self._timeouts.broken_s)
        elif not self.stopping and any(each.outcome == "stopped" for each in outcomes.values()):
            self.stages.enter("abort", now_s)
        elif self.stages.is_due(now_s):
            if not self._at_break:
                workers = self._running.intersection(self._workers)
                self._stacks.keep_answers(workers, "these workers were asked to stop, and did not")
            self.stages.go_on(now_s)
        elif self.stages.is_due_for_stacks(now_s):
            self._stacks.ask()
        return None

    @abstractmethod
    def _plan_without_lost(self, now_s: float) -> NextPlan | None:
        """A plan without workers that died. Returns None if none died, or the others cannot go on."""

    @abstractmethod
    def losses(self, now_s: float) -> list[tuple[tuple[Slot, ...], str]]:
        """The slots of workers that trained and are gone, with the reason; each worker once."""

    @abstractmethod
    def proven(self) -> set[Slot]:
        """Slots on which workers have trained long enough to be trusted, by the clock of their files."""

    @abstractmethod
    def end_left_over(self, nodes: Collection[str]) -> None:
        """Kill units on these nodes that the plan goes on without."""

    @as_its_user
    def verdict(self) -> Ending:
        """How it ended. Nothing of it is left after this."""
        self._backend.stop(self.handle, "kill")
        self._members.look()
        removed = not self.handle.files.plan(self.plan.generation).exists()
        taken = any(status.displaced for status in (*self._at_break, *self.statuses))
        signalled = taken or self.stages.stage in ("term", "kill")
        ending = judge(
            self._members.outcomes_with(self._plan_units()),
            self._plan_units(),
            ranks=len(self.plan.members),
            elastic=self.writes_outcomes,
            leaves=self.reports.leaves(self.target.job, asked=taken or self.plan.abort, signalled=signalled),
            stop_requested=self.plan.abort,
            at_break=self._at_break,
            words=lambda place: "" if removed else self._last_words(place),
            trace=self._last_lines,
            sent=_SENT.get(self.stages.stage or "abort", ""),
        )
        if ending.samples_done is None:
            ending = replace(ending, samples_done=self.reports.samples_done)
        if removed and ending.end == "failed":
            ending = replace(ending, message=f"{ending.message}; its folder was removed while it ran")
        killed = next((status.memory for status in self.statuses if status.memory and status.code), None)
        if ending.end == "failed" and killed is not None:
            ending = replace(ending, message=f"{killed}{_MORE_MEMORY}", by_itself=True, is_final=True)
        if ending.message and self._stacks.kept is not None:
            ending = replace(ending, message=f"{ending.message}{self._stacks.words}")
        return ending

    @abstractmethod
    def _plan_units(self) -> tuple[UnitStatus, ...]:
        """The units of the plan's workers; one that is still to be started counts as running."""

    def _last_words(self, place: int) -> str:
        """The last words on stderr of a unit of the plan."""
        unit, files = self.units[place], self.handle.files
        return last_words(files.worker_errors(unit), files.launcher_log(unit)) or "nothing on stderr"

    def _last_lines(self) -> list[str]:
        """The last lines on stderr of the worker that failed first."""
        files = self.handle.files
        errors = [path for unit in range(len(self.statuses)) for path in files.worker_errors(unit)]
        return last_lines(errors, most=_TRACE_LINES)

    def _end_silent(self, now_s: float) -> None:
        """Kill workers that stand still. They count as lost even if a dead host keeps the kill from them."""
        silent = self._members.listen(now_s, self._timeouts)
        if silent:
            self._silenced |= silent
            slots = [self._members.slot(worker) for worker in sorted(silent)]
            where = self._stacks.keep(silent, "these workers stood still, and were killed")
            _log.warning(
                "job %s: the workers on %s stand still: killed%s", self.handle.job, slots_text(slots), where
            )
            self._backend.stop(self.handle, "kill", silent)

    def _end_lingering(self, now_s: float) -> None:
        """Kill launchers that outlive their workers, and workers that should have left."""
        for unit in self._members.overdue(self._idle, now_s):
            may_answer = self._stacks.answers and self._members.life(unit) == "alive"
            if may_answer and unit not in self._overdue:
                self._stacks.ask()
            self._overdue.setdefault(unit, now_s + (DUMP_GRACE_S if may_answer else 0.0))
        due = [unit for unit, kill_s in self._overdue.items() if now_s >= kill_s]
        overdue = [unit for unit in due if unit in self._running]
        for unit in due:
            del self._overdue[unit]
        if overdue:
            where = self._places(overdue)
            kept = self._stacks.keep_answers(overdue, "these workers had nothing left to do, and did not end")
            _log.warning("job %s: processes on %s do not end: killed%s", self.handle.job, where, kept)
            self._backend.stop(self.handle, "kill", overdue)

    @abstractmethod
    def _idle(self) -> dict[int, float]:
        """Units that have nothing to do any more, and the seconds that each may take to end."""

    @abstractmethod
    def _places(self, units: Iterable[int]) -> str:
        """Where units are, as text."""

    @property
    def _running(self) -> set[int]:
        return {number for number, unit in enumerate(self.statuses) if unit.state == "running"}
