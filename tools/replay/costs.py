"""What starting and rescaling costs: seconds in which a job holds its GPUs and does not train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.files import PIPE
from pliant.schemas.io import read_events, read_profile
from pliant.schemas.profile import Profile

Kind = Literal["start", "rescale", "resume"]
_RESCALES: Final = frozenset({"grow", "shrink", "move"})


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by model; ``default_s`` for the others."""

    default_s: float = 0.0
    by_model: Mapping[str, float] = field(default_factory=dict)

    def of(self, model: str) -> float:
        """Seconds for one model."""
        return self.by_model.get(model, self.default_s)

    def for_models(self, models: Iterable[str]) -> dict[str, float] | float:
        """What an event file says about it: one number, or each of ``models`` with its own."""
        if not self.by_model:
            return self.default_s
        return {model: self.of(model) for model in sorted(set(models))}


FREE: Final = Cost()


@dataclass(frozen=True, slots=True)
class Measured:
    """Costs of each kind as some source has measured them; without any measurement all are free."""

    start: Cost
    """First starts."""
    rescale: Cost
    """Growths, shrinks, moves and changes of the batch, of a job that runs."""
    resume: Cost
    """Starts after a preemption or a failure."""


def costs_from_events(events: Iterable[Event]) -> Measured:
    """The mean measured costs of each model.

    A live run writes them into the ``progress`` event after the change, a simulated one into the change
    itself. A model without a measurement gets the mean over all; a kind that was not measured is taken to
    cost what the kind costs that is most like it: starts and resumes are alike, rescales are not.
    """
    models: dict[str, str] = {}
    by_kind: dict[str, dict[str, list[float]]] = {"start": {}, "rescale": {}, "resume": {}}
    for event in events:
        detail = event.detail or {}
        if event.job is None:
            continue
        if event.event == "submit":
            models[event.job] = str(detail.get("job", {}).get("model", ""))
        change = str(detail.get("after")) if event.event == "progress" else event.event
        found = by_kind.get("rescale" if change in _RESCALES else change)
        if found is not None and event.overhead_seconds is not None:
            found.setdefault(models.get(event.job, ""), []).append(event.overhead_seconds)
    return _measured(by_kind["start"], by_kind["rescale"], by_kind["resume"])


def costs_from_profile(profile: Profile) -> Measured:
    """What ``pliant profile --costs`` measured, each the mean of a model's rows.

    A rescale is what a change in place costs where that was measured (models that were only measured alone
    have none), else a relaunch; a resume is a relaunch.
    """
    columns: tuple[dict[str, list[float]], ...] = ({}, {}, {})
    for row in profile.rows:
        measured = (row.start_seconds, row.rescale_seconds, row.relaunch_seconds)
        for found, seconds in zip(columns, measured, strict=True):
            if seconds is not None:
                found.setdefault(row.model, []).append(seconds)
    return _measured(*columns)


def _measured(
    starts: Mapping[str, list[float]], rescales: Mapping[str, list[float]], resumes: Mapping[str, list[float]]
) -> Measured:
    return Measured(
        _mean_cost(starts or resumes or rescales),
        _mean_cost(rescales or resumes or starts),
        _mean_cost(resumes or starts or rescales),
    )


def _mean_cost(measured: Mapping[str, list[float]]) -> Cost:
    every = [seconds for found in measured.values() for seconds in found]
    by_model = {model: math.fsum(found) / len(found) for model, found in sorted(measured.items())}
    return Cost(math.fsum(every) / len(every) if every else 0.0, by_model)


def is_event_file(text: str) -> bool:
    """Whether the words for a cost name an event file."""
    return text.endswith((".jsonl", ".parquet"))


def parse_costs(
    start: str | None, rescale: str | None, resume: str | None, profile: str | None
) -> tuple[Cost | None, Cost | None, Cost | None]:
    """What the options of that name say, in the order of the fields of ``Physics``; None: nothing.

    A resume that nobody states a cost for has what the source of the rescales has measured.
    """
    if resume is None and rescale is not None and (rescale == "profile" or is_event_file(rescale)):
        resume = rescale

    def cost(kind: Kind, text: str | None) -> Cost | None:
        return None if text is None else parse_cost(text, f"--{kind}-cost", kind=kind, profile=profile)

    return cost("start", start), cost("rescale", rescale), cost("resume", resume)


def parse_cost(text: str, option: str, *, kind: Kind, profile: str | None = None) -> Cost:
    """The cost that an option names: ``S``, ``MODEL=S,…`` (a bare ``S`` among them is for the others), an
    event file to take measured costs from, or ``profile`` for the measurements of the file ``profile``.

    :raises UsageError: a number is missing, negative or not finite, or there is no profile file.
    :raises BadInputError: the file is none, or measured no start and no rescale.
    """
    if text == "profile":
        if profile is None or profile == PIPE:
            raise UsageError(f"{option} profile: name the profile with --profile FILE")
        cost: Cost = getattr(costs_from_profile(read_profile(profile)), kind)
        if not cost.by_model:
            raise BadInputError.one(profile, "has no measured costs: measure with pliant profile --costs")
        return cost
    if is_event_file(text):
        cost = getattr(costs_from_events(read_events(text)), kind)
        if not cost.by_model:
            raise BadInputError.one(text, "has no measured start or rescale to take costs from")
        return cost
    default_s, by_model = 0.0, {}
    for part in text.split(","):
        model, equals, number = part.rpartition("=")
        if equals:
            by_model[model] = _seconds(number, part, option)
        else:
            default_s = _seconds(number, part, option)
    return Cost(default_s, by_model)


def _seconds(number: str, part: str, option: str) -> float:
    try:
        seconds = float(number)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(
            f'{option} "{part}": expected seconds, MODEL=SECONDS, profile or an event file (.jsonl, .parquet)'
        )
    return seconds
