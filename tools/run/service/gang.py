"""One attempt under way: its plans, its processes, deaths of workers, and the stages of a stop.

A gang says which plan it needs next; the executor publishes it, and then the gang takes it up.

While it trains, a newer plan changes its workers (:func:`~pliant.tools.run.service.allocation.way_to`). New
workers that live are waited for indefinitely. A worker that dies without a word, or stands still for too
long, is left out of the next plan at once, even if it cannot be killed because its host is dead. If the
others cannot go on, they are ended, too, and the attempt has failed. A slot on which new workers die is
reported as a setback.

A stop goes through stages, each with its own time: the plan says ``abort`` and the workers save and leave;
then SIGTERM; then SIGKILL, repeated until nothing is left.

A node may have to be left by a time (``pliant drain NODE --within 90s``). Jobs leave it at the next decision,
as after any drain that is to take effect at once: elastic ones in place, the others stop with a checkpoint.
What still runs there after half of the time stops, too, whatever it waits for. A stop has what is left:
SIGTERM comes shortly before the end, and SIGKILL not before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import chain, islice
from typing import Concatenate, Final, ParamSpec, TypeVar

from pliant.schemas.event import Event
from pliant.tools.profile.torchrun.start import ERROR_LINE, last_lines, last_words
from pliant.tools.run.backends.protocol import Backend, Handle, UnitStatus
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import aborted, assignment_of, by_torchrun, groups_of, next_plan
from pliant.tools.run.service.members import (
    YOUNG_S,
    Ending,
    GangMembers,
    Lifetimes,
    Stage,
    Timeouts,
    WorkerFailure,
    broken,
    describe,
    judge,
    slots_text,
)
from pliant.tools.run.service.stacks import SOON_S, LastStacks
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.plan import (
    LOST_PEER,
    Member,
    Plan,
    Progress,
    ProgressFile,
    ask_to_stop,
    write_progress,
)
from pliant.tools.run.statedir.log.fold import Drain
from pliant.tools.run.statedir.log.worker_reports import ScriptReports, Tail

SHARE_IN_PLACE: Final = 1 / 2
"""Of the time of a notice: for jobs to leave the node while they train."""
SHARE_OF_TERM: Final = 1 / 6
"""From SIGTERM to the end."""
LONGEST_TERM_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Notice:
    """When what happens to what runs on a node, by a clock that cannot be set."""

    stop_s: float
    """What is still there then saves and leaves."""
    term_s: float
    """What has not left then gets SIGTERM."""
    over_s: float
    """Nothing may be there any more."""

    @classmethod
    def of(cls, drain: Drain, until_s: float, now_utc_s: float, now_s: float) -> Notice:
        """:param until_s: the end by the clock of the log, whose time is ``now_utc_s``."""
        over_s, whole_s = now_s + until_s - now_utc_s, max(0.0, until_s - drain.since_s)
        term_s = over_s - min(LONGEST_TERM_S, whole_s * SHARE_OF_TERM)
        return cls(over_s - whole_s * (1 - SHARE_IN_PLACE), term_s, over_s)

    def and_also(self, other: Notice) -> Notice:
        """The earlier times of two."""
        return Notice(
            min(self.stop_s, other.stop_s), min(self.term_s, other.term_s), min(self.over_s, other.over_s)
        )


class Notices:
    """The notices in force, by node."""

    def __init__(self) -> None:
        self._drains: Mapping[str, Drain] = {}
        self.by_node: dict[str, Notice] = {}

    def update(self, drains: Mapping[str, Drain], now_utc_s: float, now_s: float) -> bool:
        """Take up which nodes are drained now; a notice that is known keeps its times.

        Of one that is over before it is heard only the drain is left: jobs have the usual time to stop.

        Returns whether a notice came or went.
        """
        found = {name: drain for name, drain in drains.items() if drain.until_s is not None}
        if found == self._drains:
            return False
        before, self.by_node = self.by_node, {}
        for name, drain in found.items():
            until_s = drain.until_s or 0.0
            if name in before and self._drains.get(name) == drain:
                self.by_node[name] = before[name]
            elif until_s > now_utc_s:
                self.by_node[name] = Notice.of(drain, until_s, now_utc_s, now_s)
        self._drains = found
        return True

    def of(self, nodes: Iterable[str]) -> Notice | None:
        """The notice for what runs on these nodes. Returns None if it may stay."""
        found: Notice | None = None
        for name in nodes:
            notice = self.by_node.get(name)
            if notice is not None:
                found = notice if found is None else found.and_also(notice)
        return found

    def late(self, now_s: float) -> dict[str, str]:
        """Nodes that jobs have had time to leave in place, and why, as the end of a sentence."""
        return {
            name: f"is to be left: {self._drains[name].user} has ordered it"
            for name, notice in self.by_node.items()
            if now_s >= notice.stop_s
        }


_TRACE_LINES: Final = 200
"""Lines at the end of a traceback in which its reason is looked for."""
_MORE_MEMORY: Final = (
    "; it would be again with as much: let it ask for more (--memory, or resources.worker.memory)"
)
_SENT: Final[Mapping[Stage, str]] = {"term": "SIGTERM", "kill": "SIGKILL"}
"""The signal that each stage of a stop sends."""
EXIT_CODE_S: Final = 5.0
"""How long the exit code of a worker that is gone is waited for."""
NextPlan = tuple[Plan, WorkerFailure | None]
"""A plan that an attempt shall go on under, and the slots that it does without."""
P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("pliant")


def _as_its_user(work: Callable[Concatenate[Gang, P], T]) -> Callable[Concatenate[Gang, P], T]:
    """Work with the files of an attempt, which may be another account's."""

    @wraps(work)
    def done(gang: Gang, /, *args: P.args, **named: P.kwargs) -> T:
        with files_of(gang.handle.files):
            return work(gang, *args, **named)

    return done


