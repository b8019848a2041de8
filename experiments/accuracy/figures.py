"""Loss and accuracy by epoch: the mean over the seeds, and the smallest to the largest behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from experiments.accuracy.arms import GROWN, LARGER, REFERENCE
from experiments.accuracy.facts import Runs
from experiments.harness.spec import Findings
from pliant.tools.report.figures.style import GREY, axes, legend, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHANGED: Final = (REFERENCE, "elastic", *GROWN)
_FIGURE13: Final = (REFERENCE, "abrupt", "warm")
_FIGURE14: Final = (REFERENCE, "stepwise")
_LARGER: Final = (REFERENCE, *(f"larger-{k}" for k in LARGER))
_ROUNDED: Final = ("elastic", "regrouped", "elastic-32", "regrouped-32")
_TITLES: Final = {
    "loss": "Training loss",
    "accuracy": "Accuracy",
    "loss_off": "Off the fixed gang's loss",
}
_AXES: Final = {**_TITLES, "loss_off": "Part of the loss"}


def figures(found: Findings) -> Mapping[str, Figure]:
    """Every figure by its name."""
    runs = Runs(found)
    first = found["scale"]["first"]
    return {
        "loss": _curves(runs, "loss", _CHANGED, first),
        "figure13": _curves(runs, "loss", _FIGURE13, first),
        "figure14": _curves(runs, "loss", _FIGURE14, first),
        "accuracy": _curves(runs, "accuracy", _CHANGED, first),
        "larger": _curves(runs, "accuracy", _LARGER, None),
        "rounding": _curves(runs, "loss_off", _ROUNDED, first),
    }


def _curves(
    runs: Runs, field: Literal["loss", "accuracy", "loss_off"], arms: Sequence[str], change: int | None
) -> Figure:
    after = "" if change is None else f", the first change after epoch {change}"
    from matplotlib.ticker import MaxNLocator

    figure, chart = axes(f"{_TITLES[field]}{after}", "Epoch", _AXES[field])
    for index, arm in enumerate(arms):
        columns = zip(*(getattr(run, field) for run in runs.of(arm)), strict=True)
        # a logarithmic axis has no place for what is exactly equal
        shown = {epoch: each for epoch, each in enumerate(columns, 1) if field == "accuracy" or min(each) > 0}
        epochs, curves = list(shown), list(shown.values())
        style = line_style(index)
        chart.plot(epochs, [sum(each) / len(each) for each in curves], label=_short(runs.words[arm]), **style)
        low, high = [min(each) for each in curves], [max(each) for each in curves]
        chart.fill_between(epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)
    if change is not None:
        chart.axvline(change, color=GREY, linewidth=0.8, linestyle=":")
    if field != "accuracy":
        chart.set_yscale("log")
    chart.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, chart, columns=2)
    return figure


def _short(words: str) -> str:
    """What comes before the explanation."""
    return words.partition(":")[0]
