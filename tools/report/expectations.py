"""Figures compared with published or golden ones: for ``--expect``, the experiments and the benchmarks.

The file that ``--expect`` reads and ``--write-expected`` writes::

    {"figures": [
        {"policy": "ares", "metric": "mean_jct_s", "value": 5400.0, "max": 5670},
        {"policy": "ares", "metric": "jobs_finished", "min": 160},
        {"policy": "ares", "over": "fifo", "metric": "mean_jct_s", "value": 0.7, "max": 0.8},
        {"policy": "ares", "metric": "utilization", "value": 0.9, "tolerance": 0.05, "source": "table 2"}
    ]}

``max`` and ``min`` accept every value on their other side, so that an improvement never fails; ``tolerance``
limits both sides. Older files say ``high`` and ``low``. What was found is also written as JUnit XML, in which
CI systems show a test case for each figure; equal figures give equal bytes, so there are no times in it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, log10, nextafter
from pathlib import Path
from typing import Final, Self
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pydantic import Field, ValidationError, model_validator

from pliant.schemas.errors import BadInputError, JobsFailedError, Problem, UsageError
from pliant.schemas.file_io.files import read_bytes, source_name
from pliant.schemas.file_io.json_lines import parse_json
from pliant.schemas.file_io.record import NonNegativeFloat, Record, broken_rule, problems_of
from pliant.schemas.metrics import RUN_METRICS, RUN_ROWS, CheckedFigure
from pliant.schemas.text import harmless, shortened, similar
from pliant.tools.report.records import kind
from pliant.tools.report.rendering.sections import NOTHING, Section, percent, ratio_to, value_of
from pliant.tools.report.report import Report, RunReport, baseline_of, find_run

_MISSES_SHOWN: Final = 20
RELATIVE: Final = "mean_jct_s"
"""Figure that it also writes relative to the baseline."""
SLACK_OF_REPLAYS: Final = 0.05
"""How much worse than found a written limit is. A replay gives the same figures on every machine: the slack
is for changes of no interest."""
SLACK_OF_LIVE_RUNS: Final = 0.2


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

    def holds(self, value: float | None) -> bool:
        """Whether a figure is in the range. A figure that does not apply (None) is not."""
        above = self.low is None or (value is not None and value >= self.low)
        below = self.high is None or (value is not None and value <= self.high)
        return value is not None and above and below

    def deviation(self, value: float | None) -> float | None:
        """(found − value) / |value|. Returns None if one is missing, or the result is not finite."""
        if value is None or not self.value:
            return None
        return _finite((value - self.value) / abs(self.value))


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
        return RUN_METRICS.keys()

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.metric not in self.known():
            hint = _meant(self.metric, self.known())
            raise broken_rule(f'"{shortened(self.metric)}" is not a figure of a report{hint}', "/metric")
        return self


def _meant(name: str, known: Collection[str]) -> str:
    """The figures that an unknown name may be meant for: by its title in reports, by spelling, by a part."""
    plain = name.strip().lower()
    titles = [each for each, metric in RUN_ROWS.items() if metric.title.lower() == plain and each in known]
    alike = similar(plain, known, 1)
    candidates = titles or alike or [each for each in known if len(plain) > 2 and plain in each][:3]
    words = " or ".join(f'"{each}"' for each in candidates)
    return f"; did you mean {words}?" if candidates else "; docs/schemas.md lists them (ReportedRun)"


class Expected(ExpectedFigure):
    """One figure of one run, and how far it may be off. ``policy`` and ``over`` are policies or labels."""

    policy: str
    value: float | None = None
    """The published or golden figure; a limit may stand alone instead."""
    max: float | None = None
    """Largest figure that is accepted."""
    min: float | None = None
    """Smallest figure that is accepted."""
    tolerance: NonNegativeFloat | None = None
    """Largest relative deviation from value, to both sides; instead of max and min."""
    high: float | None = None
    """Older name of max."""
    low: float | None = None
    """Older name of min."""
    source: str = ""
    """Where the figure is published."""

    @model_validator(mode="after")
    def _is_checkable(self) -> Self:
        for old, new in (("high", "max"), ("low", "min")):
            if getattr(self, old) is not None and getattr(self, new) is not None:
                raise broken_rule(f"is the older name of {new}, expected one of them", f"/{old}")
        most, least = self._limits
        if (self.tolerance is None) == (most is None and least is None):
            raise broken_rule("expected max, min or both, or else tolerance", "/tolerance")
        if self.tolerance is not None and self.value is None:
            raise broken_rule("is missing, expected the figure that tolerance is about", "/value")
        if most is not None and least is not None and most < least:
            upper, lower = ("high" if self.max is None else "max"), ("low" if self.min is None else "min")
            raise broken_rule(f"{most:g} is below {lower} {least:g}", f"/{upper}")
        return self

    @property
    def _limits(self) -> tuple[float | None, float | None]:
        """The largest and the smallest figure accepted."""
        return (self.high if self.max is None else self.max, self.low if self.min is None else self.min)

    @property
    def expectation(self) -> Expectation:
        if self.tolerance is None or self.value is None:
            most, least = self._limits
            return Expectation(self.value, least, most)
        return Expectation.within(self.value, self.tolerance)


class Expectations(Record):
    """The file that ``--expect`` reads."""

    figures: tuple[Expected, ...] = Field(min_length=1)
    source: str = ""
    """What the figures are from."""
    traces: tuple[str, ...] = ()
    """Hashes of the traces whose runs they are of; empty: any."""


def other_traces(report: Report, expectations: Expectations | None, path: str | Path | None) -> list[str]:
    """A warning for each trace of the report that the expected figures, of this file, are not of."""
    if expectations is None or not expectations.traces:
        return []
    traces = {run.run.info.trace_hash: run.run.info.trace or "" for run in report.runs}
    known = ", ".join(each[:12] for each in expectations.traces)
    return [
        f"{path} expects figures of trace {known}; these are of trace {f'{name} {each[:12]}'.strip()}, "
        "and figures of other jobs do not compare"
        for each, name in traces.items()
        if each not in expectations.traces
    ]


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
    """:raises JobsFailedError: with a line for each figure that is out of its range."""
    missed = [each for each in checked if not each.holds]
    if missed:
        lines = [f"{len(missed)} of {len(checked)} figures are out of range", *map(outcome, missed)]
        more = len(lines) - 1 - _MISSES_SHOWN
        if more > 0:
            lines[_MISSES_SHOWN + 1 :] = [f"… and {more} more"]
        raise JobsFailedError("\n".join(lines))


def outcome(checked: CheckedFigure) -> str:
    """A figure in a line, with its limit: ``fifo mean_jct_s is 175, above max 170 (lower is better)``.

    An improvement that fails, as one beyond a tolerance does, says how to accept it.
    """
    name, wanted = f"{_name(checked)} {checked.metric}", RUN_METRICS[checked.metric].better
    direction = "" if wanted is None else f"{wanted} is better"
    if checked.found is None:
        return f"{name} has no value, expected {_range(checked.low, checked.high)}"
    if checked.high is not None and checked.found > checked.high:
        side, limit, improved = "above max", checked.high, wanted == "higher"
    elif checked.low is not None and checked.found < checked.low:
        side, limit, improved = "below min", checked.low, wanted == "lower"
    else:
        return f"{name} is {_text(checked.found)}, {_range(checked.low, checked.high)}"
    if improved:
        direction += f", to accept it give {'min' if wanted == 'higher' else 'max'} alone"
    shown = [_text(checked.found), _text(limit)]
    value, bound = shown if shown[0] != shown[1] else (repr(checked.found), repr(limit))
    return f"{name} is {value}, {side} {bound}" + (f" ({direction})" if direction else "")


def expectations_of(report: Report) -> Expectations:
    """What runs like those of this report are expected to show: each figure limited on its worse side.

    Counts may not be worse at all, other figures by 5 % in a replay and 20 % in a live run. Figures of zero,
    where a share of them says nothing, are left out. With a baseline, mean JCTs relative to it are limited,
    too.

    :raises UsageError: no figure of these runs can be expected, because no job finished.
    """
    figures = tuple(each for run in report.runs for each in _expected(run, baseline_of(report, run)))
    if not figures:
        raise UsageError("--write-expected: no job finished, so there are no figures to expect")
    traces = tuple(dict.fromkeys(run.run.info.trace_hash for run in report.runs))
    source = "; ".join(dict.fromkeys(map(_origin, report.runs)))
    return Expectations(figures=figures, source=source, traces=traces)


def _origin(run: RunReport) -> str:
    info = run.run.info
    trace = " ".join(part for part in (info.trace, info.trace_hash[:12]) if part)
    return f"{kind(run.run)}, trace {trace}, seed {info.seed}, pliant {info.pliant_version}"


def _expected(run: RunReport, baseline: RunReport | None) -> Iterator[Expected]:
    slack = SLACK_OF_REPLAYS if run.metrics.simulated else SLACK_OF_LIVE_RUNS
    for name, metric in RUN_METRICS.items():
        if metric.is_expected and (value := getattr(run.metrics, name)):
            yield _limited(run.label, name, value, 0 if isinstance(value, int) else slack)
    if baseline is not None and baseline is not run:
        ratio = ratio_to(run.metrics, baseline.metrics, RELATIVE)
        if ratio:
            yield _limited(run.label, RELATIVE, ratio, slack, over=baseline.label)


def _limited(run: str, metric: str, measured: float, slack: float, over: str | None = None) -> Expected:
    """A figure that may be worse by a share of it, ``slack``."""
    worse = 1 if RUN_METRICS[metric].better == "lower" else -1
    limit = (
        _outwards(measured + worse * slack * abs(measured), upwards=worse > 0) if slack else float(measured)
    )
    value = float(f"{measured:.6g}") if slack else float(measured)
    most, least = (limit, None) if worse > 0 else (None, limit)
    return Expected(policy=run, over=over, metric=metric, value=value, max=most, min=least)


def _outwards(number: float, *, upwards: bool) -> float:
    """Rounded to four digits, away from the figures that are accepted."""
    unit = 3 - floor(log10(abs(number)))
    rounded = (ceil if upwards else floor)(number * 10.0**unit)
    return float(f"{rounded / 10.0**unit:.4g}")


def expectations_bytes(expectations: Expectations) -> bytes:
    """The file of these expectations, a line for each figure."""
    names = dict.fromkeys(("policy", "over", *Expected.model_fields))
    lines = []
    for each in expectations.figures:
        stated = each.model_dump(exclude_defaults=True)
        fields = {name: _whole(stated[name]) for name in names if name in stated}
        lines.append(f"  {json.dumps(fields, ensure_ascii=False)}")
    about = {"source": expectations.source, "traces": expectations.traces}
    source = "".join(
        f' "{name}": {json.dumps(value, ensure_ascii=False)},\n' for name, value in about.items() if value
    )
    figures = ",\n".join(lines)
    return f'{{\n{source} "figures": [\n{figures}\n ]\n}}\n'.encode()


def _whole(value: object) -> object:
    """A number without its decimal point where it is whole."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def expectations_section(checked: tuple[CheckedFigure, ...]) -> Section:
    """What was found beside what was expected; sources have a column if a figure names one."""
    headers: tuple[str, ...] = ("run", "figure", "source", "", "expected", "found", "deviation, %", "range")
    rows: tuple[tuple[str, ...], ...] = tuple(
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
    if not any(each.source for each in checked):
        headers, rows = _without_source(headers), tuple(map(_without_source, rows))
    return Section("Expected figures", headers, rows, len(headers) - 4, keys=2)


def _without_source(cells: tuple[str, ...]) -> tuple[str, ...]:
    return cells[:2] + cells[3:]


def _checked(report: Report, expected: Expected) -> CheckedFigure:
    value, accepted = _found(report, expected), expected.expectation
    return CheckedFigure(
        policy=expected.policy,
        over=expected.over,
        metric=expected.metric,
        value=expected.value,
        low=accepted.low,
        high=accepted.high,
        found=value,
        deviation=accepted.deviation(value),
        holds=accepted.holds(value),
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


_SUITE: Final = "pliant report"


def junit_bytes(checked: Sequence[CheckedFigure]) -> bytes:
    """One suite. A case is named after its figure, its class after the run; a figure that is expected twice
    has a number, for names must differ.
    """
    missed = sum(not each.holds for each in checked)
    counts = {"tests": str(len(checked)), "failures": str(missed), "errors": "0", "skipped": "0"}
    root = Element("testsuites", {"name": _SUITE, **counts})
    suite = SubElement(root, "testsuite", {"name": _SUITE, **counts})
    seen: dict[tuple[str, str], int] = {}
    for each in checked:
        name = each.metric if each.over is None else f"{each.metric} over {each.over}"
        number = seen[each.policy, name] = seen.get((each.policy, name), 0) + 1
        title = name if number == 1 else f"{name} ({number})"
        case = SubElement(suite, "testcase", {"classname": harmless(each.policy), "name": harmless(title)})
        said = harmless(outcome(each))
        if each.holds:
            SubElement(case, "system-out").text = said
        else:
            failure = SubElement(case, "failure", {"type": "out of range", "message": said})
            failure.text = harmless(f"{said}; from {each.source}") if each.source else said
    indent(root)
    data: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"
