"""A job's folder, which launcher, backend and workers share: its paths, and how its small files are read.

A missing file was never written. One that cannot be read at the moment (:class:`UnreadableError`) is read
again. One that makes no sense (:class:`DamagedError`) is a fault.

The connections of the workers are not authenticated, so they meet at private addresses only
(:func:`refuse_public`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from pydantic import ValidationError

from pliant.schemas.errors import BadInputError, ServiceMissingError, UsageError
from pliant.schemas.file_io.files import make_folder
from pliant.schemas.file_io.json_lines import validate_value, warn_dropped
from pliant.schemas.file_io.record import Record, check_schema_id, problems_of, schema_id
from pliant.tools.run.statedir.contract import as_user

R = TypeVar("R", bound=Record)
T = TypeVar("T")
PRIVATE: Final = 0o600
"""Mode of the files in a state directory."""
FRESH_S: Final = 2.0
"""File systems stamp changes with coarse clocks: a folder may change again under the same stamp."""
STALE_S: Final = 5.0
"""Seconds for which content is cached; other hosts' file systems show changes late."""
_AGAIN_S: Final = 0.02
KEPT: Final = "kept"
"""Folder of a state directory beside that of the jobs, if several accounts share the run."""
LATEST: Final = "latest"
"""Link in a job's folder to the folder of its newest attempt."""
MOST_NAMES: Final = 1000
"""Maximum names to search in a folder of a job, and in all folders of a search."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder whose files have fixed names."""

    path: Path


class Inside:
    """A path of this name in the folder that it is asked of."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Folder, kind: type[Folder]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class SplitFolder(Folder):
    """A folder of a job. Where several accounts share a run, the launcher keeps its own files apart."""

    kept: Path | None = None
    """Folder of the launcher's own files, of which workers read copies; None if it is the same."""


class Kept:
    """A path of this name among the launcher's own files."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: SplitFolder, kind: type[SplitFolder]) -> Path:
        return (folder.kept or folder.path) / self._name


class AttemptDir(SplitFolder):
    """One start of one job: everything between two launches of its gang."""

    launch = Kept("launch.json")
    """Record of the start: commands, nodes, processes with their start times."""
    reached = Inside("reached")
    """The generation that trains, written by rank 0."""
    progress = Inside("progress.jsonl")
    """Events of the workers (progress, epoch, checkpoint), an event file of its own that rank 0 writes."""
    stop = Inside("stop")
    """File for scripts without the elastic library; empty until they are to save and leave."""
    stacks = Inside("stacks")
    """Asks the workers where they are: a mark that their answers bear; empty until then."""
    logs = Inside("logs")
    """Folder of the workers' standard output and error."""
    meetings = Inside("meet")
    """Folders in which workers meet: ``GENERATION.ROUND``, made by rank 0."""

    def plan(self, generation: int) -> Path:
        """Path of the plan that workers read."""
        return self.path / f"plan-{generation}.json"

    def kept_plan(self, generation: int) -> Path:
        """Path of the plan that the launcher reads."""
        return (self.kept or self.path) / f"plan-{generation}.json"

    def presence(self, worker: int) -> Path:
        """Whether one worker is ready, and alive: locked while it lives, touched every second."""
        return self.path / f"worker-{worker}.alive"

    def supervisor(self, unit: int) -> Path:
        """Whether the supervisor of one unit runs, which has less to hold it up than a worker."""
        return self.path / f"unit-{unit}.alive"

    def displaced(self, unit: int) -> Path:
        """Exists once one unit was ended by another party than the launcher: it has lost its place."""
        return self.path / f"unit-{unit}.displaced"

    def notice(self, unit: int) -> Path:
        """Exists once Slurm has announced that it will end one unit."""
        return self.path / f"unit-{unit}.notice"

    def use(self, unit: int) -> Path:
        """What one unit uses of its host, as its supervisor sees it; written in place."""
        return self.path / f"unit-{unit}.use"

    def uses(self) -> list[Path]:
        """What its units use, as far as that is there."""
        return [path for path in _some_in(self.path) if path.suffix == ".use"]

    def code(self, unit: int) -> Path:
        """What code one unit runs, as ``record_code.py`` has found."""
        return self.path / f"code-{unit}.json"

    def container(self, unit: int) -> Path:
        """How the container of one unit is ended, as long as there may be one."""
        return self.path / f"unit-{unit}.container"

    def memory(self, unit: int) -> Path:
        """Exists once the system has killed one unit, or a part of it, for its memory."""
        return self.path / f"unit-{unit}.memory"

    def orders(self, unit: int) -> Path:
        """What the supervisor of one unit is to do, where no signal reaches it: nothing, "term" or "kill"."""
        return self.path / f"orders-{unit}"

    def start_order(self, unit: int) -> Path:
        """What the supervisor of another account's unit is to start, and as whom."""
        return self.path / f"start-{unit}.json"

    def stack(self, worker: int) -> Path:
        """Where the threads of one worker were when it was asked."""
        return self.path / f"worker-{worker}.stack"

    def held_stack(self, worker: int) -> Path:
        """The same, written without it while one long call holds up its interpreter; empty otherwise."""
        return self.path / f"worker-{worker}.held"

    def waits(self, worker: int) -> Path:
        """Where one worker waits for the others since some seconds; there is no file while it does not."""
        return self.path / f"worker-{worker}.waits"

    def left_out(self, worker: int) -> Path:
        """The last step that one worker has not trained, after its generation."""
        return self.path / f"worker-{worker}.left"

    @property
    def kept_stacks(self) -> Path:
        """Where workers were when they were ended because they hung."""
        return self.logs / "stacks.log"

    def outcome(self, worker: int) -> Path:
        return self.path / f"worker-{worker}.json"

    def exit_code(self, unit: int) -> Path:
        """Exit code of one unit (what the backend started), written when it has ended."""
        return self.path / f"exit-{unit}"

    def worker_errors(self, unit: int) -> list[Path]:
        """Standard error of each worker of one unit, as far as it is there.

        Links make names without an end, too: each folder may have a thousand that lead to the next one.
        """
        starts = islice(
            (path for above in _some_in(self.logs / str(unit)) for path in _some_in(above)), MOST_NAMES
        )
        attempts = (path for start in starts if start.name.startswith("attempt_") for path in _some_in(start))
        logs = (path / "stderr.log" for path in islice(attempts, MOST_NAMES))
        return sorted(log for log in logs if os.path.lexists(log))

    def launcher_logs(self) -> list[Path]:
        """Those of all units that are there."""
        return sorted(log for log in _some_in(self.logs) if fnmatchcase(log.name, "launcher-*.log"))

    def launcher_log(self, unit: int) -> Path:
        return self.logs / f"launcher-{unit}.log"


