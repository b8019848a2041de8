"""One attempt that is under way: its plans, its processes, deaths of workers, and the stages of a stop.

While it trains, a newer plan changes its workers (see ``rescale.py``). A worker that dies without a word, or
stands still for too long, is left out of the next plan at once, and the others go on; where that cannot be,
the rest is sent home and the attempt has failed.

A stop goes through stages, each with its own time: the plan says ``abort`` and the workers save and leave;
then SIGTERM; then SIGKILL, again and again until all of it is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from pliant.schemas.event import Event
from pliant.tools.run.backends.protocol import Backend, Handle, UnitStatus
from pliant.tools.run.folder_cache import FolderCache
from pliant.tools.run.layout import JobDir
from pliant.tools.run.losses import Losses
from pliant.tools.run.outcome import Verdict, broken, judge
from pliant.tools.run.plan import Member, Plan, WorkerOutcome
from pliant.tools.run.planning import aborted, next_plan, read_reached, write_plan
from pliant.tools.run.rescale import Crew
from pliant.tools.run.roll import Roll
from pliant.tools.run.slots import Slot
from pliant.tools.run.steps import Target
from pliant.tools.run.tail import Tail

Stage = Literal["abort", "term", "kill"]
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each stage of a stop is given before the next one, and other patience."""

    abort_s: float = 60.0
    term_s: float = 30.0
    kill_s: float = 5.0
    broken_s: float = 5.0
    """For SIGTERM to the rest of a gang that lost a worker: it only waits for the lost one."""
    ready_s: float = 60.0
    """For new workers to get ready, before the job is launched anew instead."""
    silent_s: float = 30.0
    """For a worker to show that it runs, before it is killed."""

    def of(self, stage: Stage) -> float:
        """Seconds of one stage."""
        return {"abort": self.abort_s, "term": self.term_s, "kill": self.kill_s}[stage]


