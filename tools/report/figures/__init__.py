"""The figures of a report: what a run did, drawn for print and screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pliant.schemas.extras import require
from pliant.schemas.file_io.files import atomic_write, write_error
from pliant.tools.report.figures.allocation import allocation, gpu_use
from pliant.tools.report.figures.curves import completed_over_time, ftf_cdf, jct_cdf, progress
from pliant.tools.report.figures.style import image
from pliant.tools.report.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(report: Report) -> dict[str, Figure]:
    """All figures by file name (without its ending); those that would be empty are left out.

    :raises ServiceMissingError: matplotlib is not installed.
    """
    require("matplotlib", "figures are drawn with matplotlib")
    drawn = {
        "jct-cdf": jct_cdf(report),
        "ftf-cdf": ftf_cdf(report),
        "completed": completed_over_time(report),
        "gpu-use": gpu_use(report),
    }
    for each in report.runs:
        drawn[f"allocation-{_file_name(each.label)}"] = allocation(each)
        drawn[f"progress-{_file_name(each.label)}"] = progress(each)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def write_figures(report: Report, folder: str | Path) -> list[Path]:
    """Write every figure as PNG and SVG; returns the files. Equal runs give equal bytes.

    :raises PliantError: the folder cannot be made.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, str(folder), "cannot be made") from error
    written = []
    for name, figure in draw(report).items():
        for kind in ("png", "svg"):
            path = target / f"{name}.{kind}"
            atomic_write(path, image(figure, name, kind))
            written.append(path)
    return written


def svg_texts(report: Report) -> dict[str, str]:
    """Every figure as an ``<svg>`` element."""
    texts = {name: image(figure, name, "svg").decode() for name, figure in draw(report).items()}
    return {name: text[text.index("<svg") :] for name, text in texts.items()}


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-")
