"""What the conditions of a replay come to for one trace, cluster and policy: which speeds, which progress
model, whose quirks, which costs, and how often the policy is asked.
"""

from __future__ import annotations

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
from pliant.tools.replay.progress.models import EpochProgress, GoodputProgress, ProgressByJob
from pliant.tools.replay.progress.protocol import ProgressModel
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.snapshot import Oracle

_SHOWN: Final = 5


class PreparedReplay(NamedTuple):
    """What the conditions of a replay come to for one trace, cluster and policy."""

    throughput: Throughput
    simulated: SimulatedCluster
    interval_s: float | None
    oracle: Oracle | None
    progress: str
    """Name of the progress model; "epochs" where some jobs have a table and others advance by samples."""


@garbage_collection_paused()
def prepared(
    conditions: Conditions, compat: Compat, inputs: Inputs, policy: Policy, simulated: SimulatedCluster
) -> PreparedReplay:
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
    found = replace(
        _with_costs(simulated, compat, inputs),
        progress=simulated.progress if model is None else lambda: model,
        measured=moves_batches,
        quirks=compat.quirks if compat.name else simulated.quirks,
    )
    by_table = bool(inputs.tables) and any(job.convergence in inputs.tables for job in inputs.jobs)
    return PreparedReplay(throughput, found, asked_s, oracle, name or ("epochs" if by_table else "samples"))


def _interval(stated_s: float | None, compat: Compat, policy: Policy) -> float | None:
    if stated_s is not None:
        return stated_s or None
    return policy.default_interval_s if compat.interval_s is None else compat.interval_s


def _with_costs(simulated: SimulatedCluster, compat: Compat, inputs: Inputs) -> SimulatedCluster:
    """Every cost that is not stated comes from the simulator to be compatible with, else from the profile."""
    start, rescale, resume = simulated.start_cost, simulated.rescale_cost, simulated.resume_cost
    measured = None if compat.name else unstated_costs(inputs.profile)
    if measured is None:
        other = Cost(compat.cost_s) if compat.name else DEFAULT
        return replace(simulated, start_cost=start or other, rescale_cost=rescale or other)
    return replace(
        simulated,
        start_cost=start or measured.start,
        rescale_cost=rescale or measured.rescale,
        resume_cost=resume if rescale is not None else resume or measured.resume,
    )


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
    """Returns None for the progress model that the simulated cluster has."""
    tables = inputs.tables
    if name == "samples" or (name is None and not tables):
        return None
    if name == "goodput":
        return GoodputProgress(tables, conditions.noise_scale, stepwise=stepwise)
    epochs = EpochProgress(tables, stepwise=stepwise)
    return epochs if name else ProgressByJob(tables, epochs)
