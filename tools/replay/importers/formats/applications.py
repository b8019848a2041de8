"""Measured applications: a folder each, with step times by placement and by size, and validation runs.

The files, one folder an application:

- ``placements[-GPU].csv``: placement (GPUs per node as digits, in the order of the ring), local_bsz,
  step_time, sync_time (s). They become profile rows with ``node_order``.
- ``scalability[-GPU].csv``: the same by num_nodes and num_replicas. They become profile rows whose placement
  is an even split and whose ``node_order`` is null: that tells the two apart.
- ``validation-B.csv`` of global batch B, a row an epoch: progress, iteration (cumulative), metric, grad_sqr,
  grad_var. They become convergence rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import CONVERGENCE, PROFILE, ConvergenceRow, ProfileRow
from pliant.tools.replay.importers.conversion import (
    MOST_GPUS,
    Conversion,
    Imported,
    InputRow,
    MalformedRowError,
    checked,
)
from pliant.tools.replay.importers.reading import csv_rows

_STEPS: Final = re.compile(r"(placements|scalability)(?:-(.+))?\.csv")
_VALIDATION: Final = re.compile(r"validation-([1-9][0-9]{0,17})\.csv")
_TIMES: Final = ("local_bsz", "step_time", "sync_time")
_SHAPES: Final = {"placements": ("placement",), "scalability": ("num_nodes", "num_replicas")}
_EPOCH: Final = ("progress", "iteration", "metric", "grad_sqr", "grad_var")


def read_measurements(folder: Path, gpu_type: str, conversion: Conversion) -> Imported:
    """The measurements of a folder, in the order of application, file name and row; no jobs.

    ``gpu_type`` is that of files without one in their name.
    """
    folders = _applications(folder)
    conversion.summary.assume("a measured step is one micro-step; computing is step_time less sync_time")
    conversion.summary.assume(
        "scalability files state nodes and GPUs alone: their profile rows have an even split as placement "
        "and no node_order, rows of placements files have one"
    )
    profile: list[ProfileRow] = []
    convergence: list[ConvergenceRow] = []
    for application in folders:
        for path, kind, found_type in _step_files(application, gpu_type, conversion):
            rows = csv_rows(path, conversion, (*_TIMES, *_SHAPES[kind]))
            profile += conversion.convert(rows, partial(_step, application.name, found_type, _SHAPE[kind]))
        for path, batch in _validation_files(application):
            rows = csv_rows(path, conversion, _EPOCH)
            convergence += conversion.convert(rows, partial(_epoch, application.name, batch))
    return Imported(profile=profile, convergence=convergence)


def _applications(folder: Path) -> list[Path]:
    inner = folder / "traces"
    root = inner if inner.is_dir() else folder
    found = sorted(path.parent for path in root.glob("*/placements*.csv"))
    if not found:
        raise BadInputError.one(str(root), "holds no APPLICATION/placements*.csv, expected the data folder")
    return list(dict.fromkeys(found))


def _step_files(folder: Path, gpu_type: str, conversion: Conversion) -> Iterator[tuple[Path, str, str]]:
    for path in sorted(folder.iterdir()):
        match = _STEPS.fullmatch(path.name)
        if match is None:
            continue
        if match[2] is None and (folder / f"{match[1]}-{gpu_type}.csv").is_file():
            conversion.summary.assume(
                f"files without a GPU type repeat those of {gpu_type} and were not read"
            )
            continue
        yield path, match[1], match[2] or gpu_type


def _validation_files(folder: Path) -> list[tuple[Path, int]]:
    matches = [(path, _VALIDATION.fullmatch(path.name)) for path in folder.iterdir()]
    return sorted(((path, int(match[1])) for path, match in matches if match), key=lambda found: found[1])


Shape = tuple[list[int], str | None]
"""GPUs per node, largest first, and the order in which they were measured."""


def _step(model: str, gpu_type: str, shape_of: Callable[[InputRow], Shape], row: InputRow) -> ProfileRow:
    shares, node_order = shape_of(row)
    local, step_s, sync_s = (
        row.positive_count("local_bsz"),
        row.number("step_time"),
        row.number("sync_time"),
    )
    if not step_s:
        raise MalformedRowError("step_time", "is 0, expected more than 0")
    if sync_s > step_s:
        raise MalformedRowError("sync_time", f"{sync_s:g} is above step_time {step_s:g}, which includes it")
    return checked(
        ProfileRow(
            kind="train",
            model=model,
            gpu_type=gpu_type,
            nodes=len(shares),
            gpus=sum(shares),
            placement=_joined(shares),
            local_batch=local,
            step_seconds=step_s,
            compute_seconds=step_s - sync_s,
            sync_seconds=sync_s,
            samples_per_second=sum(shares) * local / step_s,
            source="imported",
            node_order=node_order,
        ),
        PROFILE,
    )


def _placement(row: InputRow) -> Shape:
    digits = row.optional_text("placement")
    if not (digits.isascii() and digits.isdigit()) or "0" in digits:
        raise MalformedRowError("placement", f"{digits!r}, expected GPUs per node as digits, like 42")
    shares = [int(digit) for digit in digits]
    return sorted(shares, reverse=True), _joined(shares)


def _even_split(row: InputRow) -> Shape:
    nodes, gpus = row.count("num_nodes"), row.count("num_replicas")
    if gpus > MOST_GPUS:
        raise MalformedRowError("num_replicas", f"{gpus} is above {MOST_GPUS:,}")
    if not 0 < nodes <= gpus:
        raise MalformedRowError("num_nodes", f"{nodes} nodes for {gpus} replicas, expected 1 to {gpus}")
    share, more = divmod(gpus, nodes)
    return [share + 1] * more + [share] * (nodes - more), None


_SHAPE: Final = {"placements": _placement, "scalability": _even_split}


def _joined(shares: Sequence[int]) -> str:
    return ",".join(map(str, shares))


def _epoch(model: str, batch: int, row: InputRow) -> ConvergenceRow:
    """An epoch; they are counted by the lines of the file, the header before them."""
    metric = row.optional_text("metric")
    try:
        value = float(metric) if metric else None
    except ValueError:
        raise MalformedRowError("metric", f"{metric!r} is not a number") from None
    return checked(
        ConvergenceRow(
            model=model,
            batch=batch,
            epoch=row.row_number - 1,
            iterations=row.number("iteration"),
            progress=row.number("progress"),
            metric=value,
            grad_sqr=row.number("grad_sqr"),
            grad_var=row.number("grad_var"),
        ),
        CONVERGENCE,
    )
