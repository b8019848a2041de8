"""``pliant submit --snapshot``: jobs run from a copy of their code, made at their submission.

Copied is what git tracks, as it is now, and what it does not ignore; of a folder without git, all of it.
Links lead to what git ignores: data and results stay where they are. The copy is read-only. It lies in
``code`` of the state directory, for all jobs of a submission, and goes once the last of them has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import UsageError
from pliant.schemas.event import ENDS, Event
from pliant.schemas.file_io.files import make_folder
from pliant.schemas.job import Job
from pliant.schemas.text import listed
from pliant.tools.run.backends.record_code import (
    CODE,
    MOST_FILES,
    SCHEMA,
    SNAPSHOT,
    NoGitError,
    code_of,
    folder_files,
    ignored_files,
    named_files,
    root_of,
    source_files,
)
from pliant.tools.run.service.launching import at_home
from pliant.tools.run.statedir.directory import StateDir, make_own
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State

MOST_BYTES: Final = 256 << 20
"""Of one copy."""
_FILES: Final = "files"
_LEFT_S: Final = 3600.0
"""A copy without a job that is older was left by a submission that was cut short."""


@contextmanager
def from_copies(state: Path, jobs: Sequence[Job], folder: Path) -> Iterator[tuple[Job, ...]]:
    """The jobs, each to be run from a copy of its code; an error within takes the copies back.

    :param folder: where a job starts that names no folder.
    :raises UsageError: what a job runs cannot be copied, or is more than a copy may have.
    """
    dirs, copies = StateDir(state.resolve()), dict[str, Path]()
    if dirs.is_shared:
        raise UsageError(f"{state}: jobs of several accounts run there, which have no snapshots")
    make_own(dirs)
    make_folder(dirs.code, mode=0o700)
    try:
        yield tuple(_from_copy(dirs, at_home(job, folder), copies) for job in jobs)
    except BaseException:
        _remove(copies.values())
        raise


def _from_copy(dirs: StateDir, job: Job, copies: dict[str, Path]) -> Job:
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
        copies[root] = dirs.code / f"{job.id}-{secrets.token_hex(4)}"
        _copy(dirs, root, copies[root], has_git=has_git)
        record = code_of(workdir, job.command or (), str(dirs.path))
        text = json.dumps({"schema": SCHEMA, **record, "snapshot": True})
        (copies[root] / SNAPSHOT).write_text(f"{text}\n")
    files = copies[root] / _FILES
    inside = files / os.path.relpath(workdir, root)
    if not _is_in(os.path.realpath(inside), str(files)) or not inside.is_dir():
        raise UsageError(f"{workdir}: git ignores it or nothing is in it, so --snapshot copies nothing of it")
    changed: dict[str, Any] = {
        "workdir": str(inside),
        "command": tuple(_in_copy(word, root, files, os.path.isfile) for word in job.command or ()),
    }
    if "PYTHONPATH" in job.env:
        parts = job.env["PYTHONPATH"].split(os.pathsep)
        paths = os.pathsep.join(_in_copy(part, root, files, os.path.exists) for part in parts)
        changed["env"] = {**job.env, "PYTHONPATH": paths}
    for name in ("output", "error"):
        if (pattern := getattr(job, name)) is not None:
            changed[name] = os.path.join(workdir, pattern)
    return job.model_copy(update=changed)


def _in_copy(word: str, root: str, files: Path, counts: Any) -> str:
    """A path in the root, alone or after ``=``, as one in the copy, if it was copied."""
    option, equals, path = word.rpartition("=")
    if not os.path.isabs(path) or not _is_in(path, root):
        return word
    copied = files / os.path.relpath(path, root)
    is_copied = _is_in(os.path.realpath(copied), str(files)) and counts(copied)
    return f"{option}{equals}{copied}" if is_copied else word


def _is_in(path: str, folder: str) -> bool:
    return os.path.commonpath((folder, path)) == folder


def _copy(dirs: StateDir, root: str, copy: Path, *, has_git: bool) -> None:
    """:raises UsageError: it would be too large, or cannot be made."""
    state, files = str(dirs.path), copy / _FILES
    try:
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
        _remove([copy])
        raise UsageError(f"{root}: cannot be copied: {error}") from error
    for folder, _, _ in os.walk(files):
        os.chmod(folder, 0o500)


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


class UnusedCopies:
    """A sink of events that removes the copies of jobs that have ended, in a thread of its own."""

    def __init__(self, state: State) -> None:
        self._state, self._folder = state, os.path.realpath(state.dirs.code)
        if old := {name for name in self._names() if self._is_old(name)}:
            asked = [job for request in Spool(state.dirs).requests() for job in request.jobs]
            self._take_away(old - self._in_use() - {self._copy_of(job) for job in asked})

    def __call__(self, events: Sequence[Event]) -> None:
        ended = [event.job for event in events if event.event in ENDS and event.job is not None]
        if ended and self._names():
            copies = {self._copy_of(self._state.log.jobs[job_id].job) for job_id in ended}
            self._take_away(copies - self._in_use() - {""})

    def _in_use(self) -> set[str]:
        return {self._copy_of(each.job) for each in self._state.log.active.values()}

    def _copy_of(self, job: Job) -> str:
        """The name of the copy that it runs from; empty if it runs from none."""
        before, _, inside = (job.workdir or "").partition(f"{self._folder}/")
        return "" if before else inside.partition("/")[0]

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

    def _take_away(self, names: Iterable[str]) -> None:
        if paths := [Path(self._folder, name) for name in names]:
            threading.Thread(target=_remove, args=(paths,)).start()
