"""A state directory: where things lie in it, whose it is, in which format, and who writes to it.

Its owner's alone, as with the files of ``ssh``: what is asked for there is executed, and its files hold
secrets. Its user must own it, and no other user may be able to write in it; what others can only read is
closed to them. No part of it is a symbolic link, so nothing leads out of it. Jobs come by the thousand, so a
job's folder is checked when it is used (:func:`check_job`), and all of them only if others can enter.

``version.json`` names the format, so that no older pliant misreads it, and the place, so that a copy is
noticed: a copy of a directory whose jobs run would start them a second time.

One process writes at a time, the one that holds the lock. An :class:`Account` is who asks, as the
kernel proves it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import pwd
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from pliant import __version__
from pliant.schemas.errors import BadInputError, LockedError, PliantError, UsageError
from pliant.schemas.file_io.files import ARCHIVE_FOLDER, atomic_write, make_folder, sync_folder, write_error
from pliant.schemas.text import listed, whole_number
from pliant.tools.run.statedir.contract.as_user import NOBODY
from pliant.tools.run.statedir.contract.folders import KEPT, PRIVATE, Folder, Inside, JobDir, job_folder
from pliant.tools.run.statedir.slot_faults import may_pass


class Account(NamedTuple):
    """Who gave an order."""

    uid: int
    name: str

    @classmethod
    def of(cls, uid: int) -> Self:
        return cls(uid, account_name(uid))

    def __str__(self) -> str:
        return f"{self.name} (uid {self.uid})"


def account_name(uid: int) -> str:
    """The name of an account; its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


SCHEMA: Final = "pliant.state/1"
FORMAT: Final = 2
"""Format number; raised when a directory may hold what the pliant before would misread."""
_UNUSABLE: Final = "cannot be used as state directory"
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
_OPEN: Final = stat.S_IRWXG | stat.S_IRWXO
_WAY_IN: Final = stat.S_IXGRP | stat.S_IXOTH
"""Mode bits with which others pass through folders of a shared run and cannot list them."""
ROOT: Final = 0
_GLANCE_S: Final = 0.25
"""Seconds to try a held lock; its holder may be a process that only reads."""
_RETRY_S: Final = 0.05
_log = logging.getLogger("pliant")


class StateDir(Folder):
    """The paths in a state directory. Nothing is read or written here."""

    events = Inside("events.jsonl")
    """The log that all state is folded from."""
    snapshot = Inside("snapshot.jsonl")
    """State of the log up to a place in it; can be rebuilt."""
    cluster = Inside("cluster.json")
    """The cluster in use."""
    profile = Inside("profile.parquet")
    """The profile in use."""
    schedule = Inside("schedule.json")
    """The schedule applied last."""
    version = Inside("version.json")
    """Format of the directory."""
    lock = Inside("lock")
    """``flock``-ed by the one writer."""
    run_log = Inside("run.log")
    """Messages of a run in the background."""
    spool = Inside("spool")
    """Submissions, cancellations and orders that the log does not hold yet."""
    jobs = Inside("jobs")
    """The folder of the jobs' folders."""
    archive = Inside(ARCHIVE_FOLDER)
    """Archives of jobs that ended long ago."""
    code = Inside("code")
    """Copies of code that jobs run from (``pliant submit --snapshot``)."""
    kept = Inside(KEPT)
    """The launcher's own files of each job, if several accounts share the run: else they are with the job."""
    door = Inside("door")
    """Folder of the gateway, if accounts share the run."""

    @property
    def is_shared(self) -> bool:
        """Whether several accounts share it: then each job's folder is its user's, and all else root's."""
        try:
            status = os.lstat(self.kept)
            return stat.S_ISDIR(status.st_mode) and status.st_uid == os.lstat(self.path).st_uid == ROOT
        except OSError:
            return False

    def job(self, job_id: str) -> JobDir:
        return job_folder(self.jobs, job_id)


# Whose it is.


