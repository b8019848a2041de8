"""How the workers agree on the step after which all of them act on a newer plan."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist

STOP: Final = 1 << 62
"""Counts as newer than every generation: a worker was asked by signal to stop."""
BETWEEN_VOTES_S: Final = 0.1
"""Workers agree at every step, but not more often than this."""
MOST_STEPS: Final = 32
"""From one vote to the next."""


_COLUMNS: Final = 5
"""The number, minus the steps to the next vote, the step on disk; whether a worker trains or has left. What
changes here changes :data:`~pliant.tools.run.statedir.contract.plan.PROTOCOL`."""


class LeftEpochError(RuntimeError):
    """Some workers train on in an epoch that others have left midway."""

    def __init__(self) -> None:
        super().__init__(
            "workers have left the loop over the loader after different steps: "
            "end such a loop by loader.steps_done, not by a count of its own"
        )


def ballot(generation: int, *, save: bool) -> int:
    """What a worker casts: the plan that it knows, and whether a checkpoint is due."""
    return 2 * generation + save


class Vote:
    """The largest number that any worker has cast, known to all workers at the same step.

    ``cast`` starts an all-reduce of five numbers on the CPU and returns at once; ``result`` waits for it.
    Between the two lies the step's own work, so that agreement costs no waiting. Where steps are so short
    that even starting it would show, the workers agree each time on how many steps to leave out.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self.saved_step = 0
        """The newest step that a worker knew to be on disk, at the last vote or meeting."""
        self._pause = 0
        """Steps that have no vote before the next one."""
        self._value = torch.zeros(_COLUMNS, dtype=torch.int64)
        self._numbers = self._value.numpy()
        self._pending: dist.Work | None = None
        self.is_open = False
        """Whether something was cast and its result was not asked for yet."""

    def is_due(self) -> bool:
        """Whether the step that begins has a vote; asked once a step, by all workers alike."""
        self._pause -= 1
        return self._pause < 0

    def cast(self, number: int, usual_step_s: float = 0.0, saved_step: int = 0) -> None:
        """Cast this worker's number for the step that begins.

        :param usual_step_s: what a step takes here, 0 if that is not known.
        :param saved_step: the step that is on disk, as far as is known here.
        """
        self._numbers[:] = number, -1, saved_step, 1, 0
        self.is_open = True
        if not self._alone:
            self._numbers[1] = -steps_between_votes(usual_step_s)
            self._pending = world().allreduce([self._value], _LARGEST)

    def result(self) -> int:
        """The largest number cast for the step that ends; 0 where nothing was cast.

        :raises LeftEpochError: other workers have left the epoch instead.
        """
        if not self.is_open:
            return 0
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        agreed, steps, self.saved_step, trained, left = map(int, self._numbers)
        self._pause, self.is_open = -steps - 1, False
        if trained and left:
            raise LeftEpochError
        return agreed

    def check_together(self, *, left: bool) -> None:
        """Check that all workers are at the same place: they train on, or have left the epoch midway.

        It is compared with what other workers :meth:`cast` for a step, too.

        :raises LeftEpochError: some train on, and others have left.
        """
        if self._alone:
            return
        value = torch.tensor([0, -MOST_STEPS, 0, not left, left], dtype=torch.int64)
        world().allreduce([value], _LARGEST).wait()
        if value[3] and value[4]:
            raise LeftEpochError

    def meet(self, saved_step: int) -> None:
        """Wait until all workers call this, and let them know what is on disk."""
        value = torch.tensor([saved_step])
        if not self._alone:
            # over the CPU: a barrier of workers on GPUs is NCCL's, where a lost worker goes unnoticed
            world().allreduce([value], _LARGEST).wait()
        self.saved_step = int(value)

    def drop(self, *, alone: bool) -> None:
        """Forget what was cast: the workers have changed."""
        self._pending, self.is_open, self._alone, self._pause = None, False, alone, 0
        # what was under way may still write into the old one
        self._value = torch.zeros(_COLUMNS, dtype=torch.int64)
        self._numbers = self._value.numpy()


def steps_between_votes(usual_step_s: float) -> int:
    """How many steps of this length go by from one vote to the next."""
    return max(1, min(MOST_STEPS, int(BETWEEN_VOTES_S / usual_step_s))) if usual_step_s > 0 else 1


def world() -> dist.ProcessGroup:
    """All workers. Its own operations have none of the wrappers that would show in a step of 10 ms."""
    group = dist.group.WORLD
    assert group is not None  # noqa: S101 called by workers that have met
    return group


_LARGEST: Final = dist.AllreduceOptions()
_LARGEST.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