class Gang:
    """The processes of one attempt, from their start until nothing of them is left."""

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
        self.tail = Tail(handle.files.progress, skip=seen)
        self.progress = ProgressFile(self.files.progress)
        # Reads the reports of a script that writes no events of its own.
        self.script: ScriptReports | None = None
        if not target.job.changes_in_place:
            before = None if seen else ProgressFile(self.files.progress).fresh()
            self.script = ScriptReports(plan, started=seen > 0, before=before)
        self.statuses: tuple[UnitStatus, ...] = ()
        self._backend = backend
        self._timeouts = timeouts
        members = self._members = GangMembers(handle.files, plan)
        self._setback: WorkerFailure | None = None
        # Workers that trained and are gone, and since when, until that is reported.
        self._gone: dict[int, float] = {}
        # Workers that were killed because they stood still.
        self._silenced = set[int]()
        self._reported_generation = plan.generation if self._members.trains() is None else 0
        told = Tail(handle.files.progress)
        for event in islice(chain.from_iterable(iter(told.read, [])), seen):
            self.settles(event)
        self._stage: Stage | None = None
        self._deadline_s = self._ask_s = float("inf")
        self._notice: Notice | None = None
        self._at_break: tuple[UnitStatus, ...] = ()
        self._lifetimes = Lifetimes()
        self._stacks = LastStacks(handle.files, lambda worker: str(members.slot(worker)))
        # Units that are to be killed, and when: their workers are asked for their stacks before.
        self._overdue: dict[int, float] = {}

    @property
    def stopping(self) -> bool:
        return self._stage is not None

    @property
    def ended(self) -> bool:
        return all(status.state != "running" for status in self.statuses)

    @property
    @_as_its_user
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
    def units(self) -> Sequence[int]:
        """The numbers of the units that its plan needs."""
        return self._workers if self.target.job.changes_in_place else range(len(self.statuses))

    def _slots_of(self, workers: Iterable[int]) -> set[Slot]:
        """Where workers are; units whose workers do not change stay where they began."""
        if not self.target.job.changes_in_place:
            return set()
        return {self._members.slot(worker) for worker in workers}

    def serves(self, target: Assignment | None) -> bool:
        """Whether it runs on exactly these slots with this cut of the batch, and is not stopping."""
        return (
            target is not None
            and not self.stopping
            and (target.slots == self.target.slots or set(target.slots) == set(self.target.slots))
            and target.allocation.cut == self.target.allocation.cut
        )

    @_as_its_user
    def new_events(self) -> list[Event]:
        """What its workers have said since the last call."""
        return self.tail.read()

    @_as_its_user
    def reported(self) -> Progress | None:
        """Their newest report, if there is a new one."""
        return self.progress.fresh()

    @_as_its_user
    def training(self) -> tuple[Plan | None, bool]:
        """The plan that its workers train under, None if they do not yet; and whether its script reports."""
        # looked at first: workers make known that they train before they report
        reports = self.handle.files.progress.exists()
        self._members.look()
        return self._members.trains(), reports

    @_as_its_user
    def said(self, found: Progress) -> list[Event]:
        """The events of a new report, if its script writes none of its own."""
        if self.script is None or self.handle.files.progress.exists():
            return []
        return self.script.events(found, self.progress.written_s or 0.0)

    @_as_its_user
    def lost_work(self) -> tuple[Progress, Event] | None:
        """The report and the event that put a script back to its last save. Returns None if nothing is lost.

        :raises OSError: the report cannot be written.
        """
        left = None if self.script is None else self.script.rewound()
        if left is None or self.script is None:
            return None
        write_progress(self.files.progress, left)
        return left, self.script.loss(left, self.progress.written_s or 0.0)

    def setback(self) -> WorkerFailure | None:
        """Slots on which new workers died since the last call."""
        found, self._setback = self._setback, None
        return found

    @_as_its_user
    def losses(self, now_s: float) -> list[tuple[tuple[Slot, ...], str]]:
        """The slots of workers that trained and are gone, with the reason; each worker once."""
        why: dict[str, list[Slot]] = {}
        for worker, since_s in [*self._gone.items()]:
            status = self.statuses[worker]
            if status.state == "running" and now_s - since_s < EXIT_CODE_S:  # its exit code is still to come
                continue
            del self._gone[worker]
            if worker in self._silenced:
                ended = f"it stood still, and was killed{self._stacks.words}"
            else:
                ended = "its process is gone" if status.state == "running" else describe([status])
            why.setdefault(self._members.message(worker) or ended, []).append(self._members.slot(worker))
        return [(tuple(slots), reason) for reason, slots in why.items()]

    @_as_its_user
    def proven(self) -> set[Slot]:
        """Slots on which workers have trained long enough to be trusted, by the clock of their files."""
        trains = self._members.trains()
        if trains is None or not self.target.job.changes_in_place:
            return set()
        return self._members.proven(trains.workers, YOUNG_S)

    def settles(self, event: Event) -> bool:
        """Note a worker's event; returns whether the newest plan was in force then."""
        self._reported_generation = max(self._reported_generation, (event.detail or {}).get("generation", 0))
        return self._reported_generation >= self.plan.generation

    def plan_without(self, members: Sequence[Member], setback: WorkerFailure) -> NextPlan:
        """A plan to go on with these members; the setback names the slots that are left out."""
        trains = self._members.trains()
        old_size = trains is not None and {one.worker for one in members} == set(trains.workers)
        cut = trains.cut if trains is not None and old_size else self.plan.cut
        return next_plan(self.plan, members, cut), setback

    @_as_its_user
    def plan_to_stop(self, reason: str = "") -> Plan | None:
        """A plan to save and leave, with the reason for a relaunch. Returns None if it has one."""
        if self.plan.abort:
            return None
        self._members.look()
        trains = self._members.trains()
        members = self.plan.members if trains is None else trains.members
        return aborted(self.plan.model_copy(update={"members": members}), reason)

    def take_up(self, plan: Plan, setback: WorkerFailure | None = None) -> None:
        """Go on under a plan that its workers can read now, without the slots of the setback."""
        self.plan, self._workers = plan, plan.workers
        if not plan.abort:
            self.target = assignment_of(plan, self.target.job)
        self._members.add(plan)
        if setback is not None:
            self._setback = setback if self._setback is None else self._setback.and_also(setback)

    @_as_its_user
    def stop(self, now_s: float) -> None:
        """Wait for the workers to save and leave; what reads no plans, or has not begun, gets SIGTERM now.

        :raises PliantError: a script cannot be asked.
        """
        newest = self.progress.newest or ProgressFile(self.files.progress).fresh()
        watches = self.script is not None and self.script.watches_stop(newest)
        reads_plans = watches or self.target.job.changes_in_place or self.handle.files.progress.exists()
        if watches:
            ask_to_stop(self.handle.files.stop)
        waits = bool(self.statuses) and all(status.queued for status in self.statuses)
        self._enter("abort" if reads_plans and not waits else "term", now_s)

    def kill(self, now_s: float) -> None:
        self._enter("kill", now_s)

    def apply_notice(self, notice: Notice | None, now_s: float) -> None:
        """Leave by a time: it takes the place of the limits of a stop, be they shorter or longer."""
        if notice == self._notice:
            return
        self._notice = notice
        if self._stage is not None:
            self._deadline_s = self._limit_s(self._stage, now_s)

    def end_left_over(self, nodes: Collection[str]) -> None:
        """Kill units on these nodes that the plan goes on without."""
        if not self.target.job.changes_in_place:
            return
        left = {
            unit for unit in self._running.difference(self._workers) if self._members.slot(unit).node in nodes
        }
        if left:
            self._backend.stop(self.handle, "kill", left)

    @_as_its_user
    def watch(self, now_s: float) -> NextPlan | None:
        """Move on to the next stage when it is due; returns a plan to go on without workers that died.

        A worker that has ended well sets no deadline: rank 0 may evaluate for as long as it likes.
        """
        self._members.look()
        self._end_silent(now_s)
        self._end_lingering(now_s)
        if self._stage is None and any(status.memory and status.code for status in self.statuses):
            self._at_break = self._own()  # the others have no more, and a new one would not either
            self._enter("term", now_s, self._timeouts.broken_s)
        if self._stage is None and (found := self._plan_without_lost(now_s)) is not None:
            return found
        outcomes = self._members.outcomes()
        if self._stage is None and broken(self._own(), outcomes):
            self._at_break = self._own()
            self._enter("term", now_s, self._timeouts.broken_s)
        elif self._stage is None and any(found.outcome == "stopped" for found in outcomes.values()):
            self._enter("abort", now_s)
        elif now_s >= self._deadline_s:
            self._keep_stacks()
            self._enter("term" if self._stage == "abort" else "kill", now_s)
        elif self._stage is not None and now_s >= self._ask_s and self.target.job.changes_in_place:
            self._stacks.ask()
        return None

    def _keep_stacks(self) -> None:
        """Keep where the workers are that do not stop."""
        if self.target.job.changes_in_place and not self._at_break:
            workers = self._running.intersection(self._workers)
            self._stacks.keep(workers, "these workers were asked to stop, and did not")

    @_as_its_user
    def verdict(self) -> Ending:
        """How it ended. Nothing of it is left after this."""
        self._backend.stop(self.handle, "kill")
        self._members.look()
        removed = not self.handle.files.plan(self.plan.generation).exists()
        found = judge(
            self._members.outcomes_with(self._own()),
            self._own(),
            ranks=len(self.plan.members),
            elastic=self.target.job.changes_in_place,
            leaves=self._leaves(),
            stop_requested=self.plan.abort,
            at_break=self._at_break,
            words=lambda place: "" if removed else self._last_words(place),
            trace=self._last_lines,
            sent=_SENT.get(self._stage or "abort", ""),
        )
        if self.script is not None and found.samples_done is None:
            found = replace(found, samples_done=self.script.samples_done)
        if removed and found.end == "failed":
            found = replace(found, message=f"{found.message}; its folder was removed while it ran")
        killed = next((status.memory for status in self.statuses if status.memory and status.code), None)
        if found.end == "failed" and killed is not None:
            found = replace(found, message=f"{killed}{_MORE_MEMORY}", by_itself=True, is_final=True)
        if found.message and self._stacks.kept is not None:
            found = replace(found, message=f"{found.message}{self._stacks.words}")
        return found

    def _leaves(self) -> bool:
        """Whether its script can go on although it ended well."""
        taken = any(status.displaced for status in (*self._at_break, *self.statuses))
        signalled = taken or self._stage in ("term", "kill")
        asked, job = taken or self.plan.abort, self.target.job
        return self.script is not None and self.script.leaves(job, asked=asked, signalled=signalled)

    def _last_words(self, place: int) -> str:
        """What the unit of a rank, or of a node, said last on stderr."""
        elastic = self.target.job.changes_in_place
        unit = self.plan.workers[place] if elastic else place
        files = self.handle.files
        return last_words(files.worker_errors(unit), files.launcher_log(unit)) or "nothing on stderr"

    def _reason_of(self, worker: int) -> str:
        """A worker's last error; empty if it has none, or only noticed the loss of another worker."""
        said = self._members.message(worker)
        if not said:
            words = last_words(self.handle.files.worker_errors(worker))
            said = words if ERROR_LINE.match(words) else ""
        return "" if said.startswith(LOST_PEER) else said

    def _last_lines(self) -> list[str]:
        """The last lines on stderr of the worker that failed first."""
        files = self.handle.files
        errors = [path for unit in range(len(self.statuses)) for path in files.worker_errors(unit)]
        return last_lines(errors, most=_TRACE_LINES)

    def _own(self) -> tuple[UnitStatus, ...]:
        """The units of the plan's workers; one that is still to be started counts as running."""
        if not self.target.job.changes_in_place:
            return self.statuses
        return tuple(
            self.statuses[worker] if worker < len(self.statuses) else UnitStatus("running")
            for worker in self._workers
        )

    def _plan_without_lost(self, now_s: float) -> NextPlan | None:
        """A plan without workers that died. Returns None if none died, or the others cannot go on."""
        trains = self._members.trains()
        if not self.target.job.changes_in_place or trains is None:
            return None
        trained = frozenset(trains.workers)
        self._lifetimes.train({worker: self._members.slot(worker) for worker in trained}, now_s)
        newcomers = self._lifetimes.newcomers(trained, now_s)
        said = {self.plan.workers[rank] for rank in self._members.outcomes_with(self._own())}
        lost = self._members.lost(trained, self._running | said, newcomers)
        if not lost:
            return None
        left = [one for one in self.plan.members if one.worker not in lost]
        going_on = [one for one in left if one.worker in trained]
        on_gpus = any(member.device == "cuda" for member in self.plan.members)
        if not going_on or said - lost or (on_gpus and lost & trained):
            return None
        slots = {worker: self._members.slot(worker) for worker in sorted(lost)}
        bad = self._lifetimes.mark_lost(slots, trained, self._reason_of, now_s)
        reasons = "".join(
            f": {reason}" for reason in {self._reason_of(worker): None for worker in slots} if reason
        )
        _log.warning(
            "job %s: lost the workers on %s, goes on without%s",
            self.handle.job,
            slots_text(slots.values()),
            reasons,
        )
        self._gone |= dict.fromkeys(sorted(lost & trained), now_s)
        self._backend.stop(self.handle, "kill", lost)
        if not lost & trained and bad is not None:
            return self.plan_without(left, bad)
        return next_plan(self.plan, going_on, self.target.allocation.cut), bad

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
            asks = self.target.job.changes_in_place and self._members.life(unit) == "alive"
            if asks and unit not in self._overdue:
                self._stacks.ask()
            self._overdue.setdefault(unit, now_s + (SOON_S if asks else 0.0))
        due = [unit for unit, kill_s in self._overdue.items() if now_s >= kill_s]
        overdue = [unit for unit in due if unit in self._running]
        for unit in due:
            del self._overdue[unit]
        if overdue:
            where = self._places(overdue)
            asked = overdue if self.target.job.changes_in_place else []
            kept = self._stacks.keep(asked, "these workers had nothing left to do, and did not end")
            _log.warning("job %s: what is left on %s does not end: killed%s", self.handle.job, where, kept)
            self._backend.stop(self.handle, "kill", overdue)

    def _places(self, units: Iterable[int]) -> str:
        """Where units are, as text: a unit whose workers do not change has a whole node."""
        if not self.target.job.changes_in_place:
            groups = groups_of(self.target)
            return ", ".join(dict.fromkeys(groups[unit][0].node for unit in units))
        return slots_text(self._members.slot(worker) for worker in units)

    def _idle(self) -> dict[int, float]:
        """Units that have nothing to do any more, and the seconds that each may take to end."""
        if not self.target.job.changes_in_place:  # its workers say nothing of themselves, a torchrun has some
            idle = [
                unit for unit, status in enumerate(self.statuses) if status.idle and by_torchrun(self.target)
            ]
            return dict.fromkeys(idle, self._timeouts.exit_s)
        return self._members.idle(self._running, self._timeouts)

    @property
    def _running(self) -> set[int]:
        return {number for number, unit in enumerate(self.statuses) if unit.state == "running"}

    def _limit_s(self, stage: Stage, now_s: float) -> float:
        """When the next stage of a stop is due."""
        if self._notice is not None and stage != "kill":
            return max(now_s, self._notice.term_s if stage == "abort" else self._notice.over_s)
        return now_s + self._timeouts.of(stage)

    def _enter(self, stage: Stage, now_s: float, seconds: float | None = None) -> None:
        self._stage = stage
        until_s = self._limit_s(stage, now_s) if seconds is None else now_s + seconds
        lasts_s = until_s - now_s
        self._deadline_s, self._ask_s = until_s, now_s + max(lasts_s - SOON_S, lasts_s / 2)
        if stage != "abort":
            self._backend.stop(self.handle, "term" if stage == "term" else "kill")