def make_own(dirs: StateDir) -> None:
    """Make a state directory with its folders, or make sure that an existing one is this user's alone.

    Its name is on disk when this returns.

    :raises UsageError: it cannot be made, belongs to another user, is writable by others, or holds a link.
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
    return write_error(error, str(folder), _UNUSABLE)


def _check_free(dirs: StateDir) -> None:
    """:raises UsageError: the folder holds other things than a part-made state directory and hidden files."""
    there = {path.name for path in dirs.path.iterdir() if not path.name.startswith(".")}
    if there and not any(_is_its(dirs, dirs.path / name) for name in there):
        other = sorted(there)[0]
        text = f"holds {other} and nothing of a state directory: name a new or an empty folder"
        raise UsageError(f"{dirs.path}: {text}")


def check_own(dirs: StateDir, *, close: bool = True) -> None:
    """Make sure that a state directory is this user's alone, and close it to those who could read it.

    What else lies in the folder keeps its mode; others cannot reach it any more.

    :param close: False leaves the folder open to those who can read it.
    :raises UsageError: it belongs to another user, is writable by others, or holds a link.
    :raises BadInputError: a later pliant has written it.
    """
    check_format(dirs)
    ways_in = {str(dirs.path), str(dirs.jobs)} if dirs.is_shared else set()
    others_enter, parts = bool(os.lstat(dirs.path).st_mode & _OPEN), list(_parts(dirs))
    for path, status in parts:
        _check_owner(path, status, os.geteuid())
        _check_kind(path, status)
        if others_enter and status.st_mode & _WRITABLE:
            text = "others may write in it, and what they ask for would run as you; look through it, then"
            raise UsageError(f"{path}: {text}: chmod go-w {path}")
    if not close:
        return
    for path, status in parts:  # only now: a folder that is refused is refused the next time, too
        mode = stat.S_IMODE(status.st_mode)
        closed = mode & ~_OPEN | (_WAY_IN if path in ways_in else 0)
        if mode != closed and _is_its(dirs, Path(path)):
            os.chmod(path, closed)
    if others_enter and not ways_in:
        _log.warning("%s was open to other users: from now on it is yours alone", dirs.path)


def make_shared(dirs: StateDir) -> None:
    """Let several accounts reach the gateway of a state directory of root's, in which no job has run yet.

    :raises UsageError: this user is not root, jobs have run there, or others cannot reach it or could put
        another one in its place.
    :raises PliantError: it cannot be made.
    """
    if os.geteuid() != ROOT:
        raise UsageError("jobs run as their users only where root runs them: pliant serve needs root")
    if not dirs.is_shared and dirs.jobs.is_dir() and any(dirs.jobs.iterdir()):
        raise UsageError(f"{dirs.path}: one account has run jobs there: name a new folder for a shared run")
    check_reachable(dirs.path)
    make_folder(dirs.door, mode=0o755)
    check_plain_folder(dirs.door)
    os.chmod(dirs.door, 0o755)  # noqa: S103 - all may look for the socket
    make_folder(dirs.kept, mode=0o700)
    check_own(dirs)


def check_reachable(path: Path) -> None:
    """Make sure that every account can enter the folders above a path, and none can exchange one of them.

    :raises UsageError: one of them cannot, or could.
    """
    for above in path.resolve().parents:
        status = os.lstat(above)
        if not status.st_mode & stat.S_IXOTH:
            text = "other users cannot enter it: a shared state directory is where they can, as in /var/lib"
            raise UsageError(f"{above}: {text}")
        if status.st_uid != ROOT:
            raise UsageError(f"{above}: belongs to {_name(status.st_uid)}, who could replace what lies in it")
        if status.st_mode & _WRITABLE and not status.st_mode & stat.S_ISVTX:
            raise UsageError(f"{above}: other accounts can replace what lies in it: chmod go-w {above}")


def check_plain_folder(path: Path) -> None:
    """:raises UsageError: it is not a folder of this user's, or others may write in it."""
    status = os.lstat(path)
    _check_owner(str(path), status, os.geteuid())
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & _WRITABLE:
        raise UsageError(f"{path}: expected a folder that only its owner can write in")


