"""Predictions: ``pliant profile --predict`` says how long jobs take, ``pliant predictor`` how far jobs are
that do not state their work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.config import configuration
from pliant.cli.console import note
from pliant.schemas.errors import BadInputError
from pliant.schemas.text import counted

if TYPE_CHECKING:
    from pliant.schemas.cluster import Cluster
    from pliant.schemas.profile import Profile
    from pliant.tools.profile.predict import Base, PredictionQuery, Spread, StepPrediction
    from pliant.tools.profile.throughput_model import ThroughputBySize
    from pliant.tools.report.rendering.sections import Section, TimeUnit
    from pliant.tools.schedule.jobs import JobState
    from pliant.tools.schedule.rates import Speeds


class PredictionFormat(StrEnum):
    """How predictions are written."""

    table = "table"
    json = "json"
    csv = "csv"


@dataclass(frozen=True, slots=True)
class PredictionScope:
    """What to predict for a file of jobs; None means what the jobs and the cluster suggest."""

    models: Collection[str] = ()
    gpus: Sequence[int] | None = None
    batches: Sequence[int] | None = None


def predictions_text(
    profile: Profile,
    jobs: str,
    cluster: str | None,
    wanted: PredictionScope,
    form: PredictionFormat,
    *,
    width: int | None = None,
) -> str:
    """Predictions for the jobs of a file.

    :param width: of the terminal, if there is one.
    :raises BadInputError: no job has one of the models, or one is not profiled.
    """
    import json

    from pliant.schemas.file_io.files import source_name
    from pliant.schemas.io import read_cluster, read_jobs
    from pliant.tools.profile.predict import spreads
    from pliant.tools.profile.throughput_model import ThroughputBySize
    from pliant.tools.report.rendering.text import as_csv, as_table
    from pliant.tools.schedule.demand import job_state
    from pliant.tools.schedule.jobs import node_states
    from pliant.tools.schedule.rates import Speeds

    specs = [
        job for job in read_jobs(jobs, configuration().job) if not wanted.models or job.model in wanted.models
    ]
    if not specs:
        missing = f"no job has the model {' or '.join(wanted.models)}" if wanted.models else "holds no job"
        raise BadInputError.one(source_name(jobs), missing)
    nodes = _cluster_of(profile) if cluster is None else read_cluster(cluster)
    speed = ThroughputBySize(profile, nodes.speeds)
    speeds, errors = Speeds(speed, node_states(nodes)), spreads(profile)
    answers = [
        answer
        for spec in specs
        for answer in _answers(job_state(spec, speeds), speed, speeds, wanted, errors)
    ]
    if form is PredictionFormat.table:
        return as_table([answer.section() for answer in answers], width)
    rows = [asdict(row) for answer in answers for row in answer.rows]
    return as_csv(rows) if form is PredictionFormat.csv else json.dumps(rows, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class _Answer:
    question: PredictionQuery
    base: Base | None
    rows: Sequence[StepPrediction]

    def section(self) -> Section:
        from pliant.tools.report.rendering.sections import Section, time_unit

        unit = time_unit(row.finish_seconds for row in self.rows)
        headers = (
            "",
            "GPUs",
            "batch",
            "per GPU",
            "step, ms",
            "samples/s",
            "scaling",
            f"finishes in, {unit.name}",
        )
        cells = tuple(_cells(row, unit) for row in self.rows)
        title = f"{self.question.job}: {self.question.model} on {self.question.gpu_type}"
        return Section(title, headers, cells, 1, self._notes())

    def _notes(self) -> tuple[str, ...]:
        notes = ["finishes in: all the work from its start, without waiting and without a change"]
        if any(row.finish_seconds_low is not None for row in self.rows):
            notes.append("in brackets: as far off as the model is on measured rows that it has not seen")
        notes += {f"infeasible: {row.infeasible}": None for row in self.rows if row.infeasible}
        notes += {f"unknown: {row.unknown}": None for row in self.rows if row.unknown}
        if self.base is not None:
            alone = f"{self.base.local_batch} samples a step on one GPU"
            notes.insert(
                0, f"scaling: relative to {alone}, {1e3 * self.base.step_seconds:.4g} ms ({self.base.source})"
            )
        return tuple(notes)


def _cells(row: StepPrediction, unit: TimeUnit) -> tuple[str, ...]:
    from pliant.tools.report.rendering.sections import NOTHING, number

    share = NOTHING if row.local_batch is None else str(row.local_batch)
    per_gpu = f"{share} × {row.accum_steps}" if row.accum_steps and row.accum_steps > 1 else share
    step_ms = None if row.step_seconds is None else 1e3 * row.step_seconds
    return (
        row.source or ("infeasible" if row.infeasible else "unknown"),
        str(row.gpus),
        str(row.global_batch),
        per_gpu,
        number(step_ms, 2),
        number(row.samples_per_second, 1),
        number(row.scaling_factor, 2),
        _finish_text(row, unit),
    )


def _finish_text(row: StepPrediction, unit: TimeUnit) -> str:
    finish = unit.text(row.finish_seconds)
    if row.finish_seconds_low is None or row.finish_seconds_high is None:
        return finish
    return f"{finish} ({unit.text(row.finish_seconds_low)}–{unit.text(row.finish_seconds_high)})"


def _answers(
    state: JobState,
    speed: ThroughputBySize,
    speeds: Speeds,
    wanted: PredictionScope,
    errors: Mapping[tuple[str, str], Spread],
) -> Iterator[_Answer]:
    from pliant.tools.profile.predict import PredictionQuery, base_of, predict

    spec = state.spec
    for gpu_type, count in speeds.gpu_types.items():
        question = PredictionQuery(
            spec.id,
            spec.model,
            gpu_type,
            state.total_samples,
            spec.batch.per_gpu_max,
            max(_batches(state)),
            errors.get((spec.model, gpu_type)),
            spec.gpus.per_replica,
        )
        sizes = wanted.gpus or _sizes(state, count)
        places = {size: speeds.consolidated(size, gpu_type, spec.gpus.per_replica) for size in sizes}
        rows = predict(speed, question, places, wanted.batches or _batches(state))
        yield _Answer(question, base_of(speed, question), rows)


def _sizes(state: JobState, cluster_gpus: int) -> set[int]:
    """Doubling sizes up to the whole cluster, and those that the job states."""
    from pliant.tools.profile.measuring.plan import powers

    asked = {state.spec.gpus.requested, state.spec.min_gpus, state.spec.max_gpus(cluster_gpus)}
    each = state.spec.gpus.per_replica
    return {*(each * replicas for replicas in powers(1, cluster_gpus // each) if replicas), *asked}


def _batches(state: JobState) -> tuple[int, ...]:
    """The job's batch; if it may change, also doubling ones within its limits."""
    from pliant.tools.profile.measuring.plan import powers

    size, limits = state.reference_batch, state.spec.batch
    if state.spec.elastic != "size+batch":
        return (size,)
    return tuple(sorted({size, *powers(limits.min or size, limits.max or size)}))


