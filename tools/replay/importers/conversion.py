"""What all formats share: what an importer is, the account of dropped and malformed rows, the fields of a row
as numbers, times and words, and the ids of jobs, of which each is used once.

Columns of ids that can stay as they are go by their hashes. All ids become texts in a set only when one has
to be changed, or may be there twice.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from pydantic_core import ValidationError

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.event import Event
from pliant.schemas.file_io.columns import TableKind, validate_row
from pliant.schemas.file_io.parquet import text_array
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.job import Gpus, GpuTimeWork, Job, ResourceDemand
from pliant.schemas.profile import ConvergenceRow, ProfileRow
from pliant.schemas.text import counted
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.recorded import LABEL, PastRun, label_of, not_runs, settled, stated_runs

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9._-]")
ID_LENGTH: Final = 120
"""Longest id, without the number that a repeated one gets."""
_BEGINS: Final = 2
_WORD: Final = 8
"""Bytes of an id that are hashed at a time."""
_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], dtype=np.uint64)
"""By number of bytes."""
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)


class JobIds:
    """The ids that an import has given."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        # Ids that are not in the set yet.
        self._columns: list[pa.Array] = []
        # Of all of these, sorted; each array is at least twice as long as the next.
        self._hashes: list[NDArray[np.uint64]] = []
        # The last number that was put behind a repeated id.
        self._numbers: dict[str, int] = {}
        # Keys of rows that are not in the set yet.
        self._rows: list[NDArray[np.uint64]] = []
        # Id and key of rows; see `is_repeated`.
        self._listed_rows: set[tuple[str, int]] = set()

    def new(self, text: str, assume: Callable[[str], None]) -> str:
        """An id made of ``text``: unused characters become ``_``, a repeated id gets ``-2``, ``-3``, …

        :param assume: records what was done to it.
        """
        self._list_all()
        plain = _NOT_IN_IDS.sub("_", text).lstrip("._-")[:ID_LENGTH] or "job"
        if plain != text:
            assume("an id with characters that ids may not have was rewritten")
        number = self._numbers.get(plain, int(plain in self._ids)) + 1
        unique = plain if number == 1 else f"{plain}-{number}"
        while unique in self._ids and number > 1:
            number += 1
            unique = f"{plain}-{number}"
        if number > 1:
            assume("an id that is there more than once got a number behind it")
            self._numbers[plain] = number
        self._ids.add(unique)
        return unique

    def is_repeated(self, text: str, key: int) -> bool:
        """Whether a row of this id and key, the hash of all of it, was there before; from now on it was."""
        self._list_all()
        row = (text, key)
        known = row in self._listed_rows
        self._listed_rows.add(row)
        return known

    def take(self, texts: pa.Array, keys: NDArray[np.uint64] | None = None) -> bool:
        """Use texts that :func:`are_plain` as ids. Returns False, and uses none, if one is used already.

        :param keys: of the rows, where :meth:`is_repeated` is asked for others of this import.
        """
        if not len(texts):
            return True
        if not self._ids and self._are_new(hashes(texts)):
            self._columns.append(texts)
            if keys is not None:
                self._rows.append(keys)
            return True
        self._list_all()
        listed = texts.to_pylist()
        distinct = set(listed)
        if len(distinct) < len(listed) or not self._ids.isdisjoint(distinct):
            return False
        self._ids |= distinct
        if keys is not None:
            self._listed_rows.update(zip(listed, keys.tolist(), strict=True))
        return True

    def _are_new(self, hashes: NDArray[np.uint64]) -> bool:
        """Whether none of them is there twice; then they are kept."""
        hashes.sort()
        if (hashes[1:] == hashes[:-1]).any() or any(_share_one(known, hashes) for known in self._hashes):
            return False
        self._hashes.append(hashes)
        while len(self._hashes) > 1 and len(self._hashes[-2]) < 2 * len(self._hashes[-1]):
            self._hashes[-2:] = [np.sort(np.concatenate(self._hashes[-2:]))]
        return True

    def _list_all(self) -> None:
        for texts in self._columns:
            self._ids.update(texts.to_pylist())
        for texts, keys in zip(self._columns, self._rows, strict=False):
            self._listed_rows.update(zip(texts.to_pylist(), keys.tolist(), strict=True))
        self._columns, self._hashes, self._rows = [], [], []


