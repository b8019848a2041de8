"""What the page says: tables made from the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from experiments.harness.spec import Findings
from experiments.shadow_price.beside import beside, rivals_elsewhere
from experiments.shadow_price.live import RECORD
from experiments.shadow_price.matrix import GROUPS, LOADS, LONG, PARAMETERS, RIVALS, SHORT, matrix
from experiments.shadow_price.rows import Rows
from experiments.shadow_price.runs import OURS
from pliant.tools.report.rendering.markdown import markdown_table

WORDS: Final = {
    "w6": "Pollux 6",
    "w1": "Pollux 1",
    "philly1": "Philly",
    "saturn1": "Saturn",
    LONG: "newTrace",
}
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
_BATCHES: Final = {"policies": "batches free", "fixed": "batches fixed", "in-place": "changes in place"}
_FIELDS: Final = ("unfair_fraction", "worst_ftf", "makespan_s", "rescales_per_job")


def facts(found: Findings) -> Mapping[str, Any]:
    """All tables, and the figures of the text."""
    rows = Rows(found)
    return {
        "policies": _policies(rows, "policies", SHORT, "free"),
        "fixed": _policies(rows, "fixed", SHORT, "fixed"),
        "long": _policies(rows, "policies", (LONG,), "free"),
        "in_place": _policies(rows, "in-place", SHORT, "free"),
        "bounds": _bounds(rows),
        "estimates": _estimates(rows),
        "loads": _loads(rows),
        "samples": _samples(rows),
        "parameters": _parameters(rows),
        "ablations": _ablations(rows),
        "beside": beside(rows),
        "ran": _ran(rows),
        "losses": list(losses(rows)),
        "lost": _lost(rows),
        "gain": lambda group, policy: _gain(rows, group, policy),
        "best_of": lambda group: next(name for name in rows.policies(group) if name != OURS),
        "over_bound": lambda batch: _over_bound(rows, batch),
        "percent": lambda part: f"{100 * part:.0f} %",
        "count": sum(1 for row in found["rows"].values() if "trace_hash" in row),
        "live": json.loads(RECORD.read_bytes()) if RECORD.exists() else [],
        "live_table": _live,
        "wins": wins(rows),
        "headline": headline(rows),
    }


def headline(rows: Rows) -> str:
    """What the README says: ours against the next best policy and the bound, on the workloads of 160 jobs."""
    best = next(name for name in rows.policies("policies") if name != OURS)
    ratios = dict(rows.ratios("mean_jct_s", "policies", best))
    gains = [1 - 1 / ratios[trace] for trace in SHORT if trace in ratios]
    over = _over_bound(rows, "free", SHORT)
    return (
        f"On four published workloads its mean JCT is {100 * min(gains):.0f} to {100 * max(gains):.0f} % "
        f"below that of `{best}`, the next best policy, and {min(over):.2f} to {max(over):.2f} times a bound "
        "that no schedule can beat"
    )


def losses(rows: Rows) -> Iterator[str]:
    """Every comparison in which another policy has the smaller mean JCT."""
    for group, trace, policy, part in rows.ahead(("policies", "fixed", "in-place", "load")):
        yield f"{WORDS.get(trace, trace)} ({group}): `{policy}` by {100 * part:.1f} %"
    for world, policy, part in rivals_elsewhere(rows):
        if part > 0:
            yield f"{world}: `{policy}` by {100 * part:.1f} %"


def _lost(rows: Rows) -> str:
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
        for (group, trace), (part, policy) in best.items():
            body.append((name, WORDS[trace], _BATCHES[group], f"`{policy}`", f"{100 * part:.0f} %"))
    return markdown_table(("figure", "workload", "", "ahead", "by"), body) if body else ""


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


def _gain(rows: Rows, group: str, policy: str) -> float:
    """1 - the mean JCT of ours / theirs, the geometric mean over the traces."""
    ratio = rows.over_ours("mean_jct_s", group, policy)
    return 0.0 if ratio is None else 1 - 1 / ratio


def _over_bound(rows: Rows, batch: str, traces: Sequence[str] = (*SHORT, LONG)) -> list[float]:
    """Ours over the bound by trace."""
    group = "policies" if batch == "free" else "fixed"
    found = []
    for trace in traces:
        bound_s = rows.bound_s(trace, batch)
        ours = rows.figure("mean_jct_s", group, trace=trace, policy=OURS)
        if bound_s and ours:
            found.append(ours / bound_s)
    return found


def _policies(rows: Rows, group: str, traces: Sequence[str], batch: str) -> str:
    """All policies of a group, the best first."""
    here = [trace for trace in traces if rows.of(group, trace=trace)]
    head = (
        "mean JCT, s",
        *(WORDS[trace] for trace in here),
        *("over ours", "unfair, %", "worst FTF", "makespan over ours", "changes a job"),
    )
    body = []
    for policy in rows.policies(group):
        jcts = [rows.figure("mean_jct_s", group, trace=trace, policy=policy) for trace in here]
        if all(each is None for each in jcts):
            continue
        unfair, worst, _, changes = (
            [rows.figure(field, group, trace=trace, policy=policy) for trace in here] for field in _FIELDS
        )
        over = [ratio for trace, ratio in rows.ratios("mean_jct_s", group, policy) if trace in here]
        spans = [ratio for trace, ratio in rows.ratios("makespan_s", group, policy) if trace in here]
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
    return markdown_table(head, body) if body else ""


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
    head = ("", "load", *(f"`{name}`" for name in RIVALS), "bound", "ours over the bound")
    body = []
    for trace in rows.traces("load"):
        for load in LOADS:
            jcts = [
                rows.figure("mean_jct_s", "load", trace=trace, variant=f"{load:g}", policy=name)
                for name in RIVALS
            ]
            if jcts[0] is None:
                continue
            bound_s = rows.bound_s(trace, load=load)
            over = "" if bound_s is None else f"{jcts[0] / bound_s:.2f}"
            body.append((WORDS[trace], f"{load:g}", *map(_whole, jcts), _whole(bound_s), over))
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
        body.append((WORDS[trace], str(len(ours)), *cells))
    return markdown_table(head, body) if body else ""


def _parameters(rows: Rows) -> str:
    traces = rows.traces("parameters")
    head = ("", *(f"{WORDS[trace]}, s" for trace in traces), "against the default", "makespan", "unfair, %")
    body = []
    variants = [f"{name} {value:g}" for name, values in PARAMETERS.items() for value in values]
    for variant in (*variants, "grace none", "retune paid"):
        found = rows.of("parameters", variant=variant)
        if not found:
            continue
        by_trace = {row["trace"]: row for row in found}
        usual = {trace: rows.figure("mean_jct_s", "policies", trace=trace, policy=OURS) for trace in traces}
        spans = {trace: rows.figure("makespan_s", "policies", trace=trace, policy=OURS) for trace in traces}
        change = fmean(by_trace[trace]["mean_jct_s"] / (usual[trace] or 1) for trace in by_trace) - 1
        span = fmean(by_trace[trace]["makespan_s"] / (spans[trace] or 1) for trace in by_trace) - 1
        unfair = fmean(row["unfair_fraction"] for row in found)
        jcts = (_whole(by_trace[trace]["mean_jct_s"] if trace in by_trace else None) for trace in traces)
        body.append(
            (f"`{variant}`", *jcts, f"{100 * change:+.1f} %", f"{100 * span:+.1f} %", f"{100 * unfair:.0f}")
        )
    return markdown_table(head, body) if body else ""


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
        body.append((words, *cells))
    return markdown_table(head, body) if body else ""


def _ran(rows: Rows) -> str:
    """How much of each group was replayed."""
    body = []
    for group in GROUPS:
        wanted = {each.name for each in matrix(group)}
        body.append((group, f"{len(wanted & set(rows.found['rows']))} of {len(wanted)}"))
    return markdown_table(("group", "replays"), body)


def _live(row: Mapping[str, Any]) -> str:
    """Measured beside simulated, of one run."""
    words = {
        "completed": "jobs completed, mean over the run",
        "sjs": "SJS efficiency",
        "jct": "mean JCT, s",
        "makespan_s": "makespan, s",
        "rescales_per_job": "changes of size a job",
    }
    body = []
    for each in row["figures"]:
        live, simulated = each["live"], each["simulated"]
        apart = "" if not live else f"{100 * (simulated / live - 1):+.1f} %"
        body.append((words[each["name"]], f"{live:.3g}", f"{simulated:.3g}", apart))
    return markdown_table(("", "measured", "simulated", "difference"), body)


def _whole(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f}"


def _mean(values: Sequence[float | None]) -> float:
    return fmean(value for value in values if value is not None)


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{fmean(values):,.0f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):,.0f} to {max(values):,.0f})"
