"""Archives of a log: Parquet event files of jobs that ended long ago, beside the log that names them.

All events of a job are in one place, in the log or in one archive. The second event of the log names its
archives: a file that it does not name was left by a process that died, and counts for nothing. Archives
never change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from pydantic_core import from_json

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.events import Decided, typed
from pliant.schemas.file_io.columns import rows_from_columns
from pliant.schemas.file_io.events import LogReader
from pliant.schemas.file_io.files import ARCHIVE_FOLDER, atomic_write
from pliant.schemas.file_io.parquet import cast_columns, parquet_bytes, parse_parquet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MARK: Final = "archives"
"""Key of the field that a log's second event restores."""
_FIRST_LINES: Final = 4
_BLOCK_ROWS: Final = 1 << 16


def archives_of(log: Path) -> dict[str, int]:
    """The names of the archives of a log, and by how many bytes each has made it shorter."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        return archives_in(file)
    return {}


def archives_in(log: BinaryIO) -> dict[str, int]:
    """As :func:`archives_of`, of a log that was just opened."""
    for line in islice(log, _FIRST_LINES):
        if b'"restored"' in line and line.endswith(b"\n"):
            detail: Mapping[str, Any] = from_json(line).get("detail") or {}
            archives: dict[str, int] = (detail.get("restored") or {}).get(MARK) or {}
            return archives
    return {}


def write_archive(path: Path, rows: Sequence[tuple[int, Event]], names: Mapping[str, str | None]) -> None:
    """Write an archive atomically; it is on disk when this returns.

    :param rows: events in the order of the log, and how many that stay in the log are before each.
    :param names: the jobs, and the names of those that have an id of their own for it.
    """
    places = [(place, len([*each])) for place, each in groupby(place for place, _ in rows)]
    facts = (("jobs", json.dumps(dict(names))), ("places", json.dumps(places)))
    atomic_write(path, parquet_bytes([event for _, event in rows], EVENT, facts), mode=0o600)


@dataclass(frozen=True, slots=True)
class Archive:
    """What the end of an archive says of it."""

    path: Path
    names: Mapping[str, str | None]
    places: Sequence[tuple[int, int]]
    """Where its events were: after so many others of the log, so many of them."""

    @classmethod
    def read(cls, path: Path) -> Archive:
        """:raises BadInputError: it is missing or damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            facts = pq.read_metadata(path).metadata
            return cls(path, json.loads(facts[b"jobs"]), json.loads(facts[b"places"]))
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            text = f"this archive of the log cannot be read: {str(error).partition(chr(10))[0]}"
            raise BadInputError.one(str(path), text) from error

    def rows_of(self, jobs: Collection[str]) -> tuple[Event, ...]:
        """The events of some of its jobs."""
        import pyarrow.parquet as pq

        table = pq.read_table(self.path, filters=[("job", "in", list(jobs))], page_checksum_verification=True)
        columns = cast_columns(table, str(self.path), EVENT)
        return rows_from_columns(columns, EVENT, str(self.path), json_as_text=True)

    def rows(self) -> tuple[Event, ...]:
        """:raises BadInputError: it is damaged."""
        return parse_parquet(self.path.read_bytes(), str(self.path), EVENT)[0]


def read_archives(log: Path) -> list[Archive]:
    """The archives of a log, oldest first.

    :raises BadInputError: one is missing or damaged.
    """
    return [Archive.read(log.parent / ARCHIVE_FOLDER / name) for name in archives_of(log)]


def archived_ids(log: Path) -> set[str]:
    return {job_id for archive in read_archives(log) for job_id in archive.names}


def find_archived(log: Path, wanted: Collection[str] | None) -> Iterator[tuple[Archive, list[str]]]:
    """The archives that hold some of these jobs, and which.

    :param wanted: ids, or names, which mean the newest job; None for all jobs.
    """
    archives = read_archives(log)
    left = None if wanted is None else {*wanted}
    for archive in reversed(archives):
        if left is None:
            yield archive, [*archive.names]
            continue
        by_name = {name: job_id for job_id, name in archive.names.items() if name is not None}
        chosen = {each: each if each in archive.names else by_name.get(each) for each in left}
        there = {each: job_id for each, job_id in chosen.items() if job_id is not None}
        left -= there.keys()
        if there:
            yield archive, sorted({*there.values()})


def all_events(log: Path) -> Iterator[list[Event]]:
    """Every event of a log and its archives, in the order in which they were written, in blocks.

    :raises BadInputError: one of the files is damaged.
    """
    archives = read_archives(log)
    blocks = LogReader(log).read_all()
    if not archives:
        yield from blocks
        return
    live = (event for block in blocks for event in block if not is_mark(event))
    sources = [live, *(_rows(archive) for archive in archives)]
    block: list[Event] = []
    for source in _order(log, archives).tolist():
        if (event := next(sources[source], None)) is None:
            break
        block.append(event)
        if len(block) >= _BLOCK_ROWS:
            yield block
            block = []
    yield block


def _rows(archive: Archive) -> Iterator[Event]:
    """Read when the first of them is needed, and not kept."""
    yield from archive.rows()


def _order(log: Path, archives: Sequence[Archive]) -> NDArray[np.int16]:
    """Where each event comes from: 0 for the log, else the number of its archive; perhaps with zeros at its
    end that are too many.
    """
    import numpy as np

    with log.open("rb") as file:
        order = np.zeros(sum(1 for _ in file), np.int16)
    for number, archive in reversed([*enumerate(archives, 1)]):  # the newest one was taken out last
        places, counts = np.array(archive.places, np.int64).reshape(-1, 2).T
        order = np.insert(order, np.repeat(places, counts), number)
    return order


def is_mark(row: Event) -> bool:
    """Whether an event says what an archive has taken over, and nothing that happened."""
    if row.event != Decided.name or row.detail is None or "restored" not in row.detail:
        return False
    event = typed(row)
    return isinstance(event, Decided) and MARK in (event.restored or {})


def shifted(place: int, before: Collection[str], archives: Mapping[str, int]) -> int:
    """Where a place in a log is, in bytes, after archives have taken events away that were all before it.

    :param before: the names of the archives that the log had then.
    """
    return max(0, place - sum(gone for name, gone in archives.items() if name not in before))
