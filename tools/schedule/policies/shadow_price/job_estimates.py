"""What shadow-price knows of jobs: how fast they would train, what is left of them, and what lies ahead.

A job on k GPUs advances through its work at g(k; φ), each at its best batch; φ, the gradient noise scale,
moves with progress, as others of its model have shown (:class:`ByProgress`). So does the pace: how fast jobs
really advanced over what their curves promised. The mean rate over a stretch of work is the harmonic mean of
g, so a table of ∫ 1/g from each point of the work to its end answers for every stretch (:class:`Ahead`).
:class:`PoolColumns` holds all that for the jobs of one pool.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.demand import gpu_s_per_sample
from pliant.tools.schedule.finished_work import FinishedWork, WorkDone
from pliant.tools.schedule.jobs import JobKind, JobState, NodeGpus
from pliant.tools.schedule.policies.common import Pool
from pliant.tools.schedule.policies.shadow_price.curves import (
    MOST_NOISE,
    Floats,
    GoodputCurve,
    GoodputCurves,
    Ints,
    Outlook,
    batch_range,
    sizes_of,
)
from pliant.tools.schedule.rates import Speeds

CELLS: Final = 64
"""Parts of a job's work in which both count as constant."""
_CELL_NUMBERS: Final = np.arange(CELLS, dtype=np.float64)
_SAME: Final = 0.01
"""Relative change of a noise scale or a pace that changes nothing."""
_END: Final = 1.0 - 1e-9
_RANGE: Final = (1e-6, 1e15)
"""Samples; beyond these a noise scale changes nothing."""
_PACES: Final = (0.1, 10.0)
_REMEMBERED: Final = 32
"""Jobs of a model that ended, from which the work of others is expected."""
_LEAST_SAMPLES: Final = 1e-9
_QUEUE_GPU_S: Final = 60.0
_QUEUE_FACTOR: Final = 4.0
_AS_PROMISED: Final = np.ones(CELLS)
_CLASS: Final = 1e5
"""Weight of a job over one of the class below: it may be as many times as long and still comes first."""
_MOST_CLASSES: Final = 1e10
"""And the highest class over the lowest; sums beyond it lose the lowest to rounding."""
_FAR_TOO_SLOW: Final = 0.03
"""Part of the promised speed below which a job has stalled."""
_LEAST_PACE: Final = 1e-3
_FEWEST_CHANGES: Final = 3
"""Observed changes of a model from which on they say what its changes cost."""
_CHANGES: Final = 9
"""Number of changes that are kept of a model, the last ones."""
_FEW: Final = 100
"""Jobs that have ended and are not worth a thought."""
_FAR_MORE: Final = 1.5
"""Ratio to the stated cost below which other decisions are not worth it."""
_HeldSpeed = tuple[NodeGpus, int, JobKind | None, float]
"""GPUs, batch and kind of a job, and its samples per second there."""
UnknownNoise = Literal["stated", "author"]
"""Any batch that the job states, once a job of its model has ended without reporting; or the author's."""


