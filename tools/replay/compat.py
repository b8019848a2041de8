"""Replaying as published simulators do: a preset switches all quirks of one simulator on together.

docs/replay-compat.md says what each quirk does and why one would not want it otherwise. The presets come
first, then the parts of the simulator of Pollux (OSDI '21), from which that of Sia descends.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import UsageError
from pliant.schemas.job import Batch, Gpus, Job
from pliant.schemas.profile import Profile
from pliant.schemas.text import whole_number
from pliant.tools.profile.throughput_model import ThroughputByPlacement
from pliant.tools.replay.engine.costs import FREE, Cost
from pliant.tools.replay.engine.simulated_cluster import Quirks
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.progress import (
    BatchCut,
    EpochProgress,
    Pieces,
    PieceTrajectory,
    ProgressModel,
    Validation,
    epoch_of,
)
from pliant.tools.schedule.jobs import JobState, Observation
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.snapshot import Oracle

ROW: Final = "row"
"""Label in which importers note the place of a job in its file."""


def file_order(job: Job) -> tuple[float, str]:
    """Sort key of a job by the row of its file; jobs without one come after, by arrival."""
    row = whole_number(job.labels.get(ROW, ""))
    return (0.0, f"{row:018}") if row is not None else (1 + job.submit_time, job.id)


def whole_second_end(from_s: float, lasts_s: float, interval_s: float | None) -> tuple[float, bool]:
    """When a segment ends, and whether a decision at that moment still sees the job as before."""
    if lasts_s == math.inf:
        return math.inf, False
    end_s = from_s + round(lasts_s)
    return end_s, round(lasts_s) < lasts_s and _is_round(end_s, interval_s)


def _is_round(time_s: float, round_s: float | None) -> bool:
    return round_s is not None and time_s % round_s == 0


@dataclass(frozen=True, slots=True)
class Compat:
    """What differs from our own semantics; without arguments, nothing."""

    name: str = ""
    interval_s: float | None = None
    """Seconds between decisions, unless the replay says otherwise; None: what the policy prefers."""
    cost: Cost = FREE
    """Time without progress after a start and after every change, unless the replay says otherwise."""
    change_cost: Cost | None = None
    """The same after a change of a job that trains on; None: as after a start."""
    epochs: bool = False
    """Whether jobs train in epochs as in the simulator of Pollux, with what that takes them to know."""
    one_node: bool = False
    """Whether jobs are as fast on several nodes as on one."""
    believed_cost_s: Mapping[str, float] = field(default_factory=dict)
    """What policies take a change to cost, by model; other models: as if it were not measured."""
    quirks: Quirks = field(default_factory=Quirks)
    max_epochs: Mapping[str, int] = field(default_factory=dict)
    """Epochs of the jobs of some models."""
    most_local: Mapping[str, int] = field(default_factory=dict)
    """Largest local batch of some models, below the measured ones."""
    most_gpus: Mapping[str, int] = field(default_factory=dict)
    """Largest size of some models, for policies that choose sizes."""
    settled: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """GPUs and global batch that jobs of some models keep, for policies that choose both."""
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters of policies, unless the replay says otherwise."""


