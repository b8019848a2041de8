"""The four categories of jobs as a throughput model, fitted to what the paper says of them.

"Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., 2020) publishes no curves. Times are
in steps of category 1 on one GPU at its largest share (32 samples), so t_1(32) = 1:

    t_proc(b) = s · (o + (1 - o) · b / b_max)         b samples on one GPU, o the part that no sample causes
    t_comm(p, 2) = n · p                              two GPUs share a node
    t_comm(p, k) = c · p · 2 (k - 1) / k              k > 2: a ring over 10 GbE, p in units of 24 M weights

Fitted to published facts: o_1 and n (table II), c (section IV-D: 160 samples on 5 GPUs are 1.6 times as fast
as 32 on 2), o_2 (section IV-E: the best factor of category 1 is 1.3 times that of category 2 at their
smallest batches). :data:`ASSUMPTIONS` are the rest. Nothing is fitted to the tables and figures reproduced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from pliant.schemas.profile import Profile, ProfileRow

TABLE_II: Final = {8: 0.86, 11: 1.06, 16: 1.3, 22: 1.45, 32: 1.66}
"""Throughput scaling factor of category 1 on 2 GPUs by samples a GPU."""
FIVE_OVER_TWO: Final = 1.6
"""Section IV-D: 160 samples on 5 GPUs against 32 on 2."""
FIRST_OVER_SECOND: Final = 1.3
"""Section IV-E: best factor of category 1 over that of category 2, at their smallest batches."""
MOST_GPUS: Final = 10
"""k_max of a job."""
GPUS_PER_NODE: Final = 2
ASSUMPTIONS: Final = (
    """A GPU holds 32 samples of category 1, as table II has it, 64 of category 2 and 256 of category 3: a
    quarter of their largest batches. An eighth explains table III worse (a row below). Category 4 fits one
    GPU.""",
    """A step of category 2 at its largest share takes as long as one of category 1; its all-reduce carries
    58 M weights instead of 24 M.""",
    """Category 3 is called balanced: its ratio of all-reduce to computing on two GPUs is the geometric mean
    of those of categories 1 and 2, its fixed part o the mean of theirs.""",
    """Times are linear in the batch, the weights and the ring, without overlap, stragglers and placement.""",
)
"""What no published fact says."""
_STEP_S: Final = 0.1
"""Length of the unit; nothing depends on it."""
_WEIGHTS: Final = tuple(range(10_000_000, 100_000_001, 10_000_000))
"""Section III-B.2: the weights that the paper's all-reduce sweep measures."""


@dataclass(frozen=True, slots=True)
class Category:
    """A row of table I, and the length of its jobs in the mixed runs (section IV-G)."""

    number: int
    model: str
    kind: str
    weights: int
    batch_min: int
    batch_max: int
    share_max: int
    """Largest batch of one GPU: an assumption."""
    minutes: float
    """On one GPU at the largest share."""


CATEGORIES: Final = (
    Category(1, "resnet50-cifar100", "compute bound", 24_000_000, 32, 256, 32, 16),
    Category(2, "alexnet-cifar100", "communication bound", 58_000_000, 16, 256, 64, 21),
    Category(3, "vgg11-cifar100", "balanced", 10_000_000, 16, 1024, 256, 41),
    Category(4, "alexnet-food101", "not elastic", 58_000_000, 128, 128, 128, 27),
)


@dataclass(frozen=True, slots=True)
class Links:
    """Seconds (in units of the model) of an all-reduce of 24 M weights."""

    node: float
    """n: over two GPUs of a node."""
    ring: float
    """c: over more, for each time that a ring of that size moves all weights."""

    def seconds(self, weights: int, gpus: int) -> float:
        """t_comm of the model."""
        if gpus == 1:
            return 0.0
        passes = self.node if gpus <= GPUS_PER_NODE else self.ring * 2 * (gpus - 1) / gpus
        return passes * weights / CATEGORIES[0].weights


