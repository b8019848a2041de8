"""What starting and rescaling cost: seconds in which a job holds its GPUs and does not train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Final, Literal

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import RESCALES, Event
from pliant.schemas.events import Finished, Progressed, Started, Submitted, Trained, typed
from pliant.schemas.file_io.files import PIPE
from pliant.schemas.io import read_events, read_profile
from pliant.schemas.profile import Profile
from pliant.schemas.quantities import read_duration
from pliant.tools.profile.throughput import by_model, rescales
from pliant.tools.replay.options import DEFAULT_COST_S, stated_numbers

Kind = Literal["start", "rescale", "resume"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by model; ``default_s`` for the others."""

    default_s: float = 0.0
    by_model: Mapping[str, float] = field(default_factory=dict)
    option: str = field(default="", compare=False)
    """The option that names these models one by one; empty: they were measured."""

    def of(self, model: str) -> float:
        return self.by_model.get(model, self.default_s)

    def for_models(self, models: Iterable[str]) -> dict[str, float] | float:
        """The cost as an event file states it: one number, or one for each of ``models``."""
        if not self.by_model:
            return self.default_s
        return {model: self.of(model) for model in sorted(set(models))}


FREE: Final = Cost()
DEFAULT: Final = Cost(DEFAULT_COST_S)


def parse_costs(
    start: str | None, rescale: str | None, resume: str | None, profile: str | None
) -> tuple[Cost | None, Cost | None, Cost | None]:
    """The costs of a start, a rescale and a resume as options state them; None where unstated.

    ``S``; ``MODEL=S,…``, where a bare ``S`` is for the others; an event file with measured costs; or
    ``profile`` for those of the file ``profile``. An unstated resume has what the source of the rescales
    measured.
    """
    if resume is None and rescale is not None and _is_measured(rescale):
        resume = rescale
    known: dict[str, MeasuredCosts] = {}

    def cost(kind: Kind, text: str | None) -> Cost | None:
        if text is None:
            return None
        option = f"--{kind}-cost"
        if not _is_measured(text):
            return _stated(text, option)
        if text not in known:
            known[text] = _read_costs(text, option, profile)
        cost: Cost = getattr(known[text], kind)
        return cost

    return cost("start", start), cost("rescale", rescale), cost("resume", resume)


def _stated(text: str, option: str) -> Cost:
    expected = "expected seconds or a time like 30s, MODEL=30s, profile or an event file (.jsonl, .parquet)"
    seconds_by_model = dict(stated_numbers(text, option, read_duration, expected))
    default_s = seconds_by_model.pop(None, 0.0)
    return Cost(
        default_s,
        {model: seconds for model, seconds in seconds_by_model.items() if model is not None},
        option,
    )


def _read_costs(text: str, option: str, profile: str | None) -> MeasuredCosts:
    if text != "profile":
        costs = costs_from_events(read_events(text))
        if not costs.start.by_model:
            raise BadInputError.one(text, "has no measured start or rescale to take costs from")
        return costs
    if profile is None or profile == PIPE:
        raise UsageError(f"{option} profile: name the profile with --profile FILE")
    measured = unstated_costs(read_profile(profile))
    if measured is None:
        raise BadInputError.one(profile, "has no measured costs: measure with pliant profile --costs")
    return measured


def _is_measured(text: str) -> bool:
    return text == "profile" or is_event_file(text)


def is_event_file(text: str) -> bool:
    return text.endswith((".jsonl", ".parquet"))


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Costs of each kind as some source has measured them; without any measurement all are free."""

    start: Cost
    """First starts, with the time in which jobs hold their GPUs after their last step."""
    rescale: Cost
    """Growths, shrinks, moves and changes of the batch, of a job that runs."""
    resume: Cost
    """Starts after a preemption or a failure."""


def costs_from_events(events: Iterable[Event]) -> MeasuredCosts:
    """The mean measured costs of each model; without a measurement it gets the mean over all.

    A live run writes them into the ``progress`` event after the change, a simulated one into the change. A
    kind that was not measured costs what the most similar kind does. Start cost includes the time between
    the last report of a job's workers and their end.
    """
    models: dict[str, str] = {}
    reported_s: dict[str, float] = {}
    leaves: dict[str, list[float]] = {}
    by_kind: dict[str, dict[str, list[float]]] = {"start": {}, "rescale": {}, "resume": {}}
    for event in map(typed, events):
        if event.job is None:
            continue
        if isinstance(event, Submitted):
            models[event.job] = str(event.spec.get("model", ""))
        change = event.after if isinstance(event, Progressed) else event.name
        if isinstance(event, Started):
            reported_s.pop(event.job, None)  # of workers that are gone
        if isinstance(event, Trained) and event.attempt is not None:
            reported_s[event.job] = event.time
        if isinstance(event, Finished) and event.job in reported_s:
            leaves.setdefault(models.get(event.job, ""), []).append(event.time - reported_s[event.job])
        seconds_by_model = by_kind.get("rescale" if change in RESCALES else change or "")
        if seconds_by_model is not None and event.overhead_seconds is not None:
            seconds_by_model.setdefault(models.get(event.job, ""), []).append(event.overhead_seconds)
    costs = _measured(by_kind["start"], by_kind["rescale"], by_kind["resume"])
    return replace(costs, start=_with_ends(costs.start, leaves))


def _with_ends(start: Cost, leaves: Mapping[str, list[float]]) -> Cost:
    # the median: a job that ended while the service was down seems to have taken that long to leave
    ends = {model: median(seconds) for model, seconds in leaves.items()}
    bearing = {model: seconds + ends.get(model, 0.0) for model, seconds in start.by_model.items()}
    every = [seconds for each in leaves.values() for seconds in each]
    default_s = start.default_s + (median(every) if every else 0.0)
    return Cost(default_s, bearing)


def unstated_costs(profile: Profile | None) -> MeasuredCosts | None:
    """Costs that ``pliant profile --costs`` measured, for options that state none; None if it did not."""
    rows = () if profile is None else profile.rows
    starts, relaunches = (
        by_model(rows, lambda row: row.start_seconds),
        by_model(rows, lambda row: row.relaunch_seconds),
    )
    costs = _measured(starts, rescales(rows), relaunches)
    return costs if costs.start.by_model else None


def _measured(
    starts: Mapping[str, list[float]], rescaled: Mapping[str, list[float]], resumes: Mapping[str, list[float]]
) -> MeasuredCosts:
    return MeasuredCosts(
        _mean_cost(starts or resumes or rescaled),
        _mean_cost(rescaled or resumes or starts),
        _mean_cost(resumes or starts or rescaled),
    )


def _mean_cost(measured: Mapping[str, list[float]]) -> Cost:
    every = [seconds for of_model in measured.values() for seconds in of_model]
    means = {model: fmean(of_model) for model, of_model in sorted(measured.items())}
    return Cost(fmean(every) if every else 0.0, means)