_MAX_EPOCHS: Final = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
POLLUX: Final = Compat(
    name="pollux",
    interval_s=60.0,
    cost=Cost(30.0),
    epochs=True,
    quirks=Quirks(free_rebatch=True, first_round=1, order=file_order, segment_end=whole_second_end),
    max_epochs=_MAX_EPOCHS,
    most_local={"yolov3": 8},
    most_gpus={"ncf": 1},
    settled={"ncf": (1, 32768)},
    parameters={
        "tiresias": {"placement": "emptiest"},
        "optimus": {"placement": "emptiest"},
        "pollux": {"knowledge": "measured", "retune": "free", "lone_accumulation": True},
        "shadow-price": {"retune": "free", "await_ends": False},
    },
)
"""The simulator of Pollux (OSDI '21)."""
SIA: Final = Compat(
    name="sia",
    interval_s=60.0,
    cost=Cost(
        30.0,
        {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0},
    ),
    epochs=True,
    believed_cost_s={"cifar10": 30.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 45.0, "imagenet": 250.0},
    quirks=Quirks(
        free_rebatch=True, free_moves=True, first_round=1, order=file_order, segment_end=whole_second_end
    ),
    max_epochs=_MAX_EPOCHS,
    most_gpus={"ncf": 1},
    settled={"ncf": (1, 32768)},
    parameters={
        "sia": {"knowledge": "measured", "retune": "free", "lone_accumulation": True},
        "shadow-price": {"retune": "free", "await_ends": False},
    },
)
"""The simulator of Sia (SOSP '23), without its calibration to real runs."""
_GAVEL: Final = {"round_s": 120.0, "renew_s": 1000.0}
SHOCKWAVE: Final = Compat(
    name="shockwave",
    interval_s=120.0,
    cost=Cost(20.0),
    change_cost=FREE,
    one_node=True,
    parameters={
        "allox": {"matching": "arrival", **_GAVEL},
        "gavel": _GAVEL,
        "gavel-ftf": _GAVEL,
        "gavel-makespan": _GAVEL,
        "gavel-throughput": _GAVEL,
        "shadow-price": {"await_ends": False},
    },
)
"""The simulator of Shockwave (NSDI '23), which is that of Gavel (OSDI '20)."""
PRESETS: Final[Mapping[str, Compat]] = {each.name: each for each in (POLLUX, SIA, SHOCKWAVE)}
NONE: Final = Compat()


def preset(name: str | None) -> Compat:
    if name is None:
        return NONE
    if name not in PRESETS:
        raise UsageError(f'--compat "{name}": expected {", ".join(PRESETS)}')
    return PRESETS[name]


def one_node(profile: Profile) -> Profile:
    """What was measured on one node."""
    return replace(profile, rows=tuple(row for row in profile.rows if row.nodes == 1))


def settle(compat: Compat, jobs: Sequence[Job], policy: Policy) -> Sequence[Job]:
    if policy.traits.elasticity != "size+batch" or not compat.settled:
        return jobs
    return [_settled(job, *compat.settled[job.model]) if job.model in compat.settled else job for job in jobs]


def _settled(job: Job, gpus: int, batch: int) -> Job:
    update = {"gpus": Gpus(requested=gpus), "batch": Batch(size=batch), "elastic": "none"}
    return job.model_copy(update=update)


def simulator_model(
    compat: Compat, inputs: Inputs, times: ThroughputByPlacement, round_s: float | None, *, stepwise: bool
) -> tuple[ProgressModel, Oracle]:
    """How jobs train in the simulator, and what policies know in it; ``round_s``: between decisions."""
    cut = SteppedCut(times, inputs.tables)
    model = SimulatorEpochs(inputs.tables, cut, compat.max_epochs, round_s=round_s, stepwise=stepwise)
    return model, Truth(model, cut, times, inputs.cluster, compat.most_gpus)


class SimulatorEpochs(EpochProgress):
    """Epochs of the least progress of all validation runs, which end at whole seconds."""

    def __init__(
        self,
        tables: Mapping[str, Validation],
        cut: Callable[[JobState], BatchCut | None],
        max_epochs: Mapping[str, int],
        *,
        round_s: float | None = None,
        stepwise: bool = False,
    ) -> None:
        super().__init__(tables, stepwise=stepwise)
        self._cut = cut
        self._max_epochs = max_epochs
        self._round_s = round_s

    def epochs(self, job: JobState) -> float:
        return self._max_epochs.get(job.spec.model) or super().epochs(job)

    def cut(self, job: JobState) -> BatchCut | None:
        return self._cut(job)

    def epoch_seconds(self, table: Validation, cut: BatchCut) -> Sequence[float]:
        """A step brings the gain that the gradients of the validation runs show."""
        ends = pairwise((0.0, *table.least_progress))
        return [
            (end - before) / (gain / cut.step_seconds)
            for (before, end), gain in zip(ends, table.gains(cut.batch), strict=True)
        ]

    def pieces(self, bounds: Sequence[float], rates: Sequence[float]) -> Pieces:
        return WholeSecondPieces(bounds, rates, self._round_s)


