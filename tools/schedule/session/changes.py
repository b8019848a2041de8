"""The session's clock, and what has changed since the policy was last asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pliant.tools.schedule.jobs import JobState, NodeState
from pliant.tools.schedule.session.hidden import HiddenJobs
from pliant.tools.schedule.session.part import SessionPart
from pliant.tools.schedule.snapshot import Change, ChangeKind

make: Final = tuple.__new__
"""Constructor of named tuples that takes half the time."""


@dataclass(slots=True)
class ChangesState:
    """The clock of a session."""

    now_s: float = 0.0
    """Present time on the caller's clock."""
    last_s: float = 0.0
    """Time of the last change."""
    concern_cpus: bool = False
    """Whether anything has changed since the last decision while there were jobs without GPUs."""
    before: int = 0
    """Number of changes before the first one, of jobs that the log has no longer."""


class SessionChanges(SessionPart[ChangesState]):
    """Changes in the order of their times; they name only jobs that the policy can see."""

    def __init__(self, hidden: HiddenJobs) -> None:
        self.state = ChangesState()
        self.entries: list[Change] = []
        # Changes before `entries` in a resumed session, until the policy's state says which still count.
        self.past: Sequence[Change] = ()
        # Number of changes that the policy has seen.
        self.seen = 0
        self._hidden = hidden

    @property
    def now_s(self) -> float:
        """Present time on the caller's clock."""
        return self.state.now_s

    @property
    def has_news(self) -> bool:
        """Whether something has happened that calls for a decision."""
        return bool(self.entries) or self.state.concern_cpus

    def note(
        self,
        kind: ChangeKind,
        time_s: float,
        job: JobState | None = None,
        node: NodeState | None = None,
        gpus: int = 0,
    ) -> None:
        """Record a change, unless it concerns a job hidden from the policy."""
        hidden = self._hidden
        if job is None or not (hidden.any and hidden.hides(job.id)):
            self.show(kind, time_s, job, node, gpus)
        else:
            self.note_cpus()

    def show(
        self,
        kind: ChangeKind,
        time_s: float,
        job: JobState | None = None,
        node: NodeState | None = None,
        gpus: int = 0,
    ) -> None:
        """Record a change that the policy can see."""
        state = self.state
        if self._hidden.on_cpus:
            state.concern_cpus = True
        state.last_s = shown_s = time_s if time_s > state.last_s else state.last_s
        self.entries.append(make(Change, (shown_s, kind, job, node, gpus)))

    def note_cpus(self) -> None:
        """Record that jobs without GPUs may have room now."""
        if self._hidden.on_cpus:
            self.state.concern_cpus = True
