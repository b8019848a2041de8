"""The text of a report: the answer in a sentence or two, then a short table with the best value of each row
marked; on demand every row, every term explained, and where the runs come from.

A column is a run, or several that differ in their seed only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pliant.schemas.metrics import RUN_METRICS, RUN_ROWS, Kind, Metric, Reference
from pliant.schemas.text import counted
from pliant.tools.report.groups import Group, MeanRatio, groups, jct_difference
from pliant.tools.report.rendering.sections import (
    NOTHING,
    Section,
    p_text,
    ratio_text,
    ratio_to,
    value_of,
)
from pliant.tools.report.rendering.text import (
    paragraph,
    percents,
    readable,
    readable_slack,
    span,
    terms_text,
    three_digits,
)
from pliant.tools.report.report import DIFFERENT_TRACES, Report

_WORST: Final[dict[Reference, tuple[str, str]]] = {
    "fair-share": ("worst_ftf", "its fair share"),
    "gps": ("worst_ftf_gps", "its time in GPS"),
    "isolated": ("worst_ftf_isolated", "its time alone on its share"),
}
_COMPARABLE: Final = 0.99
"""A run that finished a smaller part than this of what another finished is never called the best."""
_MOST_TOLD: Final = 6
_FACTOR: Final = 2.0
"""Ratio from which on a mean is shown as a multiple of the other, not as percent above it."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is said first, and what it rests on."""

    sentences: tuple[str, ...]
    base: Group | None = None
    """What the first is compared with: the baseline, else the first that was named."""
    bases: tuple[Group, ...] = ()
    """What each group is compared with: the first of its workload, under a swept baseline of its cluster."""
    differences: tuple[MeanRatio | None, ...] = ()
    """Difference of each group's mean JCT from that of its base, in the order of the groups; null: none."""


def answer(
    columns: Sequence[Group], reference: Reference = "fair-share", *, base_policy: str | None = None
) -> _Answer:
    """:param columns: the baseline first.
    :param base_policy: the baseline, where it has several runs.
    """
    if not columns:
        return _Answer(("nothing to report",))
    swept = base_policy is not None
    bases = tuple(
        next(each for each in columns if each.is_beside(column, same_cluster=swept)) for column in columns
    )
    pairs = list(zip(columns, bases, strict=True))
    differences = tuple(None if each is base else jct_difference(each, base) for each, base in pairs)
    sentences: list[str] = []
    told = 0
    for base in {id(base): base for base in bases}.values():
        beside = [
            (each, known) for (each, other), known in zip(pairs, differences, strict=True) if other is base
        ]
        if own := [each for each, known in beside if known is not None]:
            sentences += _comparison(base, own, reference)
            told += len(own) + 1
            continue
        for each, _ in beside[: max(0, _MOST_TOLD - told)]:
            sentences.append(_sentence(each, None, None, reference))
            told += 1
    if told < len(columns) and not any(differences):
        sentences.append(f"… and {counted(len(columns) - told, 'more run')} in the table.")
    return _Answer(tuple(sentences), columns[0], bases, differences)


def _comparison(base: Group, compared: Sequence[Group], reference: Reference) -> Iterator[str]:
    """The best of those that are compared with a base, and those that may be as good."""
    best, *others = _ranked([base, *compared])
    other = others[0] if best is base and others else base
    yield _sentence(best, other, jct_difference(best, other), reference)
    beside = [each for each in others if each is not other]
    alike = [each.label for each in beside if (d := jct_difference(best, each)) and d.low and not d.is_known]
    if alike:
        yield f"No clear difference from {best.label}: {', '.join(alike)}."


def _ranked(columns: Sequence[Group]) -> list[Group]:
    """By mean JCT; those that finished markedly fewer jobs come last."""
    fit = set(map(id, _comparable(columns)))
    inf = float("inf")
    jcts = [each.value("mean_jct_s") for each in columns]
    order = [
        (id(each) not in fit, inf if jct is None else jct, at)
        for at, (each, jct) in enumerate(zip(columns, jcts, strict=True))
    ]
    return [columns[at] for _, _, at in sorted(order)]


