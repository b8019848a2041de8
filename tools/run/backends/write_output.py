"""Write what the workers of one unit print to the files that their job names (``--output``, ``--error``).

Run with LOGS, OPENED and ORDER in a process of its own by the supervisor of the unit, with the rights of the
job's account. LOGS is the unit's folder of output files, which stay as they are: this process copies whole
lines out of them. So a file system that hangs or is full holds up neither the supervisor nor the job. It ends
once standard input does, with everything copied that can be within :data:`LAST_S`; it says what cannot.

ORDER is JSON: ``output`` and ``error`` list a path for each worker, ``owner`` says that no other unit opens
these paths first, ``truncate`` that it then empties a file, as sbatch does. A file that another job writes to
is never emptied. Units that share a path wait until OPENED is there, which its owner makes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_INTERVAL_S = 0.2
SEARCH_INTERVAL_S = 1.0
RETRY_INTERVAL_S = 5.0
"""Seconds between two tries to write to a file."""
OWNER_S = 3.0
"""Seconds that an ended unit waits for the one that opens its files."""
LAST_S = 4.0
"""Seconds to copy the rest after the unit has ended; its supervisor waits a little longer."""
PIECE = 1 << 20
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


def main(arguments: list[str]) -> int:
    logs, opened, order = arguments[0], arguments[1], json.loads(arguments[2])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    copies = Copies(logs, order)
    if order["owner"]:
        copies.open_all()
        os.close(os.open(opened, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    until_s = last_s = float("inf")
    while True:
        ended = bool(select.select([0], [], [], POLL_INTERVAL_S)[0])
        if ended:
            until_s, last_s = min(until_s, time.monotonic() + OWNER_S), min(last_s, time.monotonic() + LAST_S)
        if order["owner"] or os.path.exists(opened) or time.monotonic() > until_s:
            copies.look(last=ended, until_s=last_s)
            if ended:
                copies.note_rest()
                return 0
        elif ended:
            time.sleep(POLL_INTERVAL_S)


class OutputTarget:
    """A file that a job names, for one or several workers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._problem = ""
        self._again_s = 0.0

    def open(self, *, truncate: bool) -> bool:
        """Open the file with the folders above it, if need be. Returns whether it is open."""
        if self._descriptor < 0 and time.monotonic() >= self._again_s:
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                self._descriptor = os.open(self.path, _OPEN, 0o666)
                if _is_alone(self._descriptor) and truncate:
                    os.ftruncate(self._descriptor, 0)
                _share(self._descriptor)
            except OSError as error:
                self._fail(error)
        return self._descriptor >= 0

    def write(self, data: bytes) -> int:
        """Write as much as possible; returns the number of bytes."""
        done = 0
        try:
            while time.monotonic() >= self._again_s and done < len(data):
                done += os.write(self._descriptor, data[done : done + PIECE])
        except BlockingIOError:  # a pipe that is full
            return done
        except OSError as error:
            self._fail(error)
        return done

    def _fail(self, error: OSError) -> None:
        """Say it once, where ``pliant log`` shows it."""
        self._again_s = time.monotonic() + RETRY_INTERVAL_S
        if self._problem != (problem := os.strerror(error.errno or errno.EIO)):
            self._problem = problem
            print(f"pliant: {self.path} cannot be written: {problem}", file=sys.stderr, flush=True)


def _is_alone(descriptor: int) -> bool:
    """Whether this is a plain file that no other process of this kind has open."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _share(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return


class Source:
    """One output file of a worker."""

    def __init__(self, path: str, target: OutputTarget) -> None:
        self._path, self.target = path, target
        self._at = self._before = 0
        # Bytes that are not copied.
        self.left = 0

    def copy(self, *, last: bool, truncate: bool, until_s: float) -> None:
        """Copy what is new, up to the end of a line; a line without an end once it has stopped growing."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            size = os.fstat(descriptor).st_size
            if size > self._at and self.target.open(truncate=truncate):
                self._copy(descriptor, size, until_s, whole=last or size == self._before)
            self._before, self.left = size, max(0, size - self._at)
        finally:
            os.close(descriptor)

    def _copy(self, descriptor: int, size: int, until_s: float, *, whole: bool) -> None:
        while self._at < size and time.monotonic() < until_s:
            data = os.pread(descriptor, min(PIECE, size - self._at), self._at)
            kept = min(
                size, _first_kept(descriptor, self._at)
            )  # asked after reading: what is gone reads as 0
            if kept > self._at:
                note = b"==> %d bytes printed before this are not kept (--log-bytes)\n" % (kept - self._at)
                self._at = kept if self.target.write(note) else self._at
                if self._at < kept:
                    return
                continue
            if not whole and len(data) < PIECE:
                data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
            written = self.target.write(data)
            self._at += written
            if not data or written < len(data):
                return


def _first_kept(descriptor: int, place: int) -> int:
    """The first place from ``place`` on that is on disk, as the supervisor of the unit frees old parts."""
    try:
        return os.lseek(descriptor, place, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(descriptor).st_size if error.errno == errno.ENXIO else place


class Copies:
    """All output files of one unit, and where they go."""

    def __init__(self, logs: str, order: dict[str, Any]) -> None:
        self._logs, self._order = logs, order
        self._targets = {path: OutputTarget(path) for path in {*order["output"], *order["error"]}}
        self._sources: dict[str, Source] = {}
        self._sought_s = float("-inf")

    def open_all(self) -> None:
        for target in self._targets.values():
            target.open(truncate=self._order["truncate"])

    def look(self, *, last: bool, until_s: float = float("inf")) -> None:
        if last or not self._sources or time.monotonic() - self._sought_s >= SEARCH_INTERVAL_S:
            self._sought_s = time.monotonic()
            self._seek()
        for _, source in sorted(self._sources.items(), reverse=True):  # stdout.log, then stderr.log
            source.copy(last=last, truncate=False, until_s=until_s)

    def note_rest(self) -> None:
        """Say what is not copied, where ``pliant log`` shows it."""
        for path in self._targets:
            left = sum(source.left for source in self._sources.values() if source.target.path == path)
            if left:
                print(f"pliant: {left:,} bytes not copied to {path}", file=sys.stderr, flush=True)

    def _seek(self) -> None:
        """Find the files of workers: FOLDER/attempt_0/NUMBER/stdout.log and stderr.log."""
        for folder, _, names in os.walk(self._logs):
            number = os.path.basename(folder)
            for name, kind in (("stdout.log", "output"), ("stderr.log", "error")):
                paths, path = self._order[kind], os.path.join(folder, name)
                if name in names and number.isdecimal() and int(number) < len(paths):
                    self._sources.setdefault(path, Source(path, self._targets[paths[int(number)]]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
