"""How the workers of a plan come together: they meet in rounds until all of them are connected.

One round of a rendezvous: a folder that the plan's first worker makes, with a file of each worker.

A newer plan calls away the workers that wait here. It is the only place where workers wait for each other
without a limit in seconds, and they have touched nothing of the training yet.

A round ends with a verdict that is written once, by the worker that comes first. The first worker of the
plan, when all have come, writes how far each of them is. Any worker that sees a newer plan in force writes
that. So either all go on together or none does. Where a group then does not form, the first worker calls the
next round. On several hosts the workers knock at each other's doors before (roll_call.py): the verdict then
may be that some are cut off. They end, and the others wait for a plan without them.

Whether workers that have met in a folder also reach each other over the job's network.

A host may share the folder and be cut off from the others all the same: its files say that its workers live,
and no connection to them can be made. So before workers of several hosts form a group, each opens a door and
knocks at those of all others. A door is a socket that listens and accepts nothing: the system completes a
connection by itself, which shows that the way is free. Nothing is sent, and nothing is learnt from a knock.

Breaking off an exchange with a worker that is gone without a word.

The end of a process closes its connections, and gloo notices. A machine that loses its power closes none, nor
does a process that stands still. The others would wait for the limit of an exchange, half an hour, though the
launcher has long written a plan without it. So a thread looks for that plan while the main thread waits.

The thread also ends a worker that the others have gone on without. It comes back from an exchange in most
cases, and leaves by itself. But gloo (PyTorch 2.13) forgets an operation whose first write fails, as it does
where the connection was ended while this process stood still: such an exchange never ends.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Final, NoReturn, Self

from pliant.schemas.errors import PliantError, ServiceMissingError
from pliant.schemas.file_io.files import is_out_of_order, probe_room
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.plan_watch import ASK_S, FolderStore, Pace, PlanWatch, pause
from pliant.tools.run.elastic.membership.process_group import (
    COLLECTIVE,
    ProcessGroup,
    own_address,
    use_interface,
)
from pliant.tools.run.elastic.state.state import Cursor, written
from pliant.tools.run.statedir.contract.folders import AttemptDir, ask_server
from pliant.tools.run.statedir.contract.plan import WorkerOutcome
from pliant.tools.run.statedir.contract.presence import SURE_S, Heartbeats, life

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
            self._lookout = Lookout(context, PlanWatch(context), self._group, LOOK_S)
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


_VERDICT: Final = "verdict"
_NEWER: Final = "newer"
_APART: Final = "apart "


class CalledAwayError(Exception):
    """A newer plan is in force."""


class ApartError(RuntimeError):
    """The workers have met, but some are cut off from the others, and end."""


class CutOffError(Exception):
    """The others go on without this worker, which does not reach them."""


class Round:
    """One round of the generation that this worker is in.

    :param number: of the first round that this worker has not attended.
    :param wait: called repeatedly while waiting; sleeps, may raise, and says whether a newer plan is in
        force.
    """

    def __init__(self, context: WorkerContext, number: int, wait: Callable[[], bool]) -> None:
        self._context, self._wait = context, wait
        self.number = number
        """The round that is attended: the first worker's."""

    @property
    def folder(self) -> Path:
        """What the workers of the round share, from the verdict on until the next generation trains."""
        return self._context.attempt.meetings / f"{self._context.plan.generation}.{self.number}"

    def attend(self, cursor: Cursor | None) -> list[Cursor | None]:
        """Wait for the verdict: how far the workers are, by rank.

        :raises CalledAwayError: there will be no group of this plan.
        :raises ApartError: nor of this round.
        :raises CutOffError: the others go on without this worker.
        :raises OSError: this worker cannot make itself known.
        """
        if self._context.rank == 0:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            self._find()
        try:
            with self._door() as door:
                verdict = self._verdict(FolderStore(self.folder, self._wait), cursor, door)
        except FileNotFoundError:
            # those that were faster have gone on to another generation, and removed this one
            verdict = _NEWER
        if verdict == _NEWER:
            raise CalledAwayError
        if verdict.startswith(_APART):
            self._part([int(rank) for rank in verdict.removeprefix(_APART).split(",")])
        return [Cursor.parse(text) for text in verdict.split(",")]

    def _door(self) -> AbstractContextManager[Door | None]:
        """Where the others knock; None: all are on one host, and reach each other."""
        plan, rank = self._context.plan, self._context.rank
        if len({member.node for member in plan.members}) == 1:
            return nullcontext()
        return Door(own_address(plan, rank))

    def _verdict(self, store: FolderStore, cursor: Cursor | None, door: Door | None) -> str:
        rank, ranks = self._context.rank, range(self._context.world_size)
        if door is not None:
            store.set(f"door/{rank}", str(door.place))
        store.set(f"here/{rank}", written(cursor))
        here = [f"here/{one}" for one in ranks]
        missed = [f"missed/{one}" for one in ranks] if door is not None else []
        knocks = door is not None
        while not store.check([_VERDICT]):
            if knocks and store.check(here):
                others = [one for one in ranks if one != rank]
                found = unreached({one: Place.parse(store.get(f"door/{one}").decode()) for one in others})
                store.set(f"missed/{rank}", ",".join(map(str, found)))
                knocks = False
            elif rank == 0 and store.check([*here, *missed]):
                store.set_once(_VERDICT, self._found(store, here, missed))
            elif self._wait():
                store.set_once(_VERDICT, _NEWER)
        return store.get(_VERDICT).decode()

    def _found(self, store: FolderStore, here: list[str], missed: list[str]) -> str:
        """What the first worker finds, once all have come and knocked."""
        lists = [store.get(key).decode() for key in missed]
        gone = cut_off(
            {one: [int(rank) for rank in text.split(",") if rank] for one, text in enumerate(lists)}
        )
        if gone:
            return _APART + ",".join(map(str, gone))
        return ",".join(store.get(key).decode() for key in here)

    def _part(self, gone: list[int]) -> NoReturn:
        slots = ", ".join(self._context.plan.members[rank].slot for rank in gone)
        if self._context.rank in gone:
            raise CutOffError(f"{slots}: cut off from the other workers of the job")
        raise ApartError(f"cut off from the others: {slots}")

    def _find(self) -> None:
        """Wait for the round that the first worker calls: this one's, or a later one."""
        generation, attempt = self._context.plan.generation, self._context.attempt
        asks = Pace(ASK_S)
        while True:
            if asks.is_due():
                ask_server(attempt.path)
                ask_server(attempt.meetings)
            rounds = [_numbers(one) for one in attempt.meetings.glob(f"{generation}.*")]
            if rounds and max(rounds) >= (generation, self.number):
                self.number = max(rounds)[1]
                return
            if self._wait():
                raise CalledAwayError


