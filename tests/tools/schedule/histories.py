"""What ``pliant schedule --state`` decides from, made of the events of a log."""

from collections.abc import Iterable
from typing import Any

from pliant.schemas.event import Event
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.log.fold import fold
from pliant.tools.schedule.decide import LogHistory, Question, decide_from_history


def submitted(*jobs: Job) -> list[Event]:
    return [Event(each.submit_time, "submit", each.id, detail={"job": job_fields(each)}) for each in jobs]


def decide_from(
    events: Iterable[Event], question: Question, *, now_s: float, previous: Any = None, **more: Any
) -> Schedule:
    """The next decision where a log ends; ``more`` goes to :func:`decide_from_history`."""
    events = tuple(events)
    log = fold(event for event in events if event.event == "decision")
    history = LogHistory(log.info, log.origin_s or 0.0, lambda _: (None, events), previous=previous)
    return decide_from_history(history, question, now_s=now_s, **more)
