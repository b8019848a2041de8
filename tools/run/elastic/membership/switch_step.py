"""How workers learn of a newer plan or a stop, and agree on the step after which all of them act on it.

:class:`PlanWatch` and :class:`StopSignal` say what one worker knows. :class:`Vote` compares it at every step.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.elastic.context import WorkerContext, read_plan
from pliant.tools.run.statedir.contract.folders import (
    UnreadableError,
    is_there,
    look_again,
    read_record,
    refresh_folder,
)
from pliant.tools.run.statedir.contract.liveness import life
from pliant.tools.run.statedir.contract.plan import ENV_NOTICES, Plan

_POLL_INTERVAL_S: Final = 0.01
_CHECK_INTERVAL_S: Final = 0.25
"""Seconds between two checks whether the others have ended; each reads one file a worker."""
_SERVER_POLL_INTERVAL_S: Final = 0.1
"""Seconds between two requests to the file server for a newer plan."""
_JOINER_POLL_INTERVAL_S: Final = 1.0
"""Seconds between two requests to the file server for workers that a plan adds, while training goes on."""
STOP: Final = 1 << 62
"""Ballot of a worker that a signal asked to stop: above that of every generation."""
NOTICE_TIMEOUT_S: Final = 30.0
"""Seconds after a notice without a new plan, after which the worker stops the job itself."""
VOTE_INTERVAL_S: Final = 0.1
"""Least seconds between two votes; else workers vote at every step."""
MAX_STEPS_BETWEEN_VOTES: Final = 32
"""Most steps from one vote to the next."""
_COLUMNS: Final = 5
"""Columns of a vote: the ballot, minus the steps to the next vote, the step on disk; whether a worker trains
or has left. Three more for each worker follow: the microseconds of a step that it needs itself, and the sum
and the number of its losses since the vote before, as the bits of floats. A change here changes
:data:`~pliant.tools.run.statedir.contract.plan.PROTOCOL`."""
_LEAST: Final = -(1 << 63)
"""Number below the bits of every other, for an exchange that keeps the largest."""
_LARGEST: Final = dist.AllreduceOptions()
_LARGEST.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
_log = logging.getLogger("pliant")


class NotNeededError(Exception):
    """The others have trained to the end without this worker."""


class StopRequestedError(Exception):
    """The job, or this worker, is asked to stop."""


class StopSignal:
    """SIGTERM or SIGUSR1 as a request that the next step boundary answers.

    Slurm and clouds send one of them before they take a machine away. A script that has a handler of its own
    for SIGUSR1 keeps it. Where the launcher reads of a SIGUSR1, it asks for less than a stop if that is
    enough; if no new plan comes for :data:`NOTICE_TIMEOUT_S`, the launcher is not there.
    """

    def __init__(self) -> None:
        self._asked = False
        self._noticed_s: float | None = None
        signal.signal(signal.SIGTERM, self._note)
        if signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGUSR1, self._notice if ENV_NOTICES in os.environ else self._note)

    @property
    def received(self) -> bool:
        since_s = self._noticed_s
        return self._asked or (since_s is not None and time.monotonic() - since_s >= NOTICE_TIMEOUT_S)

    @received.setter
    def received(self, asked: bool) -> None:
        self._asked = asked

    def new_plan(self) -> None:
        """The launcher is there."""
        self._noticed_s = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._noticed_s = time.monotonic()


class RateLimiter:
    """Limits how often files are looked at."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s, self._again_s = pause_s, 0.0

    def is_due(self) -> bool:
        """Whether the pause is over since this was last true."""
        now = time.monotonic()
        if now < self._again_s:
            return False
        self._again_s = now + self._pause_s
        return True


