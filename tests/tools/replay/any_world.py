"""Worlds drawn at random: a trace, a cluster, speeds, a progress model, costs, failures, neighbours."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal

import numpy as np

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.profile.throughput import CurveThroughput, Placement
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.progress import (
    EpochProgress,
    GoodputProgress,
    ProgressModel,
    SampleProgress,
    validations,
)
from pliant.tools.schedule.policy import Policy, parameter_names
from pliant.tools.schedule.registry import make_policy, policy_class, policy_names
from pliant.tools.schedule.testing.harness import drawn_policies
from tests.builders import cluster, job, mixed_cluster
from tests.tools.replay.ledger import Ledger
from tests.tools.replay.world import Restless, play

CLUSTERS: Final = {
    "one node": cluster(8),
    "small nodes": cluster(2, 2, 2, 2),
    "uneven nodes": cluster(4, 2, 1, 1),
    "two types": mixed_cluster(slow=(4, 2), fast=(2, 2)),
}
CURVE: Final = {1: 10.0, 2: 19.0, 4: 34.0, 8: 50.0}
SLOTTED: Final = tuple(
    name for name in policy_names() if "slot_seconds" in parameter_names(policy_class(name))
)
"""These decide for slots of time, and with each slot: jobs wait for the next one."""
PARAMETERS: Final[Mapping[str, dict[str, Any]]] = {
    "tiresias": {"queue_gpu_hours": "0.03125"},
    "tiresias-gittins": {"queue_gpu_hours": "0.03125", "history_gpu_hours": "0.01,0.1"},
    "pollux": {"population": 10, "generations": 4},
    "ones": {"population": 8, "generations": 2, "unknown_epoch_s": 20.0},
    **{name: {"slot_seconds": 20.0, "horizon_slots": 40} for name in SLOTTED},
    **{name: {"interval_s": 30.0} for name in ("elastic-dp", "max-bs", "min-bs", "random-bs")},
}
"""Small enough that policies do in a short trace what they are for."""
SEARCHING: Final = ("ones", "pollux")
"""Policies whose decisions take so long that few worlds must do."""
LEARNED: Final = ("drl", *SLOTTED)
"""What these have learned is of seconds, or they keep slots, and may leave GPUs idle: they promise to keep
rules, and no more."""
_NAMES = [name for name in policy_names() if name not in (*SEARCHING, *SLOTTED)]
EVENT_DRIVEN: Final = tuple(name for name in _NAMES if policy_class(name).traits.default_interval_s is None)
ROUNDS: Final = tuple(name for name in policy_names() if name not in (*EVENT_DRIVEN, *SEARCHING))

BATCHES: Final = (32, 64, 128)
ITERATIONS: Final = {32: (10, 30, 5), 64: (6, 17, 3), 128: (5, 9, 2)}
NOISE: Final = (16.0, 200.0, 50.0)
"""Gradient noise scale by epoch; the same at every batch size."""
EPOCHS: Final = len(NOISE)
TABLES: Final = validations(
    ConvergenceRow("m", batch, epoch, float(steps), 10.0 * (epoch + 1), None, 1.0, noise / BATCHES[0])
    for batch in BATCHES
    for epoch, (steps, noise) in enumerate(zip(accumulate(ITERATIONS[batch]), NOISE, strict=True))
)

Progress = Literal["samples", "constant noise", "goodput", "epochs", "stepwise epochs"]


class Scattered(CurveThroughput):
    """Slower by an eighth for each node more; one type is 2.5 times as fast; all of it times ``factor``."""

    def __init__(self, factor: float = 1.0) -> None:
        curve = {size: rate * factor for size, rate in CURVE.items()}
        super().__init__({"m": curve}, {"fast": 2.5})

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        seconds = super().step_seconds(model, gpu_type, placement, global_batch, per_gpu_max)
        return None if seconds is None else seconds * (1 + 0.125 * (len(placement) - 1))


@dataclass(frozen=True)
class World:
    trace: tuple[Job, ...]
    where: str
    progress: Progress
    start_cost_s: float
    rescale_cost_s: float
    outages: tuple[tuple[float, int, float | None], ...]
    """(from, number of a node, seconds; None: for good)."""
    interference: float
    seed: int
    min_run_s: float = 0.0
    cooldown_s: float = 0.0

    @property
    def nodes(self) -> Cluster:
        rules = {"min_run_seconds": self.min_run_s, "cooldown_seconds": self.cooldown_s}
        return CLUSTERS[self.where].model_copy(update=rules)

    @property
    def all_nodes_return(self) -> bool:
        return all(seconds is not None for _, _, seconds in self.outages)

    def node_events(self) -> tuple[NodeEvent, ...]:
        names = [node.name for node in self.nodes.expanded()]
        events = []
        for at_s, number, seconds in self.outages:
            name = names[number % len(names)]
            events.append(NodeEvent(at_s, name, up=False))
            if seconds is not None:
                events.append(NodeEvent(at_s + seconds, name, up=True))
        return tuple(events)

    def simulated(self) -> SimulatedCluster:
        costs = Cost(self.start_cost_s), Cost(self.rescale_cost_s)
        more = {"node_events": self.node_events(), "interference": self.interference}
        return SimulatedCluster(*costs, progress=self.model, **more)

    def model(self) -> ProgressModel:
        match self.progress:
            case "samples":
                return SampleProgress()
            case "constant noise":
                return GoodputProgress({}, {"": 100.0})
            case "goodput":
                return GoodputProgress(TABLES)
            case _:
                return EpochProgress(TABLES, stepwise=self.progress == "stepwise epochs")

    def play(self, name: str, *, interval_s: float | None = None) -> Engine:
        """The replay under a policy, asked as often as it prefers where nothing is said."""
        policy = any_policy(name, self.seed)
        asked_s = policy.traits.default_interval_s if interval_s is None else interval_s or None
        options = {"simulated": self.simulated(), "interval_s": asked_s, "seed": self.seed}
        return play(policy, self.trace, self.nodes, Scattered(), **options)

    def ledger(self) -> Ledger:
        costs = self.start_cost_s, self.rescale_cost_s, self.interference
        return Ledger(self.nodes, Scattered(), self._progress_at, *costs)

    def _progress_at(self, spec: Job, batch: int, rate: float, done: float) -> tuple[float, float]:
        """What the progress models say, in the plainest words."""
        total: float = spec.work.model_dump()["samples"]  # type: ignore[union-attr]
        width = total / EPOCHS
        epoch = min(int(done / width + 1e-9), EPOCHS - 1)
        until = total if epoch == EPOCHS - 1 else width * (epoch + 1)
        reference = spec.batch.size or 0
        match self.progress:
            case "samples":
                return rate, total
            case "constant noise":
                return rate * (100.0 + reference) / (100.0 + batch), total
            case "goodput":
                return rate * (NOISE[epoch] + reference) / (NOISE[epoch] + batch), until
            case _:
                return width / (_steps(batch, epoch) * batch / rate), until


def _steps(batch: int, epoch: int) -> float:
    """Iterations of an epoch, linear between the batch sizes that were validated."""
    low = max((known for known in BATCHES if known <= batch), default=BATCHES[0])
    high = min((known for known in BATCHES if known >= batch), default=BATCHES[-1])
    part = (batch - low) / (high - low) if high > low else 0.0
    return (1 - part) * ITERATIONS[low][epoch] + part * ITERATIONS[high][epoch]


def any_policy(name: str, seed: int = 0, stated: Mapping[str, Any] | None = None) -> Policy:
    """A policy by name, the one that deals everything out at random included.

    Its parameters are drawn for every second seed, the others have those of ``PARAMETERS``.

    :param stated: parameters that are neither.
    """
    if name == "restless":
        return Restless()
    drawn = drawn_policies(policy_class(name), np.random.default_rng(seed), seed % 2)
    return make_policy(name, {**next(drawn, {}), **PARAMETERS.get(name, {}), **(stated or {})})


def world(
    seed: int | str,
    replicas: Sequence[int] = (1, 1, 1, 2),
    jobs: tuple[int, int] = (4, 16),
    down_s: Sequence[float | None] = (0.5, 40.0),
    progress: Sequence[Progress] = ("samples", "samples", "goodput", "epochs", "stepwise epochs"),
) -> World:
    """One of these numbers of jobs, on GPUs of which nodes may be away for so long (None: for good).

    :param replicas: numbers of GPUs of one, to draw from.
    """
    draw = random.Random(seed)
    outages = [
        (draw.randrange(1600) / 4, draw.randrange(4), draw.choice(down_s))
        for _ in range(draw.choice([0, 1, 3]))
    ]
    return World(
        trace=tuple(_job(n, draw, replicas) for n in range(draw.randint(*jobs))),
        where=draw.choice(sorted(CLUSTERS)),
        progress=draw.choice(progress),
        start_cost_s=draw.choice([0.0, 0.5, 3.0]),
        rescale_cost_s=draw.choice([0.0, 1.0, 5.0]),
        outages=tuple(outages),
        interference=draw.choice([0.0, 0.0, 0.5]),
        seed=seed if isinstance(seed, int) else draw.randrange(1000),
        min_run_s=draw.choice([0.0, 0.0, 30.0]),
        cooldown_s=draw.choice([0.0, 0.0, 20.0]),
    )


def _job(number: int, draw: random.Random, replicas: Sequence[int]) -> Job:
    """A job of a model whose speeds and tables are known; what is not elastic has no limits."""
    each = draw.choice(replicas)
    gpus, elastic = each * draw.randint(1, 4 // each), draw.choice(["none", "size", "size+batch"])
    low = each * draw.randint(1, gpus // each) if elastic != "none" else each
    at_s = draw.randrange(30) * draw.choice([10.0, 0.37])
    more: dict[str, Any] = {"work": {"samples": draw.uniform(0.5, 5000.0)}, "user": draw.choice(["", "u"])}
    more |= {"priority": draw.choice([0.0, 0.0, 2.0]), "checkpoint_seconds": draw.choice([None, 16.0])}
    limits = {} if elastic == "none" else {"low": low, "high": 8}
    batch = {"size": 64, "min": 32, "max": 128} if elastic == "size+batch" else 64
    known = {"model": "m", "convergence": "m", "batch": batch, "elastic": elastic}
    return job(f"j{number}", at=at_s, gpus=gpus, each=each, **known, **limits, **more)
