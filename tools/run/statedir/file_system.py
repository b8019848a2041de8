"""What a folder's file system does: its mount, and a test with a temporary file."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from pliant.schemas.file_io.files import TEMPORARY, write_all

_TRIES: Final = 3
_BYTES: Final = 4096
_TICK_S: Final = 0.02
"""The kernel dates files by a clock that only moves with its ticks."""
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Probed:
    """What writing showed."""

    sync_s: float
    """Seconds of a small synced write, the median of a few."""
    locks: bool
    """Whether a second opening of a file sees the lock of the first."""
    skew_s: float
    """Seconds by which the file system's clock is ahead; 0 if they may be equal."""


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a folder is mounted."""

    kind: str
    """Kind of its file system; empty if unknown."""
    options: frozenset[str] = frozenset()


def probe(folder: Path) -> Probed:
    """Write, lock and date a file in a folder.

    :raises OSError: the folder takes no file, or knows no locks.
    """
    with _probe_file(folder) as (path, descriptor):
        seconds = []
        for _ in range(_TRIES):
            began_s = time.monotonic()
            write_all(descriptor, bytes(_BYTES))
            seconds.append(time.monotonic() - began_s)
        before_s = time.time()
        dated_s = _dated_s(descriptor)
        return Probed(median(seconds), _locks(path, descriptor), _beyond(dated_s, before_s, time.time()))


@contextmanager
def _probe_file(folder: Path) -> Iterator[tuple[Path, int]]:
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}.tmp"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _dated_s(descriptor: int) -> float:
    os.utime(descriptor)
    return os.fstat(descriptor).st_mtime


def _locks(path: Path, descriptor: int) -> bool:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(second)
    return False


def _beyond(dated_s: float, before_s: float, after_s: float) -> float:
    """How far a time is outside the span in which it was taken."""
    return min(0.0, dated_s - before_s + _TICK_S) + max(0.0, dated_s - after_s - _TICK_S)


def mount_of(folder: Path, mounts: Path = _MOUNTS) -> Mount:
    best, mount = -1, Mount("")
    with suppress(OSError):
        for line in mounts.read_text(errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            fields, more = before.split(" "), after.split(" ")
            if len(fields) < 6 or len(more) < 3:
                continue
            point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
            if folder.is_relative_to(point) and len(point) >= best:
                best = len(point)
                mount = Mount(more[0], frozenset([*fields[5].split(","), *more[2].split(",")]))
    return mount