class PlanWatch:
    """The newest plan of a job, cheap enough to look up at every step (mostly one ``stat``)."""

    def __init__(self, context: WorkerContext, stop: StopSignal | None = None) -> None:
        self._context, self._stop = context, stop
        self._path = context.folder.plan
        self._plan = self._in_force = context.plan
        self._looks, self._looks_at_ends = RateLimiter(_POLL_INTERVAL_S), RateLimiter(_CHECK_INTERVAL_S)
        self._asks, self._asks_for_others = (
            RateLimiter(_SERVER_POLL_INTERVAL_S),
            RateLimiter(_JOINER_POLL_INTERVAL_S),
        )
        self._mark = (0, 0, 0)

    @property
    def stop_requested(self) -> bool:
        """Whether a signal or the newest plan asks this worker to stop."""
        return (self._stop is not None and self._stop.received) or self.newest().abort

    def check_needed(self, *, fresh: bool) -> None:
        """:param fresh: this worker has no state yet, and may be too late.

        :raises NotNeededError: the others have trained to the end.
        :raises StopRequestedError: this worker is asked to stop.
        """
        if fresh and self._looks_at_ends.is_due() and self._context.is_done():
            raise NotNeededError
        if self.stop_requested:
            raise StopRequestedError

    def newest(self) -> Plan:
        """The newest plan seen. A missing or unreadable file changes nothing."""
        status = look_again(self._path) if self._asks.is_due() else _look(self._path)
        if status is None:
            return self._plan
        mark = (status.st_mtime_ns, status.st_ino, status.st_size)
        if mark != self._mark and self._read():
            self._mark = mark
        return self._plan

    def in_force(self) -> Plan:
        """The newest plan whose workers are all ready, or that asks to stop; at least the one followed.

        Workers that train together, or start together, count as ready.
        """
        plan = self.newest()
        if self._in_force.generation < self._context.plan.generation:
            self._in_force = self._context.plan
        if plan.generation > self._in_force.generation and self._looks.is_due():
            self._in_force = self._newest_ready(plan)
        return self._in_force

    def exactly(self, generation: int, timeout_s: float) -> Plan:
        """The plan of a generation that another worker has seen.

        :raises ServiceMissingError: it did not appear in time.
        """
        path = self._context.folder.attempt(self._plan.attempt).plan(generation)
        deadline = time.monotonic() + timeout_s
        while not is_there(path):
            if self._asks.is_due():
                refresh_folder(path.parent)
            if time.monotonic() > deadline:
                raise ServiceMissingError(
                    f"{path} was announced by another worker but is not here after {timeout_s:g} s: "
                    "is the folder shared by all nodes?"
                )
            time.sleep(_POLL_INTERVAL_S)
        return read_plan(path)

    def _newest_ready(self, plan: Plan) -> Plan:
        attempt, known = self._context.folder.attempt(plan.attempt), self._context.known
        if self._asks_for_others.is_due():
            refresh_folder(attempt.path)
        for generation in range(plan.generation, self._in_force.generation, -1):
            try:
                candidate = read_plan(attempt.plan(generation))
            except (BadInputError, UnreadableError):
                continue
            others = [worker for worker in candidate.workers if worker not in known]
            if candidate.abort or all(life(attempt.presence(worker)) == "alive" for worker in others):
                return candidate
        return self._in_force

    def _read(self) -> bool:
        """Whether the file need not be read again until it changes."""
        try:
            plan = read_record(self._path, "plan", Plan, tries=1)
        except UnreadableError:
            return False
        except BadInputError as error:
            _log.warning("training goes on under generation %d: %s", self._plan.generation, error)
            return True
        if plan is not None and plan.generation > self._plan.generation:
            self._plan = plan
            if self._stop is not None:
                self._stop.new_plan()
        return True


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


class LeftEpochError(RuntimeError):
    """Some workers train on in an epoch that others have left midway."""

    def __init__(self) -> None:
        super().__init__(
            "workers have left the loop over the loader after different steps: "
            "end such a loop by loader.steps_done, not by a count of its own"
        )


def ballot(generation: int, *, save: bool) -> int:
    """The number to cast: the plan that a worker knows, and whether a checkpoint is due."""
    return 2 * generation + save