def check_seen(dirs: StateDir) -> None:
    """Make sure that this user may look at a state directory: it is their own, or they are root.

    :raises UsageError: it belongs to another user, or something in it is neither a plain file nor a folder.
    """
    owner = os.lstat(dirs.path).st_uid
    if os.geteuid() not in (0, owner):
        raise UsageError(f"{dirs.path}: belongs to {_name(owner)}: only its owner and root can look at it")
    for path, status in _parts(dirs):
        _check_owner(path, status, owner)
        _check_kind(path, status)
    check_format(dirs)


def check_job(dirs: StateDir, job_id: str) -> None:
    """:raises UsageError: a job's folder is not a folder, or not of the state directory's owner."""
    path = f"{dirs.jobs}/{job_id}"
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if not dirs.is_shared:
            _check_owner(path, status, os.lstat(dirs.path).st_uid)
        _check_kind(path, status)


def read_own(path: Path) -> bytes:
    """The bytes of a plain file of a state directory; never waits, follows no link.

    :raises OSError: it cannot be read.
    :raises ValueError: it is not a plain file, or its owner is not that of its folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a plain file")
        if status.st_uid != path.parent.stat().st_uid:
            raise ValueError(f"it belongs to {_name(status.st_uid)}")
        return file.read()


def _parts(dirs: StateDir) -> Iterator[tuple[str, os.stat_result]]:
    """The state directory and what lies directly in it; and the jobs' folders if others can enter."""
    own = os.lstat(dirs.path)
    yield str(dirs.path), own
    yield from _entries(dirs.path)
    if own.st_mode & _OPEN and not dirs.is_shared and dirs.jobs.is_dir() and not dirs.jobs.is_symlink():
        yield from _entries(dirs.jobs)


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                yield entry.path, entry.stat(follow_symlinks=False)


def _is_its(dirs: StateDir, path: Path) -> bool:
    """Whether a path is part of the state directory, and not a foreign file beside it."""
    files = (dirs.events, dirs.snapshot, dirs.cluster, dirs.profile, dirs.schedule)
    folders = (dirs.path, dirs.spool, dirs.jobs, dirs.archive, dirs.code, dirs.kept)
    return path.parent == dirs.jobs or path in (*folders, *files, dirs.version, dirs.lock, dirs.run_log)


def _check_owner(path: str, found: os.stat_result, wanted: int) -> None:
    if found.st_uid == NOBODY.uid and wanted == ROOT:
        text = "its file system takes root for nobody (root_squash): name a folder where root is root"
        raise UsageError(f"{path}: {text}")
    if found.st_uid != wanted:
        owner = _name(found.st_uid)
        raise UsageError(f"{path}: belongs to {owner}, and you are {_name(wanted)}: use it as {owner}")


def _check_kind(path: str, found: os.stat_result) -> None:
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "neither a file nor a folder"
        raise UsageError(f"{path}: is {what}: remove it, it does not belong into a state directory")


def _name(uid: int) -> str:
    name = account_name(uid)
    return f"user {uid}" if name == str(uid) else name


# Which format, and where.


@dataclass(frozen=True, slots=True)
class Home:
    """What tells a directory from a copy of it."""

    host: str
    path: str
    inodes: list[int]
    """Inodes of the directory and of the folder of its jobs. A move on one file system and a snapshot
    of the whole keep both; any other copy keeps neither."""

    @classmethod
    def of(cls, dirs: StateDir) -> Home:
        inodes = [os.stat(each).st_ino for each in (dirs.path, dirs.jobs)]
        return cls(os.uname().nodename, str(dirs.path), inodes)


def check_format(dirs: StateDir) -> None:
    """:raises BadInputError: it is of a later format, or its ``version.json`` cannot be understood."""
    _read_version(dirs)


