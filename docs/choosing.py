"""The page for operators: which policy to choose, from what the comparison on Ares's workloads measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

from experiments.ares.experiment import EXPERIMENT
from experiments.ares.facts import CHOICES, alpha_name, best_alpha, mean_of, relative_jct
from experiments.ares.traces import FAMILIES
from experiments.ares.workloads import BASE, RECORDED, RECORDS, SAMPLES, stem
from experiments.harness.page import Results
from experiments.harness.spec import Replays
from experiments.shadow_price.measure import RESULTS
from experiments.shadow_price.runs import OURS
from pliant.tools.report.rendering.text import markdown_table
from pliant.tools.schedule.registry import describe

_WORLDS: Final = {BASE: "large", RECORDS: "small"}

_TEMPLATE: Final = Path(__file__).with_name("choosing-a-policy.md.j2")


def choosing_page() -> str:
    """The page, its numbers from the committed results."""
    replays = Results.read(EXPERIMENT.results).replays
    environment = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701 - Markdown
    template = environment.from_string(_TEMPLATE.read_text())
    return template.render(samples=SAMPLES, **_facts(replays)) + "\n"


def _facts(replays: Replays) -> Mapping[str, Any]:
    ours = _ours(replays)
    found: dict[str, Any] = {
        "table": _table(replays, ours),
        "few": len(RECORDED["newtrace"]),
        "ours": ours,
        "pollux_first": f"{_on_first(replays, 'newtrace', 'pollux'):.2f}",
    }
    for world, size in ((BASE, "large"), (RECORDS, "small")):
        best = best_alpha(replays, stem(world, "newtrace"))
        ratio = relative_jct(replays, stem(world, "newtrace"), alpha_name(best))
        found |= {f"alpha_{size}": f"{best:g}", f"best_{size}": f"{ratio:.2f}"}
    return found | {"fair_changes_philly": _changes(replays, "fair-share", "philly")}


def _changes(replays: Replays, policy: str, family: str = "newtrace") -> str:
    fields = ("preemptions_per_job", "rescales_per_job")
    return f"{sum(mean_of(replays, family, policy, field) for field in fields):.1f}"


def _ours(replays: Replays) -> dict[str, str]:
    """Average JCT of shadow-price over that of fair-share, by family, on the samples that it replayed."""
    rows = json.loads(RESULTS.read_bytes())["rows"].values()
    found = {}
    for family in FAMILIES:
        mine = {
            row["trace"]: row["mean_jct_s"]
            for row in rows
            if row["group"] == "ares" and row["variant"] == family and row["policy"] == OURS
        }
        theirs = [replays[f"{trace}-fair-share"]["mean_jct_s"] for trace in mine]
        found[family] = f"{fmean(mine.values()) / fmean(theirs):.2f}"
    return found


def _on_first(replays: Replays, family: str, policy: str) -> float:
    """Average JCT over that of fair-share on the first sample alone."""
    ours, base = (replays[f"{family}-0-{name}"]["mean_jct_s"] for name in (policy, "fair-share"))
    return float(ours / base)


def _table(replays: Replays, ours: Mapping[str, str]) -> str:
    titles = (
        f"{words.partition(' ')[0]}, {kind}" for kind in _WORLDS.values() for words in FAMILIES.values()
    )
    head = ("policy", "knows", "changes", *titles, "worst", "changes of a job", "ms")
    found = describe(OURS)
    first = (OURS, found.knows, found.elasticity, *ours.values(), *("",) * (len(head) - 3 - len(ours)))
    return markdown_table(head, (first, *(tuple(_cells(replays, policy)) for policy in CHOICES)), 3)


def _cells(replays: Replays, policy: str) -> Iterator[str]:
    found = describe(policy)
    yield from (policy, found.knows, found.elasticity)
    for world in _WORLDS:
        yield from (f"{relative_jct(replays, stem(world, family), policy):.2f}" for family in FAMILIES)
    yield f"{max(mean_of(replays, family, policy, 'worst_ftf') for family in FAMILIES):.1f}"
    yield _changes(replays, policy)
    yield f"{mean_of(replays, 'newtrace', policy, 'decision_ms'):.1f}"
