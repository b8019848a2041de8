"""What the page says: tables made from the results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from experiments.harness.spec import Findings
from experiments.shadow_price.beside import beside
from experiments.shadow_price.elsewhere import ELSEWHERE
from experiments.shadow_price.live import RECORD
from experiments.shadow_price.matrix import GRACES, GROUPS, LONG, PARAMETERS, RIVALS, SHORT, matrix
from experiments.shadow_price.rows import Rows
from experiments.shadow_price.runs import OURS
from experiments.shadow_price.verdict import WORDS, headline, losses, lost, wins
from pliant.tools.report.rendering.text import markdown_table
from pliant.tools.schedule.registry import describe, policy_names

_PARTS: Final = {
    "whole": "as it is",
    "speedups": "the largest sum of normalised speeds instead of prices",
    "completions": "the largest rate of completions (Σ g / R) instead of prices",
    "equal": "every job's progress has the same price for a GPU-second",
    "lambda-g": "λ G instead of μ G",
    "arrival": "the order of arrival instead of the shortest first",
    "history": "nothing is learnt from other jobs of a model",
    "places": "the engine places the jobs",
}
_SWEPT: Final = tuple(f"{name} {value:g}" for name, values in PARAMETERS.items() for value in values)
_GRACES: Final = tuple(f"{name} {value:g}" for name, values in GRACES.items() for value in values)
_FIELDS: Final = ("unfair_fraction", "worst_ftf", "makespan_s", "rescales_per_job")
_ERRORS: Final = {
    "nothing": "nothing is wrong",
    "speed": "speeds, by 0.5 to 2 for each job",
    "speed_by_size": "speeds, by 0.5 to 2 for each job and size",
    "noise": "the noise scale, by 0.25 to 4",
    "work": "the work, stated 1 to 100 times too high",
    "stalls": "one job in ten trains at a fiftieth of its speed from half of its work on",
    "costs": "a change costs 300 s instead of 30",
}
_PLACES: Final = {
    "any": "prices alone, every job where it is fastest",
    "compact": "prices alone, on as few nodes as possible",
}
_COSTS: Final = {
    "_changes_free_each_15_s": "`shadow-price`, changes free, decisions each 15 s",
    "_changes_free": "`shadow-price`, changes free, each 60 s",
}
_FAR: Final = 2.0
"""Beyond this many times our mean JCT a policy has no row of its own, where there are several traces."""


def facts(found: Findings) -> Mapping[str, Any]:
    """All tables, and the figures of the text."""
    rows = Rows(found)
    return {
        "policies": _policies(rows, "policies", SHORT, "free"),
        "fixed": _policies(rows, "fixed", SHORT, "fixed"),
        "long": _policies(rows, "policies", (LONG,), "free"),
        "in_place": _policies(rows, "in-place", SHORT, "free"),
        "bounds": _bounds(rows),
        "gap": _gap(),
        "types": _types(),
        "types_sampled": _types_sampled(),
        "steps": _steps(rows),
        "mistaken": _mistaken(),
        "estimates": _estimates(rows),
        "loads": _loads(rows),
        "rivals": ", ".join(f"`{name}`" for name in RIVALS[1:]),
        "samples": _samples(rows),
        "parameters": _parameters(rows, "parameters", "policies", (*_SWEPT, "retune paid")),
        "defaults": _defaults(PARAMETERS),
        "graces": _parameters(rows, "grace", "fixed", (*_GRACES, "grace none")),
        "grace_defaults": _defaults(GRACES),
        "absent": ", ".join(f"`{name}`" for name in policy_names() if not rows.of("policies", policy=name)),
        "ablations": _ablations(rows),
        "beside": beside(rows),
        "ran": _ran(rows),
        "losses": list(losses(rows)),
        "lost": lost(rows),
        "count": _count(rows),
        "live": json.loads(RECORD.read_bytes()) if RECORD.exists() else [],
        "live_table": _live,
        "wins": wins(rows),
        "headline": headline(rows),
    }


def _policies(rows: Rows, group: str, traces: Sequence[str], batch: str) -> str:
    """All policies of a group, the best first."""
    here = [trace for trace in traces if rows.of(group, trace=trace)]
    head = (
        "mean JCT, s",
        *(WORDS[trace] for trace in here),
        *("over ours", "unfair, %", "worst FTF", "makespan over ours", "changes a job"),
    )
    body, behind = [], []
    for policy in rows.policies(group):
        jcts = [rows.figure("mean_jct_s", group, trace=trace, policy=policy) for trace in here]
        if all(each is None for each in jcts):
            continue
        unfair, worst, _, changes = (
            [rows.figure(field, group, trace=trace, policy=policy) for trace in here] for field in _FIELDS
        )
        over = [ratio for trace, ratio in rows.ratios("mean_jct_s", group, policy) if trace in here]
        spans = [ratio for trace, ratio in rows.ratios("makespan_s", group, policy) if trace in here]
        if len(here) > 1 and fmean(over) > _FAR:
            behind.append(f"`{policy}` {fmean(over):.2f}")
            continue
        body.append(
            (
                f"`{policy}`",
                *map(_whole, jcts),
                f"{fmean(over):.2f}",
                f"{100 * _mean(unfair):.0f}",
                f"{max(each for each in worst if each is not None):.1f}",
                f"{fmean(spans):.2f}",
                f"{_mean(changes):.1f}",
            )
        )
    bounds = [rows.bound_s(trace, batch) for trace in here]
    if any(bounds):
        body.append(("lower bound", *map(_whole, bounds), "", "", "", "", ""))
    if not body:
        return ""
    more = f"\n\nFurther behind (mean JCT over ours): {', '.join(behind)}." if behind else ""
    return markdown_table(head, body) + more


def _bounds(rows: Rows) -> str:
    head = (
        "",
        "batch",
        "each alone, s",
        "dual bound, s",
        "`shadow-price`, s",
        "over the bound",
        "next best over the bound",
    )
    body = []
    for trace in (*SHORT, LONG):
        for batch, group in (("free", "policies"), ("fixed", "fixed")):
            bound_s = rows.bound_s(trace, batch)
            ours = rows.figure("mean_jct_s", group, trace=trace, policy=OURS)
            if bound_s is None or ours is None:
                continue
            alone_s = rows.figure("alone_s", "bounds", trace=trace, variant=batch, load=1.0)
            others = {
                row["policy"]: row["mean_jct_s"]
                for row in rows.of(group, trace=trace)
                if row["policy"] != OURS
            }
            best = min(others, key=lambda name: others[name])
            cells = (_whole(alone_s), _whole(bound_s), _whole(ours), f"{ours / bound_s:.2f}")
            body.append((WORDS[trace], batch, *cells, f"{others[best] / bound_s:.2f} (`{best}`)"))
    return markdown_table(head, body) if body else ""


def _measured() -> dict[str, float | None]:
    """The rows of the benchmark shadow_price."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "shadow_price.json"
    return {row["name"]: row["value"] for row in json.loads(path.read_bytes())}


