"""Where the door of a state directory is, and how each side makes sure of the other.

The kernel says who is at the other end of a UNIX socket (``SO_PEERCRED``): the account that connected, and to
the client the one that listens. The folder of the socket is opened once, part by part without links, and the
socket is reached through that descriptor, so a folder that is swapped meanwhile changes nothing, and the
length of the path does not matter.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from pliant.schemas.errors import UsageError
from pliant.tools.run.statedir.directory import ROOT, StateDir

SOCKET: Final = "socket"
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
_CREDENTIALS: Final = struct.Struct("iII")


class Peer(NamedTuple):
    """The process at the other end of a socket."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(found))


@contextmanager
def door_address(dirs: StateDir) -> Iterator[str]:
    """The socket's address, through a descriptor of its folder.

    :raises UsageError: the folder, or one above it, is not as only root and its owner could have made it.
    :raises OSError: it cannot be opened.
    """
    check_way(dirs.door, os.lstat(dirs.path).st_uid)
    folder = os.open(dirs.door, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(folder)
        if found.st_uid != ROOT or found.st_mode & _WRITABLE:
            raise UsageError(f"{dirs.door}: expected a folder of root's that no other account can write in")
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def check_way(folder: Path, owner: int) -> None:
    """Make sure that no other account can have put something else in the place of a folder.

    :param folder: without links; :meth:`Path.resolve`.
    :raises UsageError: one on the way to it is neither root's nor the owner's, or others can rename in it.
    """
    for path in (folder, *folder.parents):
        try:
            found = os.lstat(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be looked at: {error.strerror}") from error
        if stat.S_ISLNK(found.st_mode):
            raise UsageError(f"{path}: is a symbolic link, expected a folder")
        if found.st_uid not in (ROOT, owner):
            raise UsageError(f"{path}: belongs to user {found.st_uid}, who could replace what lies in it")
        if found.st_mode & _WRITABLE and not found.st_mode & stat.S_ISVTX:
            raise UsageError(f"{path}: other accounts can replace what lies in it: chmod go-w {path}")
