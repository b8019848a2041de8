"""A worker's side of ``pliant run``: acting on plans at step boundaries, without stopping where possible.

The loop asks :class:`Membership` at each boundary and acts on the :data:`Instruction` that it returns. All
workers act on a newer plan, or on a signal to one of them, after the same step. A plan with the same workers
changes the split of the batch. A plan with other workers makes all of them meet: those that it does not name
leave, new ones get the state from those that have it, and training goes on.

A worker that dies takes the process group with it. The others void the step that it broke and meet for the
plan without it, which the launcher writes; if none comes in time they save and leave. A worker that got one
collective operation further than the rest takes the rest along, so no completed step is lost.

A worker that ends says how in a file.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal

from pliant.schemas.errors import PliantError, UsageError
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.agreement import (
    STOP,
    LeftEpochError,
    NotNeededError,
    PlanWatch,
    StopAskedError,
    StopSignal,
    Vote,
    ballot,
)
from pliant.tools.run.elastic.membership.process_group import (
    ProcessGroup,
    cut_off,
    leave_at_exit,
    lost_peer,
    make_known,
    released,
)
from pliant.tools.run.elastic.membership.rendezvous import (
    CutOffError,
    LeftAloneError,
    Rendezvous,
    exchange_of_main_thread,
)
from pliant.tools.run.elastic.membership.standstill import Position, StandstillWatch
from pliant.tools.run.elastic.report import Reporter, WorkerChange
from pliant.tools.run.elastic.state.checkpoint import Saving
from pliant.tools.run.elastic.state.training import (
    Cursor,
    EpochPhase,
    Mean,
    Training,
    TrainingCounters,
    check_training,
)
from pliant.tools.run.elastic.state.transfer import pass_on
from pliant.tools.run.statedir.contract.liveness import LivenessFile
from pliant.tools.run.statedir.contract.plan import ENDED_EARLY, LOST_PEER, Plan, WorkerOutcome

_log = logging.getLogger("pliant")
How = Literal["done", "stopped", "crashed", "left", "cut_off"]


class _Exit:
    """Writes one outcome, however the worker ends.

    "done": the script ended after its training, or left it by ``break``. "stopped": a stop was agreed.
    "left": the others go on without this worker. "cut_off": it does not reach them. "crashed": an exception,
    or a final state that could not be saved.
    """

    def __init__(self, context: WorkerContext, reporter: Reporter, saving: Saving, stop: StopSignal) -> None:
        # Set once it has begun.
        self.training: Training | None = None
        # Every epoch is complete, or the script left its training.
        self.complete = False
        # The script left its training before the last epoch was complete.
        self.early = False
        # Why the final state is not on disk.
        self.unsaved = ""
        self.ended = False
        self._context, self._reporter, self._saving, self._stop = context, reporter, saving, stop
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._on_exit)

    def end(self, outcome: How, message: str = "") -> None:
        if self.ended:
            return
        self.ended = True
        self._await_checkpoint()
        self._reporter.close()
        self._report(outcome, message)

    def _report(self, outcome: How, message: str = "", *, goes_on: bool = False) -> None:
        reached = self._reached(outcome)
        end = WorkerOutcome(
            outcome=outcome,
            samples_done=reached.samples_done,
            epoch=reached.epoch,
            message=message,
            exit_counts=outcome == "done" and (self.early or not self._stop.received),
            goes_on=goes_on,
        )
        try:
            self._context.report_end(end)
        except (PliantError, OSError) as error:
            _log.warning("the outcome %r is not written: %s", outcome, error)

    def goes_on(self) -> None:
        """The training is over; the script goes on, and may end without a last word (``os._exit``)."""
        self.complete = True
        self._reporter.flush()
        self._report("done", goes_on=True)

    def _await_checkpoint(self) -> None:
        try:
            saved = self._saving.ended(wait=True)
        except UsageError as error:
            _log.warning("the last checkpoint failed: %s", error)
        else:
            if saved is not None:
                self._reporter.checkpoint_ended(saved)

    def _reached(self, outcome: How) -> TrainingCounters:
        if self.training is None:
            return self._saving.earlier()
        return self.training.counters if outcome == "done" else self._saving.counters

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.end("crashed", described(kind, error, alone=self._context.world_size == 1))
        self._previous_hook(kind, error, trace)

    def _on_exit(self) -> None:
        if not self.complete:
            self.end("crashed", ENDED_EARLY)
        elif self.unsaved:
            self.end("crashed", self.unsaved)
        else:
            self.end("done")


def described(kind: type[BaseException], error: BaseException, *, alone: bool) -> str:
    """One line about an exception; it says if another worker's end is the likely cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    # "Error(s) in loading state_dict for Net:" says nothing without the next line
    first = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    text = f"{kind.__name__}: {first}" if first else kind.__name__
    return f"{LOST_PEER}: {text}" if not alone and cut_off(error) else text


