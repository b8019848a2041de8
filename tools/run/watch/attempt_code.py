"""Code that the attempts of a job have run, as recorded by the supervisor of each unit, and differences."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import Field

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import NonNegativeInt, PositiveInt, Record
from pliant.schemas.text import counted, whole_number
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import (
    MOST_NAMES,
    AttemptDir,
    UnreadableError,
    read_record,
)
from pliant.tools.run.statedir.directory import StateDir

MOST_ATTEMPTS: Final = 50
"""The newest that are compared."""
_MOST_UNITS: Final = 64
_SHOWN: Final = 3
"""Files, and differences, that a page shows."""
_SHORT: Final = 10
_RECORD: Final = re.compile(r"code-(\d+)\.json")


class CodeRecord(Record):
    """What one unit of an attempt runs."""

    attempt: PositiveInt = 1
    unit: NonNegativeInt = 0
    host: str = ""
    python: str | None = None
    torch: str | None = None
    driver: str | None = None
    """Version of the NVIDIA driver."""
    image: str | None = None
    """Image of its container, whose Python and torch are not known."""
    folder: str | None = None
    """Root of the repository, or the folder that the job starts in; None: not known."""
    commit: str | None = None
    """Commit; None without one."""
    changes: str = ""
    """Hash of uncommitted code, or of all code in a folder without git; empty for none."""
    files: dict[str, str] = Field(default_factory=dict)
    """Hashes of files that differ from the commit; at most the first ones."""
    snapshot: bool = False
    """Whether it is a copy, made at the submission."""
    reason: str = ""
    """Reason that there is no commit."""

    @property
    def text(self) -> str:
        """What it says of the code, in one line."""
        parts = [
            "snapshot of" if self.snapshot else "",
            f"commit {self.commit[:_SHORT]}" if self.commit else self.reason or "no commit yet",
            _with_files(self) if self.changes else "",
            *(f"{name} {version}" for name, version in self.versions.items() if version),
            f"host {self.host}",
        ]
        return ", ".join(filter(None, parts)).replace("snapshot of, ", "snapshot of ", 1)

    @property
    def versions(self) -> dict[str, str | None]:
        return {
            "Python": self.python,
            "torch": self.torch,
            "driver": self.driver,
            "image": self.image,
        }

    def differences(self, before: CodeRecord) -> list[str]:
        """What is not as it was before; of what is not known of either, nothing."""
        lines = []
        if self.folder is not None and before.folder is not None:
            if self.folder != before.folder:
                lines.append(f"folder {before.folder} → {self.folder}")
            if self.commit != before.commit:
                commits = [(each.commit or "none")[:_SHORT] for each in (before, self)]
                lines.append(f"commit {' → '.join(commits)}")
            if self.changes != before.changes:
                names = {name for name, _ in self.files.items() ^ before.files.items()}
                lines += sorted(names) or ["files that are not committed"]
        for name, version in self.versions.items():
            if version != (old := before.versions[name]) and version and old:
                lines.append(f"{name} {old} → {version}")
        return lines


def _with_files(record: CodeRecord) -> str:
    names = ", ".join([*record.files][:_SHOWN])
    more = f" and {len(record.files) - _SHOWN} more" if len(record.files) > _SHOWN else ""
    what = "not committed" if record.commit else "code"
    return f"{what} {record.changes} ({names}{more})"


def recorded_code(dirs: StateDir, job_id: str) -> list[CodeRecord]:
    """What was recorded of the newest attempts of a job, in order of attempts and units."""
    job = dirs.job(job_id)
    newest = job.newest_attempt()
    numbers = range(max(1, newest - MOST_ATTEMPTS + 1), newest + 1)
    return [record for number in numbers for record in _records(job.attempt(number), number)]


def _records(attempt: AttemptDir, number: int) -> Iterator[CodeRecord]:
    with files_of(attempt):
        for unit in _units(attempt):
            try:
                record = read_record(attempt.code(unit), "code", CodeRecord)
            except (BadInputError, UnreadableError):
                continue
            if record is not None:
                yield record.model_copy(update={"attempt": number, "unit": unit})


def _units(attempt: AttemptDir) -> list[int]:
    """The first units that have a record."""
    try:
        names = os.listdir(attempt.path)[: 10 * MOST_NAMES]
    except OSError:
        return []
    numbers = (whole_number(match[1]) for match in map(_RECORD.fullmatch, names) if match)
    return sorted(number for number in numbers if number is not None)[:_MOST_UNITS]


def differing(records: Sequence[CodeRecord]) -> Iterator[tuple[CodeRecord, CodeRecord, list[str]]]:
    """(record, the one it is compared with, what differs): each attempt with the one before, by their first
    units, and the other units with the first one of their attempt.
    """
    first: CodeRecord | None = None
    for record in records:
        if first is not None and (what := record.differences(first)):
            yield record, first, what
        if first is None or record.attempt != first.attempt:
            first = record


def code_facts(records: Sequence[CodeRecord]) -> Iterator[tuple[str, str]]:
    """(label, text) of the code of the newest attempt, and of the last differences."""
    if not records:
        return
    yield "code", next(each for each in records if each.attempt == records[-1].attempt).text
    differences = [*differing(records)]
    for record, before, what in differences[-_SHOWN:]:
        listed = ", ".join(what[:_SHOWN]) + (f" and {len(what) - _SHOWN} more" if len(what) > _SHOWN else "")
        if record.attempt == before.attempt:
            who = f"unit {record.unit} on {record.host} runs other code than unit {before.unit}"
        else:
            who = f"attempt {record.attempt} runs other code than attempt {before.attempt}"
        yield "differs", f"{who}: {listed}"
    if len(differences) > _SHOWN:
        yield "differs", f"{counted(len(differences) - _SHOWN, 'earlier difference')} in --format json"


def code_fields(records: Sequence[CodeRecord]) -> dict[str, Any]:
    newest = next((each for each in records if each.attempt == records[-1].attempt), None)
    return {
        "code": None if newest is None else newest.model_dump(mode="json"),
        "code_differences": [
            {
                "attempt": record.attempt,
                "unit": record.unit,
                "from_attempt": before.attempt,
                "from_unit": before.unit,
                "what": what,
            }
            for record, before, what in differing(records)
        ],
    }
