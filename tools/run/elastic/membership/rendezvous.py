"""How the workers of a plan come together: they meet in rounds until all of them are connected.

A worker that waits here has touched nothing of the training yet, and this is the only wait for others without
a limit in seconds: a newer plan calls the workers away. Each :class:`Round` is a folder with a file of each
worker, and ends with one verdict, so either all go on together or none does. If the group then does not form,
the first worker of the plan calls the next round.

On several hosts the workers first check that they reach each other (:class:`ProbeListener`): those that are
cut off end, and the others wait for a plan without them. Once a group has formed, the thread of
:class:`LostWorkerWatch` breaks off exchanges with workers that are gone without a word.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
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
from pliant.tools.run.elastic.membership import switch_step
from pliant.tools.run.elastic.membership.process_group import (
    COLLECTIVE_TIMEOUT,
    SERVER_POLL_INTERVAL_S,
    FolderStore,
    ProcessGroup,
    lasting_address,
    own_address,
    pause,
    use_interface,
)
from pliant.tools.run.elastic.membership.switch_step import PlanWatch, RateLimiter
from pliant.tools.run.elastic.state.training import Cursor, written
from pliant.tools.run.elastic.torch_internals import EXCHANGING_MODULE
from pliant.tools.run.statedir.contract.folders import AttemptDir, refresh_folder
from pliant.tools.run.statedir.contract.liveness import SURE_S, Heartbeats, life
from pliant.tools.run.statedir.contract.plan import WorkerOutcome

CONNECT_TIMEOUT: Final = timedelta(seconds=10)
"""Time to connect once all workers have come; twice as long each further time."""
MAX_CONNECT_ATTEMPTS: Final = 5
"""Times that workers that are all alive may meet without connecting."""
HEARTBEAT_TIMEOUT_S: Final = 10.0
"""Seconds without a heartbeat after which a worker counts as dead, even if its file is locked."""
PROBE_TIMEOUT_S: Final = 3.0
"""Seconds for a connection to be completed: two tries if the first packet is lost."""
POLL_INTERVAL_S: Final = 5.0
"""Seconds between two checks for lost workers while training goes on."""
EXCHANGING_MODULES: Final = {EXCHANGING_MODULE, switch_step.__file__}
"""Files of the modules in which a main thread may wait for other workers."""
HUNG_EXCHANGE_S: Final = 30.0
"""Seconds after the end of its connections from which on an exchange counts as forgotten by gloo."""
_CHECK_INTERVAL_S: Final = 0.25
"""Seconds between two checks whether missing workers live."""
_VERDICT: Final = "verdict"
_NEWER: Final = "newer"
_APART: Final = "apart "
_ENDPOINT: Final = "door"
"""Key under which each worker says where it listens: workers that an earlier version started read it, too."""
_BACKLOG: Final = 1024
"""Connections that a listener completes."""
_UNDER_WAY: Final = frozenset((errno.EINPROGRESS, errno.EWOULDBLOCK))
_log = logging.getLogger("pliant")


class NoPlanError(Exception):
    """A worker has died, and there is no plan without it."""


class SupersededError(Exception):
    """A newer plan is in force: this one will have no group."""


class UnreachableError(RuntimeError):
    """Some workers are cut off from the others and end."""


class CutOffError(Exception):
    """The others go on without this worker, which does not reach them."""


class Rendezvous:
    """Where a worker meets the others of its generation, one generation after the other."""

    def __init__(self, context: WorkerContext, group: ProcessGroup, watch: PlanWatch) -> None:
        self.context, self.group, self.watch = context, group, watch
        self._lost_worker_watch: LostWorkerWatch | None = None
        # A generation, and the first of its rounds that this worker has not attended.
        self._next = (0, 0)
        self._waiting = RendezvousWait(context, watch, fresh=True)

    @property
    def shortage(self) -> str:
        return self._waiting.shortage

    def meet(self, cursor: Cursor | None) -> list[Cursor | None]:
        """Meet the workers of the current plan, or of a newer one that comes into force meanwhile.

        The newer plan is followed from then on. Workers that train wait for room on a full disk as long as
        it takes.

        :param cursor: how far this worker is; None if it has no state yet.
        :returns: how far each worker is, by rank; empty if the newer plan goes on without this worker.
        :raises ServiceMissingError: at the start of a job, if the workers did not all come in time.
        :raises OSError: likewise, if this one cannot announce itself.
        :raises NoPlanError: later, if a worker has died and no newer plan came.
        :raises CutOffError: this worker does not reach the others.
        :raises NotNeededError: the others have trained to the end.
        :raises StopRequestedError: this worker is asked to stop.
        """
        waiting = self._waiting = RendezvousWait(self.context, self.watch, fresh=cursor is None)
        reported = ""
        while not self.context.left:
            plan = self.context.plan
            if len(plan.members) == 1:
                remove_earlier_rounds(self.context.attempt, (plan.generation, 0))
                return [cursor]
            try:
                return self._connect(cursor, waiting)
            except SupersededError:
                # perhaps by another worker, which sees the newer plan before this one does
                waiting()
                waiting.follow_newest()
                continue
            except RuntimeError as error:
                problem = str(error)
            except (OSError, ServiceMissingError) as error:
                if cursor is None:
                    raise
                # not the whole text: it holds the name of a temporary file, which changes each time
                problem = getattr(error, "strerror", None) or str(error)
                if is_out_of_order(error):
                    waiting.for_room(problem)
                time.sleep(_CHECK_INTERVAL_S)
            if problem != reported:
                _log.warning("generation %d did not come together: %s", plan.generation, problem)
            reported = problem
            # outside the handlers: the caught errors keep connections open
            self.group.leave()
            self.watch.check_needed(fresh=cursor is None)
            if problem != waiting.shortage:
                waiting.disturbed(problem)
            if waiting():
                waiting.follow_newest()
        return []

    def _connect(self, cursor: Cursor | None, waiting: RendezvousWait) -> list[Cursor | None]:
        context = self.context
        generation = context.plan.generation
        on_gpu = context.device.type == "cuda"
        lasting = lasting_address(context.plan, context.rank) if on_gpu else None
        use_interface(own_address(context.plan, context.rank), lasting)
        # before the others rely on this worker: they can be called away from a round, but not from C++
        self.group.check_room(context.attempt.path)
        number = self._next[1] if self._next[0] == generation else 0
        attended = Round(context, number, waiting)
        try:
            cursors = attended.attend(cursor)
        except UnreachableError:
            self._next = generation, attended.number + 1
            raise
        self._next = generation, attended.number + 1
        self.group.form(attended.folder, waiting.superseded, CONNECT_TIMEOUT * 2**waiting.failed)
        if self._lost_worker_watch is None:
            self._lost_worker_watch = LostWorkerWatch(
                context, PlanWatch(context), self.group, POLL_INTERVAL_S
            )
            self._lost_worker_watch.begin()
        if context.rank == 0:
            remove_earlier_rounds(context.attempt, (generation, attended.number))
        return cursors


class RendezvousWait:
    """A worker's wait for the others, and what ends it."""

    def __init__(self, context: WorkerContext, watch: PlanWatch, *, fresh: bool) -> None:
        self._context, self._watch, self._fresh = context, watch, fresh
        self._since_s, self._looks = time.monotonic(), RateLimiter(_CHECK_INTERVAL_S)
        self._beats = Heartbeats()
        # How often the workers of the plan have met without connecting.
        self.failed = 0
        # What it waited for, other than workers.
        self.shortage = ""

    def __call__(self) -> bool:
        """Sleep for a moment; returns whether a newer plan is in force."""
        pause()
        if self.superseded():
            return True
        if self._looks.is_due():
            self._check_time(time.monotonic() - self._since_s)
        return False

    def superseded(self) -> bool:
        """Whether a plan newer than the current one is in force."""
        self._watch.check_needed(fresh=self._fresh)
        return self._watch.in_force().generation > self._context.plan.generation

    def follow_newest(self) -> None:
        self._context.follow(self._watch.in_force())
        self.failed = 0

    def disturbed(self, problem: str) -> None:
        """The workers met and did not connect; after several times with all workers alive, give up."""
        self.failed += 1
        if self.failed >= MAX_CONNECT_ATTEMPTS and not self.missing():
            self._fail(f"the workers meet, but cannot connect: {problem}")

    def for_room(self, problem: str) -> None:
        """The disk is full: time limits start again, because the failure is no worker's.

        Meanwhile the launcher cannot write a plan, and a worker that left could not save its training.
        """
        self._since_s, self.failed = time.monotonic(), 0
        if self.shortage != problem:
            _log.warning("training waits for room: %s", problem)
        self.shortage = problem

    def missing(self) -> list[str]:
        """Slots of the plan's workers that are dead, silent or not ready."""
        others = self._others()
        self._beats.look(others, time.monotonic())
        return [slot for path, slot in others.items() if life(path) != "alive" or self._is_silent(path)]

    def _others(self) -> dict[str, str]:
        context = self._context
        members = zip(context.plan.workers, context.plan.members, strict=True)
        return {
            str(context.attempt.presence(worker)): member.slot
            for worker, member in members
            if worker != context.worker
        }

    def _is_silent(self, path: str) -> bool:
        return self._beats.silence_s(path, HEARTBEAT_TIMEOUT_S) >= HEARTBEAT_TIMEOUT_S

    def _check_time(self, waited_s: float) -> None:
        plan = self._context.plan
        limit_s = plan.timeout_s if self._fresh else plan.patience_s
        if waited_s > limit_s and (missing := ", ".join(self.missing())):
            self._fail(f"{missing} did not come within {limit_s:g} s" if self._fresh else missing)
        if waited_s > COLLECTIVE_TIMEOUT.total_seconds():
            self._fail("all workers live, but they do not meet")

    def _fail(self, problem: str) -> None:
        if not self._fresh:
            if no_room := self._no_room():
                self.for_room(no_room)
                return
            raise NoPlanError(problem)
        plan = self._context.plan
        raise ServiceMissingError(f"job {plan.job}, generation {plan.generation}: {problem}")

    def _no_room(self) -> str:
        """Why the attempt's disk takes nothing; empty if it does."""
        try:
            probe_room(self._context.attempt.path)
        except ServiceMissingError as error:
            return str(error) if is_out_of_order(error) else ""
        return ""


