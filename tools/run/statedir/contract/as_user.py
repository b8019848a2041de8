"""The way into a folder that another account writes to: file access with the rights of its owner.

In a run that several accounts share, the launcher is root and a job's folder is its user's. At any moment any
name in it may become a link, a pipe, a folder, or a file of any size. So for all that it does there the
launcher takes the rights of the folder's owner (:func:`files_of`). A name that leads elsewhere then leads
only to what this user could read or write anyway. A path need not be resolved step by step, and there is no
race between a check and its use.

The rights are those of Linux's ``setfsuid``: of one thread, for files alone. With ``seteuid`` all threads
would change, and an account could renice the launcher meanwhile. A user's FUSE mount, which may
hang, refuses both.

What is read there must be a plain file of that owner (:func:`opened`), is opened without waiting and read up
to a limit. A file that is not so counts as absent: its owner has removed it, in effect.

The folder of a job lies in one that only root can write to, so its owner can be trusted (:func:`owner_of`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.file_io.files import TEMPORARY, atomic_write, write_all, write_error

P = ParamSpec("P")
T = TypeVar("T")
MOST_BYTES: Final = 1 << 16
"""Maximum bytes of a small file: outcomes, exit codes, progress."""
_WARILY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_OWNERS_DOING: Final = {
    *(errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.ENODEV),
    *(errno.EAGAIN, errno.ENAMETOOLONG, errno.EFBIG, errno.ENOENT),
}
"""Errors that an owner can cause: links, pipes, folders, modes, leases."""
_ASK: Final = -1
"""Id that changes nothing."""


class Rights(NamedTuple):
    """Ids that count for files."""

    uid: int
    gid: int


NOBODY: Final = Rights(65534, 65534)


class _Owned(Protocol):
    """A job's folder, or one in it."""

    @property
    def path(self) -> Path: ...

    @property
    def kept(self) -> Path | None: ...


class _State(threading.local):
    rights: Rights | None = None


_state: Final = _State()


def files_of(folder: _Owned) -> AbstractContextManager[None]:
    """Within it, this thread has the file rights of the folder's user; nothing changes if there is only one.

    Nothing but this folder's files may be touched meanwhile; :func:`own_files` is the way back.

    :raises ServiceMissingError: the system cannot do that.
    """
    return nullcontext() if folder.kept is None else _Taken(owner_of(folder.path))


def files_in(folder: Path) -> AbstractContextManager[None]:
    """Within it, root has the file rights of the owner of a folder that no shared run made.

    :raises ServiceMissingError: the system cannot do that.
    """
    if os.geteuid() != 0:
        return nullcontext()
    try:
        status = os.lstat(folder)
    except OSError:
        return _Taken(NOBODY)
    return nullcontext() if status.st_uid == 0 else _Taken(Rights(status.st_uid, status.st_gid))


def is_other() -> bool:
    """Whether this thread has the file rights of a job's user."""
    return _state.rights is not None


def own_files() -> AbstractContextManager[None]:
    """Within it, this thread has its own file rights again."""
    return nullcontext() if _state.rights is None else _Taken(None)


def with_own_files(work: Callable[P, T]) -> Callable[P, T]:
    """Work that needs this thread's own rights wherever it is called from."""

    @wraps(work)
    def done(*args: P.args, **named: P.kwargs) -> T:
        with own_files():
            return work(*args, **named)

    return done


def owner_of(folder: Path) -> Rights:
    """Whose a job's folder is, also for the folder of one of its attempts."""
    job = folder if folder.parent.name == "jobs" else folder.parent.parent
    try:
        status = os.lstat(job)
    except OSError:  # there is nothing to read
        return NOBODY
    return Rights(status.st_uid, status.st_gid)


class _Taken(AbstractContextManager[None]):
    __slots__ = ("_before", "_rights")

    def __init__(self, rights: Rights | None) -> None:
        self._rights = rights

    def __enter__(self) -> None:
        self._before = _state.rights
        _take(self._rights)

    def __exit__(self, *_: object) -> None:
        _take(self._before)


def _take(rights: Rights | None) -> None:
    """:raises ServiceMissingError: the system refuses; then this thread has its own rights."""
    system = _system()
    wanted = rights or Rights(os.geteuid(), os.getegid())
    system.setfsgid(wanted.gid)
    system.setfsuid(wanted.uid)
    if (system.setfsuid(_ASK), system.setfsgid(_ASK)) != wanted:
        system.setfsuid(os.geteuid())
        system.setfsgid(os.getegid())
        _state.rights = None
        raise ServiceMissingError(f"file rights of user {wanted.uid} cannot be taken: this needs root")
    _state.rights = rights


@cache
def _system() -> Any:
    """The C library. The groups of this process are given up: they would count beside the user's rights."""
    system = ctypes.PyDLL(None)
    if not hasattr(system, "setfsuid"):
        raise ServiceMissingError("a run that several accounts share needs Linux")
    if os.geteuid() == 0 and os.getgroups():
        os.setgroups([])
    return system


def opened(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a file; within :func:`files_of` never of another thing or of another owner's file.

    :raises OSError: it cannot be opened, or is something else.
    """
    rights = _state.rights
    if rights is None:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    descriptor = os.open(path, flags | _WARILY | os.O_CLOEXEC, mode)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == rights.uid:
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "is not a plain file of its owner", str(path))


def opener(path: str, flags: int) -> int:
    """:func:`opened`, for ``open``."""
    return opened(path, flags)


def read(path: Path) -> bytes:
    """The bytes of a small file.

    :raises FileNotFoundError: it is not there, or not as it should be.
    :raises OSError: it cannot be read.
    """
    if _state.rights is None:
        return path.read_bytes()
    try:
        descriptor = opened(path)
        try:
            data = os.read(descriptor, MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _OWNERS_DOING:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
        raise
    if len(data) > MOST_BYTES:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return data


def write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file atomically, whatever there is in its place.

    :raises PliantError: it cannot be written.
    """
    if _state.rights is None:
        atomic_write(path, data, mode=mode)
        return
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}.tmp")
    try:
        descriptor = opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise write_error(error, str(path)) from error


def make_job_folder(path: Path, owner: Rights) -> None:
    """Make a job's folder for its user, or make sure that it is theirs.

    :raises UsageError: there is something else.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner.uid:
            raise UsageError(f"{path}: is not a folder of user {owner.uid}") from None
        return
    except OSError as error:
        raise write_error(error, str(path)) from error
    os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
