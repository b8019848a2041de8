"""Rows in, jobs out: what all formats share about bad rows, dropped rows and names, and the account."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.columns import Table
from pliant.schemas.file_io.problems import problems_of
from pliant.schemas.file_io.rows import validate_row
from pliant.schemas.text.wording import counted
from pliant.tools.replay.importers.input_row import InputRow, MalformedRowError

T = TypeVar("T")
Progress = Callable[[int, int | None], None]

MOST_PROBLEMS: Final = 1000
"""Reading ends after this number of malformed rows: the file is of another format."""
_EVERY: Final = 1000
_OTHER: Final = re.compile(r"[^A-Za-z0-9._-]")


class DroppedRowError(Exception):
    """By the format's own meaning the row is not a GPU training job; the message says why."""


def checked(row: T, table: Table[T]) -> T:
    """A row of a table that an importer has made; its reader must accept it.

    :raises ValidationError: pydantic's, where a value is wrong.
    :raises MalformedRowError: values contradict each other.
    """
    validate_row(row, table)
    for pointer, message in table.broken(row):
        raise MalformedRowError(pointer.removeprefix("/"), message)
    return row


@dataclass(slots=True)
class ImportSummary:
    """Counts and sentences of one import, filled while it runs."""

    format: str
    rows: int = 0
    """Rows read: jobs and measurements, dropped ones included."""
    jobs: int = 0
    nodes: int = 0
    profile_rows: int = 0
    convergence_rows: int = 0
    history_jobs: int = 0
    """Jobs whose epochs were imported."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows that gave no job, by reason."""
    assumptions: dict[str, int | None] = field(default_factory=dict)
    """What the input does not say and was decided here; the number of times, or None: throughout."""
    files: list[str] = field(default_factory=list)
    """Files written, ``-`` for stdout."""

    def assume(self, sentence: str) -> None:
        """State what holds for the whole import."""
        self.assumptions.setdefault(sentence, None)

    def assume_here(self, sentence: str) -> None:
        """State what holds for one more row."""
        self.assumptions[sentence] = (self.assumptions.get(sentence) or 0) + 1

    def lines(self) -> list[str]:
        """The summary as lines for people."""
        made = f"{self.jobs} jobs"
        if self.profile_rows or self.convergence_rows:
            made += f", {self.profile_rows} profile rows, {self.convergence_rows} convergence rows"
        if self.history_jobs:
            made += f", the history of {counted(self.history_jobs, 'job')}"
        if self.nodes:
            made += f", {self.nodes} nodes"
        lines = [f"{self.format}: {self.rows} rows read, {made} written, {self.dropped.total()} rows dropped"]
        lines += [f"dropped: {count} {reason}" for reason, count in sorted(self.dropped.items())]
        for sentence, count in self.assumptions.items():
            lines.append("assumed: " + (sentence if count is None else f"{sentence} ({count} times)"))
        return lines


class Conversion:
    """Turns rows into what a format makes of them, and keeps the account.

    Strict: malformed rows are collected and raised by :meth:`finish`. Lenient: they are dropped and counted.
    """

    def __init__(
        self, summary: ImportSummary, *, lenient: bool = False, progress: Progress | None = None
    ) -> None:
        self.summary = summary
        self._lenient = lenient
        self._progress = progress
        self._problems: list[Problem] = []
        self._ids: dict[str, int] = {}

    def convert(self, rows: Iterable[InputRow], make: Callable[[InputRow], T]) -> Iterator[T]:
        """What ``make`` makes of each row that is neither dropped nor malformed."""
        for row in rows:
            self._count()
            try:
                made = make(row)
            except DroppedRowError as reason:
                self.summary.dropped[str(reason)] += 1
            except MalformedRowError as error:
                self.refuse([Problem(row.source, row.line, f"/{error.field}", error.message)])
            except ValidationError as error:
                self.refuse(problems_of(error, row.source, row.line))
            except OverflowError:
                self.refuse([Problem(row.source, row.line, "", "holds a number that is out of all bounds")])
            else:
                yield made

    def refuse(self, problems: list[Problem]) -> None:
        """A malformed row: an error at the end, or one more dropped row."""
        if self._lenient:
            self.summary.dropped[f"malformed rows ({problems[0].pointer or 'as a whole'})"] += 1
            return
        self._problems += problems
        if len(self._problems) >= MOST_PROBLEMS:
            self.finish()

    def refuse_row(self, source: str, line: int, message: str) -> None:
        """A row of which no field can be read."""
        self._count()
        self.refuse([Problem(source, line, "", message)])

    def finish(self) -> None:
        """:raises BadInputError: with every malformed row, if malformed rows are not dropped."""
        if self._problems:
            raise BadInputError(self._problems)

    def new_id(self, text: str) -> str:
        """A job id made of ``text``: unused characters become ``_``, a repeated id gets ``-2``, ``-3``, …"""
        plain = _OTHER.sub("_", text).lstrip("._-")[:120] or "job"
        if plain != text:
            self.summary.assume_here("an id with characters that ids may not have was rewritten")
        number = self._ids.get(plain, 0) + 1
        unique = plain if number == 1 else f"{plain}-{number}"
        while unique in self._ids and number > 1:
            number += 1
            unique = f"{plain}-{number}"
        if number > 1:
            self.summary.assume_here("an id that is there more than once got a number behind it")
        self._ids[plain] = number
        self._ids.setdefault(unique, 1)
        return unique

    def _count(self) -> None:
        self.summary.rows += 1
        if self._progress is not None and self.summary.rows % _EVERY == 0:
            self._progress(self.summary.rows, None)