def claim(dirs: StateDir, running: Sequence[str] = (), *, restored: bool = False) -> None:
    """Note in ``version.json`` the format and the place. The caller holds the lock and is about to write.

    If the file cannot be written at the moment, the next writer does it.

    :param running: jobs that hold GPUs, as its log says.
    :param restored: the caller says that no job runs any more in the directory that this is a copy of.
    :raises UsageError: the jobs run in the original of this copy, or ran while the directory was moved.
    """
    number, home = _read_version(dirs)
    here = Home.of(dirs)
    if running and home is not None and not restored and (what := _elsewhere(home, here)):
        which = "job" if len(running) == 1 else "jobs"
        raise UsageError(
            f"{dirs.path}: {what}, where {which} {listed(running)} may still run: one that is started here "
            "trains twice. Where nothing of it runs any more: pliant run --restored"
        )
    if (number, home) == (FORMAT, here):
        return
    document = {"schema": SCHEMA, "format": FORMAT, "pliant": __version__, "home": asdict(here)}
    try:
        atomic_write(dirs.version, json.dumps(document).encode() + b"\n", mode=PRIVATE)
    except (OSError, PliantError) as error:
        _log.debug("%s is not written: %s", dirs.version, error)


def _elsewhere(home: Home, here: Home) -> str:
    """How a directory is not the one that was written last; empty if it is.

    If only the host differs, the directory is shared, or a container has another name. If only the inodes
    differ, it was restored in its place.
    """
    same_place = (home.host, home.path) == (here.host, here.path)
    if home.inodes != here.inodes:
        return "" if same_place else f"is a copy of {home.path} on host {home.host}"
    if home.host != here.host or same_place:
        return ""
    try:
        is_same = os.path.samefile(home.path, here.path)
    except OSError:
        return f"was moved from {home.path}"
    return "" if is_same else f"is a copy of {home.path} on host {home.host}"


def _read_version(dirs: StateDir) -> tuple[int, Home | None]:
    """The format (0 if not said) and the place of a directory when it was last claimed."""
    try:
        document = json.loads(dirs.version.read_bytes())
        number, writer = int(document["format"]), str(document["pliant"])
    except FileNotFoundError:
        return 0, None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        if may_pass(error):
            return FORMAT, None
        text = f"does not say the format of a state directory ({error}); remove it where this pliant wrote it"
        raise BadInputError.one(str(dirs.version), text) from error
    if number > FORMAT:
        knows = f"pliant {__version__} knows {FORMAT} and earlier"
        text = f"pliant {writer} wrote it in format {number}, and {knows}"
        raise BadInputError(f"{dirs.path}: {text}: use pliant {writer} or a later one")
    with contextlib.suppress(LookupError, TypeError, ValueError):
        home = document["home"]
        return number, Home(str(home["host"]), str(home["path"]), [int(each) for each in home["inodes"]])
    return number, None


# Who writes to it.


class Lock:
    """The one writer's lock; the system drops it when its holder dies, however that happens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self, *, wait_s: float = 0.0) -> None:
        """:raises LockedError: another process still holds it after ``wait_s``."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(self._path, flags, PRIVATE)
        try:
            self._take(max(wait_s, _GLANCE_S))
        except BaseException:
            self.release()
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    @contextlib.contextmanager
    def shared(self, *, wait_s: float = 0.0) -> Iterator[None]:
        """Keep writers away while others may look, too. Before the first writer there is no lock.

        :raises LockedError: a writer still holds the lock after ``wait_s``.
        """
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            self._take(max(wait_s, _GLANCE_S), fcntl.LOCK_SH)
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Harmless if it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, within_s: float, kind: int = fcntl.LOCK_EX) -> None:
        deadline_s = time.monotonic() + within_s
        while not _try(self._descriptor, kind):
            if time.monotonic() >= deadline_s:
                who = f" by process {holder}" if (holder := _written(self._descriptor)) else ""
                where = self._path.parent
                raise LockedError(f"{where} is in use{who}: try again later, or wait for it with --wait 5m")
            time.sleep(_RETRY_S)


def holder_of(path: Path) -> int | None:
    """The process that holds a lock, 0 if it is not named yet; None if no process does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return None if _try(descriptor, fcntl.LOCK_SH) else _written(descriptor)
    finally:
        os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(descriptor: int) -> int:
    return whole_number(os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()) or 0
