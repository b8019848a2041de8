"""Replaying as published simulators do: their quirks by name, and presets that switch them on together.

docs/replay-compat.md says what each does and why one would not want it otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pliant.schemas.errors import UsageError
from pliant.schemas.formats.digits import whole_number
from pliant.schemas.job import Batch, Gpus, Job
from pliant.tools.profile.by_placement import ThroughputByPlacement
from pliant.tools.replay.progress.epochs import Cut, EpochRules, Epochs, epoch_of
from pliant.tools.replay.progress.tables import Validation
from pliant.tools.schedule.jobs import JobState, Observation
from pliant.tools.schedule.policy import Policy

ROW: Final = "row"
"""Label in which importers note the place of a job in its file."""


@dataclass(frozen=True, slots=True)
class Compat:
    """What differs from our own semantics. Without arguments, nothing does."""

    name: str = ""
    interval_s: float | None = None
    """Seconds between decisions, unless the replay says otherwise; None: what the policy prefers."""
    cost_s: float = 0.0
    """Seconds without progress after a start and after every change, unless the replay says otherwise."""
    first_round: int = 0
    """Number of the first round; 1: time passes before the first decision."""
    file_order: bool = False
    """Of jobs and ties between them: the order of the workload file instead of (submit_time, id)."""
    epochs: EpochRules = field(default_factory=EpochRules)
    """How an epoch ends and how fast it passes."""
    cut: Literal["even", "stepped"] = "even"
    """How a batch is cut for the GPUs: see :func:`stepped_cut`."""
    most_local: Mapping[str, int] = field(default_factory=dict)
    """Largest local batch of some models, below the measured ones."""
    most_gpus: Mapping[str, int] = field(default_factory=dict)
    """Largest size of some models, for policies that choose sizes."""
    settled: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """GPUs and global batch that jobs of some models keep, for policies that choose both."""
    free_rebatch: bool = False
    """Whether a job that keeps its GPUs takes up another batch at no cost."""
    oracle: bool = False
    """Policies that were published with true knowledge of the future get it."""
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters of policies, unless the replay says otherwise."""


POLLUX: Final = Compat(
    name="pollux",
    interval_s=60.0,
    cost_s=30.0,
    first_round=1,
    file_order=True,
    epochs=EpochRules(
        length="gain",
        whole_seconds=True,
        max_epochs={
            "bert": 2,
            "cifar10": 100,
            "ncf": 10,
            "imagenet": 90,
            "deepspeech2": 80,
            "yolov3": 50,
        },
    ),
    cut="stepped",
    most_local={"yolov3": 8},
    most_gpus={"ncf": 1},
    settled={"ncf": (1, 32768)},
    free_rebatch=True,
    oracle=True,
    parameters={
        "tiresias": {"placement": "emptiest"},
        "optimus": {"placement": "emptiest"},
        "pollux": {"knowledge": "measured", "retune": "free", "lone_accumulation": True},
    },
)
"""The simulator of Pollux (OSDI '21)."""

PRESETS: Final[Mapping[str, Compat]] = {POLLUX.name: POLLUX}
NONE: Final = Compat()


def preset(name: str | None) -> Compat:
    """A preset by name.

    :raises UsageError: there is none of that name.
    """
    if name is None:
        return NONE
    if name not in PRESETS:
        raise UsageError(f'--compat "{name}": expected one of {", ".join(PRESETS)}')
    return PRESETS[name]


def settle(compat: Compat, jobs: Iterable[Job], policy: Policy) -> list[Job]:
    """The jobs as a policy that chooses sizes and batches finds them: those of settled models are rigid."""
    if policy.elasticity != "size+batch":
        return list(jobs)
    return [_settled(job, *compat.settled[job.model]) if job.model in compat.settled else job for job in jobs]


def _settled(job: Job, gpus: int, batch: int) -> Job:
    update = {"gpus": Gpus(requested=gpus), "batch": Batch(size=batch), "elastic": "none"}
    return job.model_copy(update=update)


def file_order(job: Job) -> tuple[float, str]:
    """Sort key of a job by the row of its file; jobs without one come after, by arrival."""
    row = whole_number(job.labels.get(ROW, ""))
    return (0.0, f"{row:018}") if row is not None else (1 + job.submit_time, job.id)


def split(
    batch: int, gpus: int, most_local: int | None, most_batch: int, *, accumulate: bool
) -> tuple[int, int]:
    """(micro-batch of a GPU, micro-steps) for a fixed batch.

    Shares are rounded up, so the batch may grow, but not beyond ``most_batch``. ``accumulate``: at least two
    micro-steps.
    """
    local = -(-batch // gpus)
    steps = 1 if most_local is None else -(-local // most_local)
    if accumulate:
        steps = max(2, steps)
    return min(-(-local // steps), most_batch // (gpus * steps)), steps


class SteppedCut:
    """Cuts batches as the Pollux simulator does, at the step time of the very placement."""

    def __init__(self, times: ThroughputByPlacement, tables: Mapping[str, Validation]) -> None:
        """``tables`` by the key that jobs name in ``convergence``."""
        self._times = times
        self._tables = tables
        self._known: dict[tuple[object, ...], Cut | None] = {}

    def __call__(self, job: JobState) -> Cut | None:
        """The cut for the GPUs that the job holds, in the order in which it lists its nodes."""
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

    def _cut(self, job: JobState, ring: tuple[int, ...], most_batch: int, *, accumulate: bool) -> Cut | None:
        model, gpu_type = job.spec.model, job.gpu_type or ""
        most = self._times.max_local_batch(model, gpu_type)
        local, steps = split(job.global_batch, job.gpus, most, most_batch, accumulate=accumulate)
        times = self._times.times(model, gpu_type, ring, local) if local else None
        if times is None:
            return None
        seconds = times.accumulated(steps)
        shape = tuple(sorted(ring, reverse=True))
        observed = Observation(shape, local, steps, seconds, times.sync_seconds)
        return Cut(job.gpus * local * steps, seconds, observed)


class Truth:
    """The oracle of the Pollux simulator's Optimus."""

    def __init__(
        self,
        compat: Compat,
        model: Epochs,
        cut: SteppedCut,
        times: ThroughputByPlacement,
        consolidated: Mapping[str, int],
    ) -> None:
        """``consolidated``: GPUs of a node by GPU type."""
        self._most_gpus = compat.most_gpus
        self._model = model
        self._cut = cut
        self._times = times
        self._node_gpus = consolidated
        self._left: dict[tuple[object, ...], list[float]] = {}
        """Remaining steps by epoch, of each kind of job."""
        self._jobs: dict[str, tuple[list[float], float]] = {}
        """The same and the samples of an epoch, of each job."""

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
        """Jobs of a model and batch have the same step times."""
        return job.spec.model, job.spec.convergence, job.reference_batch
