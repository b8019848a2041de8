"""The data of the Pollux and Sia artifacts: measured applications, and workloads over them.

Pollux measured nodes of T4 GPUs, Sia the same applications on several GPU types. A workload has the columns
name, time, application, num_replicas, batch_size.

Measured applications are a folder each:

- ``placements[-GPU].csv``: placement (GPUs per node as digits, in the order of the ring), local_bsz,
  step_time, sync_time (s). They become profile rows with ``node_order``.
- ``scalability[-GPU].csv``: the same by num_nodes and num_replicas. They become profile rows whose placement
  is an even split and whose ``node_order`` is null: that tells the two apart.
- ``validation-B.csv`` of global batch B, a row an epoch: progress, iteration (cumulative), metric, grad_sqr,
  grad_var. They become convergence rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import LARGEST_BATCH, MOST, MOST_GPUS, MOST_SAMPLES
from pliant.schemas.job import Batch, EpochWork, Gpus, Job
from pliant.schemas.profile import CONVERGENCE, PROFILE, ConvergenceRow, ProfileRow
from pliant.tools.replay.importers.blocks import RowBlock, RowIds, WordColumn, convert_blocks
from pliant.tools.replay.importers.conversion import (
    MOST_ROW_GPUS,
    Conversion,
    FolderFormat,
    Imported,
    InputRow,
    MalformedRowError,
    checked,
)
from pliant.tools.replay.importers.job_lines import JobBlock, check_rows, integers, job_block
from pliant.tools.replay.importers.reading import csv_blocks, csv_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True, slots=True)
class Application:
    """What validation runs say of an application's jobs."""

    smallest_batch: int
    largest_batch: int
    epochs: int
    """Epochs that every validation run has."""
    dataset_size: int
    """Samples an epoch at the smallest batch."""


_NONE: Final = Application(1, 1, 1, 1)
"""Application of jobs that are refused."""


