"""Closing the connections of a gloo process group while something still refers to it.

Gloo closes them only when the group and every operation of it are freed; ``shutdown`` and ``abort`` do
nothing (PyTorch 2.13). A script that keeps the group in a variable, or an error that remembers an operation,
would leave the other workers waiting for this one as if it were still there.

Gloo polls its connections, and the socket that it listens on, with an epoll instance of its own. So what it
has opened is known from those that appear while a group forms. Where the system does not say what an epoll
instance watches, nothing is known and nothing is closed early.

A host that loses its power, or its network, ends no connection either. The system does, if it is asked to:
it asks the other host for a sign of life every few seconds, and gives up after :data:`SILENCE_S`. That host's
system answers by itself, so a worker that computes, or stands still, has all the time it needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SILENCE_S: Final = 9.0
"""A host that does not answer for so long is dead, or cut off."""
_PROCESS: Final = Path("/proc/self")
_EPOLL: Final = "anon_inode:[eventpoll]"
_WATCHED: Final = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)


class Connections:
    """The sockets of one process group after the other."""

    def __init__(self) -> None:
        self._inodes: frozenset[int] = frozenset()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Remember what gloo opens meanwhile."""
        before = _connected()
        yield
        # not by descriptors: those of a group that is freed meanwhile may serve the new one
        self._inodes = _connected() - before
        _for_each(self._inodes, _end_when_silent)

    def close(self) -> None:
        """End the connections: waiting for them ends in an error, here and in the other workers.

        The descriptors stay gloo's, which frees them in its own time. Any thread may call it.
        """
        inodes, self._inodes = self._inodes, frozenset()
        _for_each(inodes, lambda found: found.shutdown(socket.SHUT_RDWR))


def _for_each(inodes: frozenset[int], act: Callable[[socket.socket], None]) -> None:
    """Do something with each of the sockets that is still open."""
    for number, _ in _descriptors() if inodes else ():
        with _borrowed(number) as found:
            if found is not None and os.fstat(found.fileno()).st_ino in inodes:
                act(found)


def _end_when_silent(connection: socket.socket) -> None:
    """Let the system end a connection to a host that gives no sign of life.

    A limit on unanswered data has to be set as well: the system does not ask while it has any to send.
    """
    every_s = int(SILENCE_S / 3)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", every_s),
        ("TCP_KEEPINTVL", every_s),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", int(1000 * SILENCE_S)),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _descriptors() -> Iterator[tuple[int, str]]:
    """What is open, and what it is."""
    with contextlib.suppress(OSError):
        for name in os.listdir(_PROCESS / "fd"):
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(_PROCESS / "fd" / name)


def _connected() -> frozenset[int]:
    """The inodes of the connections that epoll instances watch which also listen for others."""
    found = [_sockets(number) for number, kind in _descriptors() if kind == _EPOLL]
    return frozenset(inode for inodes, listens in found if listens for inode in inodes)


def _sockets(epoll: int) -> tuple[set[int], bool]:
    """The inodes of the connections that an epoll instance watches, and whether it listens for others."""
    inodes, listens = set(), False
    with contextlib.suppress(OSError):
        for number in map(int, _WATCHED.findall((_PROCESS / "fdinfo" / str(epoll)).read_text())):
            with _borrowed(number) as found:
                if found is None:
                    continue
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listens = True
                else:
                    inodes.add(os.fstat(found.fileno()).st_ino)
    return inodes, listens


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket | None]:
    """A socket, by a descriptor that stays its own if gloo closes the other one; None: it is not one.

    Another file is not even duplicated: to close the copy would free the locks that this process holds on
    it, of which its presence is one.
    """
    try:
        copy = os.dup(number) if stat.S_ISSOCK(os.fstat(number).st_mode) else -1
    except OSError:
        copy = -1
    try:
        found = socket.socket(fileno=copy) if copy >= 0 else None
    except OSError:
        os.close(copy)
        found = None
    try:
        with contextlib.suppress(OSError):  # closed by the other side meanwhile
            yield found
    finally:
        if found is not None:
            found.close()
