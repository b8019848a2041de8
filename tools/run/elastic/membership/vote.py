"""Looking for news of the plan, and agreeing with the other workers on the step after which to act on it."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Container
from pathlib import Path
from types import FrameType
from typing import Final

import torch
import torch.distributed as dist

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.statedir.contract.files import UnreadableError, read_record
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.contract.presence import life

STOP: Final = 1 << 62
"""Counts as newer than every generation: a worker was asked by signal to stop."""
BETWEEN_VOTES_S: Final = 0.1
"""Workers agree at every step, but not more often than this."""
MOST_STEPS: Final = 32
"""From one vote to the next."""
_POLL_S: Final = 0.01
_TRIES: Final = 100
"""A plan that a worker cannot do without is tried for two seconds."""
_log = logging.getLogger("pliant")


def read_plan(path: Path) -> Plan:
    """The plan in a file.

    :raises BadInputError: there is none, or it is no plan of a version that is known.
    :raises UnreadableError: it cannot be read, though it was tried for seconds.
    """
    plan = read_record(path, "plan", Plan, tries=_TRIES)
    if plan is None:
        raise BadInputError.one(str(path), "no such file")
    return plan


class Pace:
    """Lets a look at files go ahead only so often, however often it is asked for."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s, self._again_s = pause_s, 0.0

    def is_due(self) -> bool:
        """Whether that much time has gone by since it last said so."""
        now = time.monotonic()
        if now < self._again_s:
            return False
        self._again_s = now + self._pause_s
        return True


class PlanWatch:
    """The newest plan of a job, looked up so cheaply that every step can do it (one ``stat``)."""

    def __init__(self, job: JobDir, plan: Plan) -> None:
        self._job = job
        self._path = job.plan
        self._plan = self._in_force = plan
        self._looks = Pace(_POLL_S)
        self._mark = (0, 0, 0)

    def newest(self) -> Plan:
        """The newest plan seen. A file that is away or cannot be understood changes nothing."""
        try:
            found = self._path.stat()
        except OSError:
            return self._plan
        mark = (found.st_mtime_ns, found.st_ino, found.st_size)
        if mark != self._mark and self._read():
            self._mark = mark
        return self._plan

    def in_force(self, known: Container[int]) -> Plan:
        """The newest plan whose workers are all ready, or that asks to stop.

        :param known: workers that are ready beyond doubt: they train together, or are starting together.
        """
        plan = self.newest()
        if plan.generation > self._in_force.generation and self._looks.is_due():
            self._in_force = self._newest_ready(plan, known)
        return self._in_force

    def exactly(self, generation: int, timeout_s: float) -> Plan:
        """The plan of that generation, which another worker has seen already.

        :raises ServiceMissingError: it did not appear in time.
        """
        path = self._job.attempt(self._plan.attempt).plan(generation)
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > deadline:
                raise ServiceMissingError(
                    f"{path} was announced by another worker but is not here after {timeout_s:g} s: "
                    "is the folder shared by all nodes?"
                )
            time.sleep(_POLL_S)
        return read_plan(path)

    def _newest_ready(self, plan: Plan, known: Container[int]) -> Plan:
        attempt = self._job.attempt(plan.attempt)
        for generation in range(plan.generation, self._in_force.generation, -1):
            try:
                found = read_plan(attempt.plan(generation))
            except (BadInputError, UnreadableError):
                continue
            others = [worker for worker in found.workers if worker not in known]
            if found.abort or all(life(attempt.presence(worker)) == "alive" for worker in others):
                return found
        return self._in_force

    def _read(self) -> bool:
        """Whether all was learnt from the file that there is to learn from it."""
        try:
            plan = read_record(self._path, "plan", Plan, tries=1)
        except UnreadableError:
            return False
        except BadInputError as error:
            _log.warning("training goes on under generation %d: %s", self._plan.generation, error)
            return True
        if plan is not None and plan.generation > self._plan.generation:
            self._plan = plan
        return True


class StopSignal:
    """SIGTERM as a request that the next step boundary answers."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True


def ballot(generation: int, *, save: bool) -> int:
    """What a worker casts: the plan that it knows, and whether a checkpoint is due."""
    return 2 * generation + save


class Vote:
    """The largest number that any worker has cast, known to all workers at the same step.

    ``cast`` starts an all-reduce of three numbers on the CPU and returns at once; ``result`` waits for it.
    Between the two lies the step's own work, so that agreement costs no waiting. Where steps are so short
    that even starting it would show, the workers agree each time on how many steps to leave out.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self.saved_step = 0
        """The newest step that a worker knew to be on disk, at the last vote or meeting."""
        self._pause = 0
        """Steps that have no vote before the next one."""
        self._value = torch.zeros(3, dtype=torch.int64)
        self._numbers = self._value.numpy()
        self._pending: dist.Work | None = None
        self.is_open = False
        """Whether something was cast that nobody has asked the result of."""

    def is_due(self) -> bool:
        """Whether the step that begins has a vote; asked once a step, by all workers alike."""
        self._pause -= 1
        return self._pause < 0

    def cast(self, number: int, usual_step_s: float = 0.0, saved_step: int = 0) -> None:
        """Cast this worker's number for the step that begins.

        :param usual_step_s: what a step takes here, 0 if that is not known.
        :param saved_step: the step that is on disk, as far as is known here.
        """
        self._numbers[:] = number, -1, saved_step
        self.is_open = True
        if not self._alone:
            self._numbers[1] = -steps_between_votes(usual_step_s)
            self._pending = world().allreduce([self._value], _LARGEST)

    def result(self) -> int:
        """The largest number cast for the step that ends; 0 where nothing was cast."""
        if not self.is_open:
            return 0
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        agreed, steps, self.saved_step = map(int, self._numbers)
        self._pause, self.is_open = -steps - 1, False
        return agreed

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
        self._value = torch.zeros(3, dtype=torch.int64)
        self._numbers = self._value.numpy()


def steps_between_votes(usual_step_s: float) -> int:
    """How many steps of this length go by from one vote to the next."""
    return max(1, min(MOST_STEPS, int(BETWEEN_VOTES_S / usual_step_s))) if usual_step_s > 0 else 1


def world() -> dist.ProcessGroup:
    """All workers. Its own operations have none of the wrappers that would show in a step of 10 ms."""
    group = dist.group.WORLD
    assert group is not None  # noqa: S101 called by workers that have met
    return group


def _options() -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
    return options


_LARGEST: Final = _options()