def _comparable(columns: Sequence[Group]) -> list[Group]:
    """Those that finished about as large a part of their jobs as any other."""
    parts = [each.jobs_finished / max(1, each.jobs_submitted) for each in columns]
    most = max(parts, default=0.0)
    return [each for each, part in zip(columns, parts, strict=True) if part >= _COMPARABLE * most]


def _sentence(each: Group, other: Group | None, difference: MeanRatio | None, reference: Reference) -> str:
    jct_s = each.value("mean_jct_s")
    if not each.jobs_submitted:
        return f"{each.label}: no job was submitted, so there is nothing to report."
    if jct_s is None:
        return f"{each.label}: none of {counted(each.jobs_submitted, 'job')} finished."
    parts = [f"{each.label}: mean JCT {span(jct_s)}"]
    if each.jobs_finished < each.jobs_submitted:
        parts[0] += f" ({each.jobs_finished:,} of {counted(each.jobs_submitted, 'job')} finished)"
    if difference is not None and other is not None:
        parts.append(_difference_text(difference, other, each))
    name, fair = _WORST[reference]
    worst = each.value(name)
    if worst is not None:
        on_average = " on average" if len(each.runs) > 1 else ""
        parts.append(f"worst-off job {three_digits(worst)} times {fair}{on_average}")
    return f"{', '.join(parts)}{_known_beyond_life(each)}."


def _known_beyond_life(each: Group) -> str:
    """What a simulation let a policy know and do that few real schedulers can, and how to replay without."""
    runs = [each.run for each in each.runs if each.run.info.simulated]
    knew = any(run.info.knew_work or run.info.demand == "oracle" for run in runs)
    paused = any(run.paused_unsaved for run in runs)
    if not (knew or paused):
        return ""
    what = ["knew every run time exactly"] * knew + ["could pause any job"] * paused
    how = ["--demand predicted"] * knew + ["--preemptible stated"] * paused
    return f"; it {', '.join(what)} (replay with {' '.join(how)})"


def _difference_text(difference: MeanRatio, other: Group, each: Group) -> str:
    """``31 % below fifo (95 % interval 27 to 35 %)``."""
    units = each.units_text() or other.units_text()
    name, over = other.label, f" over {units}" if units else ""
    if not units and difference.pairs < max(each.jobs_finished, other.jobs_finished):
        name += f" over the {counted(difference.pairs, 'job')} that finished in both"
    if difference.low is None or difference.high is None:
        what = counted(difference.pairs, "pair of means" if units else "job")
        return f"{_side(difference.ratio)} {name} ({what}: too few for an interval)"
    if difference.low == difference.high == 1:
        return f"as under {name}"
    if not difference.is_known:
        return f"no clear difference from {name} (95 % interval {_around(difference)}{over})"
    if difference.ratio >= _FACTOR:
        factor, low, high = map(three_digits, (difference.ratio, difference.low, difference.high))
        return f"{factor} times that of {name} (95 % interval {low} to {high}{over})"
    value, *ends = percents(difference.ratio - 1, difference.low - 1, difference.high - 1)
    low, high = ends if difference.ratio > 1 else reversed(ends)
    where = "above" if difference.ratio > 1 else "below"
    return f"{value} % {where} {name} (95 % interval {low} to {high} %{over})"


def _around(difference: MeanRatio) -> str:
    low, high = difference.low or 1.0, difference.high or 1.0
    if high >= 1 + _FACTOR:
        return f"{three_digits(low)} to {three_digits(high)} times"
    below, above = percents(low - 1, high - 1)
    return f"{below} % below to {above} % above"


def _side(ratio: float) -> str:
    if ratio >= _FACTOR:
        return f"{three_digits(ratio)} times that of"
    (value,) = percents(ratio - 1)
    return f"{value} % {'above' if ratio > 1 else 'below'}" if float(value) else "the same as"


_AGAINST: Final = "mean JCT beside it, of the jobs that finished in both"
"""Meaning of the row that compares the columns."""


