"""The clocks: this machine's against one that cannot be set, the log's, and the state directory's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pliant.schemas.text.times import clock_text, span_text
from pliant.tools.run.doctor.check import Check, ok, problem, warning
from pliant.tools.run.doctor.folder import skew_s
from pliant.tools.run.doctor.site import Site

AREA: Final = "clock"
_BEFORE_US_S: Final = 1_700_000_000.0
"""November 2023: pliant is younger."""
_JUMP_S: Final = 0.2
_AHEAD_S: Final = 5.0
_SKEW_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Began:
    """When the look began, by both clocks."""

    wall_s: float = field(default_factory=time.time)
    steady_s: float = field(default_factory=time.monotonic)

    def jumped_s(self) -> float:
        """Seconds by which the clock was set forward since."""
        return (time.time() - self.wall_s) - (time.monotonic() - self.steady_s)


def clock(site: Site, began: Began) -> Iterator[Check]:
    """The checks of this area.

    :param began: some time ago: a clock that is being set shows in between.
    """
    now_s, jumped_s = time.time(), began.jumped_s()
    if now_s < _BEFORE_US_S:
        yield problem(AREA, f"this machine's clock shows {clock_text(now_s, 0.0)}", "set it, by NTP at best")
    elif abs(jumped_s) > _JUMP_S:
        text = f"this machine's clock was set by {jumped_s:+.1f} s while it was looked at"
        yield warning(AREA, text, "let NTP slew it; jobs bear it, times in the log jump")
    else:
        yield ok(AREA, f"this machine's clock shows {clock_text(now_s, now_s)} and runs evenly")
    if site.log is not None and site.log.last_s > now_s + _AHEAD_S:
        text = f"the log is {span_text(site.log.last_s - now_s)} ahead: the clock was set back since"
        yield warning(AREA, text, "set the clock right; till then the log's goes at half its speed")
    skew = skew_s(site)
    if skew is not None and abs(skew) > _SKEW_S:
        side = "ahead of" if skew > 0 else "behind"
        text = f"the folder's clock is {span_text(abs(skew))} {side} this machine's"
        yield warning(AREA, text, "let NTP set both; signs of life are dated by the folder's")
    elif skew is not None:
        yield ok(AREA, "the folder's clock agrees with it")