def _mistaken() -> str:
    """Our mean JCT over the best other's where what all are told is wrong."""
    values, traces = _measured(), ("w6", "philly1")
    body = [
        (words, *("" if value is None else f"{value:.2f}" for value in found))
        for error, words in _ERRORS.items()
        if any(found := [values.get(f"sp_robust_{error}_{trace}") for trace in traces])
    ]
    head = ("mean JCT over that of the best other", *(WORDS[trace] for trace in traces))
    return markdown_table(head, body) if body else ""


def _types() -> str:
    """Ours on several GPU types over others, by trace of Sia."""
    values = _measured()
    ratios = ("over_sia", "p99_over_best", "makespan_over_best")
    body = [
        (trace, *("" if value is None else f"{value:.2f}" for value in found))
        for trace in ("philly", "saturn", "newtrace")
        if any(found := [values.get(f"sp_sia_mixed_{trace}_{ratio}") for ratio in ratios])
    ]
    head = ("", "mean JCT over `sia`", "99th percentile over the best", "makespan over the best")
    return markdown_table(head, body) if body else ""


def _types_sampled() -> str:
    """The same over many samples of the traces, as a sentence; empty if it was not measured."""
    values = _measured()
    names = ["sp_sia_mixed_samples_mean_jct_over_sia", "sp_sia_mixed_samples_makespan_over_sia"]
    each = [(values.get(name), values.get(f"{name}_error")) for name in names]
    known = [f"{mean:.3f} ± {error:.3f}" for mean, error in each if mean is not None and error is not None]
    if len(known) < len(each):
        return ""
    return f"over samples of philly and saturn, mean JCT is {known[0]} and the makespan {known[1]} of `sia`'s"