@dataclass(frozen=True, slots=True)
class Continue:
    """What was asked is done."""


@dataclass(frozen=True, slots=True)
class Regroup:
    """The workers change, or one was lost: let go of the process group, ask ``regroup``, then ask again."""


@dataclass(frozen=True, slots=True)
class NewDivision:
    """The work is divided among other workers, or otherwise: take the state, divide, then call ``settle``."""

    state: Mapping[str, Any] | None = None
    """The state of a worker that is further; None if this worker's own counts."""
    fresh: bool = False
    """This worker had no state before."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the script with this exit code; the outcome is written."""

    code: int = 0


Instruction = Continue | Regroup | NewDivision | Leave
CONTINUE: Final = Continue()
REGROUP: Final = Regroup()


class Membership:
    """A worker among the workers of its job, from its start to its end."""

    def __init__(self, context: WorkerContext, backend: str | None) -> None:
        self._context = context
        stop = StopSignal()
        self._stop, self._watch = stop, PlanWatch(context, stop)
        leave_at_exit()  # registered before the exit, so it runs after it
        self._group = ProcessGroup(context, backend)
        self._rendezvous = Rendezvous(context, self._group, self._watch)
        self._vote = Vote()
        self._reporter = Reporter(context)
        self._saving = Saving(context)
        self._exit = _Exit(context, self._reporter, self._saving, stop)
        self._presence = LivenessFile(context.attempt.presence(context.worker))
        self._standstill = StandstillWatch(
            context, exchange_of_main_thread, self._position, self._end_standing_still
        )
        # The last step that ended here without a backward pass.
        self._left_out: int | None = None
        # Set once it begins.
        self._training: Training
        self._transition = _GenerationChange()
        # Warnings from before the training.
        self._notes: tuple[str, ...] = ()
        self._recurrence = Recurrence()
        self._agreed = 0
        # The last epoch that a worker joined midway.
        self._joined_epoch = -1
        # The launcher can see which generation trains.
        self._is_known = True
        # Of this worker, since the last vote.
        self._losses = Mean()
        # When the step began; the end of the step before if only reading lies between them.
        self._step_since_s: float | None = None

    @property
    def stopping(self) -> bool:
        """Whether the job, or this worker, was asked to stop."""
        return self._watch.stop_asked

    # Before training

    def note(self, text: str) -> None:
        self._notes = (*self._notes, text)

    def check_needed(self) -> Continue | Leave:
        """Whether to begin: while this worker started, the others may have stopped or gone on without it."""
        if self._context.left:
            return self._leave()
        try:
            self._watch.check_needed(fresh=True)
        except NotNeededError:
            return self._leave()
        except StopAskedError:
            return self._stop_before_start()
        return CONTINUE

    def start(self, training: Training) -> NewDivision | Leave:
        """Announce that this worker is ready, meet the others, and get the state.

        It is that of the workers that train already, or else the newest whole checkpoint, which rank 0 reads.

        :raises UsageError: the training could not be saved.
        """
        check_training(training)
        self._training = training
        self._context.attempt.path.mkdir(parents=True, exist_ok=True)
        self._presence.begin()
        return self._meet(None)

    # While training

    def step_begins(self, steps_left: int, since_s: float) -> RuntimeError | None:
        """A step has begun: start to agree on what to do after it.

        :param steps_left: of the epoch, after this one.
        :param since_s: when it began (monotonic).
        :returns: the error that shows the loss of a worker, if the step is void.
        """
        if self._step_since_s is None:
            self._step_since_s = since_s
        if not (self._vote.is_due() or steps_left == 1 or self._is_joined_midway):
            return None
        try:
            self._cast(before_last=steps_left == 1)
        except RuntimeError as error:
            if not self._is_survived(error):
                raise
            return released(error)
        return None

    def step_ends(self, losses: Mean, waited_s: float | None = None) -> Continue | Regroup:
        """A step is complete; the next boundary does what was agreed.

        :param waited_s: how long this worker waited in it for the others' gradients; None if not known.
        """
        now = time.monotonic()
        # reading samples is part of a step; work at a boundary or between epochs is not
        step_s = self._reporter.usual_step_s if self._step_since_s is None else now - self._step_since_s
        self._step_since_s = now
        training, reporter = self._training, self._reporter
        reporter.look(training.model, training.counters)
        if waited_s is not None:
            reporter.own_step(step_s - waited_s - self._vote.take_waited_s())
        alone = self._context.world_size == 1
        if not alone:
            self._losses.include(losses)
        reporter.step_done(training.counters, losses if alone else Mean(), step_s)
        if not self._is_known:
            self._make_known()
        return self.collect_vote()

    def left_out(self) -> None:
        """The step ends, and nothing of it was trained here: all workers must have left it out."""
        self._left_out = self._training.counters.step
        if self._context.world_size > 1:
            self._standstill.meet_without(self._left_out)

    def set_aside(self, seconds: float) -> None:
        """An evaluation in the middle of a step took this long, which is not part of the time of the step."""
        if self._step_since_s is not None:
            self._step_since_s += seconds

    def measured(self, metric: float) -> None:
        """The script has measured something in the middle of an epoch."""
        self._reporter.measured(self._training.counters, metric)

    def step_void(self, error: RuntimeError) -> Regroup:
        """A worker was lost in the step, which does not count; ``error`` shows it."""
        since_s = time.monotonic() if self._step_since_s is None else self._step_since_s
        return self._lost(released(error), since_s)

    def collect_vote(self) -> Continue | Regroup:
        """Learn what was agreed for the step that ends, or that the loop body has left."""
        if not self._vote.is_open:
            return CONTINUE
        found: list[int] = []
        if isinstance(answer := self._together(lambda: found.append(self._vote.result())), Regroup):
            return answer
        self._agreed = max(self._agreed, *found)
        self._saving.note_saved(self._vote.saved_step)
        self._reporter.workers_needed(self._vote.own_s)
        self._reporter.add_losses(Mean(*self._vote.losses))
        return CONTINUE

    def boundary(self) -> Instruction:
        """Do what was agreed, at a place from which a later attempt can go on."""
        if not self._agreed:
            return CONTINUE
        if self._is_joined_midway:
            # the others may have left the epoch after the step
            answer = self._together(partial(self._vote.check_together, left=False))
            if isinstance(answer, Regroup):
                return answer
        agreed, self._agreed = self._agreed, 0
        generation, save = divmod(agreed, 2)
        newer: Plan | None = None
        if agreed != STOP and generation > self._context.plan.generation:
            newer = self._watch.exactly(generation, self._context.plan.timeout_s)
        if agreed == STOP or (newer is not None and newer.abort):
            return self._stop_together()
        if save:
            if isinstance(answer := self.gather_loss(), Regroup):
                return answer
            self._step_since_s = None
            self._save()
        return CONTINUE if newer is None else self._switch(newer)

    def between_epochs(self) -> Continue | Regroup:
        """Between two epochs: look for news, because the end of the epoch may have taken long."""
        answer = self._together(self._cast)
        return answer if isinstance(answer, Regroup) else self.collect_vote()

    def epoch_left(self) -> Continue | Regroup:
        """Check that all workers have left an epoch midway, if one of them joined in its middle.

        That worker has trained fewer of its steps, so a script that counts steps leaves later there. Workers
        that have left take it along.
        """
        if not self._is_joined_midway:
            return CONTINUE
        return self._together(partial(self._vote.check_together, left=True))

    def gather_loss(self) -> Continue | Regroup:
        return self._together(partial(self._training.gather_loss, self._context.world_size))

    def agree(self, value: Any, *, adds: bool = False) -> Continue | Regroup:
        """Let all workers know rank 0's value, for which others pass None, or the sums of their numbers."""
        return self._together(partial(self._training.agree, value, self._context.world_size, adds=adds))

    def epoch_ends(self, loss: float | None, metric: float | None) -> None:
        self._step_since_s = None
        self._reporter.epoch_done(self._training.counters, loss, metric)

    def warn(self, text: str) -> None:
        self._reporter.warn(self._training.counters, text)

    # From one generation to the next

    def regroup(self) -> NewDivision | Leave:
        """Leave the process group, meet the next generation, and get or give the state."""
        transition, self._standstill.trains = self._transition, False
        self._vote.drop()
        self._group.leave()
        if transition.plan is not None:
            self._context.follow(transition.plan)
            if self._context.left:
                return self._leave()
        self._transition.timed("leave", transition.since_s)
        return self._meet(self._training.cursor)

    def settle(self, global_batch: int) -> None:
        """The loop trains by the current plan, in the same state as all other workers.

        :raises RuntimeError: an error that looked like the loss of a worker is none; see :class:`Recurrence`.
        """
        transition, self._transition, plan = self._transition, _GenerationChange(), self._context.plan
        training = self._exit.training = self._training
        training.want_lr_scale(plan.lr_scale)
        # before it reports: a launcher takes a worker that reports but does not train for another kind of
        # script
        self._make_known()
        if self._context.world_size > 1:
            self._standstill.begin()
        self._reporter.turn_to(global_batch, transition.change)
        problems, self._notes = (*self._notes, *transition.problems), ()
        for problem in problems:
            self._reporter.warn(training.counters, problem)
        if transition.lost is not None:
            error, before = transition.lost
            self._recurrence.check(error, before, plan.workers, training.cursor)

    def _switch(self, plan: Plan) -> Instruction:
        """Act on a newer plan, at the same step boundary on every worker."""
        began_s, self._step_since_s = time.monotonic(), None
        self._reporter.before_change()
        change = WorkerChange(began_s, self._reporter.usual_step_s)
        if plan.workers == self._context.plan.workers:
            self._context.follow(plan)
            self._transition = _GenerationChange(change)
            return self._divided(NewDivision())
        if plan.workers[0] != self._context.worker:
            self._report_saved(wait=True)  # the next rank 0 may write only then
        if isinstance(answer := self.gather_loss(), Regroup):
            return answer
        self._transition = _GenerationChange(change, began_s, plan)
        return REGROUP

    def _together(self, operation: Callable[[], object]) -> Continue | Regroup:
        """Do a collective operation.

        On GPUs the loss of a worker is not survived in place, because operations may hang there.

        :raises RuntimeError: it fails although no worker is lost.
        """
        began_s = time.monotonic()
        try:
            operation()
        except RuntimeError as error:
            if not self._is_survived(error):
                raise
            found = released(error)
        else:
            return CONTINUE
        return self._lost(found, began_s)

    def _is_survived(self, error: RuntimeError) -> bool:
        """Whether the remaining workers meet after this error."""
        apart = isinstance(error, LeftEpochError)
        return self._context.device.type != "cuda" and (apart or lost_peer(error))

    @property
    def _is_joined_midway(self) -> bool:
        """Whether some workers have trained fewer steps of the epoch; all know it."""
        return self._joined_epoch == self._training.counters.epoch

    def _lost(self, error: RuntimeError, since_s: float) -> Regroup:
        """A worker was lost: nothing done since ``since_s`` counts."""
        self._agreed, self._step_since_s = 0, None
        apart = isinstance(error, LeftEpochError)
        change = WorkerChange(since_s, self._reporter.usual_step_s, lost=not apart)
        lost = None if apart else (error, self._context.plan.workers)
        self._transition = _GenerationChange(change, time.monotonic(), lost=lost)
        return REGROUP

    def _meet(self, cursor: Cursor | None) -> NewDivision | Leave:
        """Meet until all workers have the same state.

        :param cursor: how far this worker is; None if it has no state yet.
        """
        failed: RuntimeError | None = None
        again = Recurrence()
        while True:
            began_s, before = time.monotonic(), self._context.plan.workers
            try:
                cursors = self._rendezvous.meet(cursor)
            except NotNeededError:
                return self._leave()
            except StopAskedError:
                return self._stop_before_start() if cursor is None else self._save_and_leave("asked to stop")
            except LeftAloneError as error:
                return self._save_and_leave(str(error))
            except CutOffError as error:
                self._exit.end("cut_off", str(error))
                return Leave(1)
            if self._context.left:
                return self._leave()
            if failed is not None:
                again.check(failed, before, self._context.plan.workers, cursor)
            met_s = time.monotonic()
            self._note_joiners(cursors)
            self._transition.timed("meet", began_s, met_s)
            try:
                division = self._share_state(cursors)
            except RuntimeError as error:
                if not lost_peer(error):
                    raise
                failed = released(error)
                self._group.leave()
            else:
                break
            finally:
                self._transition.timed("broadcast", met_s)
        if self._rendezvous.shortage:
            self._transition.problems += (f"training has waited for room: {self._rendezvous.shortage}",)
        return self._divided(division)

    def _share_state(self, cursors: Sequence[Cursor | None]) -> NewDivision:
        """Give all workers of the group, which call this together, the state of the furthest.

        :param cursors: how far each worker is, by rank. If none has a state, rank 0 loads the checkpoint.
        :raises RuntimeError: a worker was lost.
        """
        rank, training, saving = self._context.rank, self._training, self._saving
        furthest = max((one for one in cursors if one), default=None)
        self._transition.problems = saving.load(training) if furthest is None and rank == 0 else ()
        has = [one == furthest if furthest else index == 0 for index, one in enumerate(cursors)]
        if all(has):
            return NewDivision()
        own = {**training.parcel(), "saving": saving.parcel()} if has[rank] else None
        parcel = pass_on(own, has, rank, self._context.device)
        if has[rank]:
            return NewDivision()
        saving.unpack(parcel["saving"])
        return NewDivision(parcel, fresh=cursors[rank] is None)

    def _note_joiners(self, cursors: list[Cursor | None]) -> None:
        furthest = max((one for one in cursors if one), default=None)
        if furthest is not None and furthest.phase == EpochPhase.STEPS and None in cursors:
            self._joined_epoch = furthest.epoch

    def _divided(self, division: NewDivision) -> NewDivision:
        self._context.settle()
        self._vote.drop(self._context.rank, self._context.world_size)
        return division

    def _make_known(self) -> None:
        """Let the launcher know which generation trains; if the disk is full, after a later step."""
        context, self._is_known = self._context, True
        if context.rank == 0:
            try:
                make_known(context.attempt.reached, f"{context.plan.generation}\n".encode())
            except OSError as error:
                _log.debug("generation %d is not made known yet: %s", context.plan.generation, error)
                self._is_known = False

    # The end

    @property
    def over(self) -> bool:
        return self._exit.ended

    def training_ends(self) -> Continue | Regroup:
        """Every epoch is complete: save, and let no worker leave before it is done."""
        training, end = self._training, self._exit
        self._report_saved(wait=True)
        if training.counters != self._saving.counters:
            end.unsaved = self._save(wait=True)
        if isinstance(answer := self._together(self._wait_for_all), Regroup):
            return answer
        if training.counters != self._saving.counters and not end.unsaved:
            end.unsaved = "rank 0 did not save the final state"
        end.early, end.complete = False, True
        if not end.unsaved:
            end.goes_on()
        return CONTINUE

    def left_early(self, metric: float | None) -> None:
        """The script left its training by ``break`` or on its way out; its exit code will tell which.

        The loss is not reported: other workers may train on. Nothing is saved: the body may be in the middle
        of a step, and another attempt should not go on from a state that made the script give up.
        """
        self._exit.early = True
        if metric is not None:
            self._reporter.epoch_done(self._training.counters, None, metric)
        self._exit.goes_on()

    def _save(self, *, wait: bool = False) -> str:
        """Begin a checkpoint if this is rank 0; the one before is on disk by then.

        :param wait: until it is on disk, too.
        :returns: why it failed, as far as that is known.
        """
        self._report_saved(wait=True)
        self._saving.begin(self._training)
        return self._report_saved(wait=wait)

    def _report_saved(self, *, wait: bool) -> str:
        """Report a checkpoint that has come to its end; returns why it failed."""
        saved = self._saving.ended(wait=wait)
        if saved is None:
            return ""
        self._reporter.checkpoint_ended(saved)
        return saved.problem

    def _stop_before_start(self) -> Leave:
        self._exit.end("stopped", "asked to stop before the first step")
        return Leave()

    def _stop_together(self) -> Regroup | Leave:
        training = self._training
        if isinstance(answer := self.gather_loss(), Regroup):
            return answer
        self._reporter.last_words(training.counters)
        problem = self._save(wait=True)
        try:
            self._wait_for_all()
        except RuntimeError as error:
            _log.warning("a worker was lost while stopping: %s", error)
        self._exit.end("stopped", problem)
        return Leave()

    def _position(self) -> Position:
        counters = self._training.counters
        return Position(counters.epoch, counters.step, self._left_out)

    def _end_standing_still(self, reason: str) -> None:
        """End this worker, whose main thread will not come back from its exchange."""
        self._exit.end("crashed", reason)
        _log.error("%s", reason)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _leave(self) -> Leave:
        self._exit.end("left")
        return Leave()

    def _save_and_leave(self, reason: str) -> Leave:
        """Workers are gone, or a stop is asked for, and no plan says how to go on."""
        self._report_saved(wait=True)
        problem = self._saving.save_alone(self._training)
        if self._watch.stop_asked:
            self._exit.end("stopped", problem)
            return Leave()
        message = f"{LOST_PEER} ({reason}), and no plan came without it"
        self._exit.end("crashed", "; ".join(filter(None, (message, problem))))
        return Leave(1)

    # Agreement

    def _cast(self, *, before_last: bool = False) -> None:
        self._report_saved(wait=False)
        generation = self._watch.in_force().generation
        due = self._saving.due(self._context.plan.checkpoint_s, before_last=before_last)
        number = STOP if self._stop.received else ballot(generation, save=due)
        reporter, losses, self._losses = self._reporter, self._losses, Mean()
        self._vote.cast(
            number,
            reporter.usual_step_s,
            self._saving.step,
            own_step_s=reporter.own_step_s,
            losses=(float(losses.total), float(losses.samples)),
        )

    def _wait_for_all(self) -> None:
        """Wait for all workers; afterwards they know what is on disk."""
        self._vote.meet(self._saving.step)
        self._saving.note_saved(self._vote.saved_step)


