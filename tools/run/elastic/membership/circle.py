"""The workers that train together, and the way from one generation of them to the next."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.formats.files import is_out_of_order, probe_room
from pliant.tools.run.elastic.context import Context, Orders
from pliant.tools.run.elastic.membership.cursor import Cursor
from pliant.tools.run.elastic.membership.folder_store import pause
from pliant.tools.run.elastic.membership.interface import own_address, use_interface
from pliant.tools.run.elastic.membership.lookout import Lookout
from pliant.tools.run.elastic.membership.process_group import COLLECTIVE, Group
from pliant.tools.run.elastic.membership.rendezvous import CalledAwayError, Meeting, remove_earlier
from pliant.tools.run.elastic.membership.vote import PlanWatch
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.contract.presence import life

_log = logging.getLogger("pliant")
CONNECT: Final = timedelta(seconds=10)
"""How long the workers may take to connect once all of them have come; twice as long the next time."""
TRIES: Final = 5
"""How often workers that live may meet without connecting."""
_LOOK_S: Final = 0.25
"""Between two looks at whether those that are missing live."""


class LeftAloneError(Exception):
    """A worker has died, and there is no plan without it."""


class Circle:
    """A worker's membership in the process group.

    :param check: called while waiting; may raise to break it off.
    """

    def __init__(
        self, context: Context, backend: str | None, watch: PlanWatch, check: Callable[[], None]
    ) -> None:
        self._context, self._watch, self._check = context, watch, check
        self._group = Group(context, backend)
        self._lookout: Lookout | None = None
        self._round = 0
        self.shortage = ""
        """What the workers have waited for, the last time they met, beside each other."""

    def form(self, plan: Plan, cursor: Cursor | None) -> list[Cursor | None]:
        """Meet the workers of the plan, or of a newer one that comes into force meanwhile.

        The context follows the plan that was met for in the end, which may be one without this worker: then
        the list is empty. Else it tells how far each worker is, by rank; None: it has no state yet.

        What is trained waits for room on a full disk as long as that takes.

        :raises ServiceMissingError: at the start of a job, when the workers did not all come in time.
        :raises OSError: likewise, when this one cannot make itself known.
        :raises LeftAloneError: later, when one has died and no newer plan came.
        """
        waiting, told, self.shortage = _Waiting(self, cursor), "", ""
        while True:
            self._turn_to(plan)
            if self._context.left:
                return []
            if len(plan.members) == 1:
                remove_earlier(self._orders.attempt, (plan.generation, 0))
                return [cursor]
            try:
                return self._meet(cursor, waiting)
            except CalledAwayError:
                # perhaps by another worker, which sees the newer plan earlier than this one
                waiting()
                plan, waiting.failed = self._watch.in_force(self._context.known), 0
                continue
            except RuntimeError as error:
                problem = str(error)
            except (OSError, ServiceMissingError) as error:
                if cursor is None:
                    raise
                # not its text: the name of a temporary file in it changes each time
                problem = getattr(error, "strerror", None) or str(error)
                if is_out_of_order(error):
                    waiting.for_room(problem)
                time.sleep(_LOOK_S)
            if problem != told:
                _log.warning("generation %d did not come together: %s", plan.generation, problem)
            told = problem
            # outside of the handlers: what they caught keeps connections open
            self.leave()
            self._check()
            if problem != self.shortage:
                waiting.disturbed(problem)
            if waiting():
                plan, waiting.failed = self._watch.in_force(self._context.known), 0

    def leave(self) -> None:
        """Give up the process group."""
        self._group.leave()

    def _turn_to(self, plan: Plan) -> None:
        orders = self._context.orders
        if orders is None or plan.generation > orders.plan.generation:
            self._round = 0
        self._context.follow(plan)

    def _meet(self, cursor: Cursor | None, waiting: _Waiting) -> list[Cursor | None]:
        orders = self._orders
        use_interface(own_address(orders.plan, orders.rank))
        # before the others count on this worker: they can be called away from a meeting, but not from C++
        self._group.check_room(orders.attempt.path)
        meeting = Meeting(orders, self._round, waiting)
        cursors = meeting.attend(cursor)
        self._round = meeting.number + 1
        self._group.form(meeting.folder, self.superseded, CONNECT * 2**waiting.failed)
        if self._lookout is None:
            watch = PlanWatch(orders.folder, orders.plan)
            self._lookout = Lookout(self._context, watch, self._group.break_off)
            self._lookout.begin()
        if orders.rank == 0:
            remove_earlier(orders.attempt, (orders.plan.generation, meeting.number))
        return cursors

    def superseded(self) -> bool:
        """Whether a plan newer than the one that is followed is in force."""
        self._check()
        newer = self._watch.in_force(self._context.known)
        return newer.generation > self.plan.generation

    def missing(self) -> list[str]:
        """Slots of the plan's workers that are dead, or not ready."""
        orders = self._orders
        others = zip(orders.plan.workers, orders.plan.members, strict=True)
        return [
            member.slot
            for worker, member in others
            if worker != orders.worker and life(orders.attempt.presence(worker)) != "alive"
        ]

    def no_room(self) -> str:
        """Why the disk of the attempt takes nothing; empty: it does."""
        try:
            probe_room(self._orders.attempt.path)
        except ServiceMissingError as error:
            return str(error) if is_out_of_order(error) else ""
        return ""

    @property
    def plan(self) -> Plan:
        """The plan that is followed."""
        return self._orders.plan

    @property
    def _orders(self) -> Orders:
        assert self._context.orders is not None  # noqa: S101 only workers with a plan come here
        return self._context.orders


class _Waiting:
    """What a worker does while it waits for the others."""

    def __init__(self, circle: Circle, cursor: Cursor | None) -> None:
        self._circle, self._fresh = circle, cursor is None
        self._since_s = self._looked_s = time.monotonic()
        self.failed = 0
        """How often the workers of the plan have met without connecting."""

    def disturbed(self, problem: str) -> None:
        """Those who met did not connect. If all live, and it is so again and again, it will not change."""
        self.failed += 1
        if self.failed >= TRIES and not self._circle.missing():
            self._raise(f"the workers meet, but cannot connect: {problem}")

    def for_room(self, problem: str) -> None:
        """The disk is full: no worker is to blame for what fails, and no time counts.

        The launcher cannot write a plan then, and a worker that left could not save what it has trained.
        """
        self._since_s, self.failed = time.monotonic(), 0
        if self._circle.shortage != problem:
            _log.warning("training waits for room: %s", problem)
        self._circle.shortage = problem

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
            self._raise(f"{missing} did not come within {limit_s:g} s" if self._fresh else missing)
        if waited_s > COLLECTIVE.total_seconds():
            self._raise("all workers live, but they do not meet")

    def _raise(self, problem: str) -> None:
        if not self._fresh:
            if no_room := self._circle.no_room():
                self.for_room(no_room)
                return
            raise LeftAloneError(problem)
        plan = self._circle.plan
        raise ServiceMissingError(f"job {plan.job}, generation {plan.generation}: {problem}")
