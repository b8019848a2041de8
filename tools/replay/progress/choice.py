"""How jobs train in a replay: which speeds, which progress model, and whose quirks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.formats.bulk import garbage_collection_paused
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.schemas.text.wording import counted
from pliant.tools.profile.by_placement import ThroughputByPlacement
from pliant.tools.profile.throughput import Throughput
from pliant.tools.replay.compat.pollux import Compat, SteppedCut, Truth, file_order, preset
from pliant.tools.replay.engine.costs import FREE, Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.progress.epochs import Epochs
from pliant.tools.replay.progress.goodput import Goodput
from pliant.tools.replay.progress.protocol import ProgressModel, Samples, Segment
from pliant.tools.replay.progress.tables import Validation
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.oracle import Oracle
from pliant.tools.schedule.policy import Policy

ProgressName = Literal["samples", "goodput", "epochs"]
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Training:
    """How the jobs of a replay train."""

    progress: ProgressName | None = None
    """None: by epochs where a job names a convergence table that is there, else by samples."""
    noise_scale: Mapping[str, float] = field(default_factory=dict)
    """Gradient noise scale in samples by model, for ``goodput`` without a table; "" stands for all others."""
    by_placement: bool = False
    """Speeds are interpolated between measured placements (ThroughputByPlacement)."""
    compat: str | None = None
    """Name of a preset of quirks."""


class Setting(NamedTuple):
    """What a training comes to for one trace, cluster and policy."""

    throughput: Throughput
    simulated: SimulatedCluster
    interval_s: float | None
    oracle: Oracle | None
    progress: str
    """Name of the progress model; "epochs" where some jobs have a table and others advance by samples."""


class ByJob:
    """Epochs for the jobs that have a table, samples for the others."""

    def __init__(self, tables: Mapping[str, Validation], epochs: Epochs) -> None:
        self._tables = tables
        self._epochs = epochs
        self._samples = Samples()

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        """As the job's own model says."""
        model: ProgressModel = self._epochs if job.spec.convergence in self._tables else self._samples
        return model.segment(job, samples_done, speed_factor)


@dataclass(frozen=True, slots=True)
class World:
    """What a training is set in."""

    jobs: Sequence[Job]
    cluster: Cluster
    profile: Profile | None
    throughput: Throughput
    tables: Mapping[str, Validation]


def parse_noise_scales(text: str | None) -> dict[str, float]:
    """Noise scales by model from ``SAMPLES`` or ``MODEL=SAMPLES,…``; "" stands for all other models.

    :raises UsageError: a number is missing or not above 0.
    """
    found = {}
    for part in text.split(",") if text else ():
        model, _, number = part.rpartition("=")
        try:
            samples = float(number)
        except ValueError:
            samples = math.nan
        if not 0 < samples < math.inf:
            raise UsageError(f'--noise-scale "{part}": expected samples above 0, or MODEL=SAMPLES')
        found[model] = samples
    return found


