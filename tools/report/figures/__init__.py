"""The figures of a report: what a run did, drawn for print and screen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from pliant.schemas.errors import UsageError, require
from pliant.schemas.file_io.files import atomic_write, write_error
from pliant.schemas.text import did_you_mean, shortened
from pliant.tools.report.figures.plots import (
    allocation,
    completed_over_time,
    ftf_cdf,
    gpu_use,
    jct_cdf,
    progress,
    team_use,
)
from pliant.tools.report.figures.style import Form, image
from pliant.tools.report.groups import groups
from pliant.tools.report.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_OF_ALL_RUNS: Final = ("jct-cdf", "ftf-cdf", "completed", "gpu-use")
_OF_EACH_RUN: Final = ("allocation", "progress", "teams")


def draw(report: Report) -> dict[str, Figure]:
    """All figures by file name (without its ending); those that would be empty are left out.

    Runs that differ in their seed only are one line, with the band that they span; what jobs held is drawn of
    the first of them.

    :raises ServiceMissingError: matplotlib is not installed.
    """
    require("matplotlib", "figures are drawn with matplotlib")
    drawn = {
        "jct-cdf": jct_cdf(report),
        "ftf-cdf": ftf_cdf(report),
        "completed": completed_over_time(report),
        "gpu-use": gpu_use(report),
    }
    for each in (group.first for group in groups(report)):
        drawn[f"allocation-{_file_name(each.label)}"] = allocation(each)
        drawn[f"progress-{_file_name(each.label)}"] = progress(each)
        drawn[f"teams-{_file_name(each.label)}"] = team_use(each)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def write_figures(report: Report, target: str | Path, forms: Sequence[Form] = ("png", "svg")) -> list[Path]:
    """Write every figure into a folder, or one where ``target`` ends like ``folder/jct-cdf.pdf``.

    Returns the files. Equal runs give equal bytes.

    :raises UsageError: there is no such figure.
    :raises PliantError: the folder cannot be made.
    """
    path = Path(target)
    form = form_of(path)
    if form is None:
        drawn, folder = draw(report), path
    else:
        drawn, forms, folder = {path.stem: _one(draw(report), path)}, [form], path.parent
    return write_drawn(drawn, folder, forms)


def write_drawn(
    drawn: Mapping[str, Figure], folder: Path, forms: Sequence[Form] = ("png", "svg")
) -> list[Path]:
    """Write figures by name into a folder; returns the files.

    :raises PliantError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, str(folder), "cannot be made") from error
    written = []
    for name, figure in drawn.items():
        for each in dict.fromkeys(forms):
            written.append(folder / f"{name}.{each}")
            atomic_write(written[-1], image(figure, name, each))
    return written


def check_name(path: str | Path) -> None:
    """Refuse a file that no figure is called by, whatever the runs are.

    :raises UsageError: it is not the name of a figure.
    """
    name = Path(path).stem
    if name not in _OF_ALL_RUNS and not name.startswith(tuple(f"{each}-" for each in _OF_EACH_RUN)):
        known = (*_OF_ALL_RUNS, *(f"{each}-RUN" for each in _OF_EACH_RUN))
        hint = did_you_mean(name, _OF_ALL_RUNS) or f"there are: {', '.join(known)}"
        raise UsageError(f'{path}: no figure "{shortened(name)}"; {hint}')


def form_of(path: str | Path) -> Form | None:
    """The form that the name of a file states. Returns None for a folder."""
    ending = Path(path).suffix.removeprefix(".").lower()
    return next((form for form in get_args(Form) if form == ending), None)


def forms_of(text: str) -> list[Form]:
    """Forms by name, as in "png,pdf".

    :raises UsageError: one does not exist.
    """
    known: dict[str, Form] = {form: form for form in get_args(Form)}
    named = [name.strip().lower() for name in text.split(",")]
    if unknown := [name for name in named if name not in known]:
        raise UsageError(f'no form of figures "{shortened(unknown[0])}", expected {", ".join(known)}')
    return [known[name] for name in named]


def _one(drawn: Mapping[str, Figure], path: Path) -> Figure:
    if path.stem not in drawn:
        meant = did_you_mean(path.stem, drawn)
        known = ", ".join(drawn) or "none: nothing happened"
        raise UsageError(f'{path}: no figure "{shortened(path.stem)}"; {meant or f"there are: {known}"}')
    return drawn[path.stem]


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-")
