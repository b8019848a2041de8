"""How wrong predictions were: looks ahead from past moments of a run, held against what came.

An error is the ratio of the time that something took, seen from the moment of the prediction, to the time
that was predicted. Jobs that arrived later are part of it, as they are part of the errors to come. What has
not come yet counts as coming now, and what was predicted for later as predicted for now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from pliant.tools.replay.ahead import JobsAhead, look_ahead
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.schedule.session.session import Session

LEAST: Final = 5
"""Comparisons without which nothing is said."""
BAND: Final = 0.8
"""The part of the past errors that lies inside the range."""
_SHORT_S: Final = 1.0
"""Predictions of less are not compared: their ratio says nothing."""


class Moment(Protocol):
    """What was known at one moment."""

    @property
    def time_s(self) -> float: ...
    @property
    def session(self) -> Session: ...
    @property
    def measured(self) -> Mapping[str, float]: ...


class Came(NamedTuple):
    """What became of a job; None: it has not happened yet."""

    start_s: float | None
    end_s: float | None


@dataclass(frozen=True, slots=True)
class PastErrors:
    """The range of past errors, as factors of the time that is predicted."""

    comparisons: int
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, ratios: Iterable[float]) -> PastErrors:
        found = sorted(ratios)
        if len(found) < LEAST:
            return cls(len(found))
        last = len(found) - 1
        cut = (1.0 - BAND) / 2
        return cls(len(found), found[round(cut * last)], found[round((1.0 - cut) * last)])

    def between_s(self, at_s: float | None, now_s: float) -> tuple[float, float] | None:
        """The range of a predicted time. Returns None if it, or its error, is not known."""
        if at_s is None or self.low is None or self.high is None:
            return None
        return now_s + self.low * (at_s - now_s), now_s + self.high * (at_s - now_s)

    def words(self, what: str) -> str:
        """What the ranges rest on, or why there are none; ``what``: "starts" or "ends"."""
        if self.low is None or self.high is None:
            return f"no ranges of {what}: {self.comparisons} of {LEAST} past predictions to compare with"
        times = f"{self.low:.2g} to {self.high:.2g} times as long as predicted"
        return f"of {self.comparisons} past predictions of {what}, {BAND:.0%} took {times}"


def past_errors(
    moments: Iterable[Moment],
    came: Mapping[str, Came],
    now_s: float,
    world: SimulatedCluster,
    *,
    each_s: float,
) -> tuple[PastErrors, PastErrors]:
    """Errors of starts and of ends.

    :param came: what became of the jobs, those left out that a person held or cancelled.
    :param each_s: seconds of the processor that each look may take.
    """
    starts: list[float] = []
    ends: list[float] = []
    for moment in moments:
        waiting = {job.id for job in moment.session.jobs.values() if not job.gpus}
        found = look_ahead(
            *(moment.session, moment.time_s, world, moment.measured), within_s=each_s, until_s=now_s
        )
        until_s = min(now_s, found.reached_s)
        starts += _ratios(found, came, (moment.time_s, until_s), waiting, starts=True)
        ends += _ratios(found, came, (moment.time_s, until_s), came.keys(), starts=False)
    return PastErrors.of(starts), PastErrors.of(ends)


def _ratios(
    found: JobsAhead,
    came: Mapping[str, Came],
    span_s: tuple[float, float],
    of: Iterable[str],
    *,
    starts: bool,
) -> Iterable[float]:
    """:param span_s: when it was predicted, and up to when it was looked."""
    at_s, until_s = span_s
    for job_id in sorted(of):
        job, truth = found.jobs.get(job_id), came.get(job_id)
        if job is None or truth is None or (job.end_s is None and not job.can_end):
            continue
        predicted_s, came_s = (job.start_s, truth.start_s) if starts else (job.end_s, truth.end_s)
        ends_s = until_s if came_s is None else min(came_s, until_s)
        expected_s = until_s if predicted_s is None else min(predicted_s, until_s)
        if min(ends_s, expected_s) < until_s and expected_s - at_s >= _SHORT_S and ends_s >= at_s:
            yield (ends_s - at_s) / (expected_s - at_s)