def compat_parameters(training: Training, policy: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a policy: those of the preset, and over them those that were stated.

    :raises UsageError: there is no such preset.
    """
    return {**preset(training.compat).parameters.get(policy, {}), **stated}


@garbage_collection_paused()
def setting(
    training: Training, world: World, policy: Policy, simulated: SimulatedCluster, interval_s: float | None
) -> Setting:
    """All that follows from a training; ``interval_s`` as in ``Run``.

    :raises UsageError: it needs a profile or a convergence table and there is none, or it contradicts itself.
    :raises BadInputError: a job has no table that it needs.
    """
    compat = preset(training.compat)
    _check(training, compat, world)
    asked_s = _interval(interval_s, compat, policy)
    throughput = world.throughput
    times = None
    if world.profile is not None and (training.by_placement or compat.cut == "stepped"):
        throughput = times = ThroughputByPlacement(world.profile, world.cluster.speeds, compat.most_local)
        times.load((job.model for job in world.jobs), dict.fromkeys(n.gpu_type for n in world.cluster.nodes))
    name = training.progress or ("epochs" if compat.name else None)
    stepwise = policy.elasticity == "size+batch"
    model, oracle = _model(name, training, _Scene(compat, world, times, asked_s, stepwise))
    cost = Cost(compat.cost_s) if compat.cost_s else FREE
    found = replace(
        simulated,
        start_cost=simulated.start_cost or cost,
        rescale_cost=simulated.rescale_cost or cost,
        progress=simulated.progress if model is None else lambda: model,
        measured=stepwise,
        free_rebatch=simulated.free_rebatch or compat.free_rebatch,
        first_round=compat.first_round,
        whole_seconds=compat.epochs.whole_seconds,
        order=file_order if compat.file_order else None,
    )
    by_table = bool(world.tables) and any(job.convergence in world.tables for job in world.jobs)
    return Setting(throughput, found, asked_s, oracle, name or ("epochs" if by_table else "samples"))


def _interval(stated_s: float | None, compat: Compat, policy: Policy) -> float | None:
    if stated_s is not None:
        return stated_s or None
    return policy.default_interval_s if compat.interval_s is None else compat.interval_s


def _check(training: Training, compat: Compat, world: World) -> None:
    wanted = f"--compat {compat.name}" if compat.name else f"--progress {training.progress}"
    if compat.name and training.progress not in (None, "epochs"):
        raise UsageError(f"{wanted} simulates epochs, not --progress {training.progress}")
    if (compat.name or training.by_placement) and world.profile is None:
        raise UsageError(f"{wanted if compat.name else '--speeds placement'} needs a --profile")
    if compat.name or training.progress == "epochs":
        if not world.tables:
            raise UsageError(f"{wanted} needs a --convergence table")
        _check_tables(world)
    if training.progress == "goodput":
        _check_noise(training, world)


def _check_tables(world: World) -> None:
    missing = [job for job in world.jobs if job.convergence not in world.tables]
    if missing:
        names = ", ".join(f'"{job.id}"' for job in missing[:_SHOWN]) + (
            ", …" if len(missing) > _SHOWN else ""
        )
        raise BadInputError(f"{counted(len(missing), 'job')} without a run in the convergence table: {names}")


def _check_noise(training: Training, world: World) -> None:
    known = training.noise_scale
    for job in world.jobs:
        if job.convergence not in world.tables and job.model not in known and "" not in known:
            raise UsageError(
                f'--progress goodput: no noise scale is known for model "{job.model}": name a --convergence '
                "table that has it, or a --noise-scale"
            )


class _Scene(NamedTuple):
    """What an epochs model is made of."""

    compat: Compat
    world: World
    times: ThroughputByPlacement | None
    round_s: float | None
    stepwise: bool


def _model(
    name: ProgressName | None, training: Training, scene: _Scene
) -> tuple[ProgressModel | None, Oracle | None]:
    """The progress model, and what it can tell an oracle; None: whatever the simulated cluster has."""
    tables = scene.world.tables
    if name == "samples" or (name is None and not tables):
        return None, None
    if name == "goodput":
        return Goodput(tables, training.noise_scale, stepwise=scene.stepwise), None
    compat, times = scene.compat, scene.times
    if times is not None and compat.cut == "stepped":
        return _stepped(scene, times)
    epochs = Epochs(tables, compat.epochs, round_s=scene.round_s, stepwise=scene.stepwise)
    return epochs if name else ByJob(tables, epochs), None


def _stepped(scene: _Scene, times: ThroughputByPlacement) -> tuple[ProgressModel, Oracle | None]:
    compat, tables = scene.compat, scene.world.tables
    cut = SteppedCut(times, tables)
    epochs = Epochs(tables, compat.epochs, cut, round_s=scene.round_s, stepwise=scene.stepwise)
    if not compat.oracle:
        return epochs, None
    node_gpus: dict[str, int] = {}
    for node in scene.world.cluster.nodes:
        node_gpus[node.gpu_type] = max(node.gpus, node_gpus.get(node.gpu_type, 1))
    return epochs, Truth(compat, epochs, cut, times, node_gpus)
