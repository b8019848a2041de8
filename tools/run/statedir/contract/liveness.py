"""Whether a worker is ready and lives: its lock, which its death frees at once, and its heartbeat.

What its unit uses is beside it: one small file, which the supervisor replaces.

A worker holds a lock on a file of its own (:class:`LivenessFile`, seen by :class:`LivenessProbe`). The lock
is of the kind that children do not inherit, so loading processes that outlive their worker do not hide its
death. Every process that shares the folder can look, on any host and in any container.

But a file server keeps the locks of a dead host for a minute or two, or indefinitely. So a thread also sets
the file's time every second, and the supervisor of the unit that of another file (:class:`Heartbeats`): if it
stands still, the whole process does, or its host is gone. The file system sets the time by its own clock, so
an observer measures how long the time has stood still. One that has not seen it change, such as a call from
cron, takes the file system's clock instead, and looks for a few seconds more: after a machine has slept, or
its clock was set, all files are old.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import stat
import struct
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar, Final, Literal, NamedTuple

from pliant.schemas.errors import PliantError
from pliant.tools.run.statedir.contract import as_user
from pliant.tools.run.statedir.contract.as_user import files_of, opened
from pliant.tools.run.statedir.contract.folders import MOST_NAMES, AttemptDir, JobDir, look_again

HEARTBEAT_S: Final = 1.0
Life = Literal["absent", "alive", "gone"]
SURE_S: Final = 3.0
"""Seconds of observed silence before it counts."""
_ABSENCE_S: Final = 8.0
"""Seconds between two looks after which a silence was not observed."""
_KNOWS_FLOCK: Final = sys.platform == "linux" and struct.calcsize("P") == 8
_LAYOUT: Final = struct.Struct("hhqqi4x")
"""``struct flock`` there: type, whence, start, length, process."""
_WANTED: Final = _LAYOUT.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_FLAGS: Final = os.O_RDONLY if _KNOWS_FLOCK else os.O_RDWR


class LivenessFile:
    """A worker's own file. It exists from :meth:`begin` on, and is locked before others can see it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._ended = Event()

    def begin(self) -> None:
        temporary = self._path.with_suffix(".new")
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        temporary.replace(self._path)
        Thread(target=self._beat, name="pliant-liveness", daemon=True).start()

    def end(self) -> None:
        """Stop the heartbeat; the lock ends with the process."""
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)


def life(path: str | Path) -> Life:
    """What another process's file says. Never ask for one's own: that would free the lock."""
    try:
        descriptor = as_user.opened(path, _FLAGS)
    except OSError:
        return "absent"
    try:
        return "alive" if _is_locked(descriptor) else "gone"
    except OSError:
        return "alive"
    finally:
        os.close(descriptor)


class LivenessProbe:
    """One worker's file. It stays open while its worker lives, so a look costs one system call.

    Once half of the process's descriptors are in use for this, further files are opened for each look.
    """

    _kept: ClassVar[int] = 0
    """Files that are open, of all workers."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = -1
        self._close: weakref.finalize[[int], LivenessProbe] | None = None

    def life(self) -> Life:
        """What the file says. Of a file that was opened earlier only a held lock is believed."""
        if self._close is not None:
            with contextlib.suppress(OSError):
                if _is_locked(self._descriptor):
                    return "alive"
            self._close()
            self._close = None
        state = life(self._path)
        if state == "alive" and _has_room(LivenessProbe._kept):
            self._keep()
        return state

    def _keep(self) -> None:
        with contextlib.suppress(OSError):
            self._descriptor = as_user.opened(self._path, _FLAGS)
            self._close = weakref.finalize(self, _let_go, self._descriptor)
            self._close.atexit = False
            LivenessProbe._kept += 1


def _has_room(kept: int) -> bool:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return allowed == resource.RLIM_INFINITY or kept < allowed // 2


def _let_go(descriptor: int) -> None:
    LivenessProbe._kept -= 1
    os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether another process holds the lock. Looking takes no lock, so several may look at once."""
    if not _KNOWS_FLOCK:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    kind: int = _LAYOUT.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _WANTED))[0]
    return kind != fcntl.F_UNLCK


def last_beat(path: str | Path) -> float:
    """When the owner of a file last showed that it runs, on the file system's clock; 0 without a file."""
    status = look_again(path)
    return 0.0 if status is None else status.st_mtime


class _Beat(NamedTuple):
    """The last beat of a file, as an observer saw it."""

    at_s: float
    since_s: float
    """Since when it is the last one, by the observer's clock."""
    is_new: bool
    """Whether an earlier beat was seen, so that ``since_s`` is when this one came."""


_NONE: Final = _Beat(0.0, 0.0, is_new=False)


