"""What happens next: a heap with a total order, and the times at which the policy is asked."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Final, NamedTuple

FINISH: Final = 0
SEGMENT_END: Final = 1
NODE_DOWN: Final = 2
NODE_UP: Final = 3
LATE_FINISH: Final = 4
LATE_SEGMENT_END: Final = 5
"""Kinds, in the order in which things of one moment happen; arrivals come after them all, and what is late
after the decision of that moment."""

_ROUNDING: Final = 2.0**-40
"""Two completions nearer than this part of the time are one moment: they differ by rounding alone."""


class Entry(NamedTuple):
    """One thing to come. Entries are ordered by (time, kind, subject)."""

    time_s: float
    kind: int
    subject: str
    """Job id or node name."""
    version: int = 0
    """Number of the plan it belongs to; an entry whose plan no longer holds is void."""


class Agenda:
    """Entries in order. Void ones are dropped when they come up, so that a change of plan costs one push."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._plans: dict[str, int] = {}
        self._version = 0

    def add(self, time_s: float, kind: int, subject: str) -> None:
        """Something that will happen whatever comes before it."""
        heappush(self._heap, Entry(time_s, kind, subject))

    def plan(self, time_s: float, kind: int, job_id: str) -> None:
        """The next event of a job that no decision causes; replaces what was planned for it."""
        self._version += 1
        self._plans[job_id] = self._version
        heappush(self._heap, Entry(time_s, kind, job_id, self._version))

    def unplan(self, job_id: str) -> None:
        """Drops what was planned for the job."""
        self._plans.pop(job_id, None)

    def next_s(self) -> float:
        """Time of the next entry; infinite if there is none."""
        heap, plans = self._heap, self._plans
        while heap and heap[0].version and plans.get(heap[0].subject) != heap[0].version:
            heappop(heap)
        return heap[0].time_s if heap else math.inf

    def pop(self, time_s: float, last_kind: int = NODE_UP) -> Entry | None:
        """Take the next entry if it is due at ``time_s`` and of a kind up to ``last_kind``.

        Completions may be early by a rounding error.
        """
        if not self._heap or self._heap[0].time_s > time_s * (1 + _ROUNDING):
            return None  # whether it is void or not
        due_s = self.next_s()
        if due_s > time_s * (1 + _ROUNDING) or (due_s > time_s and self._heap[0].kind > SEGMENT_END):
            return None
        if self._heap[0].kind > last_kind:
            return None
        entry = heappop(self._heap)
        if entry.version:
            del self._plans[entry.subject]
        return entry


class Rounds:
    """Multiples of an interval, counted from time 0 so that no rounding error adds up."""

    def __init__(self, interval_s: float, first: int = 0) -> None:
        """``first``: number of the first round that is held."""
        self._interval_s = interval_s
        self._next = first

    def next_s(self, now_s: float) -> float:
        """The first round that is not before ``now_s`` and comes after the last that was held."""
        return self._number(now_s) * self._interval_s

    def hold(self, now_s: float) -> None:
        """The round that ``next_s`` names is over."""
        self._next = self._number(now_s) + 1

    def _number(self, now_s: float) -> int:
        found = math.floor(now_s / self._interval_s)
        while found * self._interval_s < now_s:
            found += 1
        return max(self._next, found)