class Knowledge:
    """How fast jobs train and what is left of them; what jobs have shown is carried, curves are not."""

    def __init__(self, ahead_s: float, rescale_s: float, unknown_noise: UnknownNoise, caution: float) -> None:
        """
        :param rescale_s: what a change costs a job whose profile has not measured it.
        :param unknown_noise: which batches jobs may get where no job of their model reports its noise scale.
        :param caution: how many times its cost a change counts to a job whose batch moves.
        """
        self._ahead_s = ahead_s
        self._rescale_s = rescale_s
        self._unknown_noise = unknown_noise
        self._caution = caution
        self._noise = noise_scales()
        # By the logarithm of the samples done, for jobs of unknown work.
        self._by_samples = noise_scales()
        # Samples of the last jobs that ended, by model.
        self._totals: dict[str, list[float]] = {}
        # Models of which a job whose batch may move ended without reporting its noise scale.
        self._unreported: set[str] = set()
        self._finished = FinishedWork()
        self._paces = paces()
        self._changes = ChangeCosts()
        # When a job was first seen to have trained all that it stated, and not to end.
        self._overdue: dict[str, float] = {}
        # By job that trains far too slowly: its work takes longer by that.
        self._slow: dict[str, float] = {}
        self._speeds: Speeds | None = None
        self._curves: dict[Pool, GoodputCurves] = {}
        self._ahead: dict[tuple[GoodputCurve, str], Ahead] = {}
        # Of jobs at the last decision, by job.
        self._held: dict[str, _HeldSpeed] = {}
        # By job a time, and its samples left and done then, which a decision asks for many times; None
        # before the first.
        self._standings: dict[str, tuple[float, float | None, float]] | None = None
        # What jobs of a priority count.
        self._classes: dict[float, float] = {}

    def use(self, speeds: Speeds) -> None:
        """Begin a decision."""
        self._standings = {}
        if self._speeds is not speeds:
            self._speeds, self._curves, self._ahead, self._held = speeds, {}, {}, {}

    def rank(self, jobs: Iterable[JobState]) -> None:
        """Take up the classes of all active jobs."""
        ranks = sorted({job.priority for job in jobs})
        factor = min(_CLASS, _MOST_CLASSES ** (1.0 / max(1, len(ranks) - 1)))
        self._classes = {priority: factor**rank for rank, priority in enumerate(ranks)}

    def weight(self, job: JobState) -> float:
        """What a second of the job's completion time counts: its weight, times what its class does."""
        return job.spec.weight * self._classes.get(job.priority, 1.0)

    def _standing(self, job: JobState, time_s: float) -> tuple[float | None, float]:
        """Samples that a job still has to train, None where it states no work, and those that it has done."""
        known = {} if self._standings is None else self._standings
        standing = known.get(job.id)
        if standing is None or standing[0] != time_s:
            standing = known[job.id] = time_s, stated_left(job, time_s), job.samples_done(time_s)
        return standing[1:]

    def left(self, job: JobState, time_s: float) -> float | None:
        """Samples still to train, expected ones where the job does not state its work; None if unknown.

        Expected, to look ahead, is the mean over the jobs of its model that ended after more than that.
        """
        left, done = self._standing(job, time_s)
        if left is not None:
            return left
        longer = [total for total in self._totals.get(job.spec.model, ()) if total > done]
        return fmean(longer) - done if longer else None

    def work(self, job: JobState, per_gpu: float, time_s: float) -> float:
        """What a job counts as in the order of ends, in samples: of unknown work what finished jobs say.

        Where no job of its model has ended and no profile says how long work takes, it is what its queue
        says, at ``per_gpu`` samples per GPU-second; so it is where a job trains past what it stated.
        """
        if (left := self._standing(job, time_s)[0]) is not None:
            if self._overdue.get(job.id, math.inf) < time_s:
                return max(_queue_gpu_s(job, time_s) * per_gpu, _LEAST_SAMPLES)
            return max(left, _LEAST_SAMPLES) / self._slow.get(job.id, 1.0)
        if not job.is_speed_guessed:
            return self._finished.left(self._progress_of(job, time_s))
        if self._finished.knows(job):
            return self._finished.left(self._progress_of(job, time_s)) * per_gpu
        return _queue_gpu_s(job, time_s) * per_gpu

    def follow(self, jobs: Collection[JobState], time_s: float) -> None:
        """See how far all active jobs have come."""
        if len(self._held) > 2 * len(jobs) + _FEW:
            self._held = {job.id: self._held[job.id] for job in jobs if job.id in self._held}
        self._changes.follow(jobs, time_s)
        self._slow = self._slow_ones(jobs, time_s)
        overdue: dict[str, float] = {}
        unstated = []
        for job in jobs:
            if (left := self._standing(job, time_s)[0]) is None:
                unstated.append(self._progress_of(job, time_s))
            elif left <= 0:
                overdue[job.id] = self._overdue.get(job.id, time_s)
        self._overdue = overdue
        self._finished.observe(unstated)

    def _slow_ones(self, jobs: Iterable[JobState], time_s: float) -> dict[str, float]:
        """The part of its promised speed at which a job trains far too slowly, or last did."""
        paces = {}
        for job in jobs:
            pace = self._slow.get(job.id, 1.0)
            if job.gpus and not job.is_restarting(time_s) and (promised := self.held_rate(job, time_s)) > 0:
                pace = job.samples_per_second / promised
            if pace < _FAR_TOO_SLOW:
                paces[job.id] = max(pace, _LEAST_PACE)
        return paces

    def progress(self, job: JobState, time_s: float) -> float | None:
        """The part of its work that a job has done; None if unknown."""
        left, done = self.left(job, time_s), self._standing(job, time_s)[1]
        if left is None:
            return None
        return done / (done + left) if left > 0 else 1.0

    def learn(self, job: JobState) -> None:
        known = self._totals.get(job.spec.model, [])
        self._totals[job.spec.model] = [*known, job.samples_done(math.inf)][-_REMEMBERED:]
        smallest, largest = batch_range(job)
        if job.noise_scale is None and smallest < largest:
            self._unreported.add(job.spec.model)
        self._finished.learn(self._progress_of(job, math.inf))

    def observe(self, job: JobState, time_s: float) -> None:
        noise_scale = job.noise_scale
        if not job.gpus or noise_scale is None or self._speeds is None:
            return
        model = job.spec.model
        self._by_samples.observe(model, _doublings(self._standing(job, time_s)[1]), noise_scale)
        progress = self.progress(job, time_s)
        if progress is None:
            return
        self._noise.observe(model, progress, noise_scale)
        base = min(job.spec.batch.min or job.reference_batch, job.reference_batch)
        promised = self.held_speed(job) * _efficiency(noise_scale, base, job.global_batch)
        if promised > 0 and job.samples_per_second > 0:
            pace = job.samples_per_second / promised
            self._paces.observe(_pace_key(job), progress, pace)
            self._paces.observe(model, progress, pace)

    def curves(self, pool: Pool) -> GoodputCurves:
        assert self._speeds is not None, "use() comes first"  # noqa: S101
        curves = self._curves.get(pool)
        if curves is None:
            sizes = sizes_of(pool.gpus, pool.node_gpus)
            curves = self._curves[pool] = GoodputCurves(self._speeds, pool.gpu_type, sizes)
        return curves

    def outlook(self, job: JobState, curve: GoodputCurve, sizes: Ints, time_s: float) -> Outlook:
        """What is ahead of a job; the same rate throughout where nothing is known to change."""
        model = job.spec.model
        line = self._noise.line(model)
        known = line is not None or job.noise_scale is not None or self._by_samples.knows(model)
        if not known and (model not in self._unreported or len(curve.batches) == 1):
            return curve.outlook
        left, done = self.left(job, time_s), self._standing(job, time_s)[1]
        if line is None or left is None or not curve.runs:
            rates = curve.goodput(self.noise_scale(job, time_s))
            return Outlook(rates, rates, bool(rates.any()))
        progress = done / (done + left) if left > 0 else 1.0
        ahead = self._ahead_of(job, curve, line)
        size = int(sizes.searchsorted(job.gpus)) if job.gpus else 0
        if not (size and size < len(sizes) and ahead.runs[size]):
            size = int((ahead.whole(progress)[1:] / sizes[1:]).argmax()) + 1
        return ahead.at(progress, max(done + left, _LEAST_SAMPLES), self._ahead_s, size)

    def rescale_s(self, job: JobState) -> float:
        measured = None if self._speeds is None else self._speeds.rescale_seconds(job.spec.model)
        return self._rescale_s if measured is None else measured

    def costs_s(self, job: JobState) -> tuple[float, float]:
        """Seconds that a change takes, and those that it has turned out to take where that is far more."""
        stated_s = self.rescale_s(job)
        return stated_s, self._changes.cost_s(job.spec.model, stated_s)

    def change_counts(self, curve: GoodputCurve) -> float:
        """How many times its cost a change counts when sizes are weighed: more where the batch moves."""
        return self._caution if len(curve.batches) > 1 else 1.0

    def held_rate(self, job: JobState, time_s: float) -> float:
        """Samples per second of its own batch that the profile promises of what a job holds."""
        if not job.gpus or self._speeds is None:
            return 0.0
        speed, own = self.held_speed(job), job.reference_batch
        noise_scale = None if job.global_batch == own else self.noise_scale(job, time_s)
        return speed if noise_scale is None else speed * _efficiency(noise_scale, own, job.global_batch)

    def held_speed(self, job: JobState) -> float:
        """Samples per second of a job that holds GPUs: its batch, and the nodes where it is."""
        known = self._held.get(job.id)
        if known is not None:
            placement, batch, kind, speed = known
            if placement is job.placement and batch == job.global_batch and kind is job.kind:
                return speed
        assert self._speeds is not None, "use() comes first"  # noqa: S101
        speed = self._speeds.rate_at(job, job.placement, job.global_batch)
        self._held[job.id] = job.placement, job.global_batch, job.kind, speed
        return speed

    def noise_scale(self, job: JobState, time_s: float) -> float | None:
        """That of the job, or of its model where the job is; None if nothing is known.

        Without bound where jobs of the model end without reporting it: the batches that such a job states are
        then taken to be alike, as its work, in samples or epochs, has it.
        """
        if job.noise_scale is not None:
            return job.noise_scale
        model, progress = job.spec.model, self.progress(job, time_s)
        if progress is not None:
            noise_scale = self._noise.at(model, progress)
        else:
            noise_scale = self._by_samples.at(model, _doublings(self._standing(job, time_s)[1]))
        unreported = model in self._unreported and not self._by_samples.knows(model)
        if noise_scale is None and unreported and self._unknown_noise == "stated":
            return MOST_NOISE
        return noise_scale

    def dump(self) -> dict[str, Any]:
        return {
            "noise": self._noise.dump(),
            "noise_by_samples": self._by_samples.dump(),
            "pace": self._paces.dump(),
            "totals": dict(sorted(self._totals.items())),
            "untold": sorted(self._unreported),
            "finished": self._finished.dump(),
            "changes": self._changes.dump(),
            "slow": dict(sorted(self._slow.items())),
            "overdue": dict(sorted(self._overdue.items())),
        }

    def load(self, state: Any) -> None:
        self._noise.load(state["noise"])
        self._by_samples.load(state["noise_by_samples"])
        self._paces.load(state["pace"])
        self._totals = dict(state["totals"])
        self._unreported = set(state["untold"])
        self._finished.load(state["finished"])
        self._changes.load(state["changes"])
        self._slow = dict(state["slow"])
        self._overdue = dict(state["overdue"])
        self._ahead = {}

    def _progress_of(self, job: JobState, time_s: float) -> WorkDone:
        """In GPU-seconds instead of samples where no profile says how long these take."""
        if job.is_speed_guessed or self._speeds is None:
            return WorkDone(job, job.attained_service_s(time_s), 1.0)
        return WorkDone(job, job.samples_done(time_s), gpu_s_per_sample(job, self._speeds) or 1.0)

    def _ahead_of(self, job: JobState, curve: GoodputCurve, line: Floats) -> Ahead:
        key = (curve, _pace_key(job))
        ahead = self._ahead.get(key)
        if ahead is None:
            ahead = self._ahead[key] = Ahead(curve)
        pace = self._paces.line(key[1])
        if pace is None:
            pace = self._paces.line(job.spec.model)
        ahead.update(line, _AS_PROMISED if pace is None else pace)
        return ahead


