"""What goes wrong with jobs, in lines for people: the words of a loop that runs in the background."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pliant.schemas.event import Event

_WORDS: Final[Mapping[str, str]] = {
    "fail": "failed",
    "reject": "is rejected",
    "requeue": "waits again",
}


def trouble(events: Iterable[Event]) -> Iterator[str]:
    """One line for each event that says why a job failed, is rejected or lost its GPUs."""
    for event in events:
        reason = (event.detail or {}).get("reason")
        if event.event in _WORDS and event.job is not None and reason:
            yield f"job {event.job} {_WORDS[event.event]}: {reason}"