def _gap() -> str:
    """What is left over the bound without costs, over the workloads; empty if it was not measured."""
    values = _measured()
    each = [
        [values.get(f"sp_over_lower_bound_free_{name}{kind}") for name in SHORT]
        for kind in ("", "_changes_free", "_changes_free_each_15_s")
    ]
    if any(value is None for ratios in each for value in ratios):
        return ""
    whole, changes = (sum(each[0]) - len(SHORT), sum(each[0]) - sum(each[1]))
    usual, free, often = (f"{min(ratios):.2f} to {max(ratios):.2f}" for ratios in each)
    return (
        f"{100 * changes / whole:.0f} % of it is what changes cost: with batches free, mean JCT is {usual} "
        f"of the bound, {free} where changes are free, "
        f"and {often} where decisions also come each 15 s instead of each minute"
    )


def _steps(rows: Rows) -> str:
    """Over the bound, from schedules that pay for nothing to what is replayed."""
    values, body = _measured(), []
    for batch, group in (("free", "policies"), ("fixed", "fixed")):
        bounds = [rows.bound_s(trace, batch) for trace in SHORT]
        found: dict[str, list[float | None]] = {
            words: [
                _over(rows.figure("mean_jct_s", "fluid", trace=trace, variant=batch, places=places), bound)
                for trace, bound in zip(SHORT, bounds, strict=True)
            ]
            for places, words in _PLACES.items()
        }
        for kind, words in _COSTS.items():
            found[words] = [values.get(f"sp_over_lower_bound_{batch}_{trace}{kind}") for trace in SHORT]
        ours = (rows.figure("mean_jct_s", group, trace=trace, policy=OURS) for trace in SHORT)
        found["as it is"] = [_over(one, bound) for one, bound in zip(ours, bounds, strict=True)]
        body += [
            (batch, words, *("" if one is None else f"{one:.2f}" for one in each))
            for words, each in found.items()
            if any(each)
        ]
    head = ("batch", "mean JCT over the bound", *(WORDS[trace] for trace in SHORT))
    return markdown_table(head, body) if rows.of("fluid") else ""


def _over(ours_s: float | None, bound_s: float | None) -> float | None:
    return None if ours_s is None or bound_s is None else ours_s / bound_s


def _estimates(rows: Rows) -> str:
    traces = rows.traces("estimates")
    head = ("mean JCT, s", "work", *(WORDS[trace] for trace in traces), "seeds", "unfair, %", "worst FTF")
    variants = dict.fromkeys((row["policy"], row["variant"]) for row in rows.of("estimates"))
    body = []
    for policy, variant in sorted(variants, key=lambda each: (each[0], each[1])):
        wanted = {"policy": policy, "variant": variant}
        cells = [
            _range([row["mean_jct_s"] for row in rows.of("estimates", trace=trace, **wanted)])
            for trace in traces
        ]
        found = rows.of("estimates", **wanted)
        unfair = fmean(row["unfair_fraction"] for row in found)
        worst = max(row["worst_ftf"] for row in found)
        seeds = len({row["seed"] for row in found})
        body.append((f"`{policy}`", variant, *cells, str(seeds), f"{100 * unfair:.0f}", f"{worst:.1f}"))
    return markdown_table(head, body) if body else ""


def _loads(rows: Rows) -> str:
    """Ours and the best of the others at three loads; the figures have all."""
    head = ("", "load", f"`{OURS}`, s", "next best, s", "bound, s", "ours over the bound")
    body = []
    for trace in rows.traces("load"):
        for load in (0.5, 1.0, 2.0):
            jcts = {
                name: jct_s
                for name in RIVALS
                if (jct_s := rows.figure("mean_jct_s", "load", trace=trace, variant=f"{load:g}", policy=name))
            }
            ours = jcts.pop(OURS, None)
            if ours is None or not jcts:
                continue
            best = min(jcts, key=lambda name: jcts[name])
            bound_s = rows.bound_s(trace, load=load)
            over = "" if bound_s is None else f"{ours / bound_s:.2f}"
            nearest = f"{_whole(jcts[best])} (`{best}`)"
            body.append((WORDS[trace], f"{load:g}", _whole(ours), nearest, _whole(bound_s), over))
    return markdown_table(head, body) if body else ""