class ChangeCosts:
    """What changes of running jobs cost at least, by model: for how long they were seen not to train yet.

    A run takes a job to train from the moment of its change, so only a replay teaches.
    """

    def __init__(self) -> None:
        # By job that held GPUs at the last decision: when these last changed, and when it was last seen not
        # to train since; None: it trains, or these are its first.
        self._jobs: dict[str, tuple[float, float | None]] = {}
        self._costs_s: dict[str, list[float]] = {}
        self._medians_s: dict[str, float] = {}

    def cost_s(self, model: str, stated_s: float) -> float:
        """What a change costs, more than stated where most of those seen cost far more."""
        costs_s = self._costs_s.get(model, ())
        if len(costs_s) < _FEWEST_CHANGES:
            return stated_s
        seen_s = self._medians_s.get(model)
        if seen_s is None:
            seen_s = self._medians_s[model] = median(costs_s)
        return seen_s if seen_s > _FAR_MORE * stated_s else stated_s

    def follow(self, jobs: Iterable[JobState], time_s: float) -> None:
        """See which jobs train at a decision, before what it changes."""
        followed: dict[str, tuple[float, float | None]] = {}
        for job in jobs:
            if not job.gpus:
                continue
            changed_s, seen_s = self._jobs.get(job.id, (job.changed_s, None))
            if changed_s != job.changed_s:
                changed_s = seen_s = job.changed_s
            if seen_s is not None and job.is_restarting(time_s):
                seen_s = time_s
            elif seen_s is not None:
                past = self._costs_s.get(job.spec.model, [])
                self._costs_s[job.spec.model], seen_s = [*past, seen_s - changed_s][-_CHANGES:], None
                self._medians_s.pop(job.spec.model, None)
            followed[job.id] = changed_s, seen_s
        self._jobs = followed

    def dump(self) -> dict[str, Any]:
        return {"jobs": dict(sorted(self._jobs.items())), "costs_s": dict(sorted(self._costs_s.items()))}

    def load(self, state: Any) -> None:
        self._jobs = {job_id: (changed_s, seen_s) for job_id, (changed_s, seen_s) in state["jobs"].items()}
        self._costs_s = {model: list(each) for model, each in state["costs_s"].items()}
        self._medians_s = {}