class SteppedCut:
    """Cuts batches as the Pollux simulator does, at the step time of the very placement."""

    def __init__(self, times: ThroughputByPlacement, tables: Mapping[str, Validation]) -> None:
        self._times = times
        self._tables = tables
        self._known: dict[tuple[object, ...], BatchCut | None] = {}

    def __call__(self, job: JobState) -> BatchCut | None:
        ring = tuple(count for _, count in job.placement)
        key = (job.spec.model, job.spec.convergence, job.gpu_type, ring, job.global_batch)
        if key not in self._known:
            batches = self._tables[job.spec.convergence or ""].batches
            accumulate = job.gpus == 1 and job.global_batch > batches[0]
            self._known[key] = self._cut(job, ring, batches[-1], accumulate=accumulate)
        return self._known[key]

    def alone(self, job: JobState, ring: tuple[int, ...], gpu_type: str) -> float | None:
        """Step time as the simulator's Optimus estimates it: on one GPU it always accumulates."""
        batches = self._tables[job.spec.convergence or ""].batches
        most = self._times.max_local_batch(job.spec.model, gpu_type)
        gpus = sum(ring)
        local, steps = split(job.reference_batch, gpus, most, batches[-1], accumulate=gpus == 1)
        times = self._times.times(job.spec.model, gpu_type, ring, local) if local else None
        return None if times is None else times.accumulated(steps)

    def _cut(
        self, job: JobState, ring: tuple[int, ...], most_batch: int, *, accumulate: bool
    ) -> BatchCut | None:
        model, gpu_type = job.spec.model, job.gpu_type or ""
        most = self._times.max_local_batch(model, gpu_type)
        local, steps = split(job.global_batch, job.gpus, most, most_batch, accumulate=accumulate)
        times = self._times.times(model, gpu_type, ring, local) if local else None
        if times is None:
            return None
        seconds = times.accumulated(steps)
        shape = tuple(sorted(ring, reverse=True))
        observed = Observation(shape, local, steps, seconds, times.sync_seconds, gpu_type)
        return BatchCut(job.gpus * local * steps, seconds, observed)


