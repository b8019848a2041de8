"""When the jobs of a state directory start and end, as ``pliant schedule --state --explain`` predicts it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pliant.schemas.event import Event
from pliant.schemas.runinfo import RunInfo
from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.refine import measured_speeds, refined, reported
from pliant.tools.run.statedir.log.view import LogView
from pliant.tools.run.statedir.requests import Request, requested
from pliant.tools.schedule.decide import History, Question, session_from_history, turn_away_unfit
from pliant.tools.schedule.prediction import Prediction, predictions
from pliant.tools.schedule.session.saved import Basis, KeptSession

WITHIN_S: Final = 1.0
"""Real seconds that looking ahead may take; starts that are not found by then are not shown."""
_log = logging.getLogger("pliant")


def outlook(
    view: LogView, dirs: StateDir, schedule: Schedule | None, requests: Sequence[Request], now_s: float
) -> Mapping[str, Prediction]:
    """What is to come of the jobs that are there. Where the policy cannot be asked: ends only."""
    log = view.log
    if log.info is None or not (log.active or requests):
        return {}
    try:
        return _asked(view, dirs, schedule, requests, now_s)
    except Exception as error:  # noqa: BLE001 - a policy is anybody's code, and may not even be installed here
        _log.debug("no start can be predicted: %s", error)
        return measured_ends(log, now_s)


def measured_ends(log: RunLog, now_s: float) -> dict[str, Prediction]:
    """When the jobs end whose speed was measured, at that speed."""
    found = {}
    for job_id, speed in measured_speeds(log).items():
        job = refined(log.jobs[job_id], log.newest.get(job_id))
        if job.total_samples is not None:
            left_s = max(0.0, job.total_samples - job.samples_done) / speed
            found[job_id] = Prediction(end_s=now_s + left_s)
    return found


def _asked(
    view: LogView, dirs: StateDir, schedule: Schedule | None, requests: Sequence[Request], now_s: float
) -> Mapping[str, Prediction]:
    log, asked = view.log, requested(requests, view.log, now_s)
    more = [*reported(dirs, log, now_s), *asked]

    def since(basis: Basis) -> tuple[KeptSession | None, Iterable[Event]]:
        kept, events = view.history(basis, now_s)
        return kept, (*events, *more)

    history = History(log.info, log.origin_s or 0.0, since)
    session, _ = session_from_history(
        history, _question(log.info, schedule), now_s=now_s, previous=schedule, source=str(dirs.events)
    )
    new = [event.job for event in asked if event.event == "submit" and event.job]
    turn_away_unfit(session, new, now_s)
    return predictions(session, now_s, measured_speeds(log), asks_now=True, within_s=WITHIN_S)


def _question(info: RunInfo | None, schedule: Schedule | None) -> Question:
    """The policy that decided last, else the one that the log names.

    :raises ValueError: there is neither.
    """
    if schedule is not None:
        used = schedule.policy
        return Question(used.name, used.parameters, used.seed)
    if info is None:
        raise ValueError("no policy has decided yet")
    return Question(info.policy, info.parameters, info.seed)
