"""An attempt whose units stay as they were started: a program, or what one torchrun starts on each node.

Its script may use the elastic library, or report its progress in a file, or say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pliant.schemas.event import Event
from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.commands import by_torchrun, groups_of
from pliant.tools.run.service.gang import Gang, NextPlan, as_its_user
from pliant.tools.run.statedir.contract.plan import Progress, ProgressFile, request_stop, write_progress
from pliant.tools.run.statedir.log.worker_reports import ScriptReports


class RigidGang(Gang):
    """See :class:`~pliant.tools.run.service.gang.Gang`."""

    writes_outcomes = False

    def _begin(self, seen: int) -> None:
        before = None if seen else ProgressFile(self.files.progress).fresh()
        # Reads the reports of a script that writes no events of its own.
        self._script = ScriptReports(self.plan, started=seen > 0, before=before)

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

    @as_its_user
    def script_events(self, progress: Progress) -> list[Event]:
        if self.handle.files.progress.exists():
            return []
        return self._script.events(progress, self.progress.written_s or 0.0)

    @as_its_user
    def lost_work(self) -> tuple[Progress, Event] | None:
        left = self._script.rewound()
        if left is None:
            return None
        write_progress(self.files.progress, left)
        return left, self._script.loss(left, self.progress.written_s or 0.0)

    def _samples_done(self) -> float | None:
        return self._script.samples_done

    def _leaves(self) -> bool:
        taken = any(status.displaced for status in (*self._at_break, *self.statuses))
        signalled = taken or self.stages.stage in ("term", "kill")
        asked = taken or self.plan.abort
        return self._script.leaves(self.target.job, asked=asked, signalled=signalled)

    def _ask_to_leave(self) -> bool:
        newest = self.progress.newest or ProgressFile(self.files.progress).fresh()
        if self._script.watches_stop(newest):
            request_stop(self.handle.files.stop)
            return True
        return self.handle.files.progress.exists()

    # No worker is replaced, and none answers questions.

    def _plan_without_lost(self, now_s: float) -> NextPlan | None:
        return None

    def losses(self, now_s: float) -> list[tuple[tuple[Slot, ...], str]]:
        return []

    def proven(self) -> set[Slot]:
        return set()

    def end_left_over(self, nodes: Collection[str]) -> None:
        pass

    def _ask_for_stacks(self) -> None:
        pass

    def _keep_stacks(self) -> None:
        pass

    def _keep_stacks_of(self, units: Sequence[int]) -> str:
        return ""

    def _time_to_answer_s(self, unit: int) -> float:
        return 0.0