def _samples(rows: Rows) -> str:
    """Other policies over ours on samples drawn from a trace: mean, least and largest."""
    head = ("mean JCT over ours", "samples", *(f"`{name}`" for name in RIVALS[1:]))
    body = []
    for trace in rows.traces("samples"):
        ours = {row["sample"]: row["mean_jct_s"] for row in rows.of("samples", trace=trace, policy=OURS)}
        cells = []
        for name in RIVALS[1:]:
            theirs = rows.of("samples", trace=trace, policy=name)
            ratios = [row["mean_jct_s"] / ours[row["sample"]] for row in theirs if row["sample"] in ours]
            cells.append(f"{fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "")
        if any(cells):
            body.append((WORDS[trace], str(len(ours)), *cells))
    return markdown_table(head, body) if body else ""


def _defaults(names: Iterable[str]) -> str:
    """Parameters and their defaults, as the class has them."""
    known = {each.name: json.loads(each.default) for each in describe(OURS).parameters}
    return ", ".join(f"`{name}` {known[name]:g}" for name in names)


def _parameters(rows: Rows, group: str, usual_group: str, variants: Iterable[str]) -> str:
    """Mean JCT and makespan of variants against the replays with all defaults, a row for each parameter."""
    traces = rows.traces(group)
    fields = ("mean_jct_s", "makespan_s")
    usual = {
        (field, trace): rows.figure(field, usual_group, trace=trace, policy=OURS) or 1
        for field in fields
        for trace in traces
    }
    cells: dict[str, tuple[list[str], ...]] = {}
    for variant in variants:
        found = rows.of(group, variant=variant)
        if not found:
            continue
        name, value = variant.rsplit(" ", 1)
        for field, words in zip(fields, cells.setdefault(name, ([], [])), strict=True):
            change = fmean(row[field] / usual[field, row["trace"]] for row in found) - 1
            words.append(f"{value}: {100 * change:+.1f}")
    body = [(f"`{name}`", *(", ".join(words) for words in each)) for name, each in cells.items()]
    return markdown_table(("", "mean JCT, %", "makespan, %"), body) if body else ""


def _ablations(rows: Rows) -> str:
    traces = rows.traces("ablations")
    head = ("", *(f"{WORDS[trace]}, batch {batch}, s" for trace in traces for batch in ("free", "fixed")))
    body = []
    for name, words in _PARTS.items():
        cells = []
        for trace in traces:
            for batch in ("free", "fixed"):
                jct_s, whole_s = (
                    rows.figure("mean_jct_s", "ablations", trace=trace, variant=f"{batch}, {each}")
                    for each in (name, "whole")
                )
                known = jct_s is not None and whole_s is not None
                more = f" ({100 * (jct_s / whole_s - 1):+.0f} %)" if known and name != "whole" else ""  # type: ignore[operator]
                cells.append(_whole(jct_s) + more)
        if any(cells):
            body.append((words, *cells))
    return markdown_table(head, body) if body else ""


def _count(rows: Rows) -> int:
    """Replays in the results that the recipe asks for, those in the worlds of others included."""
    wanted = {each.name for group in GROUPS for each in matrix(group)}
    return len(wanted & set(rows.found["rows"])) + sum(len(rows.of(group)) for group in ELSEWHERE)


def _ran(rows: Rows) -> str:
    """The groups of which not all was replayed."""
    found = []
    for group in GROUPS:
        wanted = {each.name for each in matrix(group)}
        done = len(wanted & set(rows.found["rows"]))
        if done < len(wanted):
            found.append(f"`{group}` ({done} of {len(wanted)})")
    return ", ".join(found)


def _live(runs: Sequence[Mapping[str, Any]]) -> str:
    """Measured beside simulated: a row for each figure, columns for each run."""
    words = {
        "completed": "jobs completed, mean over the run",
        "sjs": "SJS efficiency",
        "jct": "mean JCT, s",
        "makespan_s": "makespan, s",
        "rescales_per_job": "changes of size a job",
    }
    body: dict[str, list[str]] = {}
    for run in runs:
        for each in run["figures"]:
            live, simulated = each["live"], each["simulated"]
            apart = "" if not live else f" ({100 * (simulated / live - 1):+.1f} %)"
            body.setdefault(words[each["name"]], []).append(f"{live:.3g}, {simulated:.3g}{apart}")
    head = ("measured, simulated", *(f"{run['jobs']} jobs" for run in runs))
    return markdown_table(head, [(name, *cells) for name, cells in body.items()])


def _whole(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f}"


def _mean(values: Sequence[float | None]) -> float:
    return fmean(value for value in values if value is not None)


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{fmean(values):,.0f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):,.0f} to {max(values):,.0f})"
