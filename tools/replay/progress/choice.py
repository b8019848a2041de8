"""How jobs train in a replay: which speeds, which progress model, and whose quirks.

Work in samples at the reference batch; the gradient noise says how much less a larger batch trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.json_lines import garbage_collection_paused
from pliant.schemas.text import counted
from pliant.tools.profile.throughput import Throughput
from pliant.tools.profile.throughput_model import ThroughputByPlacement
from pliant.tools.replay.compat import Compat, simulator_model
from pliant.tools.replay.engine.costs import DEFAULT, Cost, unstated_costs
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import Conditions, ProgressName
from pliant.tools.replay.progress.epochs import Epochs
from pliant.tools.replay.progress.protocol import ProgressModel, Samples, Segment
from pliant.tools.replay.progress.tables import Pieces, Validation
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.snapshot import Oracle

_SHOWN: Final = 5


class Prepared(NamedTuple):
    """What the conditions of a replay come to for one trace, cluster and policy."""

    throughput: Throughput
    simulated: SimulatedCluster
    interval_s: float | None
    oracle: Oracle | None
    progress: str
    """Name of the progress model; "epochs" where some jobs have a table and others advance by samples."""


class ByJob(ProgressModel):
    """Epochs for the jobs that have a table, samples for the others."""

    def __init__(self, tables: Mapping[str, Validation], epochs: Epochs) -> None:
        self._tables = tables
        self._epochs = epochs
        self._samples = Samples()

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        """As the job's own model says."""
        return self._model(job).segment(job, samples_done, speed_factor)

    def all_samples(self, job: JobState) -> float | None:
        """As the job's own model says."""
        return self._model(job).all_samples(job)

    def end_samples(self, job: JobState, samples_done: float) -> float | None:
        """As the job's own model says."""
        return self._model(job).end_samples(job, samples_done)

    def _model(self, job: JobState) -> ProgressModel:
        return self._epochs if job.spec.convergence in self._tables else self._samples


@garbage_collection_paused()
def prepared(
    conditions: Conditions, compat: Compat, inputs: Inputs, policy: Policy, simulated: SimulatedCluster
) -> Prepared:
    """All that follows from the conditions.

    :raises UsageError: a profile or a convergence table is missing, or they contradict themselves.
    :raises BadInputError: a job has no table that it needs.
    """
    _check(conditions, compat, inputs)
    asked_s = _interval(conditions.interval, compat, policy)
    throughput = inputs.throughput
    times = None
    if inputs.profile is not None and (conditions.speeds == "placement" or compat.name):
        throughput = times = ThroughputByPlacement(inputs.profile, inputs.cluster.speeds, compat.most_local)
        times.load(
            (job.model for job in inputs.jobs), dict.fromkeys(n.gpu_type for n in inputs.cluster.nodes)
        )
    name = conditions.progress or ("epochs" if compat.name else None)
    moves_batches = policy.elasticity == "size+batch"
    stepwise = moves_batches or policy.asks_forecast or conditions.demand == "predicted"
    model: ProgressModel | None
    oracle: Oracle | None = None
    if compat.name and times is not None:
        model, oracle = simulator_model(compat, inputs, times, asked_s, stepwise=stepwise)
    else:
        model = _model(name, conditions, inputs, stepwise=stepwise)
    costs = _costs(simulated, compat, inputs)
    found = replace(
        simulated,
        start_cost=costs.start,
        rescale_cost=costs.rescale,
        resume_cost=costs.resume,
        progress=simulated.progress if model is None else lambda: model,
        measured=moves_batches,
        quirks=compat.quirks if compat.name else simulated.quirks,
    )
    by_table = bool(inputs.tables) and any(job.convergence in inputs.tables for job in inputs.jobs)
    return Prepared(throughput, found, asked_s, oracle, name or ("epochs" if by_table else "samples"))


def _interval(stated_s: float | None, compat: Compat, policy: Policy) -> float | None:
    if stated_s is not None:
        return stated_s or None
    return policy.default_interval_s if compat.interval_s is None else compat.interval_s


class _Costs(NamedTuple):
    start: Cost
    rescale: Cost
    resume: Cost | None
    """None: that of rescales."""


def _costs(simulated: SimulatedCluster, compat: Compat, inputs: Inputs) -> _Costs:
    """Those that are stated; else those of the simulator to be compatible with; else measured ones."""
    start, rescale, resume = simulated.start_cost, simulated.rescale_cost, simulated.resume_cost
    measured = None if compat.name else unstated_costs(inputs.profile)
    if measured is None:
        other = Cost(compat.cost_s) if compat.name else DEFAULT
        return _Costs(start or other, rescale or other, resume)
    if rescale is None:
        resume = resume or measured.resume
    return _Costs(start or measured.start, rescale or measured.rescale, resume)


