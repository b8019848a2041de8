"""What one job cost: the GPU time that it held by use, its speed against its profile, its cheapest size; for
people and for programs.

The log says what each start, change and checkpoint cost (``overhead_seconds``). A failure costs more than
the start that follows it: the GPUs of an attempt that never trained, and the training that is repeated from
the last checkpoint on, whose time is interpolated between reports. All that is left was training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any, Final, Literal

from pliant.schemas.event import STARTS, Event
from pliant.schemas.events import (
    Checkpointed,
    Ended,
    Failed,
    Finished,
    Moved,
    Placed,
    Preempted,
    Progressed,
    Requeued,
    Resized,
    Resumed,
    Started,
    Trained,
    TypedEvent,
    typed,
)  # fmt: skip
from pliant.schemas.text import counted, in_gpu_hours, in_gpus, rate_text
from pliant.tools.report.comparisons import relative_speed
from pliant.tools.report.job_record import AllocationStep, JobRecord
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord

_Loss = Literal["starts", "changes", "checkpoints", "failures"]
_LOSSES: Final[Sequence[_Loss]] = ("starts", "changes", "checkpoints", "failures")
_FAILED: Final = frozenset({Requeued.name, Failed.name})
_HOUR_S: Final = 3600.0
_AS_CHEAP: Final = 1 + 1e-9
NO_PROFILE: Final = "there is no profile"
_Held = tuple[float, float, AllocationStep]


@dataclass(frozen=True, slots=True)
class JobCost:
    """One job until now, or until it ended; GPUs that two jobs share count one half for each."""

    held_gpu_s: float
    lost_gpu_s: Mapping[_Loss, float] | None
    """None if its script reports no steps, so that a start cannot be told from training."""
    samples: float
    """Trained, without those that were trained again."""
    repeated_samples: float
    speed: float | None
    """Samples trained over those that the profile predicts for the same time at the same sizes."""
    no_speed: str
    """Why ``speed`` is None."""
    cheapest_gpus: int | None
    """Size with the fewest GPU seconds a sample, of those that it can run on."""
    cheapest_gpu_s: float | None
    """GPU seconds a sample there."""
    no_cheapest: str
    """Why there is none."""
    preemptions: int
    rescales: int
    moves: int
    restarts: int
    stopped_gpu_s: float = 0.0
    """GPU seconds that were lost to stops and changes, where the job can save nothing."""

    @property
    def trained_gpu_s(self) -> float | None:
        return None if self.lost_gpu_s is None else max(0.0, self.held_gpu_s - sum(self.lost_gpu_s.values()))

    @property
    def gpu_s_per_sample(self) -> float | None:
        return self.held_gpu_s / self.samples if self.samples else None


def job_cost(
    events: Sequence[Event], job_id: str, until_s: float, samples_done: float | None = None
) -> JobCost:
    """The cost of a job by the log of its run.

    :param until_s: now, on the clock of the log; a job that has ended cost nothing since.
    :param samples_done: its newest progress, where that is not in the log yet.
    :raises BadInputError: the events do not fit together.
    """
    run = fold(events)
    row = run.jobs.ids().index(job_id)
    job = run.jobs[row]
    until_s = max(run.last_event_s, until_s - run.origin_s)
    account = _Account([*job.held(until_s)])
    for event in events:
        if event.job == job_id:
            account.take(typed(replace(event, time=event.time - run.origin_s)))
    account.charge_idle(job)
    tells = account.reported or job.job.changes_in_place
    job.samples_done = job.samples_done if samples_done is None else samples_done
    samples = job.samples_done or 0.0
    if job.samples_done is not None:
        job.samples_done += account.repeated
    speed, no_speed = _speed(job, until_s, tells=account.reported)
    cheapest, no_cheapest = _cheapest(job, run)
    return JobCost(
        run.jobs.gpu_seconds(until_s).item(row),
        account.lost if tells else None,
        samples,
        account.repeated,
        speed,
        no_speed,
        cheapest[0],
        cheapest[1],
        no_cheapest,
        job.preemptions,
        int(run.jobs.rescales_until(inf)[row]),
        job.moves,
        job.restarts,
        account.stopped_gpu_s,
    )


class _Account:
    """Charges GPU time to what it was lost to, event by event.

    :param held: when the job held which GPUs.
    """

    def __init__(self, held: Sequence[_Held]) -> None:
        self.lost: dict[_Loss, float] = dict.fromkeys(_LOSSES, 0.0)
        self.repeated = self.stopped_gpu_s = 0.0
        self._held = held
        # (time, GPU seconds), so that training that is repeated is not charged for them again.
        self._charges: list[tuple[float, float]] = []
        # (time, samples) as training went on.
        self._trail: list[tuple[float, float]] = []
        # What a start of the job after its last stop is charged to.
        self._stopped_by: _Loss = "failures"
        self._placed_by: _Loss = "starts"
        # What each start is charged to, by its time.
        self._starts: dict[float, _Loss] = {}
        # The starts that have led to a step.
        self._trained: set[float] = set()
        self._began_again = False

    @property
    def reported(self) -> bool:
        return bool(self._trained)

    def take(self, event: TypedEvent) -> None:
        if isinstance(event, Placed | Preempted | Requeued | Ended):
            self.stopped_gpu_s += _HOUR_S * (event.lost_gpu_hours or 0.0)
        if isinstance(event, Placed):
            self._place(event)
        elif isinstance(event, Preempted | Requeued):
            self._stopped_by = "changes" if isinstance(event, Preempted) else "failures"
        if event.overhead_seconds:
            self._charge(self._cause(event), event.time, event.overhead_seconds)
        lost_workers = event.lost_workers if isinstance(event, Progressed) else None
        is_report = isinstance(event, Trained | Finished)
        if is_report and lost_workers is None:
            self._trained |= {max(self._starts)} if self._starts else set()
        if event.samples_done is not None:
            went_back = isinstance(event, Checkpointed) and event.lost_samples is not None
            self._reach(event, went_back=self._began_again or went_back)
            self._began_again &= not is_report

    def _cause(self, event: TypedEvent) -> _Loss:
        """What the time that an event cost is charged to."""
        match event:
            case Checkpointed():
                return "checkpoints"
            case Progressed(lost=lost) if lost is not None:
                return "failures"
            case Started() | Resized() | Moved():
                return self._placed_by
            case Progressed(after=after) if after is not None:
                return self._placed_by
        return "changes"

    def _place(self, event: Placed) -> None:
        if isinstance(event, Started):
            self._placed_by = self._stopped_by if isinstance(event, Resumed) else "starts"
            self._starts[event.time] = self._placed_by
            self._began_again = True
        else:
            self._placed_by = "changes" if event.setback is None else "failures"

    def _charge(self, cause: _Loss, time_s: float, seconds: float) -> None:
        held = (step.counted_gpus for start_s, _, step in reversed(self._held) if start_s <= time_s)
        gpus = next(held, 0.0)
        self.lost[cause] += gpus * seconds
        self._charges.append((time_s, gpus * seconds))

    def _reach(self, event: TypedEvent, *, went_back: bool) -> None:
        """Follow the training; what lies between here and the furthest point is trained again."""
        samples = event.samples_done or 0.0
        if self._trail and samples < self._trail[-1][1]:
            if not went_back:
                return  # told late
            until_s, furthest = self._trail[-1]
            since_s = self._when(samples)
            self.repeated += furthest - samples
            charged = sum(gpu_s for time_s, gpu_s in self._charges if since_s < time_s <= until_s)
            again = max(0.0, self._held_between(since_s, until_s) - charged)
            self.lost[self._stopped_by] += again
            self._charges.append((until_s, again))
            self._trail = [point for point in self._trail if point[1] <= samples]
        self._trail.append((event.time, samples))

    def _when(self, samples: float) -> float:
        """When training had reached that many samples."""
        for (left_s, left), (right_s, right) in pairwise(self._trail):
            if left <= samples < right:
                return left_s + (samples - left) / (right - left) * (right_s - left_s)
        return self._trail[0][0]

    def _held_between(self, since_s: float, until_s: float) -> float:
        spans = ((min(end, until_s) - max(start, since_s), step) for start, end, step in self._held)
        return sum(seconds * step.counted_gpus for seconds, step in spans if seconds > 0)

    def charge_idle(self, job: JobRecord) -> None:
        """Charge the starts that have led to no step: they failed, were stopped, or are under way."""
        if not (self.reported or job.job.changes_in_place):
            return
        following = {id(step): after.event for step, after in pairwise(job.steps)}
        began_s = 0.0
        for start_s, end_s, step in self._held:
            began_s = start_s if start_s in self._starts else began_s
            if step.event in STARTS and began_s not in self._trained:
                failed = following.get(id(step)) in _FAILED
                cause: _Loss = "failures" if failed else self._starts.get(began_s, "starts")
                self.lost[cause] += (end_s - start_s) * step.counted_gpus
                step.overhead_s = end_s - start_s


def _speed(job: JobRecord, until_s: float, *, tells: bool) -> tuple[float | None, str]:
    if job.is_measured:
        return None, NO_PROFILE
    speed = relative_speed(job, until_s) if tells or job.outcome == "finished" else None
    if speed:
        return speed, ""
    waits = tells or job.job.changes_in_place
    return None, "it has not trained yet" if waits else "its script has reported no steps"


def _cheapest(job: JobRecord, run: RunRecord) -> tuple[tuple[int, float] | tuple[None, None], str]:
    """(GPUs, GPU seconds a sample); of sizes that are equally cheap the largest, which is the fastest."""
    if job.is_measured:
        return (None, None), NO_PROFILE
    largest = job.job.max_gpus(run.largest_gang)
    usable = ((size, rate) for size, rate in job.curve if size <= largest and job.job.can_train_on(size))
    costs = {size: size / rate for size, rate in usable}
    if not costs:
        return (None, None), "the profile has no size that it can run on"
    best = max(size for size, cost in costs.items() if cost <= min(costs.values()) * _AS_CHEAP)
    return (best, costs[best]), ""


_SAMPLES: Final = 1000
"""Samples that a price is for."""
_SILENT: Final = "its script has reported no steps, so the time of its starts is not known"


def cost_facts(cost: JobCost) -> Iterator[tuple[str, str]]:
    """(label, text) of each thing to say."""
    yield "cost", f"{_gpu_time(cost.held_gpu_s)} held"
    if cost.lost_gpu_s is None or cost.trained_gpu_s is None:
        yield "trained", f"- ({_SILENT})"
    else:
        yield "trained", _part(cost.trained_gpu_s, cost.held_gpu_s)
        lost = [
            f"{_part(cost.lost_gpu_s[name], cost.held_gpu_s)} to {name}"
            for name in _LOSSES
            if cost.lost_gpu_s[name] > 0
        ]
        yield "lost", "; ".join(lost) or "nothing"
    if cost.stopped_gpu_s:
        yield "stops", f"{in_gpu_hours(cost.stopped_gpu_s)} lost: it does not say that it can save"
    if cost.repeated_samples:
        yield "repeated", f"{cost.repeated_samples:,.0f} samples, trained again from a checkpoint"
    yield "speed", f"- ({cost.no_speed})" if cost.speed is None else f"{cost.speed:.2f} of its profile's"
    yield "cheapest", _cheapest_text(cost)
    yield "changes", _changes(cost)


def _cheapest_text(cost: JobCost) -> str:
    if cost.cheapest_gpus is None or cost.cheapest_gpu_s is None:
        return f"- ({cost.no_cheapest})"
    price = f"{in_gpus(cost.cheapest_gpus)}, {_price(cost.cheapest_gpu_s)} per {_SAMPLES:,} samples"
    own = cost.gpu_s_per_sample
    return price if own is None else f"{price}; it has cost {_price(own)}"


def _changes(cost: JobCost) -> str:
    counts = (
        (cost.preemptions, "preemption"),
        (cost.rescales, "rescale"),
        (cost.moves, "move"),
        (cost.restarts, "restart"),
    )
    return ", ".join(counted(count, noun) for count, noun in counts if count) or "none"


def _gpu_time(gpu_s: float) -> str:
    if gpu_s >= _HOUR_S:
        return f"{rate_text(gpu_s / _HOUR_S)} GPU hours"
    return f"{rate_text(gpu_s)} GPU seconds"


def _part(gpu_s: float, held_gpu_s: float) -> str:
    share = f" ({100 * gpu_s / held_gpu_s:.0f} %)" if held_gpu_s else ""
    return f"{_gpu_time(gpu_s)}{share}"


def _price(gpu_s_per_sample: float) -> str:
    return _gpu_time(_SAMPLES * gpu_s_per_sample)


def cost_fields(cost: JobCost) -> dict[str, Any]:
    return {
        "held_gpu_seconds": cost.held_gpu_s,
        "trained_gpu_seconds": cost.trained_gpu_s,
        "lost_gpu_seconds": None if cost.lost_gpu_s is None else dict(cost.lost_gpu_s),
        "stopped_gpu_seconds": cost.stopped_gpu_s,
        "lost_unknown": _SILENT if cost.lost_gpu_s is None else None,
        "samples": cost.samples,
        "repeated_samples": cost.repeated_samples,
        "relative_speed": cost.speed,
        "relative_speed_unknown": cost.no_speed or None,
        "gpu_seconds_per_sample": cost.gpu_s_per_sample,
        "cheapest_gpus": cost.cheapest_gpus,
        "cheapest_gpu_seconds_per_sample": cost.cheapest_gpu_s,
        "cheapest_unknown": cost.no_cheapest or None,
        "preemptions": cost.preemptions,
        "rescales": cost.rescales,
        "moves": cost.moves,
        "restarts": cost.restarts,
    }