def _cluster_of(profile: Profile) -> Cluster:
    """One node of each GPU type, as large as the largest profiled gang."""
    from pliant.schemas.cluster import Cluster

    largest: dict[str, int] = {}
    for row in profile.rows:
        largest[row.gpu_type] = max(row.gpus, largest.get(row.gpu_type, 1))
    nodes = [
        {"name": f"n{n}", "gpus": gpus, "gpu_type": kind} for n, (kind, gpus) in enumerate(largest.items())
    ]
    return Cluster.model_validate({"nodes": tuple(nodes)})


def predictor_fit(
    histories: Annotated[
        list[str],
        typer.Argument(
            metavar="HISTORY…",
            help="Event files of runs and replays, and imported histories (history.jsonl); - is stdin.",
        ),
    ],
    *,
    append: Annotated[
        str | None,
        typer.Option("--append", metavar="FILE", help="Go on from this predictor.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the sample of epochs.")] = 0,
    output: Annotated[str, typer.Option("-o", "--output", help="The predictor (JSON); - is stdout.")] = "-",
) -> None:
    """Fit a progress predictor to the epochs of jobs that finished.

    schedule, run and replay take it with --demand predicted --predictor FILE,
    and go on learning as jobs end. It holds at most 2,000 epochs, drawn
    uniformly; equal inputs give equal files.

    Example: pliant predictor fit ones/history.jsonl -o predictor.json
    """
    from pliant.schemas.errors import BadInputError, UsageError
    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.io import read_events, read_predictor, write_predictor
    from pliant.tools.profile.predictor import FEWEST_JOBS, ProgressPredictor, ended_jobs

    check_output(output)
    if append is not None and seed:
        raise UsageError("--append and --seed contradict each other: a predictor keeps its seed")
    made = ProgressPredictor(None if append is None else read_predictor(append), seed=seed)
    before = made.jobs
    for path in histories:
        made.learn(ended_jobs(read_events(path)))
    if made.jobs == before:
        names = ", ".join(histories)
        raise BadInputError(f"{names}: no job finished whose epochs are known, expected one or more")
    predictor = made.document()
    seen = f"{counted(predictor.jobs, 'job')}, {counted(predictor.rows_seen, 'epoch')}"
    note(f"{seen}, {len(predictor.rows)} in the sample")
    if predictor.fit is None:
        note(f"progress stays uniform between 0 and 1: fewer than {FEWEST_JOBS} jobs have finished")
    else:
        part = made.coverage()
        note(f"90 % intervals hold {part:.0%} of the epochs as predicted before their job was learned from")
    write_predictor(predictor, output)


SUBCOMMANDS = (predictor_fit,)
