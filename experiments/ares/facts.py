"""What the page says, made from the figures of all replays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, Final

from experiments.ares.traces import FAMILIES
from experiments.ares.workloads import (
    ALPHAS,
    BASE,
    MINUTE,
    RECORDED,
    RECORDS,
    ROW_POLICIES,
    ROW_SAMPLES,
    SAMPLES,
    SIX_MINUTES,
    TESTBED,
    WORLDS,
    World,
    replay_name,
    stem,
)
from experiments.harness.spec import Replays
from pliant.tools.report.rendering.text import markdown_table

POLICIES: Final = tuple(sorted((*MINUTE, *SIX_MINUTES)))
FIXED_BATCH: Final = tuple(name for name in POLICIES if name not in ("ares", "ares-goodput", "pollux"))
"""What Ares competes with on equal terms: no other batch than the author's."""
OTHERS: Final = ("allox", "gavel", "lucid", "optimus", "pollux", "themis", "tiresias")
"""What the paper compares with."""
CHOICES: Final = (
    "ares",
    "ares-goodput",
    "pollux",
    "fair-share",
    "srtf",
    "optimus",
    "tiresias",
    "themis",
    "allox",
    "gavel",
    "lucid",
    "fifo",
)
"""What pages show: not the variants of gavel, which aim at something else than JCT."""
DEFAULT_ALPHA: Final = 0.75
_JCT: Final = ("average JCT, h", "mean_jct_s", 1 / 3600, "{:.2f}")
_FTF: Final = ("worst FTF", "worst_ftf", 1.0, "{:.1f}")
_UNFAIR: Final = ("unfair, %", "unfair_fraction", 100.0, "{:.0f}")
_REQUESTED: Final = "unfair_fraction_requested"
_UNFAIR_BY_REQUESTS: Final = ("unfair by requests, %", _REQUESTED, 100.0, "{:.0f}")
_BY_SIZES: Final = (_JCT, _UNFAIR, _FTF)
_BY_RECORDS: Final = (_JCT, _FTF, _UNFAIR_BY_REQUESTS)


def values_of(replays: Replays, family: str, policy: str, field: str) -> list[float]:
    """A figure of one policy on each sample of one family (``philly``, or ``philly-records``)."""
    names = [name for name in sorted(replays) if fnmatchcase(name, f"{family}-?-{policy}")]
    return [replays[name][field] for name in names]


def mean_of(replays: Replays, family: str, policy: str, field: str) -> float:
    """The mean over the samples."""
    return fmean(values_of(replays, family, policy, field))


def gain_over(replays: Replays, family: str, policy: str) -> float:
    """1 - the average JCT of Ares / that of another policy; below 0: the other is ahead."""
    ours, theirs = (mean_of(replays, family, name, "mean_jct_s") for name in ("ares", policy))
    return 1 - ours / theirs


def relative_jct(replays: Replays, family: str, policy: str) -> float:
    """Average JCT over that of fair-share on the same samples."""
    ours, base = (mean_of(replays, family, name, "mean_jct_s") for name in (policy, "fair-share"))
    return ours / base


def alpha_name(alpha: float) -> str:
    """What the replays of Ares with an alpha are called after."""
    return "ares" if alpha == DEFAULT_ALPHA else f"ares-alpha{alpha}"


def jct_by_alpha(replays: Replays, family: str) -> dict[float, float]:
    """Average JCT of Ares, seconds, by alpha."""
    return {alpha: mean_of(replays, family, alpha_name(alpha), "mean_jct_s") for alpha in ALPHAS}


def facts(replays: Replays) -> Mapping[str, Any]:
    """Tables of all policies by family, of what the paper leaves open, and of alpha."""
    recorded = {stem(RECORDS, family): words for family, words in FAMILIES.items()}
    return {
        "samples": SAMPLES,
        "few": len(RECORDED["newtrace"]),
        "policies": _policies(replays, {**FAMILIES, TESTBED: "testbed"}, _BY_SIZES),
        "gains": _gains(replays),
        "alphas": _alphas(replays),
        "best_alpha": {family: best_alpha(replays, family) for family in (*FAMILIES, *recorded)},
        "recorded": _policies(replays, recorded, _BY_RECORDS),
        "sooner": [
            _sooner(replays, (*FAMILIES, *recorded), field) for field in ("unfair_fraction", _REQUESTED)
        ],
        "rows": _rows(replays),
        "row_gain": lambda name, family, policy: _row_gain(replays, name, family, policy),
        "later": {family: _later(replays, family) for family in ROW_SAMPLES},
        "guarantee": _guarantee(replays, {**FAMILIES, TESTBED: "Testbed, 16 GPUs"}),
        "cpu_s": sum(cpu_seconds(replays, family) for family in FAMILIES),
        "pollux_cpu_s": sum(cpu_seconds(replays, family, "pollux") for family in FAMILIES),
    }


def _gains(replays: Replays) -> str:
    """How far Ares is ahead of the paper's schedulers and of fair-share, by both rules of requests."""
    rows = []
    for world, words in ((BASE, "Sia's requests"), (RECORDS, "requests of records")):
        for family, name in FAMILIES.items():
            found = (gain_over(replays, stem(world, family), policy) for policy in (*OTHERS, "fair-share"))
            rows.append((f"{name}, {words}", *(f"{100 * gain:+.0f}" for gain in found)))
    return markdown_table(("gain in average JCT over, %", *OTHERS, "fair-share"), rows)


