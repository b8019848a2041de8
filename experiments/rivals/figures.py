"""One table of all grounds, one of each, and the figure of deadlines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from experiments.harness.spec import Findings
from pliant.tools.report.figures.style import area_colour, axes, legend
from pliant.tools.report.rendering.text import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS: Final = "shadow-price"
NONE: Final = "–"
_SHOWN: Final = 5
"""Policies in the table of a ground, beside those with a published value."""
MARGIN: Final = 1.01
"""Less than this is not called ahead."""


def facts(found: Findings) -> Mapping[str, Any]:
    """What the page says: tables, and on how many grounds our policy is ahead."""
    grounds = found["grounds"]
    rows = [_summary(ground) for ground in grounds.values()]
    head = ["home ground", "home policy, published", "the same, replayed", "best other, replayed", OURS]
    ahead = [ground["title"] for ground in grounds.values() if _is_ahead(ground)]
    return {
        "summary": markdown_table(head, rows),
        "tables": {ground["title"]: _table(ground) for ground in grounds.values()},
        "varied": {ground["title"]: _varied(ground) for ground in grounds.values() if ground["varied"]},
        "today": {day["title"]: _today(day) for day in found["today"].values() if day["replays"]},
        "bound_part": _bound_part(found["today"].get("philly", {}).get("replays", {})),
        "absent": [day["file"] for day in found["today"].values() if not day["replays"]],
        "ahead": ahead,
        "count": len(grounds),
        "grounds": grounds,
    }


def _value(ground: Mapping[str, Any], policy: str) -> float:
    return float(ground["replays"][policy]["met" if ground["by_deadline"] else "mean_jct_s"])


def _is_ahead(ground: Mapping[str, Any]) -> bool:
    """Whether ours is better than every other policy, the home team's among them, by more than a percent."""
    ours = _value(ground, OURS)
    others = [_value(ground, policy) for policy in ground["replays"] if policy != OURS]
    if ground["by_deadline"]:
        return ours > MARGIN * max(others)
    return MARGIN * ours < min(others)


def _best_other(ground: Mapping[str, Any]) -> tuple[str, float]:
    """The best policy that is neither ours nor the home team's."""
    values = {
        policy: _value(ground, policy) for policy in ground["replays"] if policy not in (OURS, ground["home"])
    }
    best = (max if ground["by_deadline"] else min)(values, key=lambda policy: values[policy])
    return best, values[best]


def _shown(ground: Mapping[str, Any], value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.3f} met" if ground["by_deadline"] else f"{value:,.0f} s"


def _summary(ground: Mapping[str, Any]) -> list[str]:
    home, (best, value) = ground["home"], _best_other(ground)
    return [
        ground["title"],
        f"{home}: {_shown(ground, ground['published'].get(home))}",
        _shown(ground, _value(ground, home)),
        f"{best}: {_shown(ground, value)}",
        _shown(ground, _value(ground, OURS)),
    ]


def _table(ground: Mapping[str, Any]) -> str:
    first = ["deadlines met"] if ground["by_deadline"] else []
    head = ["policy", *first, "published", "JCT, mean, s", "makespan, s"]
    rows = []
    ranked = sorted(ground["replays"].items(), key=lambda item: _value(ground, item[0]))
    ranked = ranked[::-1] if ground["by_deadline"] else ranked
    for place, (policy, each) in enumerate(ranked):
        if place >= _SHOWN and policy not in ground["published"]:
            continue
        published = ground["published"].get(policy)
        shown = (
            NONE
            if published is None
            else f"{published:.3f}"
            if ground["by_deadline"]
            else f"{published:,.0f}"
        )
        met = [f"{each['met']:.3f}"] if ground["by_deadline"] else []
        rows.append(
            [
                policy,
                *met,
                shown,
                *(f"{each[name]:,.0f}" for name in ("mean_jct_s", "makespan_s")),
            ]
        )
    return markdown_table(head, rows)


def _varied(ground: Mapping[str, Any]) -> str:
    """Under how many assumptions ours is best, and a row for each assumption, a column for each policy."""
    name = "met" if ground["by_deadline"] else "mean_jct_s"
    varied = ground["varied"]
    policies = list(next(iter(varied.values())))
    rows = [
        [assumption, *(_shown(ground, replays[policy][name]) for policy in policies)]
        for assumption, replays in varied.items()
    ]
    best = max if ground["by_deadline"] else min
    first = sum(best(policies, key=lambda each, at=at: at[each][name]) == OURS for at in varied.values())
    table = markdown_table(["a change of a job's GPUs", *policies], rows)
    return (
        f"A change costs 30 s above; {OURS} is the best of these under {first} of {len(rows)} other "
        f"assumptions:\n\n{table}"
    )


def _bound_part(replays: Mapping[str, Any]) -> str | None:
    """Of what shadow-price is behind srtf, what its bound costs; None if it is ahead, or was not replayed."""
    if not {"srtf", "shadow-price", "shadow-price-unbounded"} <= replays.keys():
        return None
    names = ("srtf", "shadow-price", "shadow-price-unbounded")
    best, ours, free = (replays[name]["mean_jct_s"] for name in names)
    return f"{(ours - free) / (ours - best):.0%}".replace("%", " %") if ours > best else None


def _today(day: Mapping[str, Any]) -> str:
    """A row for each policy, the best mean JCT first."""
    rows = sorted(day["replays"].values(), key=lambda each: each["mean_jct_s"])
    names = ("mean_jct_s", "p99_jct_s")
    shown = [[each["policy"], each["knows"], *(f"{each[name]:,.0f}" for name in names)] for each in rows]
    return markdown_table(["policy", "knows of run times", "JCT, mean, s", "JCT, p99, s"], shown)


def figures(found: Findings) -> Mapping[str, Figure]:
    """Deadlines met by policy on ElasticFlow's grounds, ours and published, below the ceilings."""
    grounds = [ground for ground in found["grounds"].values() if ground["by_deadline"]]
    policies = list(grounds[0]["replays"])
    figure, plot = axes("Jobs that end by their deadline", "", "Share of jobs")
    wide = 0.8 / len(grounds)
    for index, ground in enumerate(grounds):
        at = [place + (index - (len(grounds) - 1) / 2) * wide for place in range(len(policies))]
        colour = area_colour(index)
        there = [
            (x, _value(ground, name))
            for x, name in zip(at, policies, strict=True)
            if name in ground["replays"]
        ]
        plot.bar(*zip(*there, strict=True), wide, label=ground["title"], color=colour)
        known = [
            (x, ground["published"][name])
            for x, name in zip(at, policies, strict=True)
            if name in ground["published"]
        ]
        plot.scatter(
            *zip(*known, strict=True),
            marker="_",
            s=60,
            color="black",
            label="published" if not index else None,
        )
        ceiling = ground["replays"][ground["home"]]["ceiling"]
        plot.axhline(ceiling, color=colour, linestyle="--", linewidth=1.0)
    plot.set_xticks(range(len(policies)), policies, fontsize=7, rotation=30, ha="right")
    legend(figure, plot, columns=3)
    return {"deadlines": figure}