BEST: Final = "* "
_NEGLIGIBLE: Final = 1e-9
_NUMBER: Final = re.compile(r"\d[\d.,]*")
_MOST_NOTES: Final = 6
_Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """How much of a report is shown."""

    all_rows: bool = False
    explain: bool = False
    verbose: bool = False
    """Where every run comes from, and every note."""
    each_run: bool = False
    """A column for every run, without means over seeds and traces."""


SHORT: Final = Shown()


@dataclass(frozen=True, slots=True)
class _SummaryTable:
    """The beginning of a report."""

    answer: _Answer
    table: Section
    against: Section | None
    terms: Mapping[str, str]
    """What each row of the table means, by its title."""
    caveats: tuple[str, ...]
    """What the figures leave out, each once, with the columns that it is about."""

    def text(self, width: int | None = None) -> str:
        return "".join(paragraph(each, width) for each in self.answer.sentences)

    def terms_text(self, width: int | None = None) -> str:
        return terms_text(self.terms, width)


def summary(report: Report, shown: Shown = SHORT) -> _SummaryTable:
    columns = groups(report, each_run=shown.each_run)
    conclusion = answer(columns, report.reference, base_policy=report.base_policy)
    table = _Table(report, columns, conclusion, shown)
    rows = [*table.rows()]
    return _SummaryTable(
        conclusion,
        Section(_title(columns), ("", *(each.label for each in columns)), tuple(rows), 1, table.notes(rows)),
        _against(report, columns, conclusion)
        if shown.all_rows and (report.baseline or report.base_policy)
        else None,
        table.terms(),
        tuple(table.caveats()),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    report: Report
    columns: Sequence[Group]
    answer: _Answer
    shown: Shown

    def figures(self) -> dict[str, Metric]:
        """The rows shown."""
        rejects = any(each.metrics.jobs_rejected for each in self.report.runs)
        return {
            name: metric
            for name, metric in RUN_ROWS.items()
            if metric.reference in (None, self.report.reference)
            and (rejects or name != "drop_ratio")
            and (metric.is_short or self.shown.all_rows)
            and self._is_known(name)
        }

    def _is_known(self, name: str) -> bool:
        runs = self.report.runs
        return any(name in each.unknown or value_of(each.metrics, name) is not None for each in runs)

    def rows(self) -> Iterator[_Row]:
        done = [f"{each.jobs_finished:,} of {each.jobs_submitted:,}" for each in self.columns]
        parts = [each.jobs_finished / max(1, each.jobs_submitted) for each in self.columns]
        if self.shown.all_rows or min(parts) < 1:
            yield RUN_METRICS["jobs_finished"].title, *_marked(done, parts, max)
        yield from self._completed()
        for name, metric in self.figures().items():
            yield metric.title, *self._cells(name, metric)
            if name == "mean_jct_s" and any(self.answer.differences):
                yield self._against_title(), *map(_change, self.answer.differences)
                if any(difference and difference.low for difference in self.answer.differences):
                    yield "… 95 % interval", *map(_interval, self.answer.differences)

    def _against_title(self) -> str:
        bases = {base.label: base.runs[0].run.info.policy for base in self.answer.bases}
        policies = set(bases.values())
        name = next(iter(bases if len(bases) == 1 else policies), "")
        return f"… against {name}" if len(policies) == 1 else "… against the first of its trace"

    def _completed(self) -> Iterator[_Row]:
        """Sums over the runs of a column."""
        times = [time_s for time_s, _ in self.report.runs[0].metrics.jobs_completed_at]
        for at, time_s in enumerate(times):
            counts = (sum(run.metrics.jobs_completed_at[at][1] for run in each.runs) for each in self.columns)
            yield f"jobs finished by {span(time_s)}", *(f"{count:,}" for count in counts)

    def _of_same_traces(self) -> bool:
        traces = [{run.run.info.trace_hash for run in each.runs} for each in self.columns]
        return all(each == traces[0] for each in traces)

    def _cells(self, name: str, metric: Metric) -> list[str]:
        values = [each.value(name) for each in self.columns]
        cells = [self._cell(name, metric.kind, each) for each in self.columns]
        if metric.better is None or not self._of_same_traces():
            return cells
        fit = set(map(id, _comparable(self.columns)))
        known = [value if id(each) in fit else None for each, value in zip(self.columns, values, strict=True)]
        return _marked(cells, known, min if metric.better == "lower" else max)

    def _cell(self, name: str, kind: Kind | None, column: Group) -> str:
        estimate = column.estimate(name)
        if estimate is None:
            return NOTHING
        text = readable(estimate.mean, kind)
        if estimate.slack is not None:
            is_same = estimate.slack <= _NEGLIGIBLE * abs(estimate.mean)
            return text if is_same else f"{text} ± {readable_slack(estimate.slack, kind)}"
        base = self.report.baseline
        if not self.shown.all_rows or base is None or base in column.runs:
            return text
        ratio = ratio_to(column.runs[0].metrics, base.metrics, name)
        return text if ratio is None else f"{text} ({ratio_text(ratio)}×)"

    def terms(self) -> dict[str, str]:
        if not self.shown.explain:
            return {}
        finished = RUN_METRICS["jobs_finished"]
        meanings = {finished.title: finished.meaning}
        against = self._against_title()
        for name, metric in self.figures().items():
            meanings[metric.title] = metric.meaning
            if name == "mean_jct_s" and any(self.answer.differences):
                meanings[against] = _AGAINST
        return meanings

    def notes(self, rows: Sequence[_Row]) -> tuple[str, ...]:
        cells = [cell for row in rows for cell in row[1:]]
        notes = []
        if any(cell.startswith(BEST) for cell in cells):
            notes.append("*: the best of its row")
        units = {each.units_text() for each in self.columns if len(each.runs) > 1}
        if units:
            notes.append(f"means over {' or '.join(sorted(units))}; ±: half of the 95 % interval")
        if any("×)" in cell for cell in cells) and self.report.baseline is not None:
            notes.append(f"in brackets: relative to {self.report.baseline.label}")
        if self._compares_some():
            notes.append(f"{self._against_title().removeprefix('… ')}: over the jobs that finished in both")
        left_out = len(self.columns) - len(_comparable(self.columns))
        if left_out:
            notes.append("the best is sought among those that finished about as many jobs as any other")
        notes += self._dashes()
        said = [*self.caveats(), *self._warnings()]
        kept = said if self.shown.verbose else said[:_MOST_NOTES]
        more = [f"… and {len(said) - len(kept)} more notes with --verbose"] if len(said) > len(kept) else []
        origins = (
            [f"{each.label}: {each.provenance}" for each in self.report.runs] if self.shown.verbose else []
        )
        return (*notes, *kept, *more, *origins)

    def _compares_some(self) -> bool:
        """Whether a job that finished under one policy did not under another."""
        return any(self.answer.differences) and any(
            each.jobs_finished < each.jobs_submitted for each in self.columns
        )

    def _dashes(self) -> Iterator[str]:
        """What a dash means where there is one."""
        missing = [
            any(name in run.unknown for run in each.runs)
            for name in self.figures()
            for each in self.columns
            if each.value(name) is None
        ]
        if any(missing):
            yield f"{NOTHING}: cannot be computed, for the reason below"
        if not all(missing):
            other = "elsewhere it " if any(missing) else f"{NOTHING}: "
            yield f"{other}does not apply, such as a bound of a policy that promises none"

    def caveats(self) -> Iterator[str]:
        """Each once, with the columns that it is of; of all columns without them."""
        of: dict[str, list[str]] = {}
        for column in self.columns:
            alike: dict[str, list[str]] = {}
            for each in column.runs:
                for text in each.caveats:
                    alike.setdefault(_NUMBER.sub("#", text), []).append(text)
            for first, *others in alike.values():
                count = 1 + len(others)
                some = "" if count == len(column.runs) else f" ({count} of {len(column.runs)} runs)"
                text = first if set(others) <= {first} else f"{first} (other runs: other numbers)"
                of.setdefault(text, []).append(f"{column.label}{some}")
        names = [each.label for each in self.columns]
        for text, labels in of.items():
            yield text if labels == names else f"{', '.join(labels)}: {text}"

    def _warnings(self) -> Iterator[str]:
        means = any(len(each.runs) > 1 for each in self.columns) and self._of_same_traces()
        for text in self.report.warnings:
            if text != DIFFERENT_TRACES or not means:
                yield text


def _marked(cells: list[str], values: Sequence[float | None], choose: Callable[..., float]) -> list[str]:
    """The best values get a mark, if not all are alike."""
    known = [value for value in values if value is not None]
    if len(set(known)) < 2:
        return cells
    best = choose(known)
    return [BEST + cell if value == best else cell for cell, value in zip(cells, values, strict=True)]


def _change(difference: MeanRatio | None) -> str:
    """``−31 %``; from twice on ``3.1×``."""
    if difference is None:
        return ""
    return (
        f"{three_digits(difference.ratio)}×"
        if difference.ratio >= 2
        else f"{_signed(difference.ratio - 1)} %"
    )


def _interval(difference: MeanRatio | None) -> str:
    """``−35 to −27``, in the unit of the change."""
    if difference is None or difference.low is None or difference.high is None:
        return ""
    if difference.ratio >= 2:
        return f"{three_digits(difference.low)} to {three_digits(difference.high)}"
    values = (difference.low - 1, difference.high - 1)
    low, high = map(_signed_text, percents(*values), values)
    return f"{low} to {high}"


def _signed(value: float) -> str:
    (text,) = percents(value)
    return _signed_text(text, value)


def _signed_text(text: str, value: float) -> str:
    if not text.strip("0."):
        return text
    return f"{'+' if value > 0 else '−'}{text}"


def _against(report: Report, columns: Sequence[Group], conclusion: _Answer) -> Section | None:
    """Mean JCTs beside the baseline's, with intervals; of single runs Wilcoxon's test too."""
    base = conclusion.base
    known = [
        (each, other, d)
        for each, other, d in zip(columns, conclusion.bases, conclusion.differences, strict=True)
        if d is not None
    ]
    if base is None or not known:
        return None
    rows = []
    for each, other, change in known:
        paired = report.paired.get(each.runs[0].label) if len(each.runs) == 1 else None
        ps = (paired.two_sided, paired.greater, paired.less) if paired and report.paired else ()
        of = each.units_text() or (other.units_text() and counted(change.pairs, "value"))
        rows.append(
            (
                each.label,
                of or counted(change.pairs, "job"),
                _change(change),
                _interval(change),
                *(map(p_text, ps) if ps else [NOTHING] * 3),
            )
        )
    headers = ("", "over", "mean JCT", "95 % interval", "p, two-sided", "p, larger", "p, smaller")
    notes = ["over the jobs that finished in both; the interval knows that neighbours in a queue fare alike"]
    if report.paired:
        notes += [
            "p: Wilcoxon's signed-rank test of the same jobs, which does not; two-sided: near 0, they differ",
            f"larger, smaller: near 0, JCTs are larger or smaller than under {base.label}",
        ]
        title = f"Against {base.label}: mean JCTs and Wilcoxon's signed-rank tests"
        return Section(title, headers, tuple(rows), 2, tuple(notes))
    name = base.label if len({id(other) for _, other, _ in known}) == 1 else report.base_policy
    return Section(f"Against {name}", headers[:4], tuple(row[:4] for row in rows), 2, tuple(notes))


def _title(columns: Sequence[Group]) -> str:
    """What all columns have in common: ``160 jobs on 64 GPUs, simulated``."""
    runs = [each.run for column in columns for each in column.runs]
    parts = [
        {counted(len(run.jobs), "job") for run in runs},
        {counted(run.total_gpus, "GPU" if run.info.cluster.slots == "gpu" else "CPU slot") for run in runs},
        {"simulated" if run.info.simulated else "measured" for run in runs},
    ]
    jobs, gpus, kinds = (next(iter(values)) if len(values) == 1 else "" for values in parts)
    said = " on ".join(filter(None, (jobs, gpus)))
    done = all(each.jobs_finished == each.jobs_submitted for each in columns)
    return ", ".join(filter(None, (said, kinds, "all finished" if done else ""))) or "Runs"
