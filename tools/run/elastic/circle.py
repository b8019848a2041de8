"""The workers that train together, and the way from one generation of them to the next."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.elastic.meeting import CalledAwayError, Interruptible, Meeting, pause
from pliant.tools.run.elastic.position import Position
from pliant.tools.run.elastic.setting import Setting
from pliant.tools.run.elastic.watch import PlanWatch
from pliant.tools.run.plan import Plan
from pliant.tools.run.presence import life

_log = logging.getLogger("pliant")
COLLECTIVE: Final = timedelta(minutes=30)
"""How long a worker waits for the others in a collective operation: rank 0 alone may validate that long. One
that died is noticed at once, by its connection."""
_CONNECT: Final = timedelta(seconds=10)
"""How long the workers may take to connect once all of them have come."""
_LOOK_S: Final = 0.25
"""Between two looks at whether those that are missing live."""
_SETTLE_S: Final = 0.1


class LeftAloneError(Exception):
    """A worker has died, and there is no plan without it."""


class Circle:
    """A worker's membership in the process group.

    :param check: called while waiting; may raise to break it off.
    """

    def __init__(
        self, setting: Setting, backend: str | None, watch: PlanWatch, check: Callable[[], None]
    ) -> None:
        self._setting, self._watch, self._check = setting, watch, check
        self._backend = backend or default_backend(setting)
        self._round = 0
        self._store: dist.Store | None = None

    def form(self, plan: Plan, position: Position | None) -> list[Position | None]:
        """Meet the workers of the plan, or of a newer one that comes into force meanwhile.

        The setting follows the plan that was met for in the end, which may be one without this worker: then
        the list is empty. Else it tells how far each worker is, by rank; None: it has no state yet.

        :raises ServiceMissingError: at the start of a job, when the workers did not all come in time.
        :raises OSError: likewise, when this one cannot make itself known.
        :raises LeftAloneError: later, when one has died and no newer plan came.
        """
        waiting, told = _Waiting(self, position), ""
        while True:
            self._turn_to(plan)
            if self._setting.left:
                return []
            if len(plan.members) == 1:
                return [position]
            try:
                return self._meet(position, waiting)
            except CalledAwayError:
                plan = self._watch.in_force(self._setting.known)
                continue
            except RuntimeError as error:
                problem = str(error)
            except OSError as error:
                if position is None:
                    raise
                # a full disk, say: what is trained so far can wait for room
                problem = str(error)
                time.sleep(_LOOK_S)
            if problem != told:
                _log.warning("generation %d did not come together: %s", plan.generation, problem)
            told = problem
            # outside of the handlers: what they caught keeps connections open
            self.leave()
            self._check()
            if waiting():
                plan = self._watch.in_force(self._setting.known)

    def leave(self) -> None:
        """Give up the process group."""
        leave()
        self._store = None

    def _turn_to(self, plan: Plan) -> None:
        orders = self._setting.orders
        if orders is None or plan.generation > orders.plan.generation:
            self._round = 0
        self._setting.follow(plan)

    def _meet(self, position: Position | None, waiting: _Waiting) -> list[Position | None]:
        orders = self._setting.orders
        assert orders is not None  # noqa: S101 only workers with a plan come here
        meeting = Meeting(orders, self._round, waiting)
        store, positions = meeting.attend(position)
        self._round = meeting.number + 1
        self._store = store
        dist.init_process_group(
            self._backend,
            store=Interruptible(store, self.superseded),
            rank=orders.rank,
            world_size=len(positions),
            timeout=_CONNECT,
        )
        _set_pg_timeout(COLLECTIVE)
        return positions

    def superseded(self) -> bool:
        """Whether a plan newer than the one that is followed is in force."""
        self._check()
        orders = self._setting.orders
        newer = self._watch.in_force(self._setting.known)
        return orders is not None and newer.generation > orders.plan.generation

    def missing(self) -> list[str]:
        """Slots of the plan's workers that are dead, or not ready."""
        orders = self._setting.orders
        if orders is None:
            return []
        others = zip(orders.plan.workers, orders.plan.members, strict=True)
        return [
            member.slot
            for worker, member in others
            if worker != orders.worker and life(orders.attempt.presence(worker)) != "alive"
        ]

    @property
    def plan(self) -> Plan:
        """The plan that is followed."""
        assert self._setting.orders is not None  # noqa: S101 only workers with a plan come here
        return self._setting.orders.plan


class _Waiting:
    """What a worker does while it waits for the others."""

    def __init__(self, circle: Circle, position: Position | None) -> None:
        self._circle, self._fresh = circle, position is None
        self._since_s = self._looked_s = time.monotonic()

    def __call__(self) -> bool:
        pause()
        if self._circle.superseded():
            return True
        now = time.monotonic()
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            self._give_up(now - self._since_s)
        return False

    def _give_up(self, waited_s: float) -> None:
        plan = self._circle.plan
        limit_s = plan.timeout_s if self._fresh else plan.patience_s
        if waited_s > limit_s and (missing := ", ".join(self._circle.missing())):
            if not self._fresh:
                raise LeftAloneError(missing)
            raise ServiceMissingError(
                f"job {plan.job}, generation {plan.generation}: {missing} did not come within {limit_s:g} s"
            )
        if waited_s > COLLECTIVE.total_seconds():
            problem = "all workers live, but they do not meet"
            raise (
                ServiceMissingError(f"job {plan.job}: {problem}") if self._fresh else LeftAloneError(problem)
            )


def default_backend(setting: Setting) -> str:
    """Gloo on CPU slots; on GPUs gloo for what lies in main memory and NCCL for what lies on the device."""
    return "cpu:gloo,cuda:nccl" if setting.device.type == "cuda" else "gloo"


def join_plainly(setting: Setting, backend: str | None) -> None:
    """Form the process group of workers that torchrun alone has started; does nothing for one worker."""
    if setting.world_size > 1:
        leave_at_exit()
        dist.init_process_group(backend or default_backend(setting))


def leave_at_exit() -> None:
    """Give up the process group, as the last thing before the interpreter ends.

    A gloo thread may still be freeing its last operation, for which it needs the interpreter lock; were the
    interpreter gone by then, the process would abort. The model keeps that thread from being joined.
    """
    atexit.register(_leave_slowly)


def _leave_slowly() -> None:
    leave()
    time.sleep(_SETTLE_S)


def leave() -> None:
    """Give up the process group, or what is left of one that did not form.

    PyTorch numbers groups, and workers only find each other under the same number. It forgets the number of
    a group that is destroyed, but not of one that failed to form, which may have formed elsewhere.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    _world.group_count = 0
