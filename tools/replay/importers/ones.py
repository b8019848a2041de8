"""The ONES artifact's data: a job trace without amounts of work, and the epochs of the jobs of a test run.

A trace has the columns time, model, task, epoch_size, patience, batch_size, lr, max_lr, target_acc, num_gpus.
``job_history.csv`` is a run of ``trace_dev.csv``: its id is that trace's row. Jobs of a kind (model, task,
epoch_size) that the run has seen get its number of epochs, the others have unknown work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.convergence import ConvergenceRow
from pliant.schemas.job import Batch, EpochWork, Gpus, Job
from pliant.tools.replay.importers.csv_records import sheet
from pliant.tools.replay.importers.fields import count, number, some, text, word
from pliant.tools.replay.importers.format import FolderFormat, Imported
from pliant.tools.replay.importers.rows import DroppedRowError, Intake, Record

JOBS: Final = (
    "time", "model", "task", "epoch_size", "patience", "batch_size", "lr", "max_lr", "target_acc", "num_gpus",
)  # fmt: skip
EPOCHS: Final = ("id", "epoch", "epoch_size", "num_samples", "total_workload", "batch_size", "acc")


@dataclass(slots=True)
class Run:
    """The recorded epochs of one job, and how many it took in all."""

    kind: str
    epoch_size: int
    epochs: float = 0.0
    rows: list[ConvergenceRow] = field(default_factory=list)
    is_repeat: bool = False
    """Whether a run of the same kind and batch began before it: a table holds one."""


def read(folder: Path, workload: Path | None, intake: Intake) -> Imported:
    """The test run's epochs as convergence rows, and the jobs of a trace."""
    runs = _runs(folder, intake)
    jobs = () if workload is None else tuple(_jobs(workload, {run.kind: run.epochs for run in runs}, intake))
    intake.report.assume("the recorded throughputs name no number of GPUs: there is no profile")
    return Imported(jobs, convergence=[row for run in runs for row in run.rows])


def read_workload(workload: Path, intake: Intake) -> Iterator[Job]:
    """The jobs of a trace alone; their work is unknown."""
    return _jobs(workload, {}, intake)


def _jobs(workload: Path, epochs: Mapping[str, float], intake: Intake) -> Iterator[Job]:
    intake.report.assume(
        "a job runs as many epochs as the recorded one of its model, task and epoch size; else it is unknown"
        if epochs
        else "how many epochs a job runs is not known: jobs have unknown work"
    )
    intake.report.assume("batches may move from the trace's batch_size up to where lr would reach max_lr")
    return intake.convert(sheet(workload, intake, JOBS), partial(_job, epochs, intake))


def _job(epochs: Mapping[str, float], intake: Intake, row: Record) -> Job:
    kind, batch, lr = _kind(row), some(row, "batch_size"), number(row, "lr")
    known = epochs.get(kind)
    largest = round(batch * number(row, "max_lr") / lr) if lr else batch
    names = ("task", "patience", "target_acc")
    return Job(
        id=intake.new_id(f"ones-{row.number}"),
        submit_time=number(row, "time"),
        model=word(row, "model"),
        gpus=Gpus(requested=some(row, "num_gpus"), min=1),
        batch=Batch(size=batch, min=batch, max=max(batch, largest)),
        lr=lr or None,
        elastic="size+batch",
        work=EpochWork(epochs=known, dataset_size=some(row, "epoch_size")) if known else None,
        convergence=kind if known else None,
        labels={"trace": "ones", **{name: text(row, name) for name in names}},
    )


def _kind(row: Record) -> str:
    return f"{text(row, 'model')}-{text(row, 'task')}-{count(row, 'epoch_size')}"


def _runs(folder: Path, intake: Intake) -> list[Run]:
    """The recorded runs in the order of the test trace."""
    trace, history = folder / "trace_dev.csv", folder / "job_history.csv"
    if not (trace.is_file() and history.is_file()):
        intake.report.assume("there are no trace_dev.csv and job_history.csv: no epochs are known")
        return []
    intake.report.assume(
        "an epoch of a recorded run has the batch of its first epoch, its progress is the samples done; "
        "iterations are counted at the batches used"
    )
    kinds = intake.convert(sheet(trace, intake, JOBS), lambda row: Run(_kind(row), count(row, "epoch_size")))
    runs = dict(enumerate(kinds))
    for _ in intake.convert(sheet(history, intake, EPOCHS), partial(_epoch, runs)):
        pass
    return [run for run in runs.values() if run.rows]


def _epoch(runs: Mapping[int, Run], row: Record) -> None:
    """Add an epoch to its run."""
    run, epoch, size = runs.get(count(row, "id")), count(row, "epoch"), some(row, "epoch_size")
    if run is None or run.epoch_size != size or not (run.is_repeat or epoch == len(run.rows) + 1):
        raise DroppedRowError("are epochs of a run that does not fit trace_dev.csv")
    batch, done = some(row, "batch_size"), number(row, "num_samples")
    if epoch == 1:
        run.is_repeat = any(
            other.kind == run.kind and other.rows[0].batch == batch for other in runs.values() if other.rows
        )
    if run.is_repeat:
        raise DroppedRowError("are epochs of a run whose kind and batch another run has")
    before = run.rows[-1] if run.rows else ConvergenceRow(run.kind, batch, 0, 0.0, 0.0)
    iterations = before.iterations + (done - before.progress) / batch
    run.rows.append(ConvergenceRow(run.kind, before.batch, epoch - 1, iterations, done, number(row, "acc")))
    run.epochs = number(row, "total_workload") / size


FORMAT: Final = FolderFormat(
    "ones", "ONES SC'21: data folder and --workload trace_1.csv, or the trace alone", read, read_workload
)
