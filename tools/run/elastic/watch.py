"""Looking for news of the plan, and agreeing with the other workers on the step after which to act on it."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Final

import torch
import torch.distributed as dist
from pydantic import ValidationError

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.files import read_bytes
from pliant.schemas.problems import problems_of
from pliant.tools.run.plan import Plan

STOP: Final = 1 << 62
"""Counts as newer than every generation: a worker was asked by signal to stop."""
_POLL_S: Final = 0.02
_log = logging.getLogger("pliant")


def read_plan(path: Path) -> Plan:
    """The plan in a file.

    :raises BadInputError: there is none, or it is no plan.
    """
    try:
        return Plan.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise BadInputError(problems_of(error, str(path))) from None


class PlanWatch:
    """The newest plan of a job, looked up so cheaply that every step can do it (one ``stat``)."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path = path
        self._plan = plan
        self._mark = (0, 0, 0)

    def newest(self) -> Plan:
        """The newest plan seen. A file that is away or cannot be understood changes nothing."""
        try:
            found = self._path.stat()
        except OSError:
            return self._plan
        mark = (found.st_mtime_ns, found.st_ino, found.st_size)
        if mark != self._mark:
            self._mark = mark
            self._read()
        return self._plan

    def wait_for(self, generation: int, timeout_s: float) -> Plan:
        """The newest plan, once it is at least ``generation``: another worker has seen it already.

        :raises ServiceMissingError: it did not appear in time.
        """
        deadline = time.monotonic() + timeout_s
        while (plan := self.newest()).generation < generation:
            if time.monotonic() > deadline:
                raise ServiceMissingError(
                    f"{self._path}: generation {generation} was announced by another worker but is not here "
                    f"after {timeout_s:g} s: is the folder shared by all nodes?"
                )
            time.sleep(_POLL_S)
        return plan

    def _read(self) -> None:
        try:
            plan = read_plan(self._path)
        except BadInputError as error:
            _log.warning("training goes on under generation %d: %s", self._plan.generation, error)
            return
        if plan.generation > self._plan.generation:
            self._plan = plan


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

    ``cast`` starts a one-element all-reduce on the CPU and returns at once; ``result`` waits for it. Between
    the two lies the step's own work, so that agreement costs no waiting.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._value = torch.zeros(1, dtype=torch.int64)
        self._pending: dist.Work | None = None

    def cast(self, number: int) -> None:
        """Cast this worker's number for the step that begins."""
        self._value.fill_(number)
        if not self._alone:
            self._pending = dist.all_reduce(self._value, dist.ReduceOp.MAX, async_op=True)

    def result(self) -> int:
        """The largest number cast for the step that ends; 0 where nothing was cast."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        agreed = int(self._value.item())
        self._value.zero_()
        return agreed

    def spread(self, number: int) -> tuple[int, int]:
        """The smallest and the largest number that the workers give, which call this together."""
        ends = torch.tensor([number, -number])
        if not self._alone:
            dist.all_reduce(ends, dist.ReduceOp.MAX)
        return -int(ends[1]), int(ends[0])
