"""Notices to leave nodes by a time (``pliant drain NODE --within 90s``).

Jobs leave a node at the next decision, as after any drain that is to take effect at once: elastic ones in
place, the others stop with a checkpoint. What still runs there after half of the time stops, too, whatever it
waits for. A stop has what is left: SIGTERM comes shortly before the end, and SIGKILL not before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pliant.tools.run.statedir.log.fold import Drain

SHARE_IN_PLACE: Final = 1 / 2
"""Share of the time of a notice in which jobs leave the node while they train."""
SHARE_OF_TERM: Final = 1 / 6
"""Share of it from SIGTERM to the end."""
LONGEST_TERM_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Notice:
    """When what happens to what runs on a node, by a clock that cannot be set."""

    stop_s: float
    """Time at which what is still there saves and leaves."""
    term_s: float
    """Time at which what has not left gets SIGTERM."""
    over_s: float
    """Nothing may be there any more."""

    @classmethod
    def of(cls, drain: Drain, until_s: float, now_utc_s: float, now_s: float) -> Notice:
        """:param until_s: the end by the clock of the log, whose time is ``now_utc_s``."""
        over_s, whole_s = now_s + until_s - now_utc_s, max(0.0, until_s - drain.since_s)
        term_s = over_s - min(LONGEST_TERM_S, whole_s * SHARE_OF_TERM)
        return cls(over_s - whole_s * (1 - SHARE_IN_PLACE), term_s, over_s)

    def and_also(self, other: Notice) -> Notice:
        """The earlier times of two."""
        return Notice(
            min(self.stop_s, other.stop_s), min(self.term_s, other.term_s), min(self.over_s, other.over_s)
        )


class DrainNotices:
    """The notices in force, by node."""

    def __init__(self) -> None:
        self._drains: Mapping[str, Drain] = {}
        self.by_node: dict[str, Notice] = {}

    def update(self, drains: Mapping[str, Drain], now_utc_s: float, now_s: float) -> bool:
        """Take up which nodes are drained now; a notice that is known keeps its times.

        Of one that is over before it is heard only the drain is left: jobs have the usual time to stop.

        Returns whether a notice came or went.
        """
        timed = {name: drain for name, drain in drains.items() if drain.until_s is not None}
        if timed == self._drains:
            return False
        before, self.by_node = self.by_node, {}
        for name, drain in timed.items():
            until_s = drain.until_s or 0.0
            if name in before and self._drains.get(name) == drain:
                self.by_node[name] = before[name]
            elif until_s > now_utc_s:
                self.by_node[name] = Notice.of(drain, until_s, now_utc_s, now_s)
        self._drains = timed
        return True

    def of(self, nodes: Iterable[str]) -> Notice | None:
        """The notice for what runs on these nodes. Returns None if it may stay."""
        first: Notice | None = None
        for name in nodes:
            notice = self.by_node.get(name)
            if notice is not None:
                first = notice if first is None else first.and_also(notice)
        return first

    def late(self, now_s: float) -> dict[str, str]:
        """Nodes that jobs have had time to leave in place, and why, as the end of a sentence."""
        return {
            name: f"is to be left: {self._drains[name].user} has ordered it"
            for name, notice in self.by_node.items()
            if now_s >= notice.stop_s
        }
