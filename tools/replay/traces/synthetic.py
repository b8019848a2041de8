"""Synthetic traces. A recipe and its seed give the same jobs, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.problems import problems_of
from pliant.schemas.job import Batch, EpochWork, Gpus, GpuTimeWork, Job
from pliant.tools.replay.traces.arrivals import arrival_times_s
from pliant.tools.replay.traces.oasis import oasis_jobs
from pliant.tools.replay.traces.recipe import CLASS_HOURS, GpuTimeClass, Model, Recipe
from pliant.tools.replay.traces.sample import Outline, sampled

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]

_HOUR_S: Final = 3600.0
_LEAST_S: Final = 0.001


def synthesize(recipe: Recipe, source: str | None = None) -> tuple[Job, ...]:
    """The jobs of a recipe, in order of arrival.

    Times are rounded to milliseconds, so that the text of a trace says exactly what its numbers are.

    :param source: where the recipe is from, for messages.
    :raises BadInputError: the trace to sample from cannot be read, or has too few jobs in the window; or what
        the recipe says of sizes, batches and work does not go together.
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
    return Job(
        id=job_id,
        submit_time=round(outline.submit_s, 3),
        model=model.name,
        gpus=Gpus(requested=requested, min=model.gpus_min, max=model.gpus_max),
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
    found = class_of(outline.gpu_seconds)
    fitting = [model for model in models if not model.classes or found in model.classes]
    return fitting[_picks([kind], [model.weight for model in fitting])[0]]


def class_of(gpu_seconds: float) -> GpuTimeClass:
    """The class of a GPU time."""
    hours = gpu_seconds / _HOUR_S
    return next((name for name, (_, high) in CLASS_HOURS.items() if hours <= high), "XL")


def _gpu_seconds(rng: np.random.Generator, recipe: Recipe, count: int) -> Floats:
    """GPU time of every job, seconds."""
    import numpy as np

    if recipe.gpu_time is not None:
        return rng.lognormal(np.log(recipe.gpu_time.median_s), recipe.gpu_time.sigma, count)
    classes = list(recipe.classes)
    bounds = np.log(np.array([CLASS_HOURS[name] for name in classes]) * _HOUR_S)
    low, high = bounds[_picks(rng.random(count), list(recipe.classes.values()))].T
    gpu_s: Floats = np.exp(low + (high - low) * rng.random(count))
    return gpu_s


def _weighted(draws: Iterable[float], weights: Mapping[str, float]) -> list[str]:
    """Keys picked by draws from [0, 1)."""
    keys = list(weights)
    return [keys[index] for index in _picks(draws, list(weights.values()))]


def _picks(draws: Iterable[float], weights: Sequence[float]) -> list[int]:
    """Indices picked with the given weights by draws from [0, 1)."""
    import numpy as np

    shares = np.cumsum(np.array(weights) / sum(weights))
    found = np.searchsorted(shares / shares[-1], np.fromiter(draws, float), side="right")
    return [int(index) for index in found]
