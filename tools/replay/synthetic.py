"""Synthetic traces. A recipe and its seed give the same jobs, byte for byte.

Jobs arrive by a Poisson process of piecewise constant rate, or are drawn from a window of another trace, as
the evaluations of Pollux and Ares sample theirs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.io import read_jobs
from pliant.schemas.job import Batch, EpochWork, Gpus, GpuTimeWork, Job
from pliant.tools.replay.synthetic_recipe import CLASS_HOURS, GpuTimeClass, Model, Recipe, oasis_jobs

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]


_HOUR_S: Final = 3600.0
_LEAST_S: Final = 0.001
_DAY_H: Final = 24


def synthesize(recipe: Recipe, source: str | None = None) -> tuple[Job, ...]:
    """The jobs of a recipe, in order of arrival, with times rounded to milliseconds.

    :param source: where the recipe is from, for messages.
    :raises BadInputError: the trace to sample from is unreadable or has too few jobs in the window, or sizes,
        batches and work contradict each other.
    """
    try:
        return _made(recipe)
    except ValidationError as error:
        one = "a job of this recipe"
        raise BadInputError(problems_of(error, one if source is None else f"{source}: {one}")) from None


def _made(recipe: Recipe) -> tuple[Job, ...]:
    import numpy as np

    rng = np.random.default_rng(recipe.seed)
    if recipe.kind == "sample":
        outlines = sampled(recipe, rng)  # they keep their times and sizes, their GPU time picks the model
        return _jobs(recipe, outlines, rng.random(len(outlines)), rng)
    submit_s = arrival_times_s(recipe, rng)
    if recipe.kind == "oasis":
        return oasis_jobs(recipe.oasis, submit_s, rng)
    kinds = rng.random(len(submit_s))
    sizes = _weighted(rng.random(len(submit_s)), recipe.gpus)
    gpu_s = _gpu_seconds(rng, recipe, len(submit_s))
    outlines = [
        Outline(float(time_s), int(size), float(seconds))
        for time_s, size, seconds in zip(submit_s, sizes, gpu_s, strict=True)
    ]
    return _jobs(recipe, outlines, kinds, rng)


@dataclass(frozen=True, slots=True)
class Outline:
    """A job before its model is chosen."""

    submit_s: float
    gpus: int
    gpu_seconds: float
    sampled_from: str | None = None
    """Id of the job of the other trace."""


def _jobs(
    recipe: Recipe, outlines: Sequence[Outline], kinds: Iterable[float], rng: np.random.Generator
) -> tuple[Job, ...]:
    """The jobs; each of ``kinds``, in [0, 1), picks a model among those of the job's class."""
    width = len(str(max(1, len(outlines) - 1)))
    return tuple(
        _job(f"job-{number:0{width}}", outline, _model(recipe.models, outline, kind), recipe, rng)
        for number, (outline, kind) in enumerate(zip(outlines, kinds, strict=True))
    )


