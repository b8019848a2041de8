"""The workers that train together, as one of them sees it: how they divide the work, and how they change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.loop.averaging import Averaging
from pliant.tools.run.elastic.loop.batches import BatchSplit
from pliant.tools.run.elastic.loop.gradients import Gradients
from pliant.tools.run.elastic.loop.step import NOTHING_AWAITED, Step
from pliant.tools.run.elastic.loop.step_start import StepStart
from pliant.tools.run.elastic.loop.worker_generators import WorkerGenerators
from pliant.tools.run.elastic.membership.instructions import Continue, Instruction, Leave, Regroup
from pliant.tools.run.elastic.membership.membership import Membership
from pliant.tools.run.elastic.state.replicas import ReplicaGuard
from pliant.tools.run.elastic.state.training import (
    EpochPhase,
    Training,
    each_model,
    restore_generators,
)

_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Batching:
    """What a script says about its batches."""

    batch_size: int | None = None
    """Samples of an optimizer step over all workers; that of the plan takes its place."""
    micro_batch_size: int | None = None
    """Most samples that a worker trains at once; None: its whole share, unless the plan cuts it."""
    drop_last: bool = False

    def split(self, context: Context) -> BatchSplit:
        """How the batch of the plan, or of the script, is split over the workers.

        :raises UsageError: there is no batch size, or one that is too small for the workers.
        """
        plan, workers = context.plan, context.world_size
        batch = self.batch_size if plan is None or plan.global_batch is None else plan.global_batch
        if batch is None:
            raise UsageError("no batch size: give elastic.init(batch_size=...) or batch.size of the job")
        if batch < workers:
            raise UsageError(f"a global batch of {batch} is too small for {workers} workers")
        accum = 1 if plan is None else plan.accum
        if self.micro_batch_size is not None:
            share = -(-batch // workers)
            accum = max(accum, -(-share // self.micro_batch_size))
        return BatchSplit(batch, workers, accum, self.drop_last)


class WorkerGroup:
    """Divides the work among the workers, and acts on what :class:`Membership` says about them."""

    def __init__(
        self,
        context: Context,
        training: Training,
        gradients: Gradients,
        averaging: Averaging,
        batching: Batching,
        *,
        membership: Membership | None = None,
        ends_on_difference: bool = True,
    ) -> None:
        """:raises UsageError: there is no batch size, or one that is too small for the workers."""
        self.context, self.training, self.membership = context, training, membership
        self.gradients, self.averaging = gradients, averaging
        self._batching = batching
        self.split = batching.split(context)
        # The number of divisions so far: the loader compares it to notice a change.
        self.division = 0
        self.step = Step()
        self._step_start = StepStart()
        self.guard = ReplicaGuard(training, self.warn, ends=ends_on_difference)
        self.draws = WorkerGenerators(each_model(training.model), context.device)
        # Another worker has run the script to the end of the epoch: on this one it has no effect.
        self.replays_epoch = False
        training.meets = self._compare_and_share
        gradients.bind(accumulates=self.accumulates)

    @property
    def accumulates(self) -> bool:
        """Whether a step has several micro-steps."""
        return self.split.accum > 1

    def base_batch(self) -> int:
        """Samples of a step as the script, or its job, asked for them: before a policy has changed them."""
        plan, batch = self.context.plan, self.split.global_batch
        return batch if plan is None else max(1, round(batch / plan.lr_scale))

    @property
    def may_be_void(self) -> bool:
        """Whether a step can be broken by the loss of a worker, and be tried again here."""
        return self._step_start.watches

    def warn(self, text: str) -> None:
        """Warn in the job's events, or on this process's own log."""
        if self.membership is None:
            _log.warning("%s", text)
        else:
            self.membership.warn(text)

    def start(self) -> None:
        """Meet the other workers and divide the work.

        :raises SystemExit: this worker leaves.
        """
        self.training.check_averaged()
        if self.membership is not None:
            self.follow(self.membership.start(self.training))
        else:
            self.training.set_batch(self.split.global_batch)
            self.draws.follow(self.context.rank, self.context.world_size)

    def follow(self, instruction: Instruction) -> bool:
        """Act on an instruction.

        :returns: True if what was asked is done; False after a new division of the work: ask again.
        :raises SystemExit: this worker leaves.
        """
        if isinstance(instruction, Continue):
            return True
        assert self.membership is not None  # noqa: S101 it is what gave the instruction
        if isinstance(instruction, Regroup):
            self._release()
            instruction = self.membership.regroup()
        if isinstance(instruction, Leave):
            raise SystemExit(instruction.code)
        if instruction.state is not None:
            self._take_state(instruction.state, fresh=instruction.fresh)
        self._divide()
        self.membership.settle(self.split.global_batch)
        return False

    def retry(self) -> bool:
        """Meet the remaining workers if one was lost in the step.

        The step is trained again here, unless another worker has completed it.

        :returns: False if no worker was lost.
        """
        error, membership = self.averaging.error, self.membership
        if error is None or membership is None:
            return False
        counters = self.training.counters.copy()
        self.restore_start()
        self.follow(membership.step_void(error))
        if self.training.counters == counters:
            self._step_start.restore_generator()
        return True

    def exchange_if_counted(self) -> None:
        """Exchange nothing with other workers while the pass does not count."""
        self.averaging.idle = self.step.mode.is_idle

    def divide_again(self) -> None:
        """Let the loader divide what follows, also where a worker joined before this pass."""
        self.division += 1

    def note_start(self) -> None:
        """Remember what a void step gives back."""
        self._step_start.note(self.gradients.kept() if self.gradients.outlive else {})

    def restore_start(self) -> None:
        """Give back the buffers and gradients that the step began with."""
        self._step_start.restore_buffers()
        if self.gradients.outlive:
            self.gradients.restore(self._step_start.gradients)

    def compare(self) -> None:
        """Compare the replicas, where all workers are at the same place.

        :raises UsageError: they differ.
        """
        workers = self.context.world_size
        if workers > 1:
            self.guard.check(lambda tensor: self.averaging.add_up([tensor]), workers)

    def _compare_and_share(self) -> None:
        """All workers are between two steps, and the script's code between two epochs may follow."""
        self.compare()
        self.draws.share(self.averaging.broadcast, scripts=True)

    def _release(self) -> None:
        self.gradients.release()
        self.averaging.end()
        self.gradients.bind(accumulates=False)

    def _take_state(self, state: Mapping[str, Any], *, fresh: bool) -> None:
        """Take the state of a worker that is further.

        If that worker has already run the script after an epoch, its effect comes with the state: here the
        code will run, too, but must not count.

        :raises UsageError: this worker's model is not that of the other one.
        """
        training, phase = self.training, self.training.phase
        training.unpack(state)
        self.step.awaited = len(training.agreed) if state["asking"] else NOTHING_AWAITED
        ended_elsewhere = phase == EpochPhase.STEPS and training.phase == EpochPhase.COMPLETE
        self.replays_epoch = not fresh and ended_elsewhere
        restore_generators(state["training"]["generators"])
        if not fresh:
            training.forget_restored()

    def _divide(self) -> None:
        self.split, several = self._batching.split(self.context), self.context.world_size > 1
        self.training.set_batch(self.split.global_batch)
        if several and not self.averaging.begun:
            self.averaging.begin(each_model(self.training.model), self.context.device)
        self.gradients.bind(accumulates=self.accumulates)
        may_be_void = several and self.context.device.type == "cpu"
        self._step_start.watch(self.training.model if may_be_void else None)
        self.division += 1
        self.guard.new_workers()
        self.draws.follow(self.context.rank, self.context.world_size)
