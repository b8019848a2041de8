"""The comparison of Ares (TACO 2025) with the schedulers of pliant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, Final

from experiments.ares.workloads import (
    ALPHAS,
    FAMILIES,
    MINUTE,
    SAMPLES,
    SIX_MINUTES,
    TESTBED,
    prepare,
    sweeps,
)
from experiments.harness.spec import Distribution, Experiment, Replays
from pliant.tools.report.rendering.markdown import markdown_table

POLICIES: Final = tuple(sorted((*MINUTE, *SIX_MINUTES)))
FIXED_BATCH: Final = tuple(name for name in POLICIES if name not in ("ares", "ares-goodput", "pollux"))
"""What Ares competes with on equal terms: no other batch than the author's."""
_DEFAULT_ALPHA: Final = 0.75
_WORDS: Final = FAMILIES | {TESTBED: "Testbed, 16 GPUs"}
_COLUMNS: Final = (
    ("average JCT, h", "mean_jct_s", 1 / 3600, "{:.2f}"),
    ("p99 JCT, h", "p99_jct_s", 1 / 3600, "{:.1f}"),
    ("unfair, %", "unfair_fraction", 100.0, "{:.0f}"),
    ("worst FTF", "worst_ftf", 1.0, "{:.2f}"),
    ("… by GPS", "worst_ftf_gps", 1.0, "{:.2f}"),
    ("… by isolation", "worst_ftf_isolated", 1.0, "{:.2f}"),
    ("preemptions a job", "preemptions_per_job", 1.0, "{:.2f}"),
    ("resizes a job", "rescales_per_job", 1.0, "{:.2f}"),
)


def mean_of(replays: Replays, family: str, policy: str, field: str) -> float:
    """A figure of one policy on one family, the mean over the samples."""
    names = [name for name in replays if fnmatchcase(name, f"{family}-?-{policy}")]
    return fmean(replays[name][field] for name in names)


def facts(replays: Replays) -> Mapping[str, Any]:
    """Tables of all policies by family, and of alpha."""
    return {
        "samples": SAMPLES,
        "families": _WORDS,
        "policies": {family: _policies(replays, family) for family in _WORDS},
        "alphas": _alphas(replays),
        "claims": list(_claims(replays)),
        "guarantee": _guarantee(replays),
    }


def _policies(replays: Replays, family: str) -> str:
    """All policies, the least average JCT first."""
    order = sorted(POLICIES, key=lambda policy: mean_of(replays, family, policy, "mean_jct_s"))
    body = [
        (
            policy,
            *(
                form.format(scale * mean_of(replays, family, policy, field))
                for _, field, scale, form in _COLUMNS
            ),
        )
        for policy in order
    ]
    return markdown_table(("", *(title for title, *_ in _COLUMNS)), body)


def _cells(replays: Replays, family: str, policy: str) -> Iterator[str]:
    for _, field, scale, form in _COLUMNS:
        yield form.format(scale * mean_of(replays, family, policy, field))


def jct_by_alpha(replays: Replays, family: str) -> dict[float, float]:
    """Average JCT of Ares, seconds, by alpha."""
    names = {alpha: "ares" if alpha == _DEFAULT_ALPHA else f"ares-alpha{alpha}" for alpha in ALPHAS}
    return {alpha: mean_of(replays, family, name, "mean_jct_s") for alpha, name in names.items()}


def _alphas(replays: Replays) -> str:
    rows = [
        (words, *(f"{seconds / 3600:.3f}" for seconds in jct_by_alpha(replays, family).values()))
        for family, words in FAMILIES.items()
    ]
    return markdown_table(("average JCT, h", *(f"{alpha:g}" for alpha in ALPHAS)), rows)


def _claims(replays: Replays) -> Iterator[tuple[str, str]]:
    """Each family in words, the policies ahead of Ares and by how much, and the best alpha."""
    for family, words in FAMILIES.items():
        gains = {name: gain_over(replays, family, name) for name in POLICIES if name != "ares"}
        ahead = sorted((gain, name) for name, gain in gains.items() if gain < 0)
        named = ", ".join(f"{name} ({-100 * gain:.0f} %)" for gain, name in ahead)
        alphas = jct_by_alpha(replays, family)
        yield words, f"{named or 'none'}; alpha {min(alphas, key=lambda alpha: alphas[alpha]):g} is best"


def gain_over(replays: Replays, family: str, policy: str) -> float:
    """1 - the average JCT of Ares / that of another policy; below 0: the other is ahead."""
    ours, theirs = (mean_of(replays, family, name, "mean_jct_s") for name in ("ares", policy))
    return 1 - ours / theirs


def _guarantee(replays: Replays) -> str:
    """Bound, worst delay and jobs past it of the policies that promise one."""
    rows = []
    for family, words in _WORDS.items():
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


def _plots() -> Iterator[Distribution]:
    lines = ("ares", "ares-goodput", "fair-share", "optimus", "pollux", "tiresias")
    for family, words in FAMILIES.items():
        named = {policy: f"{family}-0-{policy}" for policy in lines}
        yield Distribution(f"figure9-{family}", f"Figure 9: JCTs on {words}", named, "jct", "cdf")


EXPERIMENT: Final = Experiment(
    name="ares",
    title="Ares and the schedulers that it was compared with",
    paper=(
        "Liu et al., Ares: Fair and Efficient Scheduling of Deep Learning Jobs with Elastic Fair Queuing, "
        "ACM TACO 2025"
    ),
    sweeps=tuple(name for name, _ in sweeps()),
    plots=tuple(_plots()),
    prepare=prepare,
    facts=facts,
)
