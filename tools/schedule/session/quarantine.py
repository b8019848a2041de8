"""Quarantine: a slot from all jobs, a slot from one job, further GPUs from one job.

A slot that workers die on is out of service until its time is over; a job that cannot use one slot may still
get the others; a job that fails wherever it grows keeps what it has. Policies know counts of GPUs and no
slots, so a slot out of service is one GPU of its node less, and a slot withheld from one job hides one free
GPU of its node when that job is placed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pliant.tools.schedule.session.part import SessionPart

LONG_S: Final = 86_400.0
"""A slot that is out of service for longer than this waits for an operator to resume its node."""


@dataclass(slots=True)
class QuarantineState:
    """Times on the session's clock at which something is over."""

    slots: dict[str, float] = field(default_factory=dict)
    """Slots that no job gets."""
    pairs: dict[tuple[str, str], float] = field(default_factory=dict)
    """Jobs, and slots that they do not get."""
    jobs: dict[str, float] = field(default_factory=dict)
    """Jobs that get no further GPU."""


class Quarantine(SessionPart[QuarantineState]):
    """Slots are written ``node/index``; times are on the session's clock."""

    def __init__(self) -> None:
        self.state = QuarantineState()
        # When something is over; infinity: nothing is in quarantine.
        self.next_s = math.inf

    def restore(self, state: QuarantineState) -> None:
        super().restore(state)
        self._look()

    @property
    def out_of_service(self) -> Mapping[str, float]:
        """Slots that no job gets, and until when."""
        return self.state.slots

    def withdraw(self, slot: str, until_s: float) -> None:
        """No job gets a slot; until the later time where it is out of service already."""
        self.state.slots[slot] = max(until_s, self.state.slots.get(slot, until_s))
        self._look()

    def until_resumed(self, node: str, now_s: float) -> list[str]:
        """Slots of a node that are out of service until an operator resumes it."""
        return sorted(
            slot
            for slot, until_s in self.state.slots.items()
            if node_of(slot) == node and until_s > now_s + LONG_S
        )

    def bar(self, job_id: str, slot: str, until_s: float) -> None:
        self.state.pairs[job_id, slot] = until_s
        self._look()

    def hold(self, job_id: str, until_s: float) -> None:
        self.state.jobs[job_id] = until_s
        self._look()

    def release(self, job_id: str) -> None:
        """Nothing is withheld from this job alone any more."""
        if self.next_s == math.inf:
            return
        self.state.jobs.pop(job_id, None)
        self.state.pairs = {pair: until_s for pair, until_s in self.state.pairs.items() if pair[0] != job_id}
        self._look()

    def restore_slot(self, slot: str) -> bool:
        """A slot is as good as any other; True: it was out of service."""
        self.state.pairs = {pair: until_s for pair, until_s in self.state.pairs.items() if pair[1] != slot}
        known = self.state.slots.pop(slot, None) is not None
        self._look()
        return known

    def expire(self, now_s: float) -> list[tuple[float, str]]:
        """Forget what is over; the slots that go back into service, with the time that they do so at."""
        if now_s < self.next_s:
            return []
        self.state.pairs = {pair: until_s for pair, until_s in self.state.pairs.items() if until_s > now_s}
        self.state.jobs = {job_id: until_s for job_id, until_s in self.state.jobs.items() if until_s > now_s}
        back = sorted((until_s, slot) for slot, until_s in self.state.slots.items() if until_s <= now_s)
        for _, slot in back:
            del self.state.slots[slot]
        self._look()
        return back

    def held_until_s(self, job_id: str) -> float | None:
        """Until when a job gets no further GPU; None: it may."""
        return self.state.jobs.get(job_id)

    def hidden_from(self, job_id: str) -> Mapping[str, int]:
        """GPUs by node that a job does not get although others may."""
        if not self.state.pairs:
            return {}
        slots = (slot for job, slot in self.state.pairs if job == job_id and slot not in self.state.slots)
        return Counter(node_of(slot) for slot in slots)

    def _look(self) -> None:
        times = (*self.state.slots.values(), *self.state.pairs.values(), *self.state.jobs.values())
        self.next_s = min(times, default=math.inf)


def node_of(slot: str) -> str:
    return slot.rpartition("/")[0]
