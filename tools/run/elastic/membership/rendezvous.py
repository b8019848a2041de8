"""How the workers of a plan come together: they meet in rounds until all of them are connected."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Final

from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.file_io.files import is_out_of_order, probe_room
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership import vanished_peers
from pliant.tools.run.elastic.membership.folder_store import pause
from pliant.tools.run.elastic.membership.interface import own_address, use_interface
from pliant.tools.run.elastic.membership.plan_watch import Pace, PlanWatch
from pliant.tools.run.elastic.membership.process_group import COLLECTIVE, ProcessGroup
from pliant.tools.run.elastic.membership.round import ApartError, CalledAwayError, Round, remove_earlier
from pliant.tools.run.elastic.membership.vanished_peers import Lookout
from pliant.tools.run.elastic.state.cursor import Cursor
from pliant.tools.run.statedir.contract.heartbeat import Heartbeats
from pliant.tools.run.statedir.contract.presence import life

_log = logging.getLogger("pliant")
CONNECT: Final = timedelta(seconds=10)
"""How long the workers may take to connect once all of them have come; twice as long the next time."""
TRIES: Final = 5
"""How often workers that live may meet without connecting."""
SILENT_S: Final = 10.0
"""After so long without a beat a worker counts as dead, also where its file is locked."""
_LOOK_S: Final = 0.25
"""Between two looks at whether the missing workers live."""


class LeftAloneError(Exception):
    """A worker has died, and there is no plan without it."""


class Rendezvous:
    """Where a worker meets the others of its generation, one generation after the other."""

    def __init__(self, context: WorkerContext, group: ProcessGroup, watch: PlanWatch) -> None:
        self._context, self._group, self._watch = context, group, watch
        self._lookout: Lookout | None = None
        self._next = (0, 0)
        """A generation, and the first of its rounds that this worker has not attended."""
        self._waiting = Waiting(context, watch, fresh=True)

    @property
    def shortage(self) -> str:
        """What the worker waited for at the last rendezvous, apart from the others."""
        return self._waiting.shortage

    def meet(self, cursor: Cursor | None) -> list[Cursor | None]:
        """Meet the workers of the plan that is followed, or of a newer one that comes into force meanwhile.

        That one is followed from then on. It may be one without this worker: then the list is empty. Else the
        list says how far each worker is, by rank; None: it has no state yet. Workers that train wait for room
        on a full disk as long as that takes.

        :param cursor: how far this worker is.
        :raises ServiceMissingError: at the start of a job, when the workers did not all come in time.
        :raises OSError: likewise, when this one cannot make itself known.
        :raises LeftAloneError: later, when one has died and no newer plan came.
        :raises CutOffError: this worker does not reach the others.
        :raises NotNeededError: the others have trained to the end.
        :raises StopAskedError: this worker is asked to stop.
        """
        waiting = self._waiting = Waiting(self._context, self._watch, fresh=cursor is None)
        reported = ""
        while not self._context.left:
            plan = self._context.plan
            if len(plan.members) == 1:
                remove_earlier(self._context.attempt, (plan.generation, 0))
                return [cursor]
            try:
                return self._connect(cursor, waiting)
            except CalledAwayError:
                # perhaps by another worker, which sees the newer plan earlier than this one
                waiting()
                waiting.follow_newest()
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
            if problem != reported:
                _log.warning("generation %d did not come together: %s", plan.generation, problem)
            reported = problem
            # outside of the handlers: what they caught keeps connections open
            self._group.leave()
            self._watch.check_needed(fresh=cursor is None)
            if problem != waiting.shortage:
                waiting.disturbed(problem)
            if waiting():
                waiting.follow_newest()
        return []

    def _connect(self, cursor: Cursor | None, waiting: Waiting) -> list[Cursor | None]:
        context = self._context
        generation = context.plan.generation
        use_interface(own_address(context.plan, context.rank))
        # before the others count on this worker: they can be called away from a round, but not from C++
        self._group.check_room(context.attempt.path)
        number = self._next[1] if self._next[0] == generation else 0
        attended = Round(context, number, waiting)
        try:
            cursors = attended.attend(cursor)
        except ApartError:
            self._next = generation, attended.number + 1
            raise
        self._next = generation, attended.number + 1
        self._group.form(attended.folder, waiting.superseded, CONNECT * 2**waiting.failed)
        if self._lookout is None:
            self._lookout = Lookout(context, PlanWatch(context), self._group, vanished_peers.LOOK_S)
            self._lookout.begin()
        if context.rank == 0:
            remove_earlier(context.attempt, (generation, attended.number))
        return cursors


class Waiting:
    """What a worker does while it waits for the others, and what ends that."""

    def __init__(self, context: WorkerContext, watch: PlanWatch, *, fresh: bool) -> None:
        self._context, self._watch, self._fresh = context, watch, fresh
        self._since_s, self._looks = time.monotonic(), Pace(_LOOK_S)
        self._beats = Heartbeats()
        self.failed = 0
        """How often the workers of the plan have met without connecting."""
        self.shortage = ""
        """What it waited for, apart from the others."""

    def __call__(self) -> bool:
        """A moment goes by; whether a newer plan is in force."""
        pause()
        if self.superseded():
            return True
        if self._looks.is_due():
            self._check_time(time.monotonic() - self._since_s)
        return False

    def superseded(self) -> bool:
        """Whether a plan newer than the one that is followed is in force."""
        self._watch.check_needed(fresh=self._fresh)
        return self._watch.in_force().generation > self._context.plan.generation

    def follow_newest(self) -> None:
        """Meet for the newest plan in force from now on."""
        self._context.follow(self._watch.in_force())
        self.failed = 0

    def disturbed(self, problem: str) -> None:
        """The workers met and did not connect. If all live, and it is so each time, it will not change."""
        self.failed += 1
        if self.failed >= TRIES and not self.missing():
            self._give_up(f"the workers meet, but cannot connect: {problem}")

    def for_room(self, problem: str) -> None:
        """The disk is full: no worker is to blame for what fails, and no time counts.

        The launcher cannot write a plan then, and a worker that left could not save what it has trained.
        """
        self._since_s, self.failed = time.monotonic(), 0
        if self.shortage != problem:
            _log.warning("training waits for room: %s", problem)
        self.shortage = problem

    def missing(self) -> list[str]:
        """Slots of the plan's workers that are dead or silent, or not ready."""
        others = self._others()
        self._beats.look(others, time.monotonic())
        return [slot for path, slot in others.items() if life(path) != "alive" or self._is_silent(path)]

    def _others(self) -> dict[str, str]:
        """The other workers' slots by the file of each."""
        context = self._context
        members = zip(context.plan.workers, context.plan.members, strict=True)
        return {
            str(context.attempt.presence(worker)): member.slot
            for worker, member in members
            if worker != context.worker
        }

    def _is_silent(self, path: str) -> bool:
        return self._beats.silence_s(path, SILENT_S) >= SILENT_S

    def _check_time(self, waited_s: float) -> None:
        plan = self._context.plan
        limit_s = plan.timeout_s if self._fresh else plan.patience_s
        if waited_s > limit_s and (missing := ", ".join(self.missing())):
            self._give_up(f"{missing} did not come within {limit_s:g} s" if self._fresh else missing)
        if waited_s > COLLECTIVE.total_seconds():
            self._give_up("all workers live, but they do not meet")

    def _give_up(self, problem: str) -> None:
        if not self._fresh:
            if no_room := self._no_room():
                self.for_room(no_room)
                return
            raise LeftAloneError(problem)
        plan = self._context.plan
        raise ServiceMissingError(f"job {plan.job}, generation {plan.generation}: {problem}")

    def _no_room(self) -> str:
        """Why the disk of the attempt takes nothing; empty: it does."""
        try:
            probe_room(self._context.attempt.path)
        except ServiceMissingError as error:
            return str(error) if is_out_of_order(error) else ""
        return ""
