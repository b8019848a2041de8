"""A cluster that teams share: how fast lent GPUs come back, how exact parts are, and what parts cost.

``python -m benchmarks.sharing PART…`` measures some of the parts alone and renews their rows of
results/sharing.json. ``reclaim`` runs jobs on CPU slots, and ``requests`` asks a run of root's; the others
replay.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from benchmarks.parts import figure, gateway_requests, parted, reclaim, team_division, whatif_time
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part

MEASURES: Final = ("tools/schedule/quota.py", "tools/schedule/session", "tools/run/service")
NAME: Final = "sharing"
PARTS: Final[dict[str, Part]] = {
    "division": team_division.figures,
    "reclaim": reclaim.figures,
    "whatif": whatif_time.figures,
    "requests": gateway_requests.figures,
}


def figures() -> list[Figure]:
    """All parts, one after the other."""
    return parted.measured(NAME, PARTS)


def smallest() -> list[Figure]:
    """The replays, small; the live part has a test of its own."""
    return parted.measured(NAME, {"division": partial(team_division.figures, jobs=4, rounds=2)})


record = figure.renew
"""Rows of parts that could not be measured stay as they are."""


if __name__ == "__main__":
    sys.exit(parted.main(NAME, PARTS, __doc__, sys.argv[1:]))
