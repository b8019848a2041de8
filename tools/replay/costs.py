"""What starting and rescaling costs: seconds in which a job holds its GPUs and does not train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.files import PIPE
from pliant.schemas.io import read_events, read_profile
from pliant.schemas.profile import Profile

_RESCALES: Final = frozenset({"resume", "grow", "shrink", "move"})


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


def costs_from_events(events: Iterable[Event]) -> tuple[Cost, Cost]:
    """The measured costs of starts, and of resumes, growths, shrinks and moves: the mean of each model.

    A live run writes them into the ``progress`` event after the change, a simulated one into the change
    itself. A model without a measurement gets the mean over all; where nothing was rescaled, a rescale is
    taken to cost what a start costs, and the other way round.
    """
    models: dict[str, str] = {}
    starts: dict[str, list[float]] = {}
    rescales: dict[str, list[float]] = {}
    for event in events:
        detail = event.detail or {}
        if event.job is None:
            continue
        if event.event == "submit":
            models[event.job] = str(detail.get("job", {}).get("model", ""))
        change = str(detail.get("after")) if event.event == "progress" else event.event
        found = starts if change == "start" else rescales if change in _RESCALES else None
        if found is not None and event.overhead_seconds is not None:
            found.setdefault(models.get(event.job, ""), []).append(event.overhead_seconds)
    return _mean_cost(starts or rescales), _mean_cost(rescales or starts)


def _mean_cost(measured: Mapping[str, list[float]]) -> Cost:
    every = [seconds for found in measured.values() for seconds in found]
    by_model = {model: math.fsum(found) / len(found) for model, found in sorted(measured.items())}
    return Cost(math.fsum(every) / len(every) if every else 0.0, by_model)


def costs_from_profile(profile: Profile) -> tuple[Cost, Cost]:
    """What ``pliant profile --costs`` measured: starts, and relaunches, each the mean of a model's rows."""
    starts: dict[str, list[float]] = {}
    relaunches: dict[str, list[float]] = {}
    for row in profile.rows:
        for found, seconds in ((starts, row.start_seconds), (relaunches, row.relaunch_seconds)):
            if seconds is not None:
                found.setdefault(row.model, []).append(seconds)
    return _mean_cost(starts), _mean_cost(relaunches)


def parse_cost(text: str, option: str, *, first: bool, profile: str | None = None) -> Cost:
    """The cost that an option names: ``S``, ``MODEL=S,…`` (a bare ``S`` among them is for the others), an
    event file to take measured costs from, or ``profile`` for the measurements of the file ``profile``: of
    first starts (``first``) or of everything later.

    :raises UsageError: a number is missing, negative or not finite, or there is no profile file.
    :raises BadInputError: the file is none, or measured no start and no rescale.
    """
    if text == "profile":
        if profile is None or profile == PIPE:
            raise UsageError(f"{option} profile: name the profile with --profile FILE")
        cost = costs_from_profile(read_profile(profile))[0 if first else 1]
        if not cost.by_model:
            raise BadInputError.one(profile, "has no measured costs: measure with pliant profile --costs")
        return cost
    if text.endswith((".jsonl", ".parquet")):
        cost = costs_from_events(read_events(text))[0 if first else 1]
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
