"""An attempt whose units stay as they were started: a program, or what one torchrun starts on each node.

Its script may use the elastic library, or report its progress in a file, or say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.attempt_reports import AnyScriptReports
from pliant.tools.run.service.commands import by_torchrun, groups_of
from pliant.tools.run.service.gang import Gang, NextPlan


class RigidGang(Gang):
    """See :class:`~pliant.tools.run.service.gang.Gang`."""

    writes_outcomes = False
    reads = AnyScriptReports

    @property
    def units(self) -> Sequence[int]:
        return range(len(self.statuses))

    def _slots_of(self, workers: Iterable[int]) -> set[Slot]:
        return set()

    def _plan_units(self) -> tuple[UnitStatus, ...]:
        return self.statuses

    def _places(self, units: Iterable[int]) -> str:
        """The nodes of units, each of which has a whole node."""
        groups = groups_of(self.target)
        return ", ".join(dict.fromkeys(groups[unit][0].node for unit in units))

    def _idle(self) -> dict[int, float]:
        """Units of torchrun that have nothing left to do; the workers say nothing of themselves."""
        idle = [unit for unit, status in enumerate(self.statuses) if status.idle and by_torchrun(self.target)]
        return dict.fromkeys(idle, self._timeouts.exit_s)

    # No worker is replaced.

    def _plan_without_lost(self, now_s: float) -> NextPlan | None:
        return None

    def losses(self, now_s: float) -> list[tuple[tuple[Slot, ...], str]]:
        return []

    def proven(self) -> set[Slot]:
        return set()

    def end_left_over(self, nodes: Collection[str]) -> None:
        pass
