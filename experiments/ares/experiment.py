"""The comparison of Ares (TACO 2025) with the schedulers of pliant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.ares.facts import facts
from experiments.ares.folds import fold
from experiments.ares.traces import FAMILIES
from experiments.ares.workloads import prepare, sweeps
from experiments.harness.spec import Distribution, Experiment, Replays

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _plots() -> Iterator[Distribution]:
    lines = ("ares", "ares-goodput", "fair-share", "optimus", "pollux", "tiresias")
    for family, words in FAMILIES.items():
        named = {policy: f"{family}-0-{policy}" for policy in lines}
        yield Distribution(f"figure9-{family}", f"Figure 9: JCTs on {words}", named, "jct", "cdf")


def _draw(folder: Path, replays: Replays) -> Mapping[str, Figure]:
    from experiments.ares.figures import draw

    return draw(folder, replays)


def _facts(replays: Replays) -> Mapping[str, Any]:
    from experiments.ares.live import live_table

    return {**facts(replays), "live": live_table()}


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
    facts=_facts,
    fold=fold,
    draw=_draw,
)