def best_alpha(replays: Replays, family: str) -> float:
    """The alpha of the lowest average JCT."""
    found = jct_by_alpha(replays, family)
    return min(found, key=lambda alpha: found[alpha])


def _alphas(replays: Replays) -> str:
    rows = [
        (f"{words}, {kind}", *(f"{seconds / 3600:.3f}" for seconds in jct_by_alpha(replays, name).values()))
        for world, kind in ((BASE, "Sia's requests"), (RECORDS, "requests of records"))
        for family, words in FAMILIES.items()
        for name in (stem(world, family),)
    ]
    return markdown_table(("average JCT, h", *(f"{alpha:g}" for alpha in ALPHAS)), rows)


def _sooner(replays: Replays, families: Sequence[str], field: str) -> str:
    """The smallest and the largest percentage of jobs that Ares ends before fair sharing would."""
    shares = [100 * (1 - mean_of(replays, family, "ares", field)) for family in families]
    return f"{min(shares):.0f} to {max(shares):.0f} %"


def _policies(
    replays: Replays, families: Mapping[str, str], columns: Sequence[tuple[str, str, float, str]]
) -> str:
    """Policies on some workloads, the least average JCT on the first one first."""
    head = ("", *(f"{words}: {title}" for words in families.values() for title, *_ in columns))
    first = next(iter(families))
    body = [
        (
            policy,
            *(
                form.format(scale * mean_of(replays, family, policy, field))
                for family in families
                for _, field, scale, form in columns
            ),
        )
        for policy in sorted(CHOICES, key=lambda policy: mean_of(replays, first, policy, "mean_jct_s"))
    ]
    return markdown_table(head, body)


def _rows(replays: Replays) -> str:
    """What the paper leaves open, varied: Ares in hours, and how far it is ahead, by family."""
    rows = []
    for world in (BASE, *WORLDS):
        cells: list[list[str]] = []
        for family, samples in ROW_SAMPLES.items():
            found = {policy: _row_jct_s(replays, world, family, samples, policy) for policy in ROW_POLICIES}
            ours = found["ares"]
            assert ours is not None  # noqa: S101
            others = (
                "–" if seconds is None else f"{100 * (1 - ours / seconds):+.0f}"
                for policy, seconds in found.items()
                if policy != "ares"
            )
            cells.append([f"{ours / 3600:.3f}", *others])
        rows.append((world.words, *(", ".join(each) for each in zip(*cells, strict=True))))
    names = (f"over {name}, %" for name in ROW_POLICIES if name != "ares")
    return markdown_table((", ".join(FAMILIES[family] for family in ROW_SAMPLES), "Ares, h", *names), rows)


def _world(name: str) -> World:
    return next(world for world in (BASE, *WORLDS) if world.name == name)


def _row_gain(replays: Replays, name: str, family: str, policy: str) -> float:
    """How far Ares is ahead of a policy in a row of the table, as part of that one's average JCT."""
    found = [
        _row_jct_s(replays, _world(name), family, ROW_SAMPLES[family], each) for each in ("ares", policy)
    ]
    ours, theirs = (each or math.nan for each in found)
    return 1 - ours / theirs


def _later(replays: Replays, family: str) -> float:
    """By how much Ares is faster in the rows that were replayed last than it was in the others."""
    rows = (
        _row_jct_s(replays, _world(name), family, ROW_SAMPLES[family], "ares") for name in ("learning", "")
    )
    now, before = (each or math.nan for each in rows)
    return 1 - now / before


def _row_jct_s(
    replays: Replays, world: World, family: str, samples: Sequence[int], policy: str
) -> float | None:
    names = [replay_name(world, family, number, policy) for number in samples]
    found = [replays[name]["mean_jct_s"] for name in names if name in replays]
    return fmean(found) if found else None


def _guarantee(replays: Replays, named: Mapping[str, str]) -> str:
    """Bound, worst delay and jobs past it of the policies that promise one."""
    rows = []
    for family, words in named.items():
        for policy in POLICIES:
            found = [replays[name] for name in replays if fnmatchcase(name, f"{family}-?-{policy}")]
            if all("gps_bound_s" in each for each in found):
                bound_s, worst_s, past = (
                    fmean(each[field] for each in found)
                    for field in ("gps_bound_s", "worst_gps_delay_s", "jobs_past_gps_bound")
                )
                hours = (f"{seconds / 3600:.2f}" for seconds in (bound_s, worst_s))
                rows.append((words, policy, *hours, f"{past:.1f}"))
    return markdown_table(("", "policy", "bound, h", "worst delay, h", "jobs past it"), rows)


def cpu_seconds(replays: Replays, family: str, policy: str = "*") -> float:
    """CPU of the replays of a family, without those that vary alpha."""
    names = (name for name in replays if fnmatchcase(name, f"{family}-?-{policy}") and "-alpha" not in name)
    return sum(replays[name]["cpu_s"] for name in names)