def _job(job_id: str, outline: Outline, model: Model, recipe: Recipe, rng: np.random.Generator) -> Job:
    requested = outline.gpus if model.gpus is None else int(_weighted([rng.random()], model.gpus)[0])
    each = model.gpus_per_replica
    requested = -(-requested // each) * each
    return Job(
        id=job_id,
        submit_time=round(outline.submit_s, 3),
        model=model.name,
        gpus=Gpus(requested=requested, min=model.gpus_min, max=model.gpus_max, per_replica=each),
        batch=Batch(
            size=model.batch, min=model.batch_min, max=model.batch_max, per_gpu_max=model.per_gpu_max
        ),
        lr=model.lr,
        elastic=model.elastic or recipe.elastic,
        work=_work(model, outline.gpu_seconds, rng),
        convergence=model.convergence,
        labels={} if outline.sampled_from is None else {"sampled_from": outline.sampled_from},
    )


def _work(model: Model, gpu_seconds: float, rng: np.random.Generator) -> EpochWork | GpuTimeWork:
    if model.epochs is not None and model.dataset_size is not None:
        low, high = model.epochs
        return EpochWork(epochs=float(rng.integers(int(low), int(high) + 1)), dataset_size=model.dataset_size)
    return GpuTimeWork(gpu_seconds=max(_LEAST_S, round(model.gpu_seconds or gpu_seconds, 3)))


def _model(models: Sequence[Model], outline: Outline, kind: float) -> Model:
    size_class = class_of(outline.gpu_seconds)
    fitting = [model for model in models if not model.classes or size_class in model.classes]
    return fitting[_picks([kind], [model.weight for model in fitting])[0]]


def class_of(gpu_seconds: float) -> GpuTimeClass:
    hours = gpu_seconds / _HOUR_S
    return next((name for name, (_, high) in CLASS_HOURS.items() if hours <= high), "XL")


def _gpu_seconds(rng: np.random.Generator, recipe: Recipe, count: int) -> Floats:
    import numpy as np

    if recipe.gpu_time is not None:
        return rng.lognormal(np.log(recipe.gpu_time.median_s), recipe.gpu_time.sigma, count)
    classes = list(recipe.classes)
    bounds = np.log(np.array([CLASS_HOURS[name] for name in classes]) * _HOUR_S)
    low, high = bounds[_picks(rng.random(count), list(recipe.classes.values()))].T
    gpu_s: Floats = np.exp(low + (high - low) * rng.random(count))
    return gpu_s


def _weighted(draws: Iterable[float], weights: Mapping[str, float]) -> list[str]:
    keys = list(weights)
    return [keys[index] for index in _picks(draws, list(weights.values()))]


def _picks(draws: Iterable[float], weights: Sequence[float]) -> list[int]:
    """Indices picked with the given weights, one for each draw from [0, 1)."""
    import numpy as np

    shares = np.cumsum(np.array(weights) / sum(weights))
    places = np.searchsorted(shares / shares[-1], np.fromiter(draws, float), side="right")
    return [int(index) for index in places]


def arrival_times_s(recipe: Recipe, rng: np.random.Generator) -> Floats:
    """Arrivals in ascending order, seconds.

    Of a number of jobs alone, the first arrives at time 0 and the others at the rate; of hours alone, as many
    as the rate brings. Of both, exactly that number within the hours, spread as the rate says.
    """
    import numpy as np

    pieces = _pieces(recipe)
    count = recipe.count
    if recipe.hours is None:
        gaps = rng.standard_exponential(count)
        gaps[0] = 0.0
        return _when(np.cumsum(gaps), pieces)
    expected = _arrivals_until(recipe.hours, pieces)
    if count is None:
        count = 1 + int(rng.poisson(expected))
        return _when(np.concatenate([[0.0], np.sort(rng.random(count - 1)) * expected]), pieces)
    return _when(np.sort(rng.random(count)) * expected, pieces)


def _pieces(recipe: Recipe) -> list[tuple[float, float]]:
    """(hours, arrivals an hour) of one cycle of the rate."""
    rate = recipe.rate_per_hour
    if recipe.kind == "bursty":
        hours = recipe.phase_minutes / 60
        return [(hours, rate), (hours, recipe.low_rate_per_hour or rate / 4)]
    if recipe.kind == "diurnal":
        middles = [hour + 0.5 - recipe.peak_hour for hour in range(_DAY_H)]
        swings = [math.cos(2 * math.pi * middle / _DAY_H) for middle in middles]
        return [(1.0, rate * (1 + recipe.amplitude * swing)) for swing in swings]
    return [(1.0, rate)]


def _when(arrivals: Floats, pieces: list[tuple[float, float]]) -> Floats:
    """Seconds until the expected number of arrivals is each of ``arrivals``."""
    import numpy as np

    hours, expected = _cycle(pieces)
    cycles = np.floor(arrivals / expected[-1])
    hour_of_arrivals: Floats = cycles * hours[-1] + np.interp(
        arrivals - cycles * expected[-1], expected, hours
    )
    return hour_of_arrivals * _HOUR_S


def _arrivals_until(hours: float, pieces: list[tuple[float, float]]) -> float:
    """Expected number of arrivals in the first ``hours``."""
    import numpy as np

    at, expected = _cycle(pieces)
    cycles = math.floor(hours / at[-1])
    return float(cycles * expected[-1] + np.interp(hours - cycles * at[-1], at, expected))


def _cycle(pieces: list[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Hours and expected arrivals at the ends of the pieces, from zero on."""
    import numpy as np

    table = np.array([(0.0, 0.0), *((hours, hours * rate) for hours, rate in pieces)])
    return np.cumsum(table[:, 0]), np.cumsum(table[:, 1])


def sampled(recipe: Recipe, rng: np.random.Generator) -> list[Outline]:
    """Jobs of the recipe's window, drawn without replacement, in order of arrival.

    Only jobs that state their work as GPU time have a class; the others are left out.
    """
    path = str(recipe.trace)
    known = [job for job in read_jobs(path) if isinstance(job.work, GpuTimeWork)]
    known.sort(key=lambda job: (job.submit_time, job.id))
    window_s = recipe.window_h * _HOUR_S
    begin_s = _busiest(known, window_s) if recipe.from_hour is None else recipe.from_hour * _HOUR_S
    inside = [job for job in known if begin_s <= job.submit_time < begin_s + window_s]
    wanted = recipe.count or len(inside)
    if len(inside) < wanted:
        what = f"has {len(inside)} jobs that state GPU time in the {recipe.window_h:g} hours"
        raise BadInputError.one(path, f"{what} from hour {begin_s / _HOUR_S:g} on, expected {wanted} or more")
    picked = [inside[index] for index in sorted(rng.choice(len(inside), wanted, replace=False))]
    return [
        Outline(job.submit_time - begin_s, job.gpus.requested, job.work.gpu_seconds, job.id)
        for job in picked
        if isinstance(job.work, GpuTimeWork)
    ]


def _busiest(jobs: Sequence[Job], window_s: float) -> float:
    """Start of the window, on the hour, with most arrivals; the first of equals."""
    times = [job.submit_time for job in jobs]
    hours = range(int(times[-1] // _HOUR_S) + 1) if times else range(1)

    def arrivals(hour: int) -> int:
        begin_s = hour * _HOUR_S
        return bisect_left(times, begin_s + window_s) - bisect_left(times, begin_s)

    return _HOUR_S * max(hours, key=lambda hour: (arrivals(hour), -hour))
