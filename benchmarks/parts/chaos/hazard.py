"""What befalls a launcher at its system calls: it is killed, the disk is full, files are unreadable."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from pliant.tools.run.statedir.contract import folders
from pliant.tools.run.statedir.contract.folders import UnreadableError

_CALLS: Final = ("fsync", "replace", "mkdir", "unlink")
_NEED_ROOM: Final = ("mkdir",)


class Death(BaseException):
    """SIGKILL: what the launcher would do next, it does not do."""


class Hazard:
    """The fate of the launcher that lives now, and of the disk under it."""

    def __init__(self) -> None:
        self.disk_is_full = False
        self.disk_was_full = False  # since the launcher began
        self.hidden: set[Path] = set()  # files that cannot be read at the moment
        self._left = -1
        self._dead = self._half = False

    def kill_after(self, calls: int) -> None:
        """The launcher dies before one of its next system calls."""
        self._left = calls

    def call_off(self) -> None:
        """It lives, as does the next one; the disk stays as it is."""
        self._left, self._dead, self.disk_was_full = -1, False, self.disk_is_full

    def point(self) -> None:
        """A moment at which it may die.

        :raises Death: it does.
        """
        self._left -= 1
        if self._dead or self._left == 0:
            self._dead = True
            raise Death

    @contextmanager
    def endured(self) -> Iterator[None]:
        """What is called in here is the launcher's."""
        with ExitStack() as replaced:
            real = os.write
            replaced.enter_context(mock.patch.object(os, "write", lambda *args: self._write(real, *args)))
            for name in _CALLS:
                replaced.enter_context(mock.patch.object(os, name, self._wrapped(name, getattr(os, name))))
            read = folders.read_file
            replaced.enter_context(
                mock.patch.object(folders, "read_file", lambda path, **more: self._read(read, path, **more))
            )
            yield

    def _read(self, real: Callable[..., bytes | None], path: Path, **more: Any) -> bytes | None:
        if path in self.hidden:
            raise UnreadableError(f"{path}: cannot be read: {os.strerror(errno.EMFILE).lower()}")
        return real(path, **more)

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.point()
            if name in _NEED_ROOM:
                self._check_room()
            return real(*args, **more)

        return call

    def _check_room(self) -> None:
        if self.disk_is_full:
            self.disk_was_full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, real: Callable[[int, Any], int], descriptor: int, data: Any) -> int:
        """Where it dies, or room ends, half of the bytes are written."""
        try:
            self.point()
        except Death:
            real(descriptor, data[: len(data) // 2])
            raise
        self._half = self.disk_is_full and not self._half
        if self._half:
            return real(descriptor, data[: (len(data) + 1) // 2])
        self._check_room()
        return real(descriptor, data)