@dataclass(slots=True)
class _GenerationChange:
    """What is known on the way from one generation to the next, or to another split of the batch."""

    change: WorkerChange | None = None
    """None when training begins."""
    since_s: float = 0.0
    """When the workers began to leave (monotonic)."""
    plan: Plan | None = None
    """The plan that all have agreed to follow; None if a worker was lost."""
    lost: tuple[RuntimeError, tuple[int, ...]] | None = None
    """The error that shows the loss of a worker, and the workers that trained together then."""
    problems: tuple[str, ...] = ()
    """What was wrong with checkpoints."""

    def timed(self, part: str, began_s: float, ended_s: float | None = None) -> None:
        if self.change is not None:
            took_s = (time.monotonic() if ended_s is None else ended_s) - began_s
            self.change.parts[part] = self.change.parts.get(part, 0.0) + took_s


class Recurrence:
    """Notices an error that comes twice at the same place although all workers live.

    Workers that void a step meet before they train it again. If the same workers meet as before, none was
    lost. Once, a connection may have failed; a second time, another try would fail, too.
    """

    def __init__(self) -> None:
        self._place: tuple[tuple[int, ...], Cursor | None] | None = None

    def check(
        self, error: RuntimeError, before: tuple[int, ...], after: tuple[int, ...], cursor: Cursor | None
    ) -> None:
        """Called when the workers have met after an error and go on from ``cursor``.

        :param before: the workers that trained together when the error came.
        :param after: the workers that have met.
        :raises RuntimeError: the error itself, if going on is useless.
        """
        place = (after, cursor) if before == after else None
        if place is not None and place == self._place:
            error.add_note("This came twice at the same place, and all workers are alive.")
            raise error
        self._place = place