class Round:
    """One round of the generation that this worker is in.

    The plan's first worker makes the folder. The verdict is written once, by the worker that comes first: the
    first worker of the plan, when all have come, writes how far each of them is, or which are cut off. Any
    worker that sees a newer plan in force writes that.

    :param number: of the first round that this worker has not attended.
    :param wait: called repeatedly while waiting; sleeps, may raise, and returns whether a newer plan is in
        force.
    """

    def __init__(self, context: WorkerContext, number: int, wait: Callable[[], bool]) -> None:
        self._context, self._wait = context, wait
        # The round that is attended; the first worker decides it.
        self.number = number

    @property
    def folder(self) -> Path:
        return self._context.attempt.meetings / f"{self._context.plan.generation}.{self.number}"

    def attend(self, cursor: Cursor | None) -> list[Cursor | None]:
        """Wait for the verdict: how far the workers are, by rank.

        :raises SupersededError: a newer plan is in force; this one will have no group.
        :raises UnreachableError: some workers are cut off; this round will have no group.
        :raises CutOffError: the others go on without this worker.
        :raises OSError: this worker cannot announce itself.
        """
        if self._context.rank == 0:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            self._find_round()
        try:
            with self._listener() as listener:
                verdict = self._verdict(FolderStore(self.folder, self._wait), cursor, listener)
        except FileNotFoundError:
            # faster workers have gone on to another generation, and removed this folder
            verdict = _NEWER
        if verdict == _NEWER:
            raise SupersededError
        if verdict.startswith(_APART):
            self._part([int(rank) for rank in verdict.removeprefix(_APART).split(",")])
        return [Cursor.parse(text) for text in verdict.split(",")]

    def _listener(self) -> AbstractContextManager[ProbeListener | None]:
        """The listener that the others probe; None if all are on one host."""
        plan, rank = self._context.plan, self._context.rank
        if len({member.node for member in plan.members}) == 1:
            return nullcontext()
        return ProbeListener(own_address(plan, rank))

    def _verdict(self, store: FolderStore, cursor: Cursor | None, listener: ProbeListener | None) -> str:
        rank, ranks = self._context.rank, range(self._context.world_size)
        if listener is not None:
            store.set(f"{_ENDPOINT}/{rank}", str(listener.endpoint))
        store.set(f"here/{rank}", written(cursor))
        here = [f"here/{one}" for one in ranks]
        missed = [f"missed/{one}" for one in ranks] if listener is not None else []
        probes = listener is not None
        while not store.check([_VERDICT]):
            if probes and store.check(here):
                others = [one for one in ranks if one != rank]
                cut_off = unreachable(
                    {one: Endpoint.parse(store.get(f"{_ENDPOINT}/{one}").decode()) for one in others}
                )
                store.set(f"missed/{rank}", ",".join(map(str, cut_off)))
                probes = False
            elif rank == 0 and store.check([*here, *missed]):
                store.set_once(_VERDICT, self._verdict_of_all(store, here, missed))
            elif self._wait():
                store.set_once(_VERDICT, _NEWER)
        return store.get(_VERDICT).decode()

    def _verdict_of_all(self, store: FolderStore, here: list[str], missed: list[str]) -> str:
        """The verdict of the first worker, once all have come and probed the others."""
        lists = [store.get(key).decode() for key in missed]
        gone = workers_to_leave_out(
            {one: [int(rank) for rank in text.split(",") if rank] for one, text in enumerate(lists)}
        )
        if gone:
            return _APART + ",".join(map(str, gone))
        return ",".join(store.get(key).decode() for key in here)

    def _part(self, gone: list[int]) -> NoReturn:
        slots = ", ".join(self._context.plan.members[rank].slot for rank in gone)
        if self._context.rank in gone:
            raise CutOffError(f"{slots}: cut off from the other workers of the job")
        raise UnreachableError(f"cut off from the others: {slots}")

    def _find_round(self) -> None:
        """Wait for the round that the first worker calls: ``number``, or a later one."""
        generation, attempt = self._context.plan.generation, self._context.attempt
        asks = RateLimiter(SERVER_POLL_INTERVAL_S)
        while True:
            if asks.is_due():
                refresh_folder(attempt.path)
                refresh_folder(attempt.meetings)
            rounds = [_numbers(one) for one in attempt.meetings.glob(f"{generation}.*")]
            if rounds and max(rounds) >= (generation, self.number):
                self.number = max(rounds)[1]
                return
            if self._wait():
                raise SupersededError


