"""How much work a trace brings, drawn over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pliant.schemas.errors import require
from pliant.tools.report.figures.style import COLOURS, GREY, Form, axes, image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HOUR_S: Final = 3600.0


def arriving_work(arriving_gpus: Sequence[float], bin_s: float, gpus: int | None = None) -> Figure:
    """Bars of the work submitted in each bin, as GPUs that it would keep busy; a line for the cluster.

    :param arriving_gpus: by bin of ``bin_s`` seconds (an hour or a day).
    :param gpus: of the cluster; None: no line.
    :raises ServiceMissingError: matplotlib is not installed.
    """
    require("matplotlib", "figures are drawn with matplotlib")
    unit = "hour" if bin_s == _HOUR_S else "day"
    figure, plot = axes("Work that arrives", f"Time since the first submission, {unit}s", "GPUs kept busy")
    plot.bar(range(len(arriving_gpus)), arriving_gpus, width=1.0, align="edge", color=COLOURS[0])
    if gpus is not None:
        plot.axhline(gpus, color=GREY, linestyle="--", linewidth=1.2)
        plot.annotate(
            f"the cluster, {gpus:,}",
            (0.99, gpus),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
        )
    plot.set_xlim(0, len(arriving_gpus))
    plot.set_ylim(bottom=0)
    return figure


def arriving_work_image(
    form: Form, arriving_gpus: Sequence[float], bin_s: float, gpus: int | None = None
) -> bytes:
    """The same as a file; equal traces give equal bytes."""
    return image(arriving_work(arriving_gpus, bin_s, gpus), "arrivals", form)
