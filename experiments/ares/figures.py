"""Figures 3, 8, 9 and 10 of the paper, from the profile, from single replays, and from all samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.ares.facts import CHOICES, alpha_name, relative_jct, values_of
from experiments.ares.speeds import RTX
from experiments.ares.traces import FAMILIES, TABLE_2
from experiments.ares.workloads import ALPHAS, BASE, RECORDS, stem
from experiments.harness.spec import Replays
from pliant.schemas.io import read_profile
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.report.figures.plots import allocation, ftf_cdf
from pliant.tools.report.figures.style import COLOURS, GREY, axes, legend, line_style
from pliant.tools.report.read_run import read_run
from pliant.tools.report.report import Report, make_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
_NODE_GPUS: Final = 4
_SHOWN: Final = ("ares", "pollux", "themis", "tiresias")
"""The four of figure 8, as section 5.4 names them."""
_ROUND_S: Final = {"ares": 60, "pollux": 60, "tiresias": 60, "optimus": 60, "themis": 360}


def draw(folder: Path, replays: Replays) -> Mapping[str, Figure]:
    """All of them by name.

    :param folder: of the replays.
    """
    speeds = ThroughputBySize(read_profile(folder / "inputs" / f"{RTX}.parquet"))
    helios = _report(folder, "saturn", _SHOWN)
    found = {
        "figure3a": _efficiency(speeds),
        "figure3b": _speedup(speeds),
        "figure10": by_alpha(replays, ""),
        "figure10-records": by_alpha(replays, RECORDS.name),
        "choosing": choices(replays),
    }
    for each in helios.runs:
        figure = allocation(each)
        assert figure is not None  # noqa: S101
        found[f"figure8-{each.run.info.policy}"] = figure
    for family in FAMILIES:
        figure = ftf_cdf(_report(folder, family, ("ares", "optimus", "pollux", "tiresias")))
        assert figure is not None  # noqa: S101
        found[f"figure9-ftf-{family}"] = figure
    return found


def _report(folder: Path, family: str, policies: tuple[str, ...]) -> Report:
    """Replays of the published sample of a family."""
    files = (folder / f"{family}-{_ROUND_S[name]}" / f"{family}-0-{name}.parquet" for name in policies)
    return make_report([read_run(path) for path in files])


def _efficiency(speeds: ThroughputBySize) -> Figure:
    figure, plot = axes("Figure 3(a): speed per GPU", "GPUs", "part of the speed on one GPU")
    for index, (model, sizes, rates) in enumerate(_curves(speeds)):
        parts = [rate / size / rates[0] for size, rate in zip(sizes, rates, strict=True)]
        plot.plot(sizes, parts, label=model, marker=".", **line_style(index))
    plot.axhline(0.75, color=GREY, linewidth=0.8)
    _by_size(plot)
    plot.set_ylim(bottom=0)
    legend(figure, plot)
    return figure


def _speedup(speeds: ThroughputBySize) -> Figure:
    figure, plot = axes("Figure 3(b): speedup", "GPUs", "times the speed on one GPU")
    for index, (model, sizes, rates) in enumerate(_curves(speeds)):
        plot.plot(sizes, [rate / rates[0] for rate in rates], label=model, marker=".", **line_style(index))
    _by_size(plot)
    plot.set_yscale("log", base=2)
    plot.set_yticks((0.5, *_SIZES[:-1]), [f"{each:g}" for each in (0.5, *_SIZES[:-1])])
    legend(figure, plot)
    return figure


def _by_size(plot: Axes) -> None:
    plot.set_xscale("log", base=2)
    plot.set_xticks(_SIZES, [str(size) for size in _SIZES])


def _curves(speeds: ThroughputBySize) -> Iterator[tuple[str, list[int], list[float]]]:
    """Model and smaller batch, sizes, and samples per second on whole nodes."""
    for models in TABLE_2.values():
        for model, (batch, _) in models.items():
            rates = {size: _rate(speeds, model, batch, size) for size in _SIZES}
            known = {size: rate for size, rate in rates.items() if rate is not None}
            yield f"{model}, {batch}", list(known), list(known.values())


def _rate(speeds: ThroughputBySize, model: str, batch: int, gpus: int) -> float | None:
    place = (gpus,) if gpus <= _NODE_GPUS else (_NODE_GPUS,) * (gpus // _NODE_GPUS)
    seconds = speeds.step_seconds(model, RTX, place, batch, None)
    return None if seconds is None else batch / seconds


def by_alpha(replays: Replays, world: str) -> Figure:
    """Median average JCT of Ares over the samples, and the quartiles, each over that at the default."""
    words = "requests of records" if world else "Sia's requests"
    figure, plot = axes(f"Figure 10, {words}", "alpha", "average JCT over that at 0.75")
    for index, (family, label) in enumerate(FAMILIES.items()):
        name = stem(RECORDS, family) if world else family
        usual = values_of(replays, name, "ares", "mean_jct_s")
        spreads = [
            _quartiles([each / base for each, base in zip(found, usual, strict=True)])
            for found in (values_of(replays, name, alpha_name(alpha), "mean_jct_s") for alpha in ALPHAS)
        ]
        low, middle, high = zip(*spreads, strict=True)
        style = line_style(index)
        plot.plot(ALPHAS, middle, label=label, marker=".", **style)
        plot.fill_between(ALPHAS, low, high, color=style["color"], alpha=0.15, linewidth=0)
    legend(figure, plot)
    return figure


def _quartiles(found: list[float]) -> tuple[float, float, float]:
    if len(found) < 4:
        return min(found), median(found), max(found)
    low, middle, high = quantiles(found, n=4, method="inclusive")
    return low, middle, high


def choices(replays: Replays) -> Figure:
    """Average JCT of each policy over that of fair-share: full marks for large requests, hollow for small."""
    figure, plot = axes(
        "Average JCT by policy", "average JCT over that of fair-share, by requests", "", height=4.2
    )
    ranked = sorted(CHOICES, key=lambda name: -_mean_relative(replays, name))
    for index, (family, label) in enumerate(FAMILIES.items()):
        rows = [place + (index - 1) * 0.22 for place in range(len(ranked))]
        colour = COLOURS[index]
        for world, filling in ((BASE, colour), (RECORDS, "white")):
            words = "large" if world == BASE else "small"
            found = [relative_jct(replays, stem(world, family), name) for name in ranked]
            marks = {"markerfacecolor": filling, "markeredgecolor": colour, "color": colour, "markersize": 5}
            plot.plot(found, rows, "o", linestyle="none", label=f"{label}, {words}", **marks)
    plot.axvline(1, color=GREY, linewidth=0.9, zorder=1)
    plot.set_yticks(range(len(ranked)), ranked)
    plot.set_xscale("log", base=2)
    ticks = (0.5, 1, 2, 4, 8, 16)
    plot.set_xticks(ticks, [f"{each:g}" for each in ticks])
    legend(figure, plot, columns=3)
    return figure


def _mean_relative(replays: Replays, policy: str) -> float:
    names = [stem(world, family) for world in (BASE, RECORDS) for family in FAMILIES]
    return float(np.mean(np.log([relative_jct(replays, name, policy) for name in names])))