def read_pollux(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    """Measurements and jobs; GPU type ``t4``."""
    conversion.summary.assume("all measurements are of the GPU type t4")
    return _read("pollux", "t4", folder, workload, conversion)


def read_sia(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    """Measurements and jobs; the GPU type is the ending of a file's name, ``aws`` where it has none."""
    return _read("sia", "aws", folder, workload, conversion)


def _read(name: str, gpu_type: str, folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    measured = read_measurements(folder, gpu_type, conversion)
    if workload is None:
        return measured
    known = _applications(measured.convergence)
    return replace(measured, jobs=tuple(_jobs(name, workload, known, conversion)))


def _applications(rows: Iterable[ConvergenceRow]) -> dict[str, Application]:
    runs: dict[str, dict[int, list[ConvergenceRow]]] = {}
    for row in rows:
        runs.setdefault(row.model, {}).setdefault(row.batch, []).append(row)
    return {model: _application(by_batch) for model, by_batch in runs.items()}


def _application(runs: Mapping[int, list[ConvergenceRow]]) -> Application:
    smallest = min(runs)
    last = max(runs[smallest], key=lambda row: row.epoch)
    dataset_size = round(last.iterations * smallest / (last.epoch + 1))
    epochs = min(max(row.epoch for row in run) + 1 for run in runs.values())
    return Application(smallest, max(runs), epochs, max(1, dataset_size))


def _jobs(
    name: str, workload: Path, known: Mapping[str, Application], conversion: Conversion
) -> Iterator[JobBlock]:
    conversion.summary.assume(
        "jobs run the epochs that every validation run of their application has (label max_epochs); an epoch "
        "is as many samples as the run of the smallest batch took"
    )
    conversion.summary.assume("batches may move between the smallest and the largest validated one")
    blocks = csv_blocks(workload, conversion, COLUMNS)
    return convert_blocks(blocks, partial(_job_lines, name, known))


def _job_lines(trace: str, known: Mapping[str, Application], block: RowBlock) -> JobBlock:
    model = block.optional_text("application")
    names = ", ".join(sorted(known)) or "none"
    block.refuse(
        model.marks(lambda text: text not in known),
        "application",
        lambda row: f"{model[row]!r} has no validation runs (there are: {names})",
    )
    ids, submit_time_s = RowIds(block).of("name"), block.number("time")
    gpus = block.positive_count("num_replicas")
    check_rows(block, gpus <= MOST_GPUS, lambda row: Gpus(requested=int(gpus[row]), min=1))
    batch = block.positive_count("batch_size")
    applications = [known.get(text, _NONE) for text in model.texts]

    def job_of(row: int) -> Job:
        application = applications[model.places[row]]
        return Job(
            id=ids[row].as_py(),
            submit_time=float(submit_time_s[row]),
            model=model[row],
            gpus=Gpus(requested=int(gpus[row]), min=1),
            batch=Batch(size=int(batch[row]), min=application.smallest_batch, max=application.largest_batch),
            elastic="size+batch",
            work=EpochWork(epochs=float(application.epochs), dataset_size=application.dataset_size),
            convergence=model[row],
        )

    def of_each(name: str) -> NDArray[np.int64]:
        by_word = np.array([getattr(each, name) for each in applications], dtype=np.int64)
        return by_word.take(model.places)

    least, most, samples = of_each("smallest_batch"), of_each("largest_batch"), of_each("dataset_size")
    within = (batch >= least) & (batch <= most) & (most <= LARGEST_BATCH) & (samples <= MOST_SAMPLES)
    check_rows(block, within & (submit_time_s <= MOST), job_of)
    fields = {
        "model": model,
        "gpus": {"requested": integers(gpus), "min": 1},
        "batch": {"size": integers(batch), "min": least, "max": most},
        "elastic": "size+batch",
        "work": {"epochs": of_each("epochs").astype(np.float64), "dataset_size": samples},
        "convergence": model,
        "labels": {
            "trace": trace,
            "row": WordColumn.of([str(line - 1) for line in block.lines.tolist()]),
            "max_epochs": model.map(lambda text: str(known.get(text, _NONE).epochs)),
        },
    }
    return job_block(block, ids, submit_time_s, fields)


FORMAT: Final = FolderFormat("pollux", read_pollux)
SIA: Final = FolderFormat("sia", read_sia)


_STEPS: Final = re.compile(r"(placements|scalability)(?:-(.+))?\.csv")
_VALIDATION: Final = re.compile(r"validation-([1-9][0-9]{0,17})\.csv")
_TIMES: Final = ("local_bsz", "step_time", "sync_time")
_SHAPES: Final = {"placements": ("placement",), "scalability": ("num_nodes", "num_replicas")}
_EPOCH: Final = ("progress", "iteration", "metric", "grad_sqr", "grad_var")


def read_measurements(folder: Path, gpu_type: str, conversion: Conversion) -> Imported:
    """The measurements of a folder, in the order of application, file name and row; no jobs.

    ``gpu_type`` is that of files without one in their name.
    """
    folders = _folders(folder)
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
            profile += conversion.convert(rows, partial(_speed, application.name, found_type, _SHAPE[kind]))
        for path, batch in _validation_files(application):
            rows = csv_rows(path, conversion, _EPOCH)
            convergence += conversion.convert(rows, partial(_convergence, application.name, batch))
    return Imported(profile=profile, convergence=convergence)


def _folders(folder: Path) -> list[Path]:
    inner = folder / "traces"
    root = inner if inner.is_dir() else folder
    folders = sorted(path.parent for path in root.glob("*/placements*.csv"))
    if not folders:
        raise BadInputError.one(str(root), "holds no APPLICATION/placements*.csv, expected the data folder")
    return list(dict.fromkeys(folders))


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


def _speed(model: str, gpu_type: str, shape_of: Callable[[InputRow], Shape], row: InputRow) -> ProfileRow:
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
    if gpus > MOST_ROW_GPUS:
        raise MalformedRowError("num_replicas", f"{gpus} is above {MOST_ROW_GPUS:,}")
    if not 0 < nodes <= gpus:
        raise MalformedRowError("num_nodes", f"{nodes} nodes for {gpus} replicas, expected 1 to {gpus}")
    share, more = divmod(gpus, nodes)
    return [share + 1] * more + [share] * (nodes - more), None


_SHAPE: Final = {"placements": _placement, "scalability": _even_split}


def _joined(shares: Sequence[int]) -> str:
    return ",".join(map(str, shares))


def _convergence(model: str, batch: int, row: InputRow) -> ConvergenceRow:
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