def _some_in(folder: Path) -> list[Path]:
    """What lies in a folder, without an end where a job makes names without an end."""
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in islice(entries, MOST_NAMES)]
    except OSError:
        return []


class JobDir(SplitFolder):
    """One job's folder. Job ids are validated by the schema, so an id is always a plain folder name."""

    plan = Kept("plan.json")
    """The newest plan: the durable truth."""
    progress = Inside("progress.json")
    """Newest report of its rank 0, a Progress."""
    checkpoints = Inside("checkpoints")
    """Folder of the checkpoints: the newest two, verified by hash on load."""
    run_id = Kept("run-id")
    """What trackers call the run; another one begins where the work begins at the start again."""
    tracked = Inside("tracked")
    """Folder of what was handed on to trackers, by run."""
    tensorboard = Inside("tensorboard")
    """Folder of TensorBoard's event files, by run."""
    from_start = Kept("from-start")
    """There if the next attempt is to begin at the start of the work."""
    latest = Inside(LATEST)
    """Link to the folder of the newest attempt, for people alone."""

    def attempt(self, number: int) -> AttemptDir:
        place = f"attempts/{number}"
        return AttemptDir(self.path / place, None if self.kept is None else self.kept / place)

    def begin_at_the_start(self) -> None:
        """Let the next attempt leave the checkpoints so far aside."""
        if self.from_start.parent.is_dir():  # else it has none
            as_user.write(self.from_start, b"", PRIVATE)

    def link_latest(self, number: int) -> None:
        """What else has that name stays."""
        link = self.path / f"latest-{number}"
        with contextlib.suppress(OSError):
            os.symlink(f"attempts/{number}", link)
            os.replace(link, self.latest)

    def newest_attempt(self) -> int:
        """The last attempt that has a folder, 0 if there is none."""
        folder = (self.kept or self.path) / "attempts"
        paths = folder.iterdir() if folder.is_dir() else ()
        return max((int(path.name) for path in paths if path.name.isdecimal()), default=0)


def job_folder(jobs: Path, job_id: str) -> JobDir:
    """The folder of a job in the folder of jobs of a state directory."""
    kept = jobs.with_name(KEPT)
    return JobDir(jobs / job_id, kept / job_id if kept.is_dir() else None)


class UnreadableError(ServiceMissingError):
    """A file is there and cannot be read: too many open files, a stale handle, a broken disk."""


class DamagedError(BadInputError):
    """A file makes no sense."""


def write_record(path: Path, kind: str, record: Record) -> None:
    """Write a whole file atomically, with its schema, for its owner alone.

    In one line: indenting makes reference cycles, which the loop would keep until garbage is collected.

    :raises PliantError: it cannot be written.
    """
    fields = {"schema": schema_id(kind), **record.model_dump(mode="json")}
    as_user.write(path, json.dumps(fields).encode() + b"\n", PRIVATE)


