"""Rows in, jobs out: what is shared by all formats about bad rows, dropped rows and names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.formats.problems import problems_of
from pliant.schemas.formats.rows import AnyRow, broken_rules, validate_row
from pliant.tools.replay.importers.summary import ImportReport

T = TypeVar("T")
Progress = Callable[[int, int | None], None]

MOST_PROBLEMS: Final = 1000
"""Reading ends after so many malformed rows: the file is of another format."""
_EVERY: Final = 1000
_OTHER: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Record:
    """One row of an input and where it stands; ``line`` is None where there are no lines."""

    source: str
    line: int | None
    values: Mapping[str, Any]

    @property
    def number(self) -> int:
        """The row's number from 1, in a file with one header line."""
        return (self.line or 1) - 1


class DroppedRowError(Exception):
    """By the format's own meaning the row is no GPU training job; the message says why."""


class MalformedRowError(Exception):
    """The row does not say what the format asks for."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def checked(row: AnyRow) -> AnyRow:
    """A row of a table that an importer has made; its reader must accept it.

    :raises ValidationError: pydantic's, where a value is wrong.
    :raises MalformedRowError: values contradict each other.
    """
    validate_row(row)
    for pointer, message in broken_rules(row):
        raise MalformedRowError(pointer.removeprefix("/"), message)
    return row


class Intake:
    """Turns rows into what a format makes of them, and keeps the account.

    Strict: malformed rows are collected and raised by :meth:`finish`. Lenient: they are dropped and counted.
    """

    def __init__(
        self, report: ImportReport, *, lenient: bool = False, progress: Progress | None = None
    ) -> None:
        self.report = report
        self._lenient = lenient
        self._progress = progress
        self._problems: list[Problem] = []
        self._ids: dict[str, int] = {}

    def convert(self, rows: Iterable[Record], make: Callable[[Record], T]) -> Iterator[T]:
        """What ``make`` makes of each row that is neither dropped nor malformed."""
        for row in rows:
            self._count()
            try:
                made = make(row)
            except DroppedRowError as reason:
                self.report.dropped[str(reason)] += 1
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
            self.report.dropped[f"malformed rows ({problems[0].pointer or 'as a whole'})"] += 1
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
            self.report.assume_here("an id with characters that ids may not have was rewritten")
        number = self._ids.get(plain, 0) + 1
        unique = plain if number == 1 else f"{plain}-{number}"
        while unique in self._ids and number > 1:
            number += 1
            unique = f"{plain}-{number}"
        if number > 1:
            self.report.assume_here("an id that is there more than once got a number behind it")
        self._ids[plain] = number
        self._ids.setdefault(unique, 1)
        return unique

    def _count(self) -> None:
        self.report.rows += 1
        if self._progress is not None and self.report.rows % _EVERY == 0:
            self._progress(self.report.rows, None)
