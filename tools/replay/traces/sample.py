"""Jobs drawn from a window of another trace, the way the evaluations of Pollux and Ares sample theirs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_jobs
from pliant.schemas.job import GpuTimeWork, Job
from pliant.tools.replay.traces.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np

_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Outline:
    """A job before its model is chosen."""

    submit_s: float
    gpus: int
    gpu_seconds: float
    sampled_from: str | None = None
    """Id of the job of the other trace."""


def sampled(recipe: Recipe, rng: np.random.Generator) -> list[Outline]:
    """Jobs of the recipe's window, drawn without putting them back, in order of arrival.

    Only jobs that state their work as GPU time have a class; the others are left out.

    :raises BadInputError: the trace cannot be read, or the window has too few such jobs.
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
    picked = sorted(int(index) for index in rng.choice(len(inside), wanted, replace=False))
    return [_outline(inside[index], begin_s) for index in picked]


def _outline(job: Job, begin_s: float) -> Outline:
    assert isinstance(job.work, GpuTimeWork)  # noqa: S101
    return Outline(job.submit_time - begin_s, job.gpus.requested, job.work.gpu_seconds, job.id)


def _busiest(jobs: Sequence[Job], window_s: float) -> float:
    """Beginning of the window, on the hour, in which most jobs arrive; the first of equals."""
    times = [job.submit_time for job in jobs]
    hours = range(int(times[-1] // _HOUR_S) + 1) if times else range(1)

    def arrivals(hour: int) -> int:
        begin_s = hour * _HOUR_S
        return bisect_left(times, begin_s + window_s) - bisect_left(times, begin_s)

    return _HOUR_S * max(hours, key=lambda hour: (arrivals(hour), -hour))