def read_record(path: Path, kind: str, record: type[R], *, tries: int = 2) -> R | None:
    """The record in a file. Returns None if there is no file.

    :param tries: how often it is tried in all, 20 ms apart.
    :raises UnreadableError: it cannot be read.
    :raises DamagedError: it makes no sense.
    :raises BadInputError: it is of an unknown version.
    """
    data = read_file(path, tries=tries)
    return None if data is None else parse_record(data, str(path), kind, record)


def read_file(path: Path, *, tries: int = 2) -> bytes | None:
    """The bytes of a file. Returns None if there is no file.

    :raises UnreadableError: it cannot be read.
    """
    for left in reversed(range(tries)):
        try:
            return as_user.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if not left:
                text = error.strerror or str(error)
                raise UnreadableError(f"{path}: cannot be read: {text.lower()}") from error
            time.sleep(_AGAIN_S)
    return None


def open_log(path: Path) -> BinaryIO:
    """A file to append to, whose owner alone can read it."""
    return open(path, "ab", opener=as_user.opener)


def make_log_folder(folder: Path) -> None:
    """:raises PliantError: the folder for the output of a job cannot be made."""
    make_folder(folder, mode=0o700)


def look_again(path: str | Path) -> os.stat_result | None:
    """The current state of a file, not a remembered one. Returns None if it cannot be opened.

    For up to a minute a host may answer from memory what another host's file is like. Opening the file asks
    its server, also whether another file has taken its name.
    """
    try:
        descriptor = as_user.opened(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.fstat(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def is_there(path: Path) -> bool:
    """Whether this host knows of the file, see :func:`refresh_folder`."""
    return path.exists()


def refresh_folder(folder: Path) -> None:
    """Let this host forget what it remembers of a folder that other hosts write to.

    For up to a minute a host may remember that a file was missing, and what a folder held. Setting the time
    of the folder goes to its server, whose answer shows that the folder has changed.
    """
    with contextlib.suppress(OSError):
        os.utime(folder)


def parse_record(data: bytes, source: str, kind: str, record: type[R]) -> R:
    """The record in the bytes of a file; without a schema it counts as of the first version.

    :raises DamagedError: it makes no sense.
    :raises BadInputError: it is of an unknown version.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedError.one(source, "is damaged: it holds no JSON") from None
    if not isinstance(value, dict):
        raise DamagedError.one(source, "is damaged: it holds no JSON object")
    problem, newer = check_schema_id(value.pop("schema", schema_id(kind)), kind)
    if problem is not None:
        raise BadInputError.one(source, problem)
    try:
        parsed, dropped = validate_value(value, record.model_validate_json, drop_unknown=newer)
    except ValidationError as error:
        raise DamagedError(problems_of(error, source)) from None
    warn_dropped(source, dropped)
    return parsed


def is_private(address: str) -> bool:
    """Whether an IP address names one place of this machine or of a private network.

    Wildcard and multicast addresses do not, nor does the range that providers share among customers
    (100.64.0.0/10).

    :raises ValueError: it is not an IP address.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_private and not (ip.is_unspecified or ip.is_multicast or ip.is_global)


def refuse_public(address: str) -> None:
    """:raises UsageError: workers must not listen there: it is not private, or not an IP address."""
    try:
        private = is_private(address)
    except ValueError:
        raise UsageError(f"{address!r} is not an IP address") from None
    if not private:
        raise UsageError(
            f"{address} is not a loopback or private address: the workers' connections are not authenticated"
        )


class FolderCache:
    """What files of one folder say, read again only when a file in it was created or replaced.

    One ``stat`` of the folder shows that, so it serves files that are renamed into the folder as a whole,
    not those that are changed in place.

    :param clock: seconds that never run backwards.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = str(folder)
        self._clock = clock
        self._answers: dict[str, Any] = {}
        self._mark: tuple[int, int] | None = None
        self._fresh_until_s = float("inf")
        self._read_s = float("-inf")
        # Different for each, so that many folders are not all read again at the same moment.
        self._stale_s = STALE_S * random.uniform(0.7, 1.0)  # noqa: S311 - it spreads looks, it hides nothing

    def look(self) -> None:
        """Forget the answers if they may no longer hold."""
        now_s, mark = self._clock(), self._marked()
        changed = mark is None or mark != self._mark
        if changed:
            self._mark, self._fresh_until_s = mark, now_s + FRESH_S
        if changed or now_s < self._fresh_until_s or now_s - self._read_s >= self._stale_s:
            self._answers.clear()
            self._read_s = now_s

    def get(self, key: str, read: Callable[[], T]) -> T:
        """The answer of ``read`` since the last change."""
        if key not in self._answers:
            self._answers[key] = read()
        answer: T = self._answers[key]
        return answer

    def _marked(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._folder)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