@dataclass(frozen=True, slots=True)
class Job:
    """The curve of one category."""

    category: Category
    step: float
    """s: a step on one GPU at its largest share."""
    fixed: float
    """o: the part of it that no sample causes."""

    def alone(self, share: int) -> float:
        """t_proc of the model."""
        return self.step * (self.fixed + (1 - self.fixed) * share / self.category.share_max)

    def factor(self, batch: int, gpus: int, links: Links) -> float:
        """Throughput scaling factor, equation 1 of the paper; -inf where a share does not fit."""
        share = -(-batch // gpus)
        if share > self.category.share_max or batch < gpus:
            return -inf
        seconds = self.alone(share) + links.seconds(self.category.weights, gpus)
        return batch / seconds * self.step / self.category.share_max

    def best_factor(self, batch: int, links: Links) -> float:
        """The best factor of one batch on up to 10 GPUs."""
        return max(self.factor(batch, gpus, links) for gpus in range(1, MOST_GPUS + 1))


@dataclass(frozen=True, slots=True)
class Model:
    """All categories and their cluster."""

    jobs: tuple[Job, ...]
    links: Links


@dataclass(frozen=True, slots=True)
class Residual:
    """A published fact and what the model says of it."""

    fact: str
    source: str
    published: float
    fitted: float


def fitted(second_step: float = 1.0, balance: float = 0.5, shares: int = 4) -> Model:
    """The model fitted to the published facts.

    :param second_step: s of category 2, an assumption.
    :param balance: where category 3 lies between category 1 (0) and 2 (1), on a logarithmic scale.
    :param shares: how many times a GPU's samples of categories 2 and 3 go into their largest batches.
    """
    first, *rest, last = CATEGORIES
    second, third = (replace(each, share_max=each.batch_max // shares) for each in rest)
    fixed, node = _table_two()
    one = Job(first, 1.0, fixed)
    base = one.factor(32, 2, Links(node, inf))
    ring = (5 / (FIVE_OVER_TWO * base) - 1) / (2 * 4 / 5)
    links = Links(node, ring)
    best = one.best_factor(first.batch_min, links) / FIRST_OVER_SECOND
    part = second.batch_min / second.share_max
    two = Job(second, second_step, max(0.0, (1 / best - 1) * part / (1 - part)))
    ratios = [links.seconds(job.category.weights, 2) / job.step for job in (one, two)]
    ratio = ratios[0] * (ratios[1] / ratios[0]) ** balance
    three = Job(third, links.seconds(third.weights, 2) / ratio, (one.fixed + two.fixed) / 2)
    return Model((one, two, three, Job(last, 1.0, one.fixed)), links)


def _table_two() -> tuple[float, float]:
    """The o and n of category 1: a line through the step times on 2 GPUs, by relative errors."""
    shares = np.array(list(TABLE_II), dtype=np.float64)
    factors = np.array(list(TABLE_II.values()))
    steps = 2 * shares / 32 / factors
    design = np.column_stack([np.ones_like(shares), shares / 32]) / steps[:, None]
    (level, slope), *_ = np.linalg.lstsq(design, np.ones_like(shares))
    return float(1 - slope), float(level - (1 - slope))


def residuals(model: Model) -> tuple[Residual, ...]:
    """Every fact that the model is held against."""
    one, two = model.jobs[:2]
    rows = [
        Residual(
            f"factor of category 1 on 2 GPUs, {share} samples each",
            "table II",
            value,
            one.factor(2 * share, 2, model.links),
        )
        for share, value in TABLE_II.items()
    ]
    fast = one.factor(160, 5, model.links) / one.factor(32, 2, model.links)
    sizes = range(1, 6)
    chosen = max(sizes, key=lambda gpus: one.factor(32, gpus, model.links))
    bests = one.best_factor(32, model.links) / two.best_factor(16, model.links)
    return (
        *rows,
        Residual("category 1, 160 samples on 5 GPUs against 32 on 2", "section IV-D", FIVE_OVER_TWO, fast),
        Residual("GPUs of at most 5 that 32 samples of category 1 run best on", "section IV-D", 2, chosen),
        Residual(
            "best factor of category 1 over category 2, smallest batches",
            "section IV-E",
            FIRST_OVER_SECOND,
            bests,
        ),
    )


def profile_of(model: Model) -> Profile:
    """The model as a profile: rows of one GPU and an all-reduce sweep, as the scalability analyzer has."""
    rows = [row for job in model.jobs for row in _train_rows(job)]
    for gpus in range(2, MOST_GPUS + 1):
        rows += [_reduce_row(gpus, weights, model.links) for weights in _WEIGHTS]
    return Profile(tuple(rows), (("model", "experiments/elastic_scaling/model.py"),))


def _train_rows(job: Job) -> list[ProfileRow]:
    """The ends of the line, and the first share that does not fit."""
    most = job.category.share_max
    return [_train_row(job, share) for share in (1, most, most + 1)]


def _train_row(job: Job, share: int) -> ProfileRow:
    feasible = share <= job.category.share_max
    seconds = _STEP_S * job.alone(share) if feasible else None
    return ProfileRow(
        kind="train",
        model=job.category.model,
        gpu_type="p100",
        nodes=1,
        gpus=1,
        placement="1",
        local_batch=share,
        step_seconds=seconds,
        samples_per_second=None if seconds is None else share / seconds,
        parameters=job.category.weights,
        feasible=feasible,
        source="modelled",
    )


def _reduce_row(gpus: int, weights: int, links: Links) -> ProfileRow:
    whole, rest = divmod(gpus, GPUS_PER_NODE)
    shares = [GPUS_PER_NODE] * whole + [rest] * (rest > 0)
    return ProfileRow(
        kind="allreduce",
        model="",
        gpu_type="p100",
        nodes=len(shares),
        gpus=gpus,
        placement=",".join(map(str, shares)),
        local_batch=0,
        step_seconds=_STEP_S * links.seconds(weights, gpus),
        parameters=weights,
        source="modelled",
    )