def _check(conditions: Conditions, compat: Compat, inputs: Inputs) -> None:
    wanted = f"--compat {compat.name}" if compat.name else f"--progress {conditions.progress}"
    if compat.name and conditions.progress not in (None, "epochs"):
        raise UsageError(f"{wanted} simulates epochs, not --progress {conditions.progress}")
    if (compat.name or conditions.speeds == "placement") and inputs.profile is None:
        raise UsageError(f"{wanted if compat.name else '--speeds placement'} needs a --profile")
    if compat.name or conditions.progress == "epochs":
        if not inputs.tables:
            raise UsageError(f"{wanted} needs a --convergence table")
        _check_tables(inputs)
    elif conditions.progress is not None:
        _check_work(conditions.progress, inputs)
    if conditions.progress == "goodput":
        _check_noise(conditions, inputs)


def _check_work(progress: ProgressName, inputs: Inputs) -> None:
    silent = next((job.id for job in inputs.jobs if job.work is None), None)
    if silent is not None:
        raise UsageError(
            f'--progress {progress}: job "{silent}" states no work, and only epochs take it from the '
            "--convergence table"
        )


def _check_tables(inputs: Inputs) -> None:
    missing = [job for job in inputs.jobs if job.convergence not in inputs.tables]
    if missing:
        names = ", ".join(f'"{job.id}"' for job in missing[:_SHOWN]) + (
            ", …" if len(missing) > _SHOWN else ""
        )
        raise BadInputError(f"{counted(len(missing), 'job')} without a run in the convergence table: {names}")


def _check_noise(conditions: Conditions, inputs: Inputs) -> None:
    known = conditions.noise_scale or {}
    for job in inputs.jobs:
        if job.convergence not in inputs.tables and job.model not in known and "" not in known:
            raise UsageError(
                f'--progress goodput: no noise scale is known for model "{job.model}": name a --convergence '
                "table that has it, or a --noise-scale"
            )


def _model(
    name: ProgressName | None, conditions: Conditions, inputs: Inputs, *, stepwise: bool
) -> ProgressModel | None:
    """The progress model; None: the one that the simulated cluster has."""
    tables = inputs.tables
    if name == "samples" or (name is None and not tables):
        return None
    if name == "goodput":
        return Goodput(tables, conditions.noise_scale, stepwise=stepwise)
    epochs = Epochs(tables, stepwise=stepwise)
    return epochs if name else ByJob(tables, epochs)


class Goodput(ProgressModel):
    """Goodput of Pollux (OSDI '21): throughput times the statistical efficiency (φ + B0) / (φ + B).

    φ is the gradient noise scale, from the convergence table that the job names: that of the epoch in which
    the same part of the work was done. Where there is no table it is one number for each model. One
    trajectory covers all epochs; stepwise, each epoch is a segment of its own, so the job shows the noise of
    each.
    """

    def __init__(
        self,
        tables: Mapping[str, Validation],
        constant: Mapping[str, float] | None = None,
        *,
        stepwise: bool = False,
    ) -> None:
        """``constant``: φ in samples by model, for jobs without a table; "" stands for all other models."""
        self._tables = tables
        self._constant = constant or {}
        self._stepwise = stepwise
        self._pieces: dict[tuple[object, ...], Pieces] = {}

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        """The trajectory over all epochs; one segment where φ is constant."""
        speed = job.samples_per_second * speed_factor
        if speed <= 0:
            return Segment(0.0)
        table = self._tables.get(job.spec.convergence or "")
        if table is None or job.work_samples is None:
            noise_scale = self._constant.get(job.spec.model) or self._constant[""]
            rate = speed * efficiency(noise_scale, job.reference_batch, job.global_batch)
            return Segment(rate, noise_scale=noise_scale)
        key = (job.spec.convergence, job.reference_batch, job.global_batch, job.work_samples, speed)
        if key not in self._pieces:
            self._pieces[key] = _pieces(table, job, speed, job.work_samples)
        pieces = self._pieces[key]
        if self._stepwise:
            epoch = pieces.piece_at(samples_done)
            return pieces.segment(epoch)._replace(noise_scale=table.noise_scale(job.global_batch, epoch))
        return pieces.to_the_end(samples_done)


def efficiency(noise_scale: float, reference_batch: float, batch: float) -> float:
    """Training per sample of ``batch``, relative to the reference batch: (φ + B0) / (φ + B)."""
    if noise_scale == float("inf"):
        return 1.0
    return (noise_scale + reference_batch) / (noise_scale + batch)


def _pieces(table: Validation, job: JobState, speed: float, total: float) -> Pieces:
    batch, whole = job.global_batch, table.least_progress[-1]
    bounds = [0.0, *(total * progress / whole for progress in table.least_progress)]
    rates = [
        speed * efficiency(table.noise_scale(batch, epoch), job.reference_batch, batch)
        for epoch in range(table.epochs)
    ]
    return Pieces(bounds, rates)
