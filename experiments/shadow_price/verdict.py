"""What the tables come to: where ours is the best, and where it loses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from experiments.shadow_price.beside import rivals_elsewhere
from experiments.shadow_price.matrix import LONG, SHORT
from experiments.shadow_price.rows import Rows
from experiments.shadow_price.runs import OURS
from pliant.tools.report.rendering.text import markdown_table

WORDS: Final = {
    "w6": "Pollux 6",
    "w1": "Pollux 1",
    "philly1": "Philly",
    "saturn1": "Saturn",
    LONG: "newTrace",
}
_BATCHES: Final = {"policies": "batches free", "fixed": "batches fixed", "in-place": "changes in place"}


def headline(rows: Rows) -> str:
    """What the README says: ours against the best rival of each workload of 160 jobs, and the bound."""
    gains = []
    for trace in SHORT:
        jcts = {row["policy"]: row["mean_jct_s"] for row in rows.of("policies", trace=trace)}
        gains.append(1 - jcts.pop(OURS) / min(jcts.values()))
    over = _over_bound(rows)
    return (
        f"On four published workloads its mean JCT is {100 * min(gains):.0f} to {100 * max(gains):.0f} % "
        f"below that of the next best policy of each, and {min(over):.2f} to {max(over):.2f} times a bound "
        "that no schedule can beat"
    )


def losses(rows: Rows) -> Iterator[str]:
    """Every comparison in which another policy has the smaller mean JCT."""
    for group, trace, policy, part in rows.ahead(("policies", "fixed", "in-place", "load")):
        yield f"{WORDS.get(trace, trace)} ({group}): `{policy}` by {100 * part:.1f} %"
    for world, policy, part in rivals_elsewhere(rows):
        if part > 0:
            yield f"{world}: `{policy}` by {100 * part:.1f} %"


def lost(rows: Rows) -> str:
    """In which other figures another policy is ahead, and the best of these, by workload."""
    words = {
        "p99_jct_s": "99th percentile of the JCT",
        "unfair_fraction": "unfair fraction",
        "worst_ftf": "worst FTF",
        "makespan_s": "makespan",
    }
    body = []
    for field, name in words.items():
        best: dict[tuple[str, str], tuple[float, str]] = {}
        for group, trace, policy, part in rows.ahead(("policies", "fixed", "in-place"), field):
            best[group, trace] = max(best.get((group, trace), (0.0, "")), (part, policy))
        for group in _BATCHES:
            found = [(WORDS[trace], *each) for (where, trace), each in best.items() if where == group]
            if found:
                cells = (f"{trace}: `{policy}` by {100 * part:.0f} %" for trace, part, policy in found)
                body.append((name, _BATCHES[group], "; ".join(cells)))
    return markdown_table(("figure", "", "who is ahead"), body) if body else ""


def wins(rows: Rows) -> dict[str, tuple[int, int]]:
    """In how many (group, trace) ours is the best of all in a figure, and of how many."""
    found = {}
    groups = ("policies", "fixed", "in-place")
    pairs = [(group, trace) for group in groups for trace in rows.traces(group) if trace in SHORT]
    for field in ("mean_jct_s", "p99_jct_s", "unfair_fraction", "worst_ftf", "makespan_s"):
        best = 0
        for group, trace in pairs:
            names = {row["policy"] for row in rows.of(group, trace=trace)}
            values = {name: rows.figure(field, group, trace=trace, policy=name) for name in names}
            ours = values[OURS]
            best += ours is not None and all(value is None or value >= ours for value in values.values())
        found[field] = (best, len(pairs))
    return found


def _over_bound(rows: Rows) -> list[float]:
    """Ours over the bound by workload of 160 jobs, batches free."""
    found = []
    for trace in SHORT:
        bound_s = rows.bound_s(trace)
        ours = rows.figure("mean_jct_s", "policies", trace=trace, policy=OURS)
        if bound_s and ours:
            found.append(ours / bound_s)
    return found
