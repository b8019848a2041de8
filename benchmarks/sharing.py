"""A cluster that teams share: how fast lent GPUs come back, how exact parts are, and what parts cost.

``reclaim`` runs jobs on CPU slots, and ``requests`` asks a run of root's; the others replay.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.parts import gateway_requests, parted, reclaim, team_division, whatif_time
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part

MEASURES: Final = ("tools/schedule/entitlements.py", "tools/schedule/session", "tools/run/service")
NAME: Final = "sharing"
PARTS: Final[dict[str, Part]] = {
    "division": team_division.figures,
    "reclaim": reclaim.figures,
    "whatif": whatif_time.figures,
    "requests": gateway_requests.figures,
}


def smallest() -> list[Figure]:
    """The replays, small; the live part has a test of its own."""
    return parted.measured(NAME, {"division": partial(team_division.figures, jobs=4, rounds=2)})
