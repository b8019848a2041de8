"""Figures compared with published or golden ones: for ``--expect``, the experiments and the benchmarks.

The file that ``--expect`` reads::

    {"figures": [
        {"policy": "ares", "metric": "mean_jct_s", "value": 5400.0, "tolerance": 0.05, "source": "table 2"},
        {"policy": "ares", "over": "fifo", "metric": "mean_jct_s", "value": 0.7, "high": 0.8},
        {"policy": "ares", "metric": "jobs_finished", "low": 160}
    ]}
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from math import inf, isfinite, nextafter
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from pliant.schemas.errors import BadInputError, JobsFailedError, Problem, UsageError
from pliant.schemas.file_io.files import read_bytes, source_name
from pliant.schemas.file_io.json_lines import parse_json
from pliant.schemas.file_io.record import NonNegativeFloat, Record, broken_rule, problems_of
from pliant.schemas.metrics import CheckedFigure, RunMetrics
from pliant.schemas.text import shortened
from pliant.tools.report.rendering.sections import NOTHING, Section, percent, value_of
from pliant.tools.report.report import Report, find_run

_NOT_NUMBERS = ("policy", "trace_hash", "parameters", "simulated", "oracle", "demand", "jobs_completed_at")


@dataclass(frozen=True, slots=True)
class Expectation:
    """The range in which a figure is accepted, and the value that it is compared with."""

    value: float | None = None
    """The published or golden figure, if there is one."""
    low: float | None = None
    high: float | None = None

    @classmethod
    def within(cls, value: float, tolerance: float) -> Self:
        """Within a largest relative deviation from ``value``."""
        slack = abs(value) * tolerance
        return cls(value, _finite(value - slack), _finite(value + slack))

    @classmethod
    def near(cls, value: float, factor: float, *, is_ratio: bool = False) -> Self:
        """Within a factor of ``value``; a ratio also lies on the same side of 1."""
        low, high = value / factor, value * factor
        if is_ratio and value > 1:
            low = max(low, nextafter(1, inf))
        if is_ratio and value < 1:
            high = min(high, nextafter(1, 0))
        return cls(value, _finite(low), _finite(high))

    def holds(self, found: float | None) -> bool:
        """Whether a figure is in the range. A figure that does not apply (None) is not."""
        above = self.low is None or (found is not None and found >= self.low)
        below = self.high is None or (found is not None and found <= self.high)
        return found is not None and above and below

    def deviation(self, found: float | None) -> float | None:
        """(found − value) / |value|. Returns None if one is missing, or the result is not finite."""
        if found is None or not self.value:
            return None
        return _finite((found - self.value) / abs(self.value))


def _finite(number: float) -> float | None:
    """Returns None where the result overflows."""
    return number if isfinite(number) else None


class ExpectedFigure(Record):
    """Which figure of a run is expected, as files name it."""

    metric: str
    """Field of the metrics schema."""
    over: str | None = None
    """A second run: the figure is then the ratio of the first to the second."""

    @classmethod
    def known(cls) -> Collection[str]:
        return [name for name in RunMetrics.model_fields if name not in _NOT_NUMBERS]

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.metric not in self.known():
            raise broken_rule(f'"{shortened(self.metric)}" is not a figure of a report', "/metric")
        return self


class Expected(ExpectedFigure):
    """One figure of one run, and how far it may be off. ``policy`` and ``over`` are policies or labels."""

    policy: str
    value: float | None = None
    """The published or golden figure; low or high may stand alone instead."""
    tolerance: NonNegativeFloat | None = None
    """Largest relative deviation from value. Without it, low and high say what is accepted."""
    low: float | None = None
    high: float | None = None
    source: str = ""
    """Where the figure is published."""

    @model_validator(mode="after")
    def _is_checkable(self) -> Self:
        if (self.tolerance is None) == (self.low is None and self.high is None):
            raise broken_rule(
                "expected either tolerance, or low and high (one of them is enough)", "/tolerance"
            )
        if self.tolerance is not None and self.value is None:
            raise broken_rule("is missing, expected the figure that tolerance is about", "/value")
        if self.low is not None and self.high is not None and self.high < self.low:
            raise broken_rule(f"{self.high:g} is below low {self.low:g}", "/high")
        return self

    @property
    def expectation(self) -> Expectation:
        if self.tolerance is None or self.value is None:
            return Expectation(self.value, self.low, self.high)
        return Expectation.within(self.value, self.tolerance)


class Expectations(Record):
    """The file that ``--expect`` reads."""

    figures: tuple[Expected, ...] = Field(min_length=1)


def read_expectations(path: str | Path) -> Expectations:
    """Read a JSON file.

    :raises BadInputError: with every problem of the file.
    """
    source = source_name(path)
    value = parse_json(read_bytes(path), source)
    try:
        return Expectations.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise BadInputError(problems_of(error, source)) from None


def check_expectations(
    report: Report, expectations: Expectations, source: str = "expectations"
) -> tuple[CheckedFigure, ...]:
    """Look up every expected figure.

    :param source: the file of the expectations, for messages.
    :raises BadInputError: one problem for each figure of a run that the report does not have.
    """
    checked: list[CheckedFigure] = []
    problems: list[Problem] = []
    for index, each in enumerate(expectations.figures):
        try:
            checked.append(_checked(report, each))
        except UsageError as error:
            problems.append(Problem(source, None, f"/figures/{index}", str(error)))
    if problems:
        raise BadInputError(problems)
    return tuple(checked)


def refuse_missed(checked: tuple[CheckedFigure, ...]) -> None:
    """:raises JobsFailedError: naming the figures that are out of their range."""
    missed = [each for each in checked if not each.holds]
    if missed:
        names = ", ".join(f"{_name(each)} {each.metric}" for each in missed[:5])
        more = f" and {len(missed) - 5} more" if len(missed) > 5 else ""
        raise JobsFailedError(f"{len(missed)} of {len(checked)} figures are out of range: {names}{more}")


def expectations_section(checked: tuple[CheckedFigure, ...]) -> Section:
    headers = ("run", "figure", "source", "", "expected", "found", "deviation, %", "range")
    rows = tuple(
        (
            _name(each),
            each.metric,
            each.source,
            "holds" if each.holds else "OUT OF RANGE",
            _text(each.value),
            _text(each.found),
            percent(each.deviation),
            _range(each.low, each.high),
        )
        for each in checked
    )
    return Section("Expected figures", headers, rows, 4, keys=2)


def _checked(report: Report, expected: Expected) -> CheckedFigure:
    found, accepted = _found(report, expected), expected.expectation
    return CheckedFigure(
        policy=expected.policy,
        over=expected.over,
        metric=expected.metric,
        value=expected.value,
        low=accepted.low,
        high=accepted.high,
        found=found,
        deviation=accepted.deviation(found),
        holds=accepted.holds(found),
        source=expected.source,
    )


def _found(report: Report, expected: Expected) -> float | None:
    value = value_of(find_run(report.runs, expected.policy).metrics, expected.metric)
    if expected.over is None:
        return value
    base = value_of(find_run(report.runs, expected.over).metrics, expected.metric)
    return value / base if value is not None and base else None


def _name(checked: CheckedFigure) -> str:
    return f"{checked.policy} / {checked.over}" if checked.over else checked.policy


def _text(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.6g}"


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {_text(high)}"
    return f"at least {_text(low)}" if high is None else f"{_text(low)} to {_text(high)}"