def text_bytes(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Texts one after the other, and where each begins and the last ends."""
    ends = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
    return np.frombuffer(texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]], ends - ends[0]


def are_plain(texts: pa.Array) -> bool:
    """Whether all texts can be ids as they are, but for what stands for nothing."""
    if not len(texts):
        return True
    data, ends = text_bytes(texts)
    kinds, lengths = _id_bytes()[data], np.diff(ends)
    within = lengths.min() > 0 and lengths.max() <= ID_LENGTH
    if not within or not kinds.min():
        return False
    return bool((kinds[ends[:-1]] == _BEGINS).all())


@cache
def _id_bytes() -> NDArray[np.uint8]:
    """By byte: 2, an id may begin with it; 1, an id may have it; 0, neither."""
    classes = np.zeros(256, dtype=np.uint8)
    classes[list(b"._-")] = 1
    classes[list((ascii_letters + digits).encode())] = _BEGINS
    return classes


def hashes(texts: pa.Array) -> NDArray[np.uint64]:
    """Of texts of one to eight bytes each is another one."""
    data, ends = text_bytes(texts)
    starts, lengths = ends[:-1], np.diff(ends)
    padded = np.zeros(len(data) + _WORD, dtype=np.uint8)
    padded[: len(data)] = data
    words = np.ndarray(len(data) + 1, dtype="<u8", buffer=padded, strides=(1,))
    mixes = np.zeros(len(lengths), dtype=np.uint64)
    for place in range(0, int(lengths.max(initial=0)), _WORD):
        left = np.clip(lengths - place, 0, _WORD)
        rows = np.flatnonzero(left) if place else slice(None)
        mixed = (mixes[rows] ^ (words[starts[rows] + place] & _MASKS[left[rows]])) * _MIXER
        mixes[rows] = mixed ^ (mixed >> _SHIFT)
    return mixes


def _share_one(known: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> bool:
    """Whether an element is in both sorted arrays."""
    places = np.searchsorted(known, hashes)
    return bool((known[np.minimum(places, len(known) - 1)] == hashes).any())


T = TypeVar("T")


class MalformedRowsError(BadInputError):
    """Rows that a lenient import drops and counts."""


Progress = Callable[[int, int | None], None]
MOST_PROBLEMS: Final = 1000
"""Reading ends after this number of malformed rows: the file is of another format."""
MALFORMED_NAMED: Final = 5
"""Faults in rows that were dropped as malformed that a summary names."""
_ROWS_PER_REPORT: Final = 1000
UNKNOWN_MODEL: Final = "unknown"
REPEATED: Final = "are there before"
FIELD_END: Final = "\x1f"
"""Between the fields of a row where all of it is one text."""
OUT_OF_BOUNDS: Final = "holds a number that is out of all bounds"
LATEST_S: Final = 253_402_300_799.0
"""The last second of the year 9999: what is submitted later counts in other units."""
MOST_JOB_GPUS: Final = 2**18
"""More than any cluster has; a replay would make nodes of them."""
TOO_LATE: Final = "is after the year 9999, expected seconds"
MOST_ROW_GPUS: Final = 65_536
"""Most GPUs of one measurement: its placement names every node."""
NOTHING: Final = frozenset({"", "none", "null", "nan", "nat", "n/a", "unknown"})
"""How traces write a missing value, in lower case."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format of jobs, single ones or blocks of their lines (:mod:`.job_lines`); ``absolute``: its times are
    shifted to 0. ``cluster`` reads lists of nodes.
    """

    name: str
    jobs: Callable[[Sequence[str], Conversion], Iterator[Any]]
    absolute: bool = True
    zoned: bool = False
    """Whether its clock times may state no zone, so that an option may."""
    has_cpu_jobs: bool = False
    """Whether it can keep jobs that used no GPU."""
    cluster: Callable[[Sequence[str], Conversion], Cluster | None] | None = None


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """A format that brings measurements; ``workload`` reads jobs that need none of them."""

    name: str
    read: Callable[[Path, Path | None, Conversion], Imported]
    workload: Callable[[Path, Conversion], Iterator[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What a folder of measurements gives; ``jobs`` is empty without a workload."""

    jobs: Iterable[Any] = ()
    profile: Sequence[ProfileRow] = ()
    convergence: Sequence[ConvergenceRow] = ()
    history: Sequence[Event] = ()
    """What jobs reported that ran."""


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """When nodes were down. At first all are up; they are numbered from 0."""

    nodes: int
    gpus: int
    """GPUs of each node."""
    events: Sequence[NodeEvent]
    """In order of time; ``node`` is the number as text."""


@dataclass(frozen=True, slots=True)
class NodeFormat:
    """A format of nodes that go down and come back; it brings no jobs."""

    name: str
    read: Callable[[Sequence[str], Conversion], NodeHistory]


Format = TraceFormat | FolderFormat | NodeFormat


class Conversion:
    """Turns rows into what a format makes of them; :meth:`finish` raises malformed ones unless lenient."""

    def __init__(
        self,
        summary: ImportSummary,
        *,
        lenient: bool = False,
        progress: Progress | None = None,
        zone: tzinfo = UTC,
        cpu_jobs: bool = False,
    ) -> None:
        """:param zone: of clock times that state none.
        :param cpu_jobs: keep jobs that used no GPU.
        """
        self.summary = summary
        self.zone = zone
        self.cpu_jobs = cpu_jobs
        self._lenient = lenient
        self._progress = progress
        self._problems: list[Problem] = []
        self.ids = JobIds()
        self._shapes: set[object] = set()

    def convert(self, rows: Iterable[InputRow], make: Callable[[InputRow], T]) -> Iterator[T]:
        """What ``make`` makes of each row that is neither dropped nor malformed."""
        for row in rows:
            self.count_rows()
            try:
                made = make(row)
                if isinstance(made, Job):
                    check_bounds(made)
            except RepeatedRowError:
                self.summary.joined[REPEATED] += 1
            except DroppedRowError as reason:
                self.summary.dropped[str(reason)] += 1
            except MalformedRowError as error:
                self.refuse([Problem(row.source, row.line, f"/{error.field}", error.message)])
            except ValidationError as error:
                self.refuse(problems_of(error, row.source, row.line))
            except OverflowError:
                self.refuse([Problem(row.source, row.line, "", OUT_OF_BOUNDS)])
            else:
                yield made

    def refuse(self, problems: list[Problem], rows: int = 1) -> None:
        """A malformed row, or several of one job: an error at the end, or dropped rows."""
        if self._lenient:
            self.summary.dropped[f"malformed ({problems[0].pointer or 'as a whole'})"] += rows
            room = MALFORMED_NAMED - len(self.summary.malformed)
            self.summary.malformed += problems[:room]
            self.summary.has_more_malformed |= len(problems) > room
            return
        self._problems += problems
        if len(self._problems) >= MOST_PROBLEMS:
            self.finish()

    def refuse_row(self, source: str, line: int, message: str) -> None:
        self.count_rows()
        self.refuse([Problem(source, line, "", message)])

    def refuse_byte(self, source: str, line: int, byte: int) -> None:
        """A byte that is not UTF-8: an error at the end, or a character that stands for it."""
        if self._lenient:
            self.summary.assume_here("a byte that is not UTF-8 was replaced", place=f"{source}:{line}")
        else:
            self.refuse([Problem(source, line, "", not_utf8(byte))])

    def finish(self) -> None:
        """:raises MalformedRowsError: there are problems, which it lists by line."""
        if self._problems:
            order = {
                source: place for place, source in enumerate(dict.fromkeys(p.source for p in self._problems))
            }
            self._problems.sort(key=lambda problem: (order[problem.source], problem.line or 0))
            raise MalformedRowsError(self._problems)

    def is_new_shape(self, shape: object) -> bool:
        """Whether no job with these fields was seen yet."""
        known = shape in self._shapes
        self._shapes.add(shape)
        return not known

    def new_id(self, text: str, place: str = "", whole: str | None = None) -> str:
        """A job id made of ``text``; what was done to it is in the summary, with the place of its row.

        :param whole: all that the row says; a row of the id that said the same is the same job.
        :raises RepeatedRowError: the row was there before.
        """
        if whole is not None and self.ids.is_repeated(text, int(hashes(text_array((whole,)))[0])):
            raise RepeatedRowError
        return self.ids.new(text, partial(self.summary.assume_here, place=place))

    def count_rows(self, rows: int = 1) -> None:
        before = self.summary.rows
        self.summary.rows += rows
        if self._progress is not None:
            for thousand in range(before // _ROWS_PER_REPORT, self.summary.rows // _ROWS_PER_REPORT):
                self._progress((thousand + 1) * _ROWS_PER_REPORT, None)


@dataclass(slots=True)
class ImportSummary:
    """Counts and sentences of one import, filled while it runs."""

    format: str
    rows: int = 0
    """Rows read: jobs and measurements, dropped ones included."""
    jobs: int = 0
    nodes: int = 0
    node_events: int = 0
    profile_rows: int = 0
    convergence_rows: int = 0
    history_jobs: int = 0
    """Jobs whose epochs were imported."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows that gave no job, by reason."""
    joined: Counter[str] = field(default_factory=Counter)
    """Rows that are part of a job that another row began, by what they are."""
    malformed: list[Problem] = field(default_factory=list)
    """The first faults in rows that were dropped for them."""
    has_more_malformed: bool = False
    assumptions: dict[str, int | None] = field(default_factory=dict)
    """What the input does not say and was decided here; the number of times, or None: throughout."""
    first_places: dict[str, str] = field(default_factory=dict)
    """File and line of the first row that an assumption holds for, by its sentence."""
    files: list[str] = field(default_factory=list)

    def assume(self, sentence: str) -> None:
        self.assumptions.setdefault(sentence, None)

    def assume_here(self, sentence: str, rows: int = 1, place: str = "") -> None:
        """State what holds for more rows.

        :param place: file and line of the first of them, where a reader may want to look.
        """
        self.assumptions[sentence] = (self.assumptions.get(sentence) or 0) + rows
        if place:
            self.first_places.setdefault(sentence, place)

    def lines(self) -> list[str]:
        made = counted(self.node_events, "node event") if self.node_events else counted(self.jobs, "job")
        if self.profile_rows or self.convergence_rows:
            rows = counted(self.profile_rows, "profile row")
            made += f", {rows}, {counted(self.convergence_rows, 'convergence row')}"
        if self.history_jobs:
            made += f", the history of {counted(self.history_jobs, 'job')}"
        if self.nodes:
            made += f", {counted(self.nodes, 'node')}"
        read, dropped = counted(self.rows, "row"), counted(self.dropped.total(), "row")
        lines = [f"{self.format}: {read} read, {made} written, {dropped} dropped"]
        lines += [f"dropped: {count} {reason}" for reason, count in sorted(self.dropped.items())]
        lines += [f"joined: {count} {reason}" for reason, count in sorted(self.joined.items())]
        lines += [f"malformed: {problem}" for problem in self.malformed]
        if self.has_more_malformed:
            lines.append("without --lenient the import lists the others, too")
        for sentence, count in self.assumptions.items():
            first = self.first_places.get(sentence)
            times = f" ({count} times{f', first {first}' if first else ''})"
            lines.append(f"assumed: {sentence}{'' if count is None else times}")
        return lines


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of an input and where it stands; ``line`` is None where there are no lines.

    Methods return the field of a column; they raise :class:`MalformedRowError` if it has another form, and
    the ``optional_`` ones return an empty value if it states nothing. Times are seconds since 1970, without a
    zone taken as UTC.
    """

    source: str
    line: int | None
    values: Mapping[str, Any]

    @property
    def place(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"

    @property
    def whole(self) -> str:
        """All fields, in the order of the names of their columns."""
        fields = FIELD_END.join(str(self.values[name]) for name in sorted(self.values))
        return fields.encode(errors="backslashreplace").decode()

    @property
    def row_number(self) -> int:
        """The row's number from 1, in a file with one header line."""
        return (self.line or 1) - 1

    def optional_text(self, name: str) -> str:
        """A field without surrounding blanks; empty where nothing is stated."""
        value = str(self.values.get(name, "")).strip()
        return "" if value.lower() in NOTHING else value

    def text(self, name: str) -> str:
        text = self.optional_text(name)
        if not text:
            raise MalformedRowError(name, "is empty, expected some text")
        return text

    def optional_number(self, name: str) -> float | None:
        """A finite number, 0 or more; None where nothing is stated."""
        text = self.optional_text(name)
        return parse_number(text, name) if text else None

    def number(self, name: str) -> float:
        value = self.optional_number(name)
        if value is None:
            raise MalformedRowError(name, "is empty, expected a number")
        return value

    def count(self, name: str) -> int:
        """A whole number, 0 or more; ``20.0`` is one."""
        value = self.number(name)
        if value != int(value):
            raise MalformedRowError(name, f"{self.values[name]!r} is not a whole number")
        return int(value)

    def positive_count(self, name: str) -> int:
        value = self.count(name)
        if not value:
            raise MalformedRowError(name, "is 0, expected 1 or more")
        return value

    def optional_timestamp(self, name: str, zone: tzinfo = UTC) -> float | None:
        return parse_timestamp(self.values.get(name), name, zone)

    def timestamp(self, name: str, zone: tzinfo = UTC) -> float:
        time_s = self.optional_timestamp(name, zone)
        if time_s is None:
            raise MalformedRowError(name, "is empty, expected a time")
        return time_s


class Reason(StrEnum):
    """Why rows of several formats give no job; summaries show it behind the number of such rows."""

    NO_GPU = "asked for no GPU"
    SEVERAL_NODES = "ran without a GPU on several nodes"
    NO_SUBMISSION = "had no time of submission"
    NEVER_STARTED = "never started"
    NO_DURATION = "ran for no time"
    BACKWARDS = "ended before they started"
    NOT_FINISHED = "had not finished when the trace ended"


class DroppedRowError(Exception):
    """By the format's own meaning the row is not a GPU training job; the message says why."""


class RepeatedRowError(DroppedRowError):
    """The row was there before, as where exports overlap."""


class MalformedRowError(Exception):
    """The row does not say what the format asks for."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def checked(row: T, table: TableKind[T]) -> T:
    """A row of a table that an importer has made, as its reader would accept it."""
    validate_row(row, table)
    for pointer, message in table.broken(row):
        raise MalformedRowError(pointer.removeprefix("/"), message)
    return row


def executed_job(
    job_id: str,
    submit_time_s: float,
    gpus: int,
    gpu_seconds: float,
    *,
    labels: Mapping[str, Any],
    user: str = "",
    team: str = "",
    model: str = UNKNOWN_MODEL,
    priority: float = 0.0,
    runs: Sequence[PastRun] = (),
    demand: Mapping[str, float] | None = None,
) -> Job:
    """A rigid job known by what it executed; labels that say nothing are left out.

    :param gpu_seconds: of a job without GPUs, the seconds that it ran.
    :param runs: those that are recorded, settled, on the clock of ``submit_time_s``.
    :param demand: what a job without GPUs needs of its node.
    :raises MalformedRowError: a replay would refuse the runs.
    """
    stated = {name: "" if value is None else str(value) for name, value in labels.items()}
    if runs:
        stated[LABEL] = label_of(runs, submit_time_s, gpus)
        if stated_runs(stated[LABEL], submit_time_s, gpus) is None:
            raise MalformedRowError(LABEL, not_runs(stated[LABEL]))
    return Job(
        id=job_id,
        submit_time=submit_time_s,
        model=model,
        gpus=Gpus(requested=gpus),
        user=user,
        team=team,
        priority=priority,
        work=GpuTimeWork(gpu_seconds=gpu_seconds),
        resources=ResourceDemand(worker=dict(demand or {})),
        labels={name: text for name, text in stated.items() if text.lower() not in NOTHING},
    )


def cpu_demand(cpus: float, memory_bytes: float) -> dict[str, float]:
    """What a job without GPUs needs of its node: a core, and no memory, where the trace states none."""
    return {"cpu": cpus if cpus > 0 else 1.0} | ({"memory": memory_bytes} if memory_bytes > 0 else {})


def check_bounds(job: Job) -> None:
    """:raises MalformedRowError: no trace has such a figure, and what reads the job would not end."""
    if job.submit_time > LATEST_S:
        raise MalformedRowError("submit_time", TOO_LATE)
    if job.gpus.requested > MOST_JOB_GPUS:
        raise MalformedRowError("requested", too_many_gpus(job.gpus.requested))


def too_many_gpus(gpus: float) -> str:
    return f"{gpus:.15g} is above {MOST_JOB_GPUS:,}, which is more than any cluster has"


def executed_seconds(start_s: float | None, end_s: float | None) -> float:
    """Seconds from start to end. A job that did not start, did not end or took no time is dropped."""
    if start_s is None:
        raise DroppedRowError(Reason.NEVER_STARTED)
    if end_s is None:
        raise DroppedRowError(Reason.NOT_FINISHED)
    if end_s < start_s:
        raise DroppedRowError(Reason.BACKWARDS)
    if end_s == start_s:
        raise DroppedRowError(Reason.NO_DURATION)
    return end_s - start_s


def assume_no_models(conversion: Conversion) -> None:
    conversion.summary.assume(f"the trace names no models: every job has the model {UNKNOWN_MODEL!r}")
    conversion.summary.assume("work is the executed time times the GPUs requested; jobs do not change size")


def assume_zone(conversion: Conversion) -> None:
    if conversion.zone is UTC:
        conversion.summary.assume("clock times without a zone are read as UTC; --time-zone names another")
    else:
        conversion.summary.assume(f"clock times without a zone are read as those of {conversion.zone}")


EARLY: Final = "a run that began before the submission counts from there, as long as it was"
CUT: Final = "a run that began before the one before it had ended counts from that end, if it outlasts it"


def settle_runs(
    runs: Iterable[PastRun], submit_time_s: float, place: str, assume: Callable[[str, int, str], None]
) -> tuple[PastRun, ...]:
    """Runs as :func:`~pliant.tools.replay.recorded.settled` makes them; what was changed is assumed."""
    settlement = settled(runs, submit_time_s)
    if settlement.early:
        assume(EARLY, 1, place)
    if settlement.cut:
        assume(CUT, settlement.cut, place)
    return settlement.runs


def not_utf8(byte: int) -> str:
    return f"holds the byte {byte:#04x}, which is not UTF-8; --lenient replaces such bytes"


def parse_number(found: str, name: str) -> float:
    try:
        value = float(found.replace("_", "?"))  # Python reads 1_000 as a number, traces do not write it
    except ValueError:
        raise MalformedRowError(name, f"{found!r} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise MalformedRowError(name, f"{found!r}, expected a finite number, 0 or more")
    return value


def parse_timestamp(value: object, name: str, zone: tzinfo = UTC, unit_s: float = 1.0) -> float | None:
    """A date and time, or a number, as seconds since 1970.

    :param zone: of times that state none.
    :param unit_s: seconds of what numbers count.
    """
    text = "" if value is None else str(value).strip()
    if text.lower() in NOTHING:
        return None
    if text[0].isdecimal() and text.replace(".", "", 1).isdecimal():
        return parse_number(text, name) * unit_s
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError:
        raise MalformedRowError(name, f"{text!r}, expected a time like 2017-10-09 07:01:55") from None
    return ((stamp if stamp.tzinfo else stamp.replace(tzinfo=zone)) - _EPOCH).total_seconds()


def in_order(times_s: Iterable[float | None], zone: tzinfo) -> list[float | None]:
    """Times that follow each other: one that does not is read as the same one after clocks were set back."""
    ordered_s: list[float | None] = []
    if isinstance(zone, timezone):
        return [*times_s]
    latest_s = -math.inf
    for time_s in times_s:
        read_s = time_s if time_s is None or time_s >= latest_s else later_reading(time_s, zone)
        ordered_s.append(read_s)
        latest_s = latest_s if read_s is None else max(latest_s, read_s)
    return ordered_s


def later_reading(time_s: float, zone: tzinfo) -> float:
    """When a clock of the zone shows again what it shows at a time; that time unless clocks are set back."""
    try:
        return datetime.fromtimestamp(time_s, zone).replace(fold=1).timestamp()
    except (ValueError, OverflowError, OSError):  # no date
        return time_s


def time_zone(text: str) -> tzinfo:
    """``+08:00`` or ``Asia/Shanghai``.

    :raises ValueError: it is neither.
    """
    try:
        if text[:1] in ("+", "-"):
            return timezone(datetime.fromisoformat(f"2000-01-01T00:00:00{text}").utcoffset() or timedelta())
        return UTC if text.upper() == "UTC" else ZoneInfo(text)
    except (ValueError, OSError, KeyError):
        raise ValueError(f"{text!r}, expected one like +08:00 or Asia/Shanghai") from None