def stated_left(job: JobState, time_s: float) -> float | None:
    """Samples still to train; None where the job states no work, also where some is predicted."""
    return None if job.predicted or job.is_speed_guessed else job.remaining_samples(time_s)


def _efficiency(noise_scale: float, base: int, batch: int) -> float:
    noise_scale = min(noise_scale, MOST_NOISE)
    return (noise_scale + base) / (noise_scale + batch)


def _queue_gpu_s(job: JobState, time_s: float) -> float:
    """What a job of unknown work is taken to have left: the bound of the queue of its attained service."""
    attained = max(job.attained_service_s(time_s), _QUEUE_GPU_S)
    level = math.floor(math.log(attained / _QUEUE_GPU_S, _QUEUE_FACTOR) + 1e-9)
    return _QUEUE_GPU_S * _QUEUE_FACTOR**level


def _doublings(samples_done: float) -> float:
    """How often the samples that a job has done have doubled, over the most that is possible."""
    return math.log2(1.0 + samples_done) / CELLS


def _pace_key(job: JobState) -> str:
    return f"{job.spec.model} {job.reference_batch}"


# What jobs of a model have shown by progress, for the others.


class ByProgress:
    """The last value seen in each part of the work, from all jobs that share a key."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high
        # [cell] the logarithms of the values seen, NaN where none was.
        self._logs: dict[str, Floats] = {}
        self._lines: dict[str, Floats] = {}

    def observe(self, key: str, progress: float, value: float) -> None:
        logs = self._logs.get(key)
        if logs is None:
            logs = self._logs[key] = np.full(CELLS, np.nan)
        cell = int(progress * CELLS) if progress < 1.0 else CELLS - 1
        log = math.log(self._low if value < self._low else self._high if value > self._high else value)
        if logs[cell] != log:
            logs[cell] = log
            self._lines.pop(key, None)

    def knows(self, key: str) -> bool:
        return key in self._logs

    def line(self, key: str) -> Floats | None:
        """[cell] values, between those seen on a line of their logarithms; None if none was seen."""
        line = self._lines.get(key)
        if line is None and (logs := self._logs.get(key)) is not None:
            cells = _seen(logs)
            line = self._lines[key] = np.exp(np.interp(_CELL_NUMBERS, cells, logs[cells]))
        return line

    def at(self, key: str, progress: float) -> float | None:
        line = self.line(key)
        return None if line is None else float(line[min(max(int(progress * CELLS), 0), CELLS - 1)])

    def dump(self) -> dict[str, list[list[float]]]:
        return {
            key: [[cell, float(logs[cell])] for cell in _seen(logs).tolist()]
            for key, logs in sorted(self._logs.items())
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._lines, self._logs = {}, {key: np.full(CELLS, np.nan) for key in state}
        for key, pairs in state.items():
            for cell, log in pairs:
                self._logs[key][int(cell)] = log


def _seen(logs: Floats) -> Ints:
    """Cells, ascending."""
    return np.isfinite(logs).nonzero()[0]


def noise_scales() -> ByProgress:
    return ByProgress(*_RANGE)


def paces() -> ByProgress:
    """By model and batch of the author: the batch in which its samples are counted."""
    return ByProgress(*_PACES)


# What is ahead of a job.


class Ahead:
    """Jobs of one curve whose noise scales are known by progress."""

    def __init__(self, curve: GoodputCurve) -> None:
        self._curve = curve
        # [size] whether jobs run on it.
        self.runs: npt.NDArray[np.bool_] = np.asarray(curve.rates.any(axis=1))
        self._runs_any = bool(self.runs.any())
        self._idle = np.where(self.runs, 0.0, 1.0)
        # Noise scales and paces by cell.
        self._taken = np.full((2, CELLS), np.nan)
        # [cell, size] 1/g, 1 where infeasible; the last cell first, as sums begin at the end.
        self._slowness = np.ones((CELLS, len(curve.rates)))
        # By the bound of a cell, [size] ∫ 1/g from there to the end, over the part of the work.
        self._lefts: dict[int, Floats] = {}
        # By size, the same at the beginning of each cell, the last cell first.
        self._left_of_size: dict[int, Floats] = {}
        self._seen: tuple[Floats, Floats] | None = None

    def update(self, noise: Floats, pace: Floats) -> None:
        """Take up other noise scales and paces; only changed cells are computed."""
        if self._seen is not None and self._seen[0] is noise and self._seen[1] is pace:
            return
        self._seen = noise, pace
        both = np.array((noise, pace))
        change = both / self._taken
        change -= 1
        same = np.abs(change, out=change) <= _SAME  # not where nothing was taken up
        stale = (~(same[0] & same[1])).nonzero()[0]
        if not stale.size:
            return
        self._taken[:, stale] = taken = both[:, stale]
        cells, begins = stale.tolist(), 0
        values = [*zip(*taken.tolist(), strict=True)]
        for ends in range(1, len(cells) + 1):  # many in a row are alike: those beyond all that were seen
            goes_on = ends < len(cells) and cells[ends] == cells[ends - 1] + 1
            if not (goes_on and values[ends] == values[begins]):
                noise_scale, speed = values[begins]
                rows = slice(CELLS - 1 - cells[ends - 1], CELLS - cells[begins])
                self._slowness[rows] = 1.0 / (self._curve.goodput(noise_scale) * speed + self._idle)
                begins = ends
        self._lefts, self._left_of_size = {}, {}

    def whole(self, progress: float) -> Floats:
        """[size] mean progress per second from ``progress`` (0 to 1) to the end."""
        whole: Floats = (1.0 - min(progress, _END)) / self._left_at(min(progress, _END)) * self.runs
        return whole

    def at(self, progress: float, work: float, soon_s: float, size: int) -> Outlook:
        """The outlook of a job with ``work`` samples in all, ``progress`` (0 to 1) of them done.

        :param size: the position of a size: what it does in ``soon_s`` seconds is the stretch of ``soon`` for
            all sizes.
        """
        progress = min(progress, _END)
        left = self._left_at(progress)
        whole = (1.0 - progress) / left * self.runs
        until = float(left[size]) - soon_s / work
        if until <= 0:
            return Outlook(whole, whole, self._runs_any)
        begins = self._left_of_size.get(size)
        if begins is None:
            begins = self._left_of_size[size] = self._slowness[:, size].cumsum() / CELLS
        at = int(begins.searchsorted(until))
        end = (CELLS - 1 - at) / CELLS + float((begins[at] - until) / self._slowness[at, size])
        soon = (end - progress) / (left - self._left_at(end)) * self.runs
        return Outlook(whole, soon, self._runs_any)

    def _left_at(self, progress: float) -> Floats:
        """[size] ∫ 1/g from a point of the work to its end."""
        position = progress * CELLS
        cell = min(int(position), CELLS - 1)
        left = self._lefts.get(cell)
        if left is None:
            left = self._lefts[cell] = np.add.reduce(self._slowness[: CELLS - cell]) / CELLS
        left_at: Floats = left - (position - cell) / CELLS * self._slowness[CELLS - 1 - cell]
        return left_at


# The jobs of one pool as columns.


@dataclass(eq=False)
class PoolColumns:
    """Columns by job, in order of arrival; sizes are positions among those of the pool."""

    pool: Pool
    sizes: Ints
    jobs: Sequence[JobState]
    curves: Sequence[GoodputCurve]
    whole: Floats
    """[job, size] F."""
    soon: Floats
    """[job, size] G."""
    left: Floats
    """R, in samples."""
    seconds: Floats
    """GPU-seconds of it at k°."""
    normal: Ints
    """k°, the size that makes most of a GPU."""
    held: Ints
    """The size held in this pool; 0 for none, or one that is not among the sizes."""
    scattered: Floats
    """Part of its speed that the place of a job leaves: 1 where it is as compact as can be."""
    runs: npt.NDArray[np.bool_]
    """Whether the job holds GPUs, here or in another pool."""
    weights: Floats
    rescale_s: Floats
    """Seconds that a change takes, as stated."""
    cost_s: Floats
    """The same, as seen where that is far more."""
    change_s: Floats
    """Seconds that it counts."""

    @classmethod
    def of(
        cls,
        pool: Pool,
        jobs: Sequence[JobState],
        known: Knowledge,
        time_s: float,
        *,
        cautious: bool = True,
    ) -> PoolColumns | None:
        """The columns of the jobs that can run in the pool; None if there is none.

        :param cautious: whether a change counts more than its cost where the batch moves.
        """
        curves = known.curves(pool)
        sizes = curves.sizes
        fitting = [
            (job, curve, outlook)
            for job in sorted(jobs, key=lambda each: each.arrival)
            if (outlook := known.outlook(job, curve := curves.of(job), sizes, time_s)).runs
        ]
        if not fitting:
            return None
        curves.forget_others(jobs)
        whole = _stacked([outlook.whole for _, _, outlook in fitting])
        per_gpu = whole[:, 1:] / sizes[1:]
        normal = per_gpu.argmax(axis=1) + 1
        fastest = per_gpu[np.arange(len(fitting)), normal - 1]
        left = np.array(
            [known.work(job, rate, time_s) for (job, _, _), rate in zip(fitting, fastest, strict=True)]
        )
        fitting_jobs = [job for job, _, _ in fitting]
        here = [job.gpus if job.gpu_type == pool.gpu_type else 0 for job in fitting_jobs]
        held = np.minimum(sizes.searchsorted(here), len(sizes) - 1)
        models = [job.spec.model for job in fitting_jobs]
        costs_s = {
            model: known.costs_s(job) for model, job in dict(zip(models, fitting_jobs, strict=True)).items()
        }
        rescale_s, cost_s = np.array([costs_s[model] for model in models]).T
        return cls(
            pool,
            sizes,
            fitting_jobs,
            [curve for _, curve, _ in fitting],
            whole,
            _stacked([outlook.soon for _, _, outlook in fitting]),
            left,
            left / fastest,
            normal,
            np.where(sizes[held] == here, held, 0),
            np.array([_scattered(job, pool, known) for job in fitting_jobs]),
            np.array([job.gpus > 0 for job in fitting_jobs]),
            np.array([known.weight(job) for job in fitting_jobs]),
            rescale_s,
            cost_s,
            cost_s * [known.change_counts(curve) if cautious else 1.0 for _, curve, _ in fitting],
        )

    def of_rows(self, rows: Sequence[int]) -> PoolColumns:
        """Those jobs alone."""
        return PoolColumns(
            self.pool,
            self.sizes,
            [self.jobs[row] for row in rows],
            [self.curves[row] for row in rows],
            self.whole[rows],
            self.soon[rows],
            self.left[rows],
            self.seconds[rows],
            self.normal[rows],
            self.held[rows],
            self.scattered[rows],
            self.runs[rows],
            self.weights[rows],
            self.rescale_s[rows],
            self.cost_s[rows],
            self.change_s[rows],
        )

    def footprints(self) -> Floats:
        """GPUs that a worker of each job stands for: more than one where its other demands fill the nodes."""
        gpus, kind = self.pool.gpus, self.pool.gpu_type
        rooms = (gpus if job.room_now is None else job.room_now.get(kind, 0) for job in self.jobs)
        return np.array([max(1.0, gpus / max(room, 1)) for room in rooms])

    def shortest_last(self) -> list[int]:
        """Rows by weighted GPU-seconds, those with most first; of equal ones the last to arrive."""
        keys = (self.seconds / self.weights).tolist()
        return sorted(range(len(self.jobs)), key=lambda row: (keys[row], row), reverse=True)


def _stacked(rows: Sequence[Floats]) -> Floats:
    """The rows as one table."""
    return np.concatenate(rows).reshape(len(rows), -1)


def _scattered(job: JobState, pool: Pool, known: Knowledge) -> float:
    """The speed of a job where it is, over that on as few nodes as possible."""
    if job.gpu_type != pool.gpu_type or len(job.placement) <= -(-job.gpus // pool.node_gpus):
        return 1.0
    speeds = known.curves(pool).speeds
    compact = speeds.rate(job, job.gpus, pool.gpu_type, global_batch=job.global_batch)
    return min(1.0, known.held_speed(job) / compact) if compact > 0 else 1.0
