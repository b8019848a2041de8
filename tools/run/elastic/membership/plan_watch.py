"""News for a worker: the plans of its job, requests to stop, and whether the others have ended.

What the workers of a job share before they have a process group: small files in a folder of their own.

Workers meet, and gloo's connections are made, over a :class:`FolderStore`: one file a key, which is there as
a whole or not at all, whichever worker is killed and when. Waiting for a key can be broken off.

Everything that comes later (NCCL, groups that a script makes, a script's own use of the default store) uses
PyTorch's FileStore in the same folder, see :func:`shared_store`. It is C++, so that a background thread needs
no interpreter. What has to be known about it:

- All keys are in one file, appended by four writes under ``flock``. A worker that is killed between them, or
  a full disk, leaves half a record, and then every reader spins inside C++ and cannot be interrupted. That is
  why workers do not meet over it. It also writes when it is made and when it is freed, see below.
- It holds the interpreter lock while it is made, and releases it while it waits.
- It looks for a key every 10 ms, for 300 s unless ``set_timeout`` says otherwise (0: without end), whatever
  the timeout of the group that asks.
- With a number of users it deletes the file when as many have freed it, though others may still come. Without
  one it never does: the folder is removed when the next generation trains.
- A lock is freed by its holder's death. On NFS ``flock`` is a lock of the server; mounts with
  ``local_lock=flock`` keep it to one host and break the store.

What the folder has to offer to workers on several hosts is in ``statedir/contract/__init__.py``.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import quote

import torch.distributed as dist

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.elastic.context import WorkerContext, read_plan
from pliant.tools.run.statedir.contract.folders import (
    UnreadableError,
    ask_server,
    is_there,
    look_again,
    read_record,
)
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.contract.presence import life

_POLL_S: Final = 0.01
_LOOK_S: Final = 0.25
"""Between two looks at whether the others have ended: a file of each of them."""
_ASK_S: Final = 0.1
"""Between two questions to the server whether another plan has taken the place of the one that is known."""
_ASK_FOR_OTHERS_S: Final = 1.0
"""And whether workers that a plan adds have come: training goes on meanwhile."""
_log = logging.getLogger("pliant")


class NotNeededError(Exception):
    """The others have trained to the end without this worker."""


class StopAskedError(Exception):
    """The job, or this worker, is asked to stop."""


class StopSignal:
    """SIGTERM as a request that the next step boundary answers."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True


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
    """The newest plan of a job, looked up so cheaply that every step can do it (one ``stat``, mostly)."""

    def __init__(self, context: WorkerContext, stop: StopSignal | None = None) -> None:
        self._context, self._stop = context, stop
        self._path = context.folder.plan
        self._plan = self._in_force = context.plan
        self._looks, self._looks_at_ends = Pace(_POLL_S), Pace(_LOOK_S)
        self._asks, self._asks_for_others = Pace(_ASK_S), Pace(_ASK_FOR_OTHERS_S)
        self._mark = (0, 0, 0)

    @property
    def stop_asked(self) -> bool:
        """Whether a signal or the newest plan asks this worker to stop."""
        return (self._stop is not None and self._stop.received) or self.newest().abort

    def check_needed(self, *, fresh: bool) -> None:
        """Look whether this worker shall go on waiting for the others.

        :param fresh: it has no state yet, and may be too late.
        :raises NotNeededError: the others have trained to the end.
        :raises StopAskedError: it is asked to stop.
        """
        if fresh and self._looks_at_ends.is_due() and self._context.is_done():
            raise NotNeededError
        if self.stop_asked:
            raise StopAskedError

    def newest(self) -> Plan:
        """The newest plan seen. A file that is away or cannot be understood changes nothing."""
        found = look_again(self._path) if self._asks.is_due() else _look(self._path)
        if found is None:
            return self._plan
        mark = (found.st_mtime_ns, found.st_ino, found.st_size)
        if mark != self._mark and self._read():
            self._mark = mark
        return self._plan

    def in_force(self) -> Plan:
        """The newest plan whose workers are all ready, or that asks to stop; at least the one followed.

        Workers that train together, or are starting together, are ready beyond doubt.
        """
        plan = self.newest()
        if self._in_force.generation < self._context.plan.generation:
            self._in_force = self._context.plan
        if plan.generation > self._in_force.generation and self._looks.is_due():
            self._in_force = self._newest_ready(plan)
        return self._in_force

    def exactly(self, generation: int, timeout_s: float) -> Plan:
        """The plan of that generation, which another worker has seen already.

        :raises ServiceMissingError: it did not appear in time.
        """
        path = self._context.folder.attempt(self._plan.attempt).plan(generation)
        deadline = time.monotonic() + timeout_s
        while not is_there(path):
            if self._asks.is_due():
                ask_server(path.parent)
            if time.monotonic() > deadline:
                raise ServiceMissingError(
                    f"{path} was announced by another worker but is not here after {timeout_s:g} s: "
                    "is the folder shared by all nodes?"
                )
            time.sleep(_POLL_S)
        return read_plan(path)

    def _newest_ready(self, plan: Plan) -> Plan:
        attempt, known = self._context.folder.attempt(plan.attempt), self._context.known
        if self._asks_for_others.is_due():
            ask_server(attempt.path)
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


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


