"""``pliant submit --snapshot``: jobs run from a copy of their code, made at their submission.

Copied is what git tracks, as it is now, and what it does not ignore; of a folder without git, all of it.
Links lead to what git ignores: data and results stay where they are. The copy is read-only, but root can
write to it. It lies in ``code`` of the state directory, for all jobs of a submission, and goes once the last
of them has ended, unless something was written there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from pliant.schemas.container import Container
from pliant.schemas.errors import PliantError, UsageError
from pliant.schemas.event import ENDS, Event
from pliant.schemas.file_io.files import make_folder
from pliant.schemas.job import Job
from pliant.schemas.text import listed
from pliant.tools.run.backends.record_code import (
    CODE,
    MOST_FILES,
    SCHEMA,
    SETTINGS,
    SNAPSHOT,
    NoGitError,
    code_of,
    folder_files,
    ignored_files,
    named_files,
    root_of,
    source_files,
    tracked_files,
)
from pliant.tools.run.service.launching import at_home
from pliant.tools.run.statedir.directory import StateDir, make_own
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.snapshot import LogView
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State

MOST_BYTES: Final = 256 << 20
"""Size of one copy."""
_FILES: Final = "files"
_MANIFEST: Final = "manifest.json"
"""Name of the file that is written last: size and change time of each copied file."""
_LEFT_S: Final = 3600.0
"""Seconds after which a copy without a job is a leftover of an interrupted submission."""
_log = logging.getLogger("pliant")


class _Copy(NamedTuple):
    """A copy, and what it is of."""

    root: str
    files: Path
    tracked: set[str]
    """Names of files in the root that git tracks."""

    def path(self, path: str) -> str | None:
        """Where the copy has what lies at an absolute path. Returns None if it was not copied."""
        if not os.path.isabs(path) or not _is_in(path, self.root):
            return None
        copied = self.files / os.path.relpath(path, self.root)
        return str(copied) if copied.exists() and _is_in(os.path.realpath(copied), str(self.files)) else None

    def word(self, word: str, script: Iterable[str]) -> str:
        """A word of a command: files of code, alone or after ``=``, are those of the copy.

        Other files stay where they are: the job may write to them.
        """
        option, equals, path = word.rpartition("=")
        copied = self.path(path)
        if copied is None or not os.path.isfile(copied):
            return word
        ending = os.path.splitext(path)[1].lower()
        is_input = ending in SETTINGS or not ending
        is_code = ending in CODE or (is_input and os.path.relpath(path, self.root) in self.tracked)
        return f"{option}{equals}{copied}" if is_code or word in script else word


@contextmanager
def from_copies(state: Path, jobs: Sequence[Job], folder: Path) -> Iterator[tuple[Job, ...]]:
    """The jobs, each to be run from a copy of its code; after an error within, copies of no job go again.

    :param folder: where a job starts that names no folder.
    :raises UsageError: what a job runs cannot be copied, or is more than a copy may have.
    """
    dirs, copies = StateDir(state.resolve()), dict[str, _Copy]()
    if dirs.is_shared:
        raise UsageError(f"{state}: jobs of several accounts run there, which have no snapshots")
    make_own(dirs)
    make_folder(dirs.code, mode=0o700)
    try:
        yield tuple(_from_copy(dirs, at_home(job, folder), copies) for job in jobs)
    except BaseException:
        paths = {each.files.parent.name: each.files.parent for each in copies.values()}
        _remove_unwritten(paths[name] for name in _unused({*paths}, dirs, LogView(dirs).refresh))
        raise


def _from_copy(dirs: StateDir, job: Job, copies: dict[str, _Copy]) -> Job:
    """:param copies: those that were made, by root."""
    workdir = os.path.realpath(job.workdir or ".")
    try:
        root, has_git = root_of(workdir), True
    except NoGitError:
        root, has_git = workdir, False
    for path in named_files(job.command or (), workdir):
        if os.path.splitext(path)[1].lower() in CODE and not _is_in(path, root):
            text = f"{path} is not in {root}, and that is all that --snapshot copies"
            raise UsageError(f'job "{job.id}": {text}: submit from the folder of the script')
    if root not in copies:
        folder = dirs.code / f"{job.id}-{secrets.token_hex(4)}"
        copies[root] = _Copy(root, folder / _FILES, set())
        _copy(dirs, copies[root], has_git=has_git)
        record = code_of(workdir, job.command or (), str(dirs.path))
        text = json.dumps({"schema": SCHEMA, **record, "snapshot": True})
        (folder / SNAPSHOT).write_text(f"{text}\n")
    copy = copies[root]
    inside = copy.path(workdir)
    if inside is None or not os.path.isdir(inside):
        raise UsageError(f"{workdir}: git ignores it or nothing is in it, so --snapshot copies nothing of it")
    script = {*(job.command or ())[:1], *job.script[:1]}
    changed: dict[str, Any] = {
        "workdir": inside,
        "command": tuple(copy.word(word, script) for word in job.command or ()),
    }
    if "PYTHONPATH" in job.env:
        parts = job.env["PYTHONPATH"].split(os.pathsep)
        paths = os.pathsep.join(copy.path(part) or part for part in parts)
        changed["env"] = {**job.env, "PYTHONPATH": paths}
    for name in ("output", "error"):
        if (pattern := getattr(job, name)) is not None:
            changed[name] = os.path.join(workdir.replace("%", "%%"), pattern)
    if job.container is not None:
        changed["container"] = _with_links(job.container, workdir, copy)
    return job.model_copy(update=changed)


def _with_links(container: Container, workdir: str, copy: _Copy) -> Container:
    """A container that sees what links lead to: the folder that its job would start in without a copy."""
    if ":" in workdir or "," in workdir:
        raise UsageError(f"{workdir} cannot be mounted: its path has a colon or a comma")
    mounts, targets = list[str](), set[str]()
    for mount in container.mounts:
        source, *rest = mount.split(":")
        path = os.path.normpath(os.path.join(workdir, source))
        mounts.append(mount if copy.path(path) else os.path.join(workdir, mount))
        targets.add(rest[0] if rest else path)
    return container.model_copy(update={"mounts": (*({workdir} - targets), *mounts)})


def _is_in(path: str, folder: str) -> bool:
    return os.path.commonpath((folder, path)) == folder


def _copy(dirs: StateDir, copy: _Copy, *, has_git: bool) -> None:
    """:raises UsageError: it would be too large, or cannot be made."""
    state, root, files = str(dirs.path), copy.root, copy.files
    try:
        copy.tracked.update(tracked_files(root) if has_git else ())
        found = source_files(root) if has_git else folder_files(root, state)
        own = (name for name in found if "__pycache__" not in name.split(os.sep))
        names = _checked(root, (name for name in own if not _is_in(os.path.join(root, name), state)))
        make_folder(files, mode=0o700)
        for name in names:
            _copy_file(root, name, files)
        for name in ignored_files(root) if has_git else ():
            target = os.path.join(root, name)
            if not (_is_in(target, state) or os.path.lexists(files / name)):
                (files / name).parent.mkdir(parents=True, exist_ok=True)
                (files / name).symlink_to(target)
    except (NoGitError, OSError) as error:
        _remove([files.parent])
        raise UsageError(f"{root}: cannot be copied: {error}") from error
    for folder, _, _ in os.walk(files):
        os.chmod(folder, 0o500)
    (files.parent / _MANIFEST).write_text(json.dumps(_stamps(files)))


def _checked(root: str, names: Iterable[str]) -> list[str]:
    """The names of files that are there.

    :raises UsageError: they are too many or too large.
    """
    sizes: dict[str, int] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # it was deleted, and that is not committed
            sizes[name] = os.lstat(os.path.join(root, name)).st_size
        if len(sizes) > MOST_FILES:
            break
    total = sum(sizes.values())
    if total <= MOST_BYTES and len(sizes) <= MOST_FILES:
        return [*sizes]
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    names = listed([f"{name} ({sizes[name] / 2**20:.1f} MiB)" for name in largest])
    most = f"{MOST_BYTES >> 20} MiB or {MOST_FILES:,} files"
    raise UsageError(f"{root}: more than {most} to copy: {names}: name what is no code in .gitignore")


def _copy_file(root: str, name: str, files: Path) -> None:
    source, target = os.path.join(root, name), files / name
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        to = os.path.normpath(os.path.join(os.path.dirname(source), os.readlink(source)))
        target.symlink_to(os.path.relpath(to, os.path.dirname(source)) if _is_in(to, root) else to)
    elif stat.S_ISDIR(mode):  # a submodule that is not checked out
        target.mkdir(exist_ok=True)
    elif stat.S_ISREG(mode):
        shutil.copy2(source, target)
        os.chmod(target, stat.S_IMODE(mode) & 0o500 | 0o400)


def _remove(copies: Iterable[Path]) -> None:
    """Remove copies; what cannot be removed stays."""
    for copy in copies:
        for folder, _, _ in os.walk(copy):
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o700)
        shutil.rmtree(copy, ignore_errors=True)


def _stamps(files: Path) -> dict[str, list[int]]:
    """The size and the time of the last change of each file, but for what Python has compiled."""
    stamps = {}
    for above, folders, names in os.walk(files):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path := os.path.join(above, name))
                stamps[os.path.relpath(path, files)] = [status.st_size, status.st_mtime_ns]
    return stamps


def _remove_unwritten(copies: Iterable[Path]) -> None:
    """Remove copies, but for those that somebody has written to: results may be in there."""
    for copy in copies:
        try:
            known = json.loads((copy / _MANIFEST).read_text())
        except FileNotFoundError:  # it is not whole, so no job ran from it
            known = None
        except (OSError, ValueError):
            known = {}
        stamps = {} if known is None else _stamps(copy / _FILES)
        if names := sorted(name for name, stamp in stamps.items() if stamp != known.get(name)):
            text = "no job runs from it any more, and it stays, as these files are new or changed"
            _log.warning("%s: %s: %s: move them, then remove it", copy / _FILES, text, listed(names))
        else:
            _remove([copy])


def _copy_of(job: Job, folder: str) -> str:
    """The name of the copy in a folder that a job runs from; empty if it runs from none."""
    before, _, inside = (job.workdir or "").partition(f"{folder}/")
    return "" if before else inside.partition("/")[0]


def _unused(names: set[str], dirs: StateDir, log: Callable[[], RunLog]) -> set[str]:
    """The copies among these that no job runs from or will; none as long as that is not known."""
    spool, folder = Spool(dirs), os.path.realpath(dirs.code)
    try:
        asked = [job for request in spool.requests() for job in request.jobs]
        active = [each.job for each in log().active.values()]  # a request goes once the log holds its jobs
    except (OSError, PliantError):
        return set()
    return names - {_copy_of(job, folder) for job in (*asked, *active)} if spool.all_read else set()


class UnusedCopies:
    """A sink of events that removes the copies of jobs that have ended, in a thread of its own."""

    def __init__(self, state: State) -> None:
        self._state, self._folder = state, os.path.realpath(state.dirs.code)
        self._take_away({name for name in self._names() if self._is_old(name)})

    def __call__(self, events: Sequence[Event]) -> None:
        ended = [event.job for event in events if event.event in ENDS and event.job is not None]
        if not ended or not (names := self._names()):
            return  # what the log keeps of ended jobs is text until it is asked for
        jobs = [self._state.log.jobs[job_id].job for job_id in ended]
        self._take_away({_copy_of(job, self._folder) for job in jobs}.intersection(names))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except OSError:
            return []

    def _is_old(self, name: str) -> bool:
        try:
            return time.time() - os.lstat(f"{self._folder}/{name}").st_mtime > _LEFT_S
        except OSError:
            return False

    def _take_away(self, names: set[str]) -> None:
        unused = _unused(names, self._state.dirs, lambda: self._state.log) if names else ()
        if paths := [Path(self._folder, name) for name in sorted(unused)]:
            threading.Thread(target=_remove_unwritten, args=(paths,)).start()
