"""The jobs of the ONES paper as a throughput model, fitted to the run that its artifact publishes.

The paper prints no speeds and no amounts of work. Its artifact has execution times of 50 jobs (see
:mod:`experiments.ones.artifact`), and the epochs of 20 jobs (``job_history.csv``) with samples per second, at
a global batch that is the trace's batch times the trace's GPUs. Times are seconds:

    t(b, k) = a + s · b + c · (k - 1)        b samples on each of k GPUs

c is fitted to the one recorded job that changed its size, on 2, 3 and 4 GPUs; a of BERT to its two recorded
batches. The artifact ran on other GPUs than the paper, so all times are divided by one factor.
:data:`ASSUMPTIONS` say what no published number does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

import numpy as np

from pliant.schemas.profile import Profile, ProfileRow

GPUS_PER_NODE: Final = 4
GPU_TYPE: Final = "v100"
RESIZED: Final = {2: 512 / 6540.0, 3: 768 / 9399.0, 4: 1024 / 11_200.0}
"""Seconds of a step of GoogLeNet on CIFAR10, 256 samples on each of this many GPUs: medians of the recorded
epochs that began under that batch."""
V100: Final = 2.0
"""Memory bandwidth of a V100 (900 GB/s) over that of the GPUs of the recorded run (448 GB/s)."""
START_S: Final = 10.0
"""Of a first start."""
ASSUMPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    """A job's work is what it trains at its requested size in the geometric mean of the execution times that
    the artifact has of its kind under Tiresias, times 0.81, so that Tiresias's average is the paper's 343 s,
    times a factor that each job draws, lognormal with a σ of 0.2 (the seeds are of it).""": (
        "history",
        "unscaled",
        "even",
        "uneven",
    ),
    """No scheduler knows the work; those that need it see predictions (`--demand predicted`).""": (
        "knowing",
    ),
    """Jobs report the losses and accuracies of the recorded job of their kind at the same part of its work,
    surer signs than real ones; the predictor learns from them.""": ("silent",),
    """The Beta distribution of a job's progress is widened where ended jobs show it to be too narrow.""": (
        "narrow",
    ),
    """Jobs request the GPUs that the trace states, but no more than a node has, and were submitted with the
    trace's batch on each of these.""": ("one", "two", "eight", "asking", "batch1", "batch16"),
    """Arrivals are those of the trace.""": ("busier", "calmer"),
    """The recorded jobs had the GPUs that the trace states, with the trace's batch on each. A GPU holds what
    it held there; a larger share is accumulated.""": ("held",),
    """The paper's V100s are twice as fast as the GPUs of the recorded run, Frontera's Quadro RTX 5000 with
    half the memory bandwidth. This decides how long an epoch takes, not a job.""": ("slower",),
    """What another GPU adds to a step is the same for every model and every placement: one recorded job
    changed its size.""": ("fastsync", "slowsync"),
    """A part of a step on one GPU depends on no sample: that of BERT, recorded at two batches.""": (
        "nofixed",
        "fixed",
    ),
    """Schedulers that do not move the batch train at the submitted one. Learning rates follow the batch, up
    to the largest of the trace, so that an epoch trains as much at any batch.""": ("noise",),
    """Starting costs 10 s, resuming after a preemption 20 s, changing the size 1 s under ONES and 20 s by
    checkpoint under all others (figure 16).""": ("starts", "equal", "cheap"),
    """Tiresias's queues end at 0.25 and 1 GPU-hours; the paper prints no thresholds.""": ("queues",),
    """Optimus decides every 400 s, though the paper prints 10 minutes.""": ("rounds",),
}
"""What no published number says, and the rows of the page that vary it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One model on one dataset, as the trace and the recorded run have it."""

    model: str
    task: str
    batch: int
    """Samples of one GPU."""
    requested: int
    """GPUs."""
    most: int
    """Largest global batch: where the learning rate reaches its limit."""
    speeds: tuple[float, ...]
    """Samples per second, medians of the recorded jobs."""
    epochs: Mapping[int, float] = field(default_factory=dict)
    """Recorded epochs by size of the dataset."""
    executed_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Execution times by size of the dataset: of the jobs that the artifact ran under Tiresias."""

    @property
    def name(self) -> str:
        """What profiles and traces call it."""
        return f"{self.model}-{self.task}"

    @property
    def step_s(self) -> float:
        """Recorded seconds of a step at the requested size."""
        return self.batch * self.requested / fmean(self.speeds)

    def execution_s(self, samples: int) -> float:
        """Execution time at the requested size over a dataset of that size: geometric means, between them."""
        sizes = sorted(self.executed_s)
        logarithms = [float(np.mean(np.log(self.executed_s[size]))) for size in sizes]
        return float(np.exp(np.interp(samples, sizes, logarithms)))

    def epochs_of(self, samples: int) -> float:
        """Epochs over a dataset of that size."""
        sizes = sorted(self.epochs)
        return float(np.interp(samples, sizes, [self.epochs[size] for size in sizes]))


KINDS: Final = (
    Kind(
        "alexnet",
        "imagenet",
        64,
        16,
        1024,
        (2743.4, 3411.2),
        {10_000: 21, 20_000: 69},
        {10_000: (162, 193), 20_000: (98, 121, 116)},
    ),
    Kind(
        "resnet50",
        "imagenet",
        32,
        16,
        512,
        (1750.1, 1138.3),
        {10_000: 27, 20_000: 58},
        {10_000: (252, 260), 20_000: (239, 225, 197)},
    ),
    Kind(
        "vgg16",
        "imagenet",
        32,
        16,
        512,
        (972.7, 1973.8),
        {10_000: 11, 20_000: 44},
        {10_000: (715, 1357), 20_000: (160, 186, 174)},
    ),
    Kind(
        "inception_v3",
        "imagenet",
        32,
        16,
        512,
        (1475.1, 1611.2),
        {10_000: 50, 20_000: 52},
        {10_000: (2514, 8070), 20_000: (292, 378, 535)},
    ),
    Kind(
        "resnet18",
        "cifar",
        256,
        4,
        4096,
        (13_666.9, 16_193.8),
        {20_000: 38, 40_000: 25},
        {20_000: (80, 65), 40_000: (50, 72, 78)},
    ),
    Kind(
        "vgg16",
        "cifar",
        128,
        4,
        2048,
        (2743.9, 2819.5),
        {20_000: 67, 40_000: 36},
        {20_000: (164, 161), 40_000: (205, 122, 161)},
    ),
    Kind(
        "googlenet",
        "cifar",
        256,
        4,
        4096,
        (9884.1, 11_461.1),
        {20_000: 36, 40_000: 23},
        {20_000: (153, 105), 40_000: (37, 130, 153)},
    ),
    Kind(
        "bert",
        "cola",
        16,
        2,
        64,
        (102.7, 102.2),
        {5000: 5, 8000: 6},
        {5000: (86, 130), 8000: (156, 156, 163)},
    ),
    Kind("bert", "mrpc", 16, 2, 64, (102.3, 101.7), {3600: 5.5}, {3600: (74, 55, 155, 141, 108)}),
    Kind(
        "bert",
        "sst2",
        32,
        8,
        256,
        (435.6, 435.5),
        {10_000: 5, 20_000: 5},
        {10_000: (66, 103), 20_000: (137, 138, 108)},
    ),
)
BY_NAME: Final = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class World:
    """The assumptions that a row of the page varies; the defaults are those of :data:`ASSUMPTIONS`."""

    fixed: float | None = None
    """Part of a step on one GPU that no sample causes; None: that of BERT."""
    sync: float = 1.0
    """Factor of what another GPU adds to a step."""
    faster: float = V100
    """Factor of all recorded speeds."""
    recorded_on: int = 16
    """Most GPUs that a recorded job had; it had those that the trace states where they are fewer."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The step times of one kind."""

    kind: Kind
    local_max: int
    """Samples that one GPU is known to hold."""
    fixed_s: float
    sample_s: float
    sync_s: float

    def step_s(self, local: int, gpus: int) -> float:
        """T of the model."""
        return self.fixed_s + self.sample_s * local + self.sync_s * (gpus - 1)

    def rate_of(self, gpus: int) -> float:
        """Samples per second with the trace's batch on each GPU, up to the largest batch."""
        return self.rate(min(self.kind.batch, self.kind.most // gpus), gpus)

    def rate(self, local: int, gpus: int) -> float:
        """Samples per second."""
        return local * gpus / self.step_s(local, gpus)


def sync_s() -> float:
    """c: the slope of the step times of the recorded job that changed its size."""
    slope, _ = np.polyfit(list(RESIZED), list(RESIZED.values()), 1)
    return float(slope)


def bert_fixed() -> float:
    """Part of BERT's step on one GPU at 32 samples that no sample causes."""
    small, large = BY_NAME["bert-cola"], BY_NAME["bert-sst2"]
    alone = [kind.step_s - sync_s() * (kind.requested - 1) for kind in (small, large)]
    slope = (alone[1] - alone[0]) / (large.batch - small.batch)
    return (alone[1] - slope * large.batch) / alone[1]


def fitted(world: World | None = None) -> tuple[Curve, ...]:
    """The curves of all kinds."""
    world = world or World()
    fixed = bert_fixed() if world.fixed is None else world.fixed
    sync = sync_s() * world.sync
    return tuple(_curve(kind, fixed, sync, world.faster, world.recorded_on) for kind in KINDS)


def _curve(kind: Kind, fixed: float, sync: float, faster: float, recorded_on: int) -> Curve:
    """Through the recorded step; where synchronising would take most of it, it takes half."""
    gpus = min(kind.requested, recorded_on)
    sync = min(sync, kind.step_s / 2 / (gpus - 1))
    alone = kind.step_s - sync * (gpus - 1)
    local = kind.batch * kind.requested // gpus
    return Curve(kind, local, fixed * alone / faster, (1 - fixed) * alone / local / faster, sync / faster)


def profile_of(world: World | None = None) -> Profile:
    """The model as a profile; times are linear in GPUs and samples, so the ends of the lines are enough."""
    rows = tuple(
        _row(curve, local, gpus)
        for curve in fitted(world)
        for gpus in (1, 2, 64)
        for local in (1, curve.local_max)
    )
    return Profile(rows, (("model", "experiments/ones/model.py"),))


def _row(curve: Curve, local: int, gpus: int) -> ProfileRow:
    whole, rest = divmod(gpus, GPUS_PER_NODE)
    shares = [GPUS_PER_NODE] * whole + [rest] * (rest > 0)
    return ProfileRow(
        kind="train",
        model=curve.kind.name,
        gpu_type=GPU_TYPE,
        nodes=len(shares),
        gpus=gpus,
        placement=",".join(map(str, shares)),
        local_batch=local,
        step_seconds=curve.step_s(local, gpus),
        samples_per_second=curve.rate(local, gpus),
        feasible=True,
        source="modelled",
    )
