"""The answer of a report in a sentence or two that a reader can repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pliant.schemas.text import counted
from pliant.tools.report.fairness import Reference
from pliant.tools.report.groups import Group, jct_difference
from pliant.tools.report.intervals import Difference
from pliant.tools.report.rendering.readable import percents, span, three_digits

_WORST: Final[dict[Reference, tuple[str, str]]] = {
    "fair-share": ("worst_ftf", "its fair share"),
    "gps": ("worst_ftf_gps", "its time in GPS"),
    "isolated": ("worst_ftf_isolated", "its time alone on its share"),
}
COMPARABLE: Final = 0.99
"""A run that finished a smaller part than this of what another finished is never called the best."""
_MOST_TOLD: Final = 6
_FACTOR: Final = 2.0
"""From this on a mean is told in times of the other, not in percent above it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said first, and what it rests on."""

    sentences: tuple[str, ...]
    base: Group | None = None
    """What the others are compared with: the baseline, else the first that was named."""
    differences: tuple[Difference | None, ...] = ()
    """Of each group's mean JCT from that of ``base``, in the order of the groups; null: not compared."""


def answer(columns: Sequence[Group], reference: Reference = "fair-share") -> Answer:
    """:param columns: the baseline first."""
    if not columns:
        return Answer(("nothing to report",))
    base = columns[0]
    found = tuple(None if each is base else jct_difference(each, base) for each in columns)
    compared = [each for each, known in zip(columns, found, strict=True) if known is not None]
    if not compared:
        told = [_sentence(each, None, None, reference) for each in columns[:_MOST_TOLD]]
        more = len(columns) - len(told)
        rest = [f"… and {counted(more, 'more run')} in the table."] if more else []
        return Answer((*told, *rest), base, found)
    best, *others = ranked([base, *compared])
    other = others[0] if best is base and others else base
    of_best = jct_difference(best, other)
    sentences = [_sentence(best, other, of_best, reference)]
    beside = [each for each in others if each is not other]
    alike = [each.label for each in beside if (d := jct_difference(best, each)) and d.low and not d.is_known]
    if alike:
        sentences.append(f"No difference from {best.label} that can be told: {', '.join(alike)}.")
    return Answer(tuple(sentences), base, found)


def ranked(columns: Sequence[Group]) -> list[Group]:
    """By mean JCT; those that finished markedly fewer jobs come last."""
    fit = set(map(id, comparable(columns)))
    inf = float("inf")
    jcts = [each.value("mean_jct_s") for each in columns]
    order = [
        (id(each) not in fit, inf if jct is None else jct, at)
        for at, (each, jct) in enumerate(zip(columns, jcts, strict=True))
    ]
    return [columns[at] for _, _, at in sorted(order)]


def comparable(columns: Sequence[Group]) -> list[Group]:
    """Those that finished about as large a part of their jobs as any other."""
    parts = [each.jobs_finished / max(1, each.jobs_submitted) for each in columns]
    most = max(parts, default=0.0)
    return [each for each, part in zip(columns, parts, strict=True) if part >= COMPARABLE * most]


def _sentence(each: Group, other: Group | None, found: Difference | None, reference: Reference) -> str:
    jct_s = each.value("mean_jct_s")
    if not each.jobs_submitted:
        return f"{each.label}: no job was submitted, so there is nothing to report."
    if jct_s is None:
        return f"{each.label}: none of {counted(each.jobs_submitted, 'job')} finished."
    parts = [f"{each.label}: mean JCT {span(jct_s)}"]
    if each.jobs_finished < each.jobs_submitted:
        parts[0] += f" ({each.jobs_finished:,} of {counted(each.jobs_submitted, 'job')} finished)"
    if found is not None and other is not None:
        parts.append(difference_text(found, other, each))
    name, fair = _WORST[reference]
    worst = each.value(name)
    if worst is not None:
        on_average = " on average" if len(each.runs) > 1 else ""
        parts.append(f"worst-off job {three_digits(worst)} times {fair}{on_average}")
    return f"{', '.join(parts)}."


def difference_text(found: Difference, other: Group, each: Group) -> str:
    """``31 % below fifo (95 % interval 27 to 35 %)``."""
    units = each.units_text() or other.units_text()
    name, over = other.label, f" over {units}" if units else ""
    if not units and found.pairs < max(each.jobs_finished, other.jobs_finished):
        name += f" over the {counted(found.pairs, 'job')} that finished in both"
    if found.low is None or found.high is None:
        what = counted(found.pairs, "pair of means" if units else "job")
        return f"{_side(found.ratio)} {name} ({what}: too few for an interval)"
    if found.low == found.high == 1:
        return f"as under {name}"
    if not found.is_known:
        return f"no difference from {name} that can be told (95 % interval {_around(found)}{over})"
    if found.ratio >= _FACTOR:
        factor, low, high = map(three_digits, (found.ratio, found.low, found.high))
        return f"{factor} times that of {name} (95 % interval {low} to {high}{over})"
    value, *ends = percents(found.ratio - 1, found.low - 1, found.high - 1)
    low, high = ends if found.ratio > 1 else reversed(ends)
    where = "above" if found.ratio > 1 else "below"
    return f"{value} % {where} {name} (95 % interval {low} to {high} %{over})"


def _around(found: Difference) -> str:
    low, high = found.low or 1.0, found.high or 1.0
    if high >= 1 + _FACTOR:
        return f"{three_digits(low)} to {three_digits(high)} times"
    below, above = percents(low - 1, high - 1)
    return f"{below} % below to {above} % above"


def _side(ratio: float) -> str:
    if ratio >= _FACTOR:
        return f"{three_digits(ratio)} times that of"
    (value,) = percents(ratio - 1)
    return f"{value} % {'above' if ratio > 1 else 'below'}" if float(value) else "the same as"