class Vote:
    """The largest number that any worker has cast, known to all workers at the same step.

    ``cast`` starts an all-reduce on the CPU and returns at once; ``result`` waits for it after the step's own
    work. If steps are so short that even starting a vote would show, the workers agree at each vote on how
    many steps have none.
    """

    def __init__(self) -> None:
        """For one worker; see :meth:`drop`."""
        # The newest step that a worker knew to be on disk, at the last vote or meeting.
        self.saved_step = 0
        # Steps that have no vote before the next one.
        self._pause = 0
        self._pending: dist.Work | None = None
        self._waited_s = 0.0
        # Something was cast, and its result has not been asked for.
        self.is_open = False
        self._rank, self._workers = 0, 1
        self._clear()

    @property
    def own_s(self) -> list[float]:
        """By rank, seconds of a step in which a worker waits for no other, at the last vote; 0 if unknown."""
        return [micros / 1e6 for micros in self._own]

    def take_waited_s(self) -> float:
        """Seconds that this worker has waited for results since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def _clear(self) -> None:
        # an all-reduce under way may still write into the old tensor
        self._value = self._empty()
        self._numbers = self._value.numpy()
        self._own = [0] * self._workers
        self.losses = 0.0, 0.0

    def _empty(self) -> torch.Tensor:
        value = torch.zeros(_COLUMNS + 3 * self._workers, dtype=torch.int64)
        value[_COLUMNS + self._workers :] = _LEAST
        return value

    def is_due(self) -> bool:
        """Whether the step that begins has a vote; all workers ask once a step."""
        self._pause -= 1
        return self._pause < 0

    def cast(
        self,
        number: int,
        usual_step_s: float = 0.0,
        saved_step: int = 0,
        own_step_s: float = 0.0,
        losses: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Cast this worker's number for the step that begins.

        :param usual_step_s: what a step takes here, 0 if unknown.
        :param saved_step: the newest step that this worker knows to be on disk.
        :param own_step_s: what this worker needs of it without waiting for others, 0 if unknown.
        :param losses: sum and number of its losses since the vote before.
        """
        first, rank, workers = _COLUMNS, self._rank, self._workers
        self._numbers[:first] = number, -1, saved_step, 1, 0
        self._numbers[first : first + workers] = 0
        self._numbers[first + workers :] = _LEAST
        self._numbers[first + rank] = int(own_step_s * 1e6)
        mine = slice(first + workers + 2 * rank, first + workers + 2 * rank + 2)
        self._numbers[mine] = np.array(losses).view(np.int64)
        self.is_open = True
        if self._workers > 1:
            self._numbers[1] = -steps_between_votes(usual_step_s)
            self._pending = world().allreduce([self._value], _LARGEST)

    def result(self) -> int:
        """The largest number cast for the step that ends; 0 if nothing was cast.

        :raises LeftEpochError: other workers have left the epoch instead.
        """
        if not self.is_open:
            return 0
        if self._pending is not None:
            began_s = time.monotonic()
            self._pending.wait()
            self._waited_s += time.monotonic() - began_s
            self._pending = None
        numbers: list[int] = self._numbers[: _COLUMNS + self._workers].tolist()
        agreed, steps, self.saved_step, trained, left, *self._own = numbers
        losses = self._numbers[_COLUMNS + self._workers :].view(np.float64)
        self.losses = float(losses[::2].sum()), float(losses[1::2].sum())
        self._pause, self.is_open = -steps - 1, False
        if trained and left:
            raise LeftEpochError
        return agreed

    def check_together(self, *, left: bool) -> None:
        """Check that all workers train on, also those that :meth:`cast`, or that all have left the epoch.

        :raises LeftEpochError: some train on, and others have left.
        """
        if self._workers == 1:
            return
        value = self._empty()
        value[1], value[3], value[4] = -MAX_STEPS_BETWEEN_VOTES, not left, left
        world().allreduce([value], _LARGEST).wait()
        if value[3] and value[4]:
            raise LeftEpochError

    def meet(self, saved_step: int) -> None:
        """Wait until all workers call this; afterwards they know which step is on disk."""
        value = torch.tensor([saved_step])
        if self._workers > 1:
            # on the CPU: a barrier of workers on GPUs is NCCL's, which does not notice a lost worker
            world().allreduce([value], _LARGEST).wait()
        self.saved_step = int(value)

    def drop(self, rank: int = 0, workers: int = 1) -> None:
        """The workers have changed: forget what was cast."""
        self._pending, self.is_open, self._pause = None, False, 0
        self._rank, self._workers = rank, workers
        self._clear()


def steps_between_votes(usual_step_s: float) -> int:
    return (
        max(1, min(MAX_STEPS_BETWEEN_VOTES, int(VOTE_INTERVAL_S / usual_step_s))) if usual_step_s > 0 else 1
    )


def world() -> dist.ProcessGroup:
    """All workers. The group's own operations lack the wrappers that would show in a step of 10 ms."""
    group = dist.group.WORLD
    assert group is not None  # noqa: S101 called by workers that have met
    return group
