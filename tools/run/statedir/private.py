"""A state directory is its owner's alone: what is asked for there is executed, and its files hold secrets.

As ``ssh`` does with its files: who uses one must own it, and no other user may be able to write in it. What
others can only read is closed to them. Nothing in it that is used is a symbolic link, so nothing leads out of
it.

Jobs come by the thousand, so their folders are looked at when they are used (:func:`check_job`). All of them
are where others can enter, and might have put something there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pliant.schemas.errors import PliantError, UsageError
from pliant.schemas.file_io.files import make_folder, sync_folder, write_error
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.version import check_format

_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
_OPEN: Final = stat.S_IRWXG | stat.S_IRWXO
PRIVATE: Final = 0o600
"""Mode of the files in a state directory."""
_log = logging.getLogger("pliant")
_UNUSABLE: Final = "cannot be used as state directory"


def make_own(dirs: StateDir) -> None:
    """Make a state directory with its folders, or make sure that one that is there is this user's alone.

    Its name is on disk when this returns.

    :raises UsageError: it cannot be made, belongs to somebody else, is writable by others, or holds a link.
    """
    new = [folder for folder in (dirs.path, *dirs.path.parents) if not folder.exists()]
    if dirs.path.is_dir() and not (dirs.spool.is_dir() and dirs.jobs.is_dir()):
        check_own(dirs, close=False)  # nothing is made, or closed, in a folder that is refused
        _check_free(dirs)
    try:
        for folder in (dirs.path, dirs.spool, dirs.jobs):
            make_folder(folder, mode=0o700)
        for folder in {dirs.path.parent, *(folder.parent for folder in new)}:
            with contextlib.suppress(PermissionError):  # it can be entered but not read
                sync_folder(folder)
    except UsageError as error:
        raise UsageError(f"{dirs.path}: {_UNUSABLE}: {error}") from error
    except OSError as error:
        raise unusable(dirs.path, error) from error
    check_own(dirs)


def unusable(folder: Path, error: OSError) -> PliantError:
    """The expected error of a state directory in which something cannot be written."""
    return write_error(error, str(folder), _UNUSABLE)


def _check_free(dirs: StateDir) -> None:
    """Make sure that a folder without a spool is an older state directory, or empty but for hidden files.

    :raises UsageError: it is somebody's folder of other things.
    """
    there = {path.name for path in dirs.path.iterdir() if not path.name.startswith(".")}
    if there and not any(_is_its(dirs, dirs.path / name) for name in there):
        other = sorted(there)[0]
        text = f"holds {other} and nothing of a state directory: name a new or an empty folder"
        raise UsageError(f"{dirs.path}: {text}")


def check_own(dirs: StateDir, *, close: bool = True) -> None:
    """Make sure that a state directory is this user's alone, and close it to those who could read it.

    What else lies in the folder keeps its mode; others cannot reach it any more.

    :param close: False leaves the folder open to those who can read it.
    :raises UsageError: it belongs to somebody else, is writable by others, or holds a link.
    :raises BadInputError: a later pliant has written it.
    """
    check_format(dirs)
    others_enter, parts = bool(os.lstat(dirs.path).st_mode & _OPEN), list(_parts(dirs))
    for path, found in parts:
        _check_owner(path, found, os.geteuid())
        _check_kind(path, found)
        if others_enter and found.st_mode & _WRITABLE:
            text = "others may write in it, and what they ask for would run as you; look through it, then"
            raise UsageError(f"{path}: {text}: chmod go-w {path}")
    if not close:
        return
    for path, found in parts:  # only now: a folder that is refused is refused the next time, too
        if found.st_mode & _OPEN and _is_its(dirs, Path(path)):
            os.chmod(path, stat.S_IMODE(found.st_mode) & ~_OPEN)
    if others_enter:
        _log.warning("%s was open to other users: from now on it is yours alone", dirs.path)


def check_seen(dirs: StateDir) -> None:
    """Make sure that this user may look at a state directory: it is their own, or they are root.

    :raises UsageError: it belongs to another user, or something in it is neither a plain file nor a folder.
    """
    owner = os.lstat(dirs.path).st_uid
    if os.geteuid() not in (0, owner):
        raise UsageError(f"{dirs.path}: belongs to {_name(owner)}: only its owner and root can look at it")
    for path, found in _parts(dirs):
        _check_owner(path, found, owner)
        _check_kind(path, found)
    check_format(dirs)


def check_job(dirs: StateDir, job_id: str) -> None:
    """Make sure that a job's folder, if it is there, is a folder, and of the state directory's owner.

    :raises UsageError: it is not.
    """
    path = f"{dirs.jobs}/{job_id}"
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        _check_owner(path, found, os.lstat(dirs.path).st_uid)
        _check_kind(path, found)


def read_own(path: Path) -> bytes:
    """The bytes of a plain file of a state directory; never waits, follows no link.

    :raises OSError: it cannot be read.
    :raises ValueError: it is not a plain file, or its owner is not that of its folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a plain file")
        if found.st_uid != path.parent.stat().st_uid:
            raise ValueError(f"it belongs to {_name(found.st_uid)}")
        return file.read()


def _parts(dirs: StateDir) -> Iterator[tuple[str, os.stat_result]]:
    """The state directory and what lies directly in it; and the jobs' folders, where others can enter."""
    own = os.lstat(dirs.path)
    yield str(dirs.path), own
    yield from _entries(dirs.path)
    if own.st_mode & _OPEN and dirs.jobs.is_dir() and not dirs.jobs.is_symlink():
        yield from _entries(dirs.jobs)


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                yield entry.path, entry.stat(follow_symlinks=False)


def _is_its(dirs: StateDir, path: Path) -> bool:
    """Whether a path is part of the state directory, and not a file that somebody keeps there, too."""
    files = (dirs.events, dirs.snapshot, dirs.cluster, dirs.profile, dirs.schedule)
    own = (dirs.path, dirs.spool, dirs.jobs, *files, dirs.version, dirs.lock, dirs.run_log)
    return path.parent == dirs.jobs or path in own


def _check_owner(path: str, found: os.stat_result, wanted: int) -> None:
    if found.st_uid != wanted:
        owner = _name(found.st_uid)
        raise UsageError(f"{path}: belongs to {owner}, and you are {_name(wanted)}: use it as {owner}")


def _check_kind(path: str, found: os.stat_result) -> None:
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "neither a file nor a folder"
        raise UsageError(f"{path}: is {what}: remove it, it does not belong into a state directory")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
