"""Published numbers as data, and ours beside them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from experiments.harness.replays import OF_JOBS, Outcome, matching
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import read_bytes
from pliant.schemas.file_io.record import Identifier, PositiveFloat, Record, problems_of
from pliant.tools.replay.synthetic_recipe import parse_table
from pliant.tools.report.expectations import Expectation, ExpectedFigure

NEAR: Final = 1.5
"""A ratio reproduces a published one if it lies on the same side of 1 and within this factor of it."""


class Number(ExpectedFigure):
    """One published number, and which replays it is compared with: ``run`` over ``over``, seed by seed."""

    name: Identifier
    """Its name in results and benchmarks."""
    table: str
    """The table or figure of the paper."""
    what: str
    """In words."""
    value: float
    """As published."""
    unit: str = ""
    run: str
    """Name of a replay, a pattern where there is one for each seed."""
    scale: PositiveFloat = 1.0
    """The field's unit in units of the number: 100 for percent, 1/60 for minutes."""
    note: str = ""
    """Why ours differs, if it does; the page shows it beside those that miss."""

    @classmethod
    def known(cls) -> Collection[str]:
        """Figures of a report, and those of the jobs of a replay."""
        return (*super().known(), *OF_JOBS)


class Numbers(Record):
    """The file of published numbers."""

    numbers: Annotated[tuple[Number, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Compared:
    """A published number and ours: the mean over the seeds, and the smallest and largest of them."""

    name: str
    table: str
    what: str
    unit: str
    published: float
    ours: float
    low: float
    high: float
    seeds: int
    is_ratio: bool

    @property
    def ratio(self) -> float:
        """Ours / published."""
        return self.ours / self.published

    @property
    def deviation(self) -> float:
        """(ours − published) / published."""
        return self.ratio - 1

    @property
    def expected(self) -> Expectation:
        """The published number, to :data:`NEAR`."""
        return Expectation.near(self.published, NEAR, is_ratio=self.is_ratio)

    @property
    def reproduces(self) -> bool:
        """Whether it has the published sign and size."""
        return self.expected.holds(self.ours)


def read_numbers(path: Path) -> tuple[Number, ...]:
    """The published numbers of a TOML file.

    :raises BadInputError: with every problem of the file.
    """
    fields = parse_table(read_bytes(path), str(path))
    try:
        return Numbers.model_validate_json(json.dumps(fields)).numbers
    except ValidationError as error:
        raise BadInputError(problems_of(error, str(path))) from error


def compare(numbers: Iterable[Number], outcomes: Mapping[str, Outcome]) -> list[Compared]:
    """Ours beside each published number.

    :raises BadInputError: a number names replays that are not there, or that do not pair.
    """
    return [_compared(number, _ours(number, outcomes)) for number in numbers]


def _compared(number: Number, ours: Sequence[float]) -> Compared:
    mean = sum(ours) / len(ours)
    return Compared(
        number.name,
        number.table,
        number.what,
        number.unit,
        number.value,
        mean,
        min(ours),
        max(ours),
        len(ours),
        number.over is not None,
    )


def _ours(number: Number, outcomes: Mapping[str, Outcome]) -> list[float]:
    tops = [_value(number, each) for each in matching(number.run, outcomes)]
    if number.over is None:
        return [number.scale * top for top in tops]
    bases = [_value(number, each) for each in matching(number.over, outcomes)]
    if len(bases) != len(tops) or not all(bases):
        raise BadInputError(f"{number.name}: {len(tops)} replays over {len(bases)}, expected pairs above 0")
    return [top / base for top, base in zip(tops, bases, strict=True)]


def _value(number: Number, outcome: Outcome) -> float:
    value = outcome.metrics.get(number.metric)
    if value is None:
        raise BadInputError(f'{number.name}: replay "{outcome.name}" has no {number.metric}')
    return value