def remove_earlier_rounds(attempt: AttemptDir, now: tuple[int, int]) -> None:
    """Remove the folders of earlier rounds, whose workers have all gone on.

    In the background, because on some file systems removing files takes longer than a round.

    :param now: the current generation and round.
    """
    Thread(target=_remove, args=(attempt, now), name="pliant-rounds", daemon=True).start()


def _remove(attempt: AttemptDir, now: tuple[int, int]) -> None:
    for folder in attempt.meetings.glob("*.*"):
        if _numbers(folder) < now:
            shutil.rmtree(folder, ignore_errors=True)


def _numbers(folder: Path) -> tuple[int, int]:
    generation, _, number = folder.name.partition(".")
    return int(generation), int(number)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and port of a listener."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address} {self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        address, _, port = text.partition(" ")
        return cls(address, int(port))


class ProbeListener:
    """A listening socket at which the other workers check that they reach this one.

    A host may share the folder and still be cut off from the others. So before workers of several hosts form
    a group, each listens, and connects to the others. A listener accepts nothing: the system completes a
    connection by itself, which shows that the way is free. No data is sent.

    :raises OSError: this machine has no such address at the moment.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.create_server((address, 0), family=_family(address), backlog=_BACKLOG)
        self.endpoint = Endpoint(address, int(self._socket.getsockname()[1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def unreachable(endpoints: Mapping[int, Endpoint], limit_s: float = PROBE_TIMEOUT_S) -> list[int]:
    """The workers whose listeners cannot be reached from here within the limit."""
    missing: set[int] = set()
    deadline_s = time.monotonic() + limit_s
    with selectors.DefaultSelector() as waiting:
        for worker, endpoint in endpoints.items():
            probe = socket.socket(_family(endpoint.address), socket.SOCK_STREAM)
            probe.setblocking(False)
            code = probe.connect_ex((endpoint.address, endpoint.port))
            if code in _UNDER_WAY:
                waiting.register(probe, selectors.EVENT_WRITE, worker)
                continue
            probe.close()
            if code:
                missing.add(worker)
        left_s = limit_s
        while waiting.get_map() and left_s > 0:
            left_s = deadline_s - time.monotonic()
            for key, _ in waiting.select(max(left_s, 0.0)):  # once more when the time is over
                probe = _socket(key)
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    missing.add(key.data)
                waiting.unregister(probe)
                probe.close()
        for key in list(waiting.get_map().values()):
            missing.add(key.data)
            _socket(key).close()
    return sorted(missing)


def workers_to_leave_out(missed: Mapping[int, Collection[int]]) -> list[int]:
    """The workers that must go so that all left reach each other; those that miss most others go first.

    :param missed: by worker, those that it did not reach. Of equals the one of the highest rank goes.
    """
    apart = {frozenset((one, other)) for one, others in missed.items() for other in others}
    gone: list[int] = []
    while apart:
        gone.append(max(missed, key=lambda one: (_pairs_of_worker(one, apart), one)))
        apart = {pair for pair in apart if gone[-1] not in pair}
    return sorted(gone)


def _pairs_of_worker(one: int, pairs: Iterable[frozenset[int]]) -> int:
    return sum(one in pair for pair in pairs)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _socket(key: selectors.SelectorKey) -> socket.socket:
    registered = key.fileobj
    assert isinstance(registered, socket.socket)  # noqa: S101 no other was registered
    return registered


class LostWorkerWatch:
    """A thread that breaks off exchanges with lost workers, and ends a worker that the others left behind.

    The end of a process closes its connections, and gloo notices. A machine that loses its power closes none,
    nor does a process that stands still, and the others would wait for half an hour. So this thread looks for
    a plan without it while the main thread waits.

    A worker that the others have gone on without mostly returns from its exchange and leaves by itself. But
    gloo (PyTorch 2.13) forgets an operation whose first write fails, as happens if the connection was ended
    while this process stood still, or the other worker died just then. Such an exchange never ends, so the
    thread ends the worker: the others go on, and on CPU slots another worker takes its place.

    :param watch: used by this thread alone.
    :param group: the thread ends its connections.
    :param interval_s: seconds between two checks. A worker that leaves in good order is also gone for a
        moment before the others complete their last exchange: it is lost if two checks in a row find it gone.
    """

    def __init__(
        self,
        context: WorkerContext,
        watch: PlanWatch,
        group: ProcessGroup,
        interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self._context, self._watch, self._group, self._look_s = context, watch, group, interval_s
        self._beats = Heartbeats()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        # The exchange that the main thread was in when it was broken off.
        self._exchange: tuple[int, int] | None = None
        self._since_s = 0.0

    def begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pliant-lost-workers", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._over.set()

    def lost(self) -> list[str]:
        """Slots of workers that are gone or silent and not in the newest plan."""
        context, plan = self._context, self._context.plan
        newest = self._watch.newest()
        if newest.generation <= plan.generation:
            return []
        stay = {*newest.workers, context.worker}  # never its own file: a look would free the lock
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
            lost, overtaken = self.lost(), self._context.is_overtaken()
            if lost and lost == before:
                _log.debug("breaking off what is exchanged with %s", ", ".join(lost))
                self._group.break_off()
                self._end_if_forgotten(time.monotonic())
            if overtaken and was_overtaken:
                self._leave()
            before, was_overtaken = lost, overtaken

    def _end_if_forgotten(self, now_s: float) -> None:
        """End this worker as a kill would if the exchange that was broken off does not end."""
        exchange = exchange_of_main_thread() if self._context.device.type == "cpu" else None
        if exchange != self._exchange or exchange is None:
            self._exchange, self._since_s = exchange, now_s
        elif now_s - self._since_s >= HUNG_EXCHANGE_S:
            _log.warning("an exchange with a lost worker does not end: this worker ends")
            os.kill(os.getpid(), signal.SIGKILL)

    def _leave(self) -> None:
        """End this worker, wherever it is: its work is no longer of use."""
        _log.warning("the job trains on without this worker, which was away: it ends")
        with contextlib.suppress(PliantError, OSError):
            self._context.report_end(WorkerOutcome(outcome="left"))
        os._exit(0)


def exchange_of_main_thread() -> tuple[int, int] | None:
    """Which call the main thread waits in, if it is in a module that exchanges with other workers."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None or frame.f_code.co_filename not in EXCHANGING_MODULES:
        return None
    return id(frame), frame.f_lasti
