"""One look for all figures: colours for colour-blind readers too, thin axes, the same bytes every time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pliant.tools.report.report import RunReport

Form = Literal["png", "svg", "pdf"]

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C510A")
"""Okabe and Ito's palette, the strong colours first, with a brown for its yellow, which is too faint for a
line.
"""
DASHES: Final = ("-", "--", "-.", ":")
MARKS: Final = ("o", "s", "^", "v", "D", "P", "X", "<")
_PREFERRED: Final = 7
"""Colours and marks among which the name of a policy chooses; the last is for one that finds its own taken.
"""
_SALT: Final = 13137
"""With it, policies that are often compared differ in colour."""
MUTED: Final = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#DDCC77"),
    *("#CC6677", "#882255", "#AA4499", "#999933"),
)
"""Paul Tol's muted palette, for areas that touch."""
_LAPS: Final = ((0, 0.0), (255, 0.45), (0, 0.35), (255, 0.7))
"""Towards white (255) or black (0), and how far."""
GREY: Final = "#555555"
PALE: Final = "#DDDDDD"
_WIDTH: Final = 6.4
"""Inches: a text column, or half a slide."""
_LEGEND_ROW: Final = 0.2
"""Inches."""
_RC: Final[Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


def axes(title: str, x: str, y: str, *, height: float = 3.4) -> tuple[Figure, Axes]:
    """An empty figure of one plot, 6.4 inches wide."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_RC):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        plot = figure.add_subplot()
        plot.set_title(title, pad=8)
        plot.set_xlabel(x)
        plot.set_ylabel(y)
        _furnish(plot)
    return figure, plot


def axes_below(title: str, x: str, y: str, rows: int) -> tuple[Figure, list[Axes]]:
    """An empty figure of plots below each other that share the x axis."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_RC):
        figure = Figure(figsize=(_WIDTH, 1.3 + 1.1 * rows), layout="constrained")
        plots = list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        figure.supxlabel(x, fontsize=9)
        figure.supylabel(y, fontsize=9)
        for plot in plots:
            _furnish(plot)
    return figure, plots


def _furnish(plot: Axes) -> None:
    plot.grid(visible=True, color=PALE, linewidth=0.6)
    plot.set_axisbelow(True)
    plot.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How the lines of one run look in every figure and on every page."""

    colour: str
    dashes: str
    mark: str
    phase: float
    """Where its marks begin, as a part of the distance between two, so that those of two lines differ."""

    def line(self) -> dict[str, Any]:
        """Arguments of Matplotlib's ``plot``."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": 1.7,
            "marker": self.mark,
            "markersize": 4.5,
            "markevery": (0.14 * self.phase, 0.14),
        }


def run_styles(runs: Sequence[RunReport]) -> list[LineStyle]:
    """Colour and mark go by the name of the policy; up to eight policies differ in both.

    Dashes go by the name, too, unless a run before has this colour and these dashes. Of several runs of a
    policy, such as seeds, the others have the next dashes and marks.
    """
    styles: list[LineStyle] = []
    times: dict[str, int] = {}
    looks = _looks_of([each.run.info.policy for each in runs])
    for each in runs:
        policy = each.run.info.policy
        before = times.get(policy, 0)
        times[policy] = before + 1
        colour, mark, number = looks[policy]
        taken = {style.dashes for style in styles if style.colour == COLOURS[colour]}
        turned = [DASHES[(number + turn) % len(DASHES)] for turn in range(len(DASHES))]
        dashes = next((each for each in turned if each not in taken), turned[before % len(DASHES)])
        phase = (0.5 + 0.37 * len(styles)) % 1.0
        styles.append(LineStyle(COLOURS[colour], dashes, MARKS[(mark + before) % len(MARKS)], phase))
    return styles


def _looks_of(policies: Iterable[str]) -> dict[str, tuple[int, int, int]]:
    """Colour, mark and a number for the dashes of each policy: those that its name chooses, else the next
    that are free, the policies in the order of their names.
    """
    looks: dict[str, tuple[int, int, int]] = {}
    for policy in sorted(set(policies)):
        number = int.from_bytes(sha256(f"{_SALT} {policy}".encode()).digest()[:6], "big")
        number, colour = divmod(number, _PREFERRED)
        number, mark = divmod(number, _PREFERRED)
        colours, marks = ({look[side] for look in looks.values()} for side in (0, 1))
        looks[policy] = _free(colour, colours, len(COLOURS)), _free(mark, marks, len(MARKS)), number
    return looks


def _free(wanted: int, taken: Collection[int], count: int) -> int:
    """The first free place from the wanted one on; that one if none is free."""
    turned = ((wanted + turn) % count for turn in range(count))
    return next((place for place in turned if place not in taken), wanted)


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the ``index``-th run; lines differ in both, for print in grey."""
    return {
        "color": COLOURS[index % _PREFERRED],
        "linestyle": DASHES[index % len(DASHES)],
        "linewidth": 1.7,
    }


def legend(figure: Figure, plot: Axes, *, columns: int = 3) -> None:
    """A legend below the plot, where it covers no data; from the third row on it makes the figure higher."""
    handles, names = plot.get_legend_handles_labels()
    if handles:
        rows = -(-len(names) // columns)
        figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * max(0, rows - 2))
        figure.legend(
            handles, names, loc="outside lower center", ncols=min(columns, len(names)), frameon=False
        )


def area_colour(index: int) -> str:
    """Colours beyond the palette come again lighter, then darker."""
    lap, place = divmod(index, len(MUTED))
    towards, part = _LAPS[lap % len(_LAPS)]
    parts = (int(MUTED[place][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(value + (towards - value) * part):02X}" for value in parts)


def ink(background: str) -> str:
    """Black or white, the one that reads better on the colour ``#RRGGBB``."""
    red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "black"


def plain_log(plot: Axes, lowest: float, highest: float) -> None:
    """A logarithmic x axis with plain numbers: 1, 2, 5, 10 instead of powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    plot.set_xscale("log")
    plot.set_xlim(lowest / 1.15, highest * 1.15)
    near = highest / lowest < 500
    plot.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,)))
    plot.xaxis.set_minor_locator(NullLocator())
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def whole_numbers(plot: Axes, most: int = 8) -> None:
    """At most ``most`` + 1 ticks of the y axis."""
    from matplotlib.ticker import MaxNLocator

    plot.yaxis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 4, 8, 10]))


_METADATA: Final[Mapping[Form, Mapping[str, Any]]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Without what would differ between two runs or versions."""


def image(figure: Figure, name: str, form: Form) -> bytes:
    """The figure in one form. ``name`` keeps the element ids of several SVGs apart."""
    import matplotlib as mpl

    out = BytesIO()
    with mpl.rc_context({**_RC, "svg.hashsalt": f"pliant-{name}"}):
        figure.savefig(out, format=form, dpi=200, metadata=dict(_METADATA[form]))
    return out.getvalue()