class Heartbeats:
    """Heartbeats of others, measured with a clock that cannot be set."""

    def __init__(self) -> None:
        self._looked_s = float("-inf")
        self._seen: dict[str, _Beat] = {}
        self._clocks = FileClock()

    def look(self, paths: Iterable[str], now_s: float) -> None:
        seen = {} if now_s - self._looked_s > _ABSENCE_S else self._seen
        self._looked_s, self._seen = now_s, {}
        for path in paths:
            at_s, before = last_beat(path), seen.get(path)
            if before is None or before.at_s != at_s:
                before = _Beat(at_s, now_s, is_new=before is not None)
            self._seen[path] = before

    def silence_s(self, path: str, limit_s: float) -> float:
        """Seconds without a beat, as of the last look; 0 if unknown.

        :param limit_s: what the caller compares it with; the file system's clock is asked only if it
            matters.
        """
        beat = self._seen.get(path, _NONE)
        still_s = self._looked_s - beat.since_s
        if not beat.at_s or still_s < SURE_S:
            return 0.0
        known = beat.is_new or still_s >= limit_s
        return still_s if known else max(still_s, self._clocks.now_s(path) - beat.at_s)

    def in_doubt(self, path: str, limit_s: float) -> bool:
        """Whether a file is old, but was not watched for long enough to be sure."""
        beat = self._seen.get(path, _NONE)
        if not beat.at_s or beat.is_new or self._looked_s - beat.since_s >= SURE_S:
            return False
        return self._clocks.about_s(path) - beat.at_s >= limit_s


class FileClock:
    """The clock of a file's file system: the time of a file that is made now."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def now_s(self, path: str) -> float:
        """Now; 0 if nothing can be written."""
        try:
            with tempfile.TemporaryFile(dir=os.path.dirname(path)) as made:
                now_s = os.fstat(made.fileno()).st_mtime
        except OSError:
            return 0.0
        self._ahead_s = now_s - time.monotonic()
        return now_s

    def about_s(self, path: str) -> float:
        """Now, extrapolated from the last answer."""
        return self.now_s(path) if self._ahead_s is None else time.monotonic() + self._ahead_s


_MOST_BYTES: Final = 4096
_ATTEMPTS: Final = 100
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WholeUse(NamedTuple):
    """What a unit has used since it began."""

    seconds: float
    cpu_s: float
    gpu_s: float | None
    """GPU seconds that were busy; None if the driver does not say."""
    gpu_memory_s: float | None
    """GPU seconds times the part of the memory that was taken."""


@dataclass(frozen=True, slots=True)
class UnitUse:
    """Means over the last minute, of all processes of one unit or of several."""

    cpus: float
    """CPUs that were busy."""
    memory: int
    """Resident bytes now."""
    gpus: float | None = None
    """GPUs that were busy; None if the driver does not say."""
    gpu_memory: int | None = None
    """Bytes of these GPUs that are taken now, by any process."""
    whole: WholeUse | None = None
    """All that it has used; None of several units."""

    def of_slots(self, slots: int, *, gpus: bool) -> float | None:
        """The part of its slots that was busy, 1 at most. Returns None if that is not known."""
        busy = self.gpus if gpus else self.cpus
        return None if busy is None or not slots else min(1.0, busy / slots)


def use_of(attempt: AttemptDir, units: Iterable[int]) -> UnitUse | None:
    """What these units of an attempt use together. Returns None unless each has said so."""
    with files_of(attempt):
        uses = [_read(attempt.use(unit)) for unit in units]
    known = [use for use in uses if use is not None]
    if not known or len(known) < len(uses):
        return None
    gpus = [use.gpus for use in known]
    taken = [use.gpu_memory for use in known]
    return UnitUse(
        sum(use.cpus for use in known),
        sum(use.memory for use in known),
        None if None in gpus else sum(filter(None, gpus)),
        None if None in taken else sum(filter(None, taken)),
    )


def whole_use_of(job: JobDir) -> list[WholeUse]:
    """What each unit of the newest attempts of a job has used. Empty unless each has said so."""
    whole: list[WholeUse] = []
    with suppress(OSError, PliantError):  # it is worth no failure
        newest = job.newest_attempt()
        attempts = [job.attempt(number) for number in range(max(1, newest - _ATTEMPTS + 1), newest + 1)]
        with files_of(job):
            paths = islice((path for attempt in attempts for path in attempt.uses()), MOST_NAMES)
            for use in map(_read, paths):
                if use is None or use.whole is None:
                    return []
                whole.append(use.whole)
    return whole


def _read(path: Path) -> UnitUse | None:
    """Returns None if there is no file, or it makes no sense at the moment."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        descriptor = opened(path, _READ_FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            said = json.loads(os.read(descriptor, _MOST_BYTES))
        finally:
            os.close(descriptor)
        return UnitUse(
            float(_amount(said["cpus"])),
            int(_amount(said["memory"])),
            None if said["gpus"] is None else float(_amount(said["gpus"])),
            None if said["gpu_memory"] is None else int(_amount(said["gpu_memory"])),
            _whole(said.get("whole")),
        )
    return None


def _whole(said: Any) -> WholeUse | None:
    """Returns None of a supervisor that does not say it.

    :raises ValueError: it makes no sense.
    """
    if said is None:
        return None
    seconds, cpu_s, *gpu_s = (None if each is None else _amount(each) for each in said)
    return WholeUse(_amount(seconds), _amount(cpu_s), *gpu_s)


def _amount(value: Any) -> float:
    """:raises ValueError: it is not an amount."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(value)
    return value