class Gang:
    """The processes of one attempt, from their start until nothing of them is left."""

    def __init__(
        self,
        handle: Handle,
        plan: Plan,
        target: Target,
        backend: Backend,
        *,
        timeouts: Timeouts,
        now_s: float = 0.0,
        seen: int = 0,
    ) -> None:
        """:param seen: how many of its workers' events were read before."""
        self.handle = handle
        self.plan = plan
        self.target = target
        self.tail = Tail(handle.files.progress, skip=seen)
        self.statuses: tuple[UnitStatus, ...] = ()
        self._backend = backend
        self._timeouts = timeouts
        self._roll = Roll(handle.files, plan)
        self._folder = FolderCache(handle.folder)
        self._problem = ""
        self._planned_s = now_s
        self._told = plan.generation if read_reached(handle.files) is None else 0
        for event in islice(Tail(handle.files.progress).read(), seen):
            self.settles(event)
        self._stage: Stage | None = None
        self._deadline_s = float("inf")
        self._at_break: tuple[UnitStatus, ...] = ()
        self._losses = Losses()

    @property
    def stopping(self) -> bool:
        """Whether it is on its way out."""
        return self._stage is not None

    @property
    def ended(self) -> bool:
        """Whether none of its units runs."""
        return all(status.state != "running" for status in self.statuses)

    @property
    def busy(self) -> set[Slot]:
        """Slots that are its own, or that workers which left or died have not freed yet."""
        return set(self.target.slots) | self.leaving

    @property
    def leaving(self) -> set[Slot]:
        """Slots of units that still run though the plan goes on without their workers."""
        if self.target.job.elastic == "none":
            return set()
        members = self.plan.workers
        running = [worker for worker, unit in enumerate(self.statuses) if unit.state == "running"]
        return {self._roll.slot(worker) for worker in running if worker not in members}

    def serves(self, target: Target | None) -> bool:
        """Whether it runs on exactly these slots with this cut of the batch, and stays."""
        return (
            target is not None
            and not self.stopping
            and not self._problem
            and set(target.slots) == set(self.target.slots)
            and target.cut == self.target.cut
        )

    def crew(self, now_s: float) -> Crew:
        """What is known of its workers."""
        self._folder.look()
        trains, reports = self._trains(), self.handle.files.progress.exists()
        late = trains is None and not reports and now_s >= self._planned_s + self._timeouts.ready_s
        problem = "its workers did not get ready in time" if late else self._problem
        return Crew(self.plan, trains, reports, problem)

    def settles(self, event: Event) -> bool:
        """Take note of a worker's event; whether the newest plan was in force then."""
        self._told = max(self._told, (event.detail or {}).get("generation", 0))
        return self._told >= self.plan.generation

    def follow(
        self, job: JobDir, target: Target, members: Iterable[Member], joining: Iterable[Member], now_s: float
    ) -> None:
        """Publish a plan that takes it to a target, or closer to it.

        :param joining: members that are still to be started.
        """
        self.target = target
        self._publish(job, next_plan(self.plan, (*members, *joining), target.cut), now_s)

    def cannot(self, problem: str) -> None:
        """The newest plan cannot come into force."""
        self._problem = problem

    def request_stop(self, job: JobDir, now_s: float, reason: str = "") -> None:
        """Ask the workers to save and leave; a script that knows nothing of plans gets SIGTERM at once.

        :param reason: why it is launched anew, where it will be.
        """
        if self.stopping:
            return
        if not self.plan.abort:
            self._folder.look()
            trains = self._trains()
            members = self.plan.members if trains is None else trains.members
            plan = self.plan.model_copy(update={"members": members})
            self._publish(job, aborted(plan, reason), now_s)
        self._enter("abort" if self._reads_plans() else "term", now_s)

    def kill(self, now_s: float) -> None:
        """End it at once."""
        self._enter("kill", now_s)

    def watch(self, job: JobDir, now_s: float) -> None:
        """Move on to the next stage when its time has come; go on without workers that died.

        A part that has ended well sets no deadline: rank 0 may evaluate for as long as it likes.
        """
        self._folder.look()
        self._end_silent(now_s)
        if self._stage is None and self._go_on_without_lost(job, now_s):
            return
        outcomes = self.outcomes()
        if self._stage is None and broken(self._own(), outcomes):
            self._at_break = self._own()
            self._enter("term", now_s, self._timeouts.broken_s)
        elif self._stage is None and any(found.outcome == "stopped" for found in outcomes.values()):
            self._enter("abort", now_s)
        elif now_s >= self._deadline_s:
            self._enter("term" if self._stage == "abort" else "kill", now_s)
        elif self._stage is None and not self._problem and self._overdue(now_s):
            self._problem = f"new workers did not get ready within {self._timeouts.ready_s:g} s"

    def verdict(self) -> Verdict:
        """How it ended; nothing of it is left after this."""
        self._backend.stop(self.handle, "kill")
        self._folder.look()
        found = judge(
            self.outcomes(),
            self._own(),
            ranks=len(self.plan.members),
            elastic=self.target.job.elastic != "none",
            stop_requested=self.plan.abort,
            at_break=self._at_break,
        )
        if self._losses.blame and found.end == "failed":
            return replace(found, message=f"{self._losses.blame}: {found.message}")
        return found

    def outcomes(self) -> dict[int, WorkerOutcome]:
        """What the plan's workers wrote as their last act, by rank; as of the last look at the folder."""
        return self._folder.get(f"outcomes of {self.plan.generation}", self._read_outcomes)

    def _read_outcomes(self) -> dict[int, WorkerOutcome]:
        found = {rank: self._outcome(worker) for rank, worker in enumerate(self.plan.workers)}
        return {rank: outcome for rank, outcome in found.items() if outcome is not None}

    def _outcome(self, worker: int) -> WorkerOutcome | None:
        return self._folder.get(
            f"outcome {worker}", lambda: WorkerOutcome.read(self.handle.files.outcome(worker))
        )

    def _trains(self) -> Plan | None:
        """The plan that its workers train under, as of the last look at the folder; None: they do not yet."""
        return self._folder.get("reached", lambda: read_reached(self.handle.files))

    def _own(self) -> tuple[UnitStatus, ...]:
        """The units of the plan's workers; one that was not started yet runs as good as another."""
        if self.target.job.elastic == "none":
            return self.statuses
        return tuple(
            self.statuses[worker] if worker < len(self.statuses) else UnitStatus("running")
            for worker in self.plan.workers
        )

    def _publish(self, job: JobDir, plan: Plan, now_s: float) -> None:
        self.plan, self._planned_s, self._problem = plan, now_s, ""
        self._roll.add(plan)
        write_plan(job, plan)

    def _go_on_without_lost(self, job: JobDir, now_s: float) -> bool:
        """Publish a plan without workers that died, if those that train can go on, and it makes sense.

        Whether that, or what has to be done instead, was done.
        """
        trains = self._trains()
        if self.target.job.elastic == "none" or trains is None:
            return False
        trained = set(trains.workers)
        self._losses.train({worker: self._roll.slot(worker) for worker in trained}, now_s)
        lost = {worker for worker in self.plan.workers if self._lost(worker, trained=worker in trained)}
        members = [one for one in self.plan.members if one.worker in trained and one.worker not in lost]
        on_gpus = any(member.device == "cuda" for member in self.plan.members)
        ended = {self.plan.workers[rank] for rank in self.outcomes()} - lost
        if not lost or not members or ended or (on_gpus and lost & trained):
            return False
        for worker in sorted(lost):
            self._losses.lose(worker, self._roll.slot(worker), now_s)
        if self._losses.blame:
            _log.warning("job %s: %s", self.handle.job, self._losses.blame)
            self._at_break = self._own()
            self._enter("term", now_s, self._timeouts.broken_s)
            return True
        slots = [self._roll.slot(worker) for worker in sorted(lost)]
        _log.warning("job %s: lost the workers on %s, goes on without", self.handle.job, _listed(slots))
        self._backend.stop(self.handle, "kill", lost)
        held = tuple(Slot.parse(member.slot) for member in members)
        told = [found.message for worker in sorted(lost) if (found := self._outcome(worker)) is not None]
        self.follow(job, Target(self.target.share, held), members, (), now_s)
        if not lost & trained:
            problem = f"the new workers on {_listed(slots)} ended before they trained"
            self._problem = ": ".join([problem, *told[:1]])
        return True

    def _lost(self, worker: int, *, trained: bool) -> bool:
        """Whether a worker is gone without a word, or with one before it trained.

        A crash of the script in training is the job's, and would happen to the others, too.
        """
        if (found := self._outcome(worker)) is not None:
            return found.outcome == "crashed" and not trained
        running = worker < len(self.statuses) and self.statuses[worker].state == "running"
        return not running or self._roll.life(worker) == "gone"

    def _end_silent(self, now_s: float) -> None:
        """Kill workers that stand still."""
        silent = self._roll.silent(self.plan.workers, now_s, self._timeouts.silent_s)
        if silent:
            slots = [self._roll.slot(worker) for worker in silent]
            _log.warning("job %s: the workers on %s stand still: killed", self.handle.job, _listed(slots))
            self._backend.stop(self.handle, "kill", silent)

    def _overdue(self, now_s: float) -> bool:
        """Whether workers that the newest plan waits for are not ready in time."""
        trains = self._trains()
        if now_s < self._planned_s + self._timeouts.ready_s or trains is None:
            return False
        return any(self._roll.life(worker) == "absent" for worker in self.plan.workers)

    def _reads_plans(self) -> bool:
        return self.target.job.elastic != "none" or self.handle.files.progress.exists()

    def _enter(self, stage: Stage, now_s: float, seconds: float | None = None) -> None:
        self._stage = stage
        self._deadline_s = now_s + (self._timeouts.of(stage) if seconds is None else seconds)
        if stage != "abort":
            self._backend.stop(self.handle, "term" if stage == "term" else "kill")


def _listed(slots: Sequence[Slot]) -> str:
    return ", ".join(map(str, slots))