def split(
    batch: int, gpus: int, most_local: int | None, most_batch: int, *, accumulate: bool
) -> tuple[int, int]:
    """(micro-batch of a GPU, micro-steps) for a fixed batch; ``accumulate``: at least two micro-steps.

    Shares are rounded up, so the batch may grow, but not beyond ``most_batch``.
    """
    local = -(-batch // gpus)
    steps = 1 if most_local is None else -(-local // most_local)
    if accumulate:
        steps = max(2, steps)
    return min(-(-local // steps), most_batch // (gpus * steps)), steps


class Truth:
    """The oracle of the Pollux simulator's Optimus."""

    def __init__(
        self,
        model: EpochProgress,
        cut: SteppedCut,
        times: ThroughputByPlacement,
        cluster: Cluster,
        most_gpus: Mapping[str, int],
    ) -> None:
        self._model = model
        self._cut = cut
        self._times = times
        self._most_gpus = most_gpus
        # Of the largest node, by GPU type.
        self._node_gpus: dict[str, int] = {}
        for node in cluster.nodes:
            self._node_gpus[node.gpu_type] = max(node.gpus, self._node_gpus.get(node.gpu_type, 1))
        # Remaining steps by epoch, of each kind of job.
        self._left: dict[tuple[object, ...], list[float]] = {}
        # The same and the samples of an epoch, of each job.
        self._jobs: dict[str, tuple[list[float], float]] = {}

    def remaining_steps(self, job: JobState, time_s: float) -> float:
        """Iterations after the present epoch, by the table of the job's batch; 1 in the last epoch."""
        known = self._jobs.get(job.id)
        if known is None:
            known = self._jobs[job.id] = (self._steps_left(job), self._model.samples_per_epoch(job))
        left, width = known
        epoch = epoch_of(job.samples_done(time_s), width)
        return left[epoch] if epoch < len(left) else 1.0

    def _steps_left(self, job: JobState) -> list[float]:
        """Steps that are left after each epoch but the last."""
        key = (job.spec.convergence, job.spec.model, job.reference_batch)
        if key not in self._left:
            table, last = self._model.table(job), math.ceil(self._model.epochs(job)) - 1
            steps = [table.iterations(job.reference_batch, epoch) for epoch in range(last + 1)]
            self._left[key] = [steps[-1] - done for done in steps[:-1]]
        return self._left[key]

    def step_seconds(self, job: JobState, gpus: int, gpu_type: str) -> float | None:
        """On full nodes and what is left over."""
        whole, rest = divmod(gpus, self._node_gpus[gpu_type])
        ring = (self._node_gpus[gpu_type],) * whole + ((rest,) if rest else ())
        return self._cut.alone(job, ring, gpu_type)

    def max_gpus(self, job: JobState) -> int:
        """As many as get the smallest measured local batch each."""
        measured = [self._times.local_batches(job.spec.model, kind) for kind in self._node_gpus]
        least = min((batches[0] for batches in measured if batches), default=1)
        most = self._most_gpus.get(job.spec.model, job.reference_batch // least)
        return min(most, job.spec.max_gpus(2**31))

    def kind(self, job: JobState) -> object:
        return job.spec.model, job.spec.convergence, job.reference_batch, job.spec.gpus.sizes


class WholeSecondPieces(Pieces):
    """Each piece lasts the nearest whole number of seconds.

    A piece that was rounded down to the very time of a round is not over in that round.
    """

    def __init__(self, bounds: Sequence[float], rates: Sequence[float], round_s: float | None = None) -> None:
        super().__init__(bounds, rates)
        self.round_s = round_s

    def trajectory(self, done: float) -> PieceTrajectory:
        return _WholeSecondTrajectory(self, done)

    def lasts_s(self, exact_s: Sequence[float]) -> Sequence[float]:
        rounded = [float(round(seconds)) for seconds in exact_s]
        self.cut_short = [last < exact for last, exact in zip(rounded, exact_s, strict=True)]
        return rounded


class _WholeSecondTrajectory(PieceTrajectory):
    __slots__ = ("_is_first_short", "_whole")

    def __init__(self, pieces: WholeSecondPieces, done: float) -> None:
        self._whole = pieces
        super().__init__(pieces, done)

    def is_late(self, end_s: float) -> bool:
        return self._is_short(len(self._whole.rates) - 1) and _is_round(end_s, self._whole.round_s)

    def _first_lasts_s(self, left_s: float) -> float:
        rounded = float(round(left_s))
        self._is_first_short = rounded < left_s
        return rounded

    def _piece_at(self, at_s: float, time_s: float) -> int:
        ends_s = self._whole.ends_s
        piece = bisect_left(ends_s, at_s, self._first + 1) - 1
        while piece < len(self._whole.rates) and self._is_over(piece, at_s, time_s):
            piece += 1
        return piece

    def _is_over(self, piece: int, at_s: float, time_s: float) -> bool:
        end_s = self._whole.ends_s[piece + 1]
        if end_s != at_s:
            return end_s < at_s
        return not (self._is_short(piece) and _is_round(time_s, self._whole.round_s))

    def _is_short(self, piece: int) -> bool:
        return self._is_first_short if piece == self._first else self._whole.cut_short[piece]
