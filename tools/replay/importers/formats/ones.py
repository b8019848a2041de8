"""The ONES artifact's data: a job trace without amounts of work, and the epochs of the jobs of a test run.

The epochs become a convergence table, and a history that a progress predictor is fitted to.

A trace has the columns time, model, task, epoch_size, patience, batch_size, lr, max_lr, target_acc, num_gpus.
``job_history.csv`` is a run of ``trace_dev.csv``: its id is that trace's row. Jobs of a kind (model, task,
epoch_size) that the run has seen get its number of epochs, the others have unknown work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.event import EVENT, Event
from pliant.schemas.events import EpochEnded, Finished, Progressed, Submitted, row_of
from pliant.schemas.job import Batch, EpochWork, Gpus, Job
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.replay.importers.conversion import (
    Conversion,
    DroppedRowError,
    FolderFormat,
    Imported,
    InputRow,
    checked,
)
from pliant.tools.replay.importers.reading import csv_rows

JOBS: Final = (
    "time", "model", "task", "epoch_size", "batch_size", "lr", "max_lr", "num_gpus",
)  # fmt: skip
EPOCHS: Final = (
    "id", "epoch", "epoch_size", "num_samples", "total_workload", "batch_size", "initial_loss", "loss", "acc",
    "throughput",
)  # fmt: skip


@dataclass(slots=True)
class RecordedRun:
    """The recorded epochs of one job, and how many it took in all."""

    kind: str
    epoch_size: int
    job: Job
    epochs: float = 0.0
    rows: list[ConvergenceRow] = field(default_factory=list)
    is_repeat: bool = False
    """Whether a run of the same kind and batch began before it: a table holds one."""
    history: list[Event] = field(default_factory=list)
    """What the job reported; times count its training alone."""
    total_samples: float = 0.0
    initial_loss: float = 0.0


def read(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    runs = _runs(folder, conversion)
    epochs = {run.kind: run.epochs for run in runs if run.rows}
    jobs = () if workload is None else tuple(_jobs(workload, epochs, conversion))
    conversion.summary.assume("the recorded throughputs name no number of GPUs: there is no profile")
    return Imported(jobs, convergence=[row for run in runs for row in run.rows], history=_history(runs))


def read_workload(workload: Path, conversion: Conversion) -> Iterator[Job]:
    return _jobs(workload, {}, conversion)


def _jobs(workload: Path, epochs: Mapping[str, float], conversion: Conversion) -> Iterator[Job]:
    conversion.summary.assume(
        "a job runs as many epochs as the recorded one of its model, task and epoch size; else it is unknown"
        if epochs
        else "how many epochs a job runs is not known: jobs have unknown work"
    )
    conversion.summary.assume(
        "batches may move from the trace's batch_size up to where lr would reach max_lr"
    )

    def job(row: InputRow) -> Job:
        return _job(conversion.new_id(f"ones-{row.row_number}"), epochs, row)

    return conversion.convert(csv_rows(workload, conversion, JOBS), job)


def _job(job_id: str, epochs: Mapping[str, float], row: InputRow) -> Job:
    kind, batch, lr = _kind(row), row.positive_count("batch_size"), row.number("lr")
    known = epochs.get(kind)
    largest = round(batch * row.number("max_lr") / lr) if lr else batch
    names = ("task", "epoch_size", "patience", "target_acc")
    return Job(
        id=job_id,
        submit_time=row.number("time"),
        model=row.text("model"),
        gpus=Gpus(requested=row.positive_count("num_gpus"), min=1),
        batch=Batch(size=batch, min=batch, max=max(batch, largest)),
        lr=lr or None,
        elastic="size+batch",
        work=EpochWork(epochs=known, dataset_size=row.positive_count("epoch_size")) if known else None,
        convergence=kind if known else None,
        labels={"trace": "ones", **{name: row.optional_text(name) for name in names if name in row.values}},
    )


def _kind(row: InputRow) -> str:
    return f"{row.optional_text('model')}-{row.optional_text('task')}-{row.count('epoch_size')}"


def _runs(folder: Path, conversion: Conversion) -> list[RecordedRun]:
    trace, history = folder / "trace_dev.csv", folder / "job_history.csv"
    if not (trace.is_file() and history.is_file()):
        conversion.summary.assume("there are no trace_dev.csv and job_history.csv: no epochs are known")
        return []
    conversion.summary.assume(
        "an epoch of a recorded run has the batch of its first epoch, its progress is the samples done; "
        "iterations are counted at the batches used"
    )
    kinds = conversion.convert(
        csv_rows(trace, conversion, JOBS),
        lambda row: RecordedRun(
            _kind(row), row.count("epoch_size"), _job(f"recorded-{row.row_number}", {}, row)
        ),
    )
    runs = dict(enumerate(kinds))
    for _ in conversion.convert(csv_rows(history, conversion, EPOCHS), partial(_epoch, runs)):
        pass
    return [run for run in runs.values() if run.history]


def _epoch(runs: Mapping[int, RecordedRun], row: InputRow) -> None:
    run, epoch, size = runs.get(row.count("id")), row.count("epoch"), row.positive_count("epoch_size")
    if run is None or run.epoch_size != size or epoch != len(run.history) + 1:
        raise DroppedRowError("are epochs of a run that does not fit trace_dev.csv")
    _report(run, row)
    run.epochs = run.total_samples / size
    batch, done = row.positive_count("batch_size"), row.number("num_samples")
    if epoch == 1:
        run.is_repeat = any(
            other.kind == run.kind and other.rows[0].batch == batch for other in runs.values() if other.rows
        )
    if run.is_repeat:
        raise DroppedRowError("are epochs of a run whose kind and batch another run has")
    before = run.rows[-1] if run.rows else ConvergenceRow(run.kind, batch, 0, 0.0, 0.0)
    iterations = before.iterations + (done - before.progress) / batch
    run.rows.append(
        ConvergenceRow(
            run.kind,
            before.batch,
            epoch - 1,
            iterations,
            done,
            row.number("acc"),
            loss=row.number("loss"),
            initial_loss=row.number("initial_loss"),
        )
    )


def _report(run: RecordedRun, row: InputRow) -> None:
    before, done = (run.history[-1] if run.history else None), row.number("num_samples")
    trained = done - (before.samples_done or 0.0 if before else 0.0)
    began_s = before.time if before else run.job.submit_time
    run.total_samples = row.number("total_workload")
    run.initial_loss = row.number("initial_loss")
    event = Event(
        time=began_s + trained / row.number("throughput"),
        event=EpochEnded.name,
        job=run.job.id,
        global_batch=row.positive_count("batch_size"),
        samples_done=done,
        loss=row.number("loss"),
        metric=row.number("acc"),
        detail={"epoch": row.count("epoch") - 1},
    )
    run.history.append(checked(event, EVENT))


def _history(runs: Iterable[RecordedRun]) -> list[Event]:
    events: list[Event] = []
    for run in runs:
        at_s, work = run.job.submit_time, EpochWork(epochs=run.epochs, dataset_size=run.epoch_size)
        job = run.job.model_copy(update={"work": work})
        stated = {"job": job.model_dump(mode="json", by_alias=True, exclude_defaults=True)}
        ended_s, total = run.history[-1].time, run.total_samples
        events += [
            row_of(Submitted(at_s, job.id, stated=stated)),
            row_of(Progressed(at_s, job.id, samples_done=0.0, loss=run.initial_loss)),
            *run.history,
            row_of(Finished(ended_s, job.id, 0, samples_done=total)),
        ]
    return sorted(events, key=lambda event: event.time)


FORMAT: Final = FolderFormat("ones", read, read_workload)
