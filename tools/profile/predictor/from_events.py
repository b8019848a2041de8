"""Jobs to learn from, out of event files: those of runs and replays, and histories that were imported."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import ValidationError

from pliant.schemas.event import ENDS, Event, epochs_done
from pliant.schemas.job import EpochWork
from pliant.schemas.runinfo import SubmitDetail
from pliant.tools.profile.predictor.epochs import EndedJob, Epoch, evenly


@dataclass(slots=True)
class _Job:
    """What the events say of one job."""

    epoch_samples: float = math.nan
    initial_loss: float = math.nan
    samples_done: float = 0.0
    ends: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """Samples done, loss and metric at the end of each epoch."""

    def ended(self) -> EndedJob:
        size = self.epoch_samples
        if math.isnan(size) and self.ends:
            last = max(self.ends)
            size = self.ends[last][0] / last
        if not self.ends:
            return evenly(size, self.initial_loss, self.samples_done)
        return EndedJob(
            [Epoch(size, self.initial_loss, *self.ends[epoch]) for epoch in sorted(self.ends)],
            self.samples_done,
        )


def ended_jobs(events: Iterable[Event]) -> list[EndedJob]:
    """The jobs that finished, in order of their ends, as far as something can be learned from them."""
    jobs: dict[str, _Job] = {}
    found: list[EndedJob] = []
    for event in events:
        if event.job is None:
            continue
        job = jobs.setdefault(event.job, _Job())
        _take_up(job, event)
        if event.event in ENDS:
            del jobs[event.job]
            if event.event == "finish":
                found.append(job.ended())
    return [job for job in found if job.epochs]


def _take_up(job: _Job, event: Event) -> None:
    if event.event == "submit":
        job.epoch_samples = _stated_size(event)
    if event.loss is not None and math.isnan(job.initial_loss):
        job.initial_loss = event.loss
    if event.samples_done is not None:
        job.samples_done = event.samples_done
    if event.event == "epoch" and event.samples_done is not None:
        number = epochs_done(event) or 1 + max(job.ends, default=0)
        job.ends = {epoch: end for epoch, end in job.ends.items() if epoch < number}
        job.ends[number] = (event.samples_done, _number(event.loss), _number(event.metric))


def _stated_size(event: Event) -> float:
    try:
        work = SubmitDetail.model_validate(event.detail, strict=False).job.work
    except ValidationError:
        return math.nan
    return work.dataset_size if isinstance(work, EpochWork) else math.nan


def _number(value: float | None) -> float:
    return math.nan if value is None else value