def remove_earlier(attempt: AttemptDir, now: tuple[int, int]) -> None:
    """Remove what earlier rounds than that of a generation have left: all their workers have gone on.

    In the background, because on some file systems removing files takes longer than a round.
    """
    Thread(target=_remove, args=(attempt, now), name="pliant-rounds", daemon=True).start()


def _remove(attempt: AttemptDir, now: tuple[int, int]) -> None:
    for folder in attempt.meetings.glob("*.*"):
        if _numbers(folder) < now:
            shutil.rmtree(folder, ignore_errors=True)


def _numbers(folder: Path) -> tuple[int, int]:
    """Generation and round, which are its name."""
    generation, _, number = folder.name.partition(".")
    return int(generation), int(number)


REACH_S: Final = 3.0
"""For a connection to be completed: two tries, where the first packet is lost."""
_WAITING: Final = 1024
"""Connections that a door completes."""
_UNDER_WAY: Final = frozenset((errno.EINPROGRESS, errno.EWOULDBLOCK))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a door is."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address} {self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """A place as it is written in a file."""
        address, _, port = text.partition(" ")
        return cls(address, int(port))


class Door:
    """A worker's own one, as long as it is open.

    :raises OSError: this machine has no such address, at the moment.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.create_server((address, 0), family=_family(address), backlog=_WAITING)
        self.place = Place(address, int(self._socket.getsockname()[1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def unreached(doors: Mapping[int, Place], limit_s: float = REACH_S) -> list[int]:
    """The workers whose doors cannot be reached from here within the time."""
    missing: set[int] = set()
    deadline_s = time.monotonic() + limit_s
    with selectors.DefaultSelector() as waiting:
        for worker, place in doors.items():
            knock = socket.socket(_family(place.address), socket.SOCK_STREAM)
            knock.setblocking(False)
            code = knock.connect_ex((place.address, place.port))
            if code in _UNDER_WAY:
                waiting.register(knock, selectors.EVENT_WRITE, worker)
                continue
            knock.close()
            if code:
                missing.add(worker)
        while waiting.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                knock = _socket(key)
                if knock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    missing.add(key.data)
                waiting.unregister(knock)
                knock.close()
        for key in list(waiting.get_map().values()):
            missing.add(key.data)
            _socket(key).close()
    return sorted(missing)


def cut_off(missed: Mapping[int, Collection[int]]) -> list[int]:
    """The workers that have to go, so that all that are left reach each other: as few as it seems to take.

    :param missed: by worker, those that it did not reach. Of equals the one of the highest rank goes.
    """
    apart = {frozenset((one, other)) for one, others in missed.items() for other in others}
    gone: list[int] = []
    while apart:
        gone.append(max(missed, key=lambda one: (_of(one, apart), one)))
        apart = {pair for pair in apart if gone[-1] not in pair}
    return sorted(gone)


def _of(one: int, pairs: Iterable[frozenset[int]]) -> int:
    return sum(one in pair for pair in pairs)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _socket(key: selectors.SelectorKey) -> socket.socket:
    found = key.fileobj
    assert isinstance(found, socket.socket)  # noqa: S101 no other was registered
    return found


LOOK_S: Final = 5.0


class Lookout:
    """Looks at whether a worker of the plan that is followed is lost.

    :param watch: of this thread alone.
    :param group: its connections are ended, from the thread.
    :param look_s: between two looks. A worker that leaves in good order is gone, too, for a moment before
        the others are through with their last exchange: it is lost if two looks in a row find it so.
    """

    def __init__(
        self, context: WorkerContext, watch: PlanWatch, group: ProcessGroup, look_s: float = LOOK_S
    ) -> None:
        self._context, self._watch, self._group, self._look_s = context, watch, group, look_s
        self._beats = Heartbeats()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def begin(self) -> None:
        """Look from now on, if it does not do so yet."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pliant-lookout", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()

    def lost(self) -> list[str]:
        """Slots of workers that are gone or silent, and that the newest plan goes on without."""
        context, plan = self._context, self._context.plan
        newest = self._watch.newest()
        if newest.generation <= plan.generation:
            return []
        stay = {*newest.workers, context.worker}  # never one's own file: a look would free its lock
        members = zip(plan.workers, plan.members, strict=True)
        slots = {
            str(context.attempt.presence(worker)): member.slot
            for worker, member in members
            if worker not in stay
        }
        self._beats.look(slots, time.monotonic())
        return [slot for path, slot in slots.items() if self._is_gone(path)]

    def _is_gone(self, path: str) -> bool:
        return life(path) == "gone" or self._beats.silence_s(path, SURE_S) >= SURE_S

    def _run(self) -> None:
        before: list[str] = []
        was_overtaken = False
        while not self._over.wait(self._look_s):
            found, overtaken = self.lost(), self._context.is_overtaken()
            if found and found == before:
                _log.debug("breaking off what is exchanged with %s", ", ".join(found))
                self._group.break_off()
            if overtaken and was_overtaken:
                self._leave()
            before, was_overtaken = found, overtaken

    def _leave(self) -> None:
        """End this worker, wherever it is: whatever it does has no use."""
        _log.warning("the job trains on without this worker, which was away: it ends")
        with contextlib.suppress(PliantError, OSError):
            self._context.report_end(WorkerOutcome(outcome="left"))
        os._exit(0)