POLL_S: Final = 0.003
ASK_S: Final = 0.05
"""Between two questions to the server for a key that is not there, as far as this host knows."""
_ANSWER: Final = timedelta(seconds=10)
_STORE: Final = "store"


class FolderStore(dist.Store):
    """A store for the time until a process group is formed.

    C++ calls its methods and does not keep it alive: hold a reference as long as the group lives.

    :param folder: of these workers, this generation and this round alone; it is there.
    :param called_away: looked at while waiting; True, or what it raises, breaks the wait off.
    """

    def __init__(self, folder: Path, called_away: Callable[[], bool]) -> None:
        super().__init__()
        self._folder, self._called_away = folder, called_away
        self._asks = Pace(ASK_S)

    def set(self, key: str, value: Any) -> None:
        """Make a key's value known."""
        make_known(self._path(key), value.encode() if isinstance(value, str) else bytes(value))

    def set_once(self, key: str, value: str) -> None:
        """Make a key's value known, unless it has one: of several workers the first one decides.

        :raises FileNotFoundError: the folder is gone, the meeting is over.
        """
        path = self._path(key)
        unseen = _beside(path, value.encode())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(unseen, path)
        finally:
            unseen.unlink(missing_ok=True)

    def get(self, key: str) -> bytes:
        """A key's value, once it has one."""
        self.wait([key])
        return self._path(key).read_bytes()

    def add(self, key: str, value: int) -> int:
        """Count; the sum, which is the key's value from now on."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            ask_server(self._folder)
            path = self._path(key)
            total = value + (int(path.read_bytes()) if is_there(path) else 0)
            self.set(key, str(total))
        return total

    def check(self, keys: list[str]) -> bool:
        """Whether all of them have a value."""
        if all(is_there(self._path(key)) for key in keys):
            return True
        if not self._asks.is_due():
            return False
        ask_server(self._folder)
        return all(is_there(self._path(key)) for key in keys)

    def wait(self, keys: list[str], timeout: timedelta = _ANSWER) -> None:
        """Wait until all of them have a value.

        :raises RuntimeError: called away, or the time is over.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if self._called_away() or time.monotonic() > deadline:
                raise RuntimeError("gloo: a worker did not connect")
            pause()

    def _path(self, key: str) -> Path:
        return self._folder / f"key-{quote(key, safe='')}"


def shared_store(folder: Path, name: str) -> tuple[dist.FileStore, Path]:
    """A FileStore that is one for all who name this folder, and the path to remove before it is freed.

    A FileStore counts its users in its file, when it is made and when it is freed. To be killed at that does
    not harm the others: it is made on a file of its own, the first of which becomes the shared one and the
    others give their name to it. When it is freed and the name is gone, it writes nothing.

    :param name: of this user, one of its own.
    :raises OSError: the folder is gone, say.
    """
    own, shared = folder / f"{_STORE}-{name}", folder / _STORE
    # PyTorch would wait for a folder that is gone, with the interpreter lock
    own.touch(mode=0o600)
    store = dist.FileStore(str(own))
    with contextlib.suppress(FileExistsError):
        os.link(own, shared)
    another = own.with_suffix(".new")
    os.link(shared, another)
    another.replace(own)
    return store, own


def make_known(path: Path, value: bytes) -> None:
    """Replace a file that matters to living processes only: nothing is forced to disk, and nothing waits.

    Only its owner can read it.
    """
    _beside(path, value).replace(path)


def pause() -> None:
    """The time between two looks."""
    time.sleep(POLL_S)


def _beside(path: Path, value: bytes) -> Path:
    """A file next to another one that holds the value; no process on any host uses its name."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        made.touch(mode=0o600)
        made.write_bytes(value)
    except OSError:
        # on a full disk: who tries again and again must not leave a file each time
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
        raise
    return made
