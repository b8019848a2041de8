"""An attempt whose workers change while it trains.

A newer plan changes its workers (:func:`~pliant.tools.run.service.allocation.way_to`). The launcher waits for
new workers that live, without a limit. A worker that dies without a word, or stands still for too long, is
not in the next plan, even if it cannot be killed because its host is dead. If the others cannot go on, they
are ended, too, and the attempt has failed. A slot on which new workers die is reported as a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from pliant.tools.profile.torchrun.start import ERROR_LINE, last_words
from pliant.tools.run.backends.protocol import Backend, Handle, UnitStatus
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.attempt_reports import AttemptReports
from pliant.tools.run.service.commands import next_plan
from pliant.tools.run.service.endings import describe
from pliant.tools.run.service.gang import Gang, NextPlan, as_its_user
from pliant.tools.run.service.members import YOUNG_S, Lifetimes, slots_text
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.statedir.contract.plan import LOST_PEER, Plan

EXIT_CODE_S: Final = 5.0
"""Seconds to wait for the exit code of a worker that is gone."""
_log = logging.getLogger("pliant")


class ElasticGang(Gang):
    """See :class:`~pliant.tools.run.service.gang.Gang`."""

    writes_outcomes = True
    reads = AttemptReports

    def __init__(
        self,
        handle: Handle,
        plan: Plan,
        target: Assignment,
        backend: Backend,
        *,
        timeouts: Timeouts,
        seen: int = 0,
    ) -> None:
        super().__init__(handle, plan, target, backend, timeouts=timeouts, seen=seen)
        self._lifetimes = Lifetimes()
        # Workers that trained and are gone, and since when, until that is reported.
        self._gone: dict[int, float] = {}

    @property
    def units(self) -> Sequence[int]:
        return self._workers

    def _slots_of(self, workers: Iterable[int]) -> set[Slot]:
        return {self._members.slot(worker) for worker in workers}

    def _plan_units(self) -> tuple[UnitStatus, ...]:
        return tuple(
            self.statuses[worker] if worker < len(self.statuses) else UnitStatus("running")
            for worker in self._workers
        )

    def _places(self, units: Iterable[int]) -> str:
        return slots_text(self._members.slot(worker) for worker in units)

    def _idle(self) -> dict[int, float]:
        return self._members.idle(self._running, self._timeouts)

    # Workers that die.

    @as_its_user
    def losses(self, now_s: float) -> list[tuple[tuple[Slot, ...], str]]:
        why: dict[str, list[Slot]] = {}
        for worker, since_s in [*self._gone.items()]:
            status = self.statuses[worker]
            if status.state == "running" and now_s - since_s < EXIT_CODE_S:  # its exit code is still to come
                continue
            del self._gone[worker]
            if worker in self._silenced:
                ended = f"it stood still, and was killed{self._stacks.words}"
            else:
                ended = "its process is gone" if status.state == "running" else describe([status])
            why.setdefault(self._members.message(worker) or ended, []).append(self._members.slot(worker))
        return [(tuple(slots), reason) for reason, slots in why.items()]

    @as_its_user
    def proven(self) -> set[Slot]:
        trains = self._members.trains()
        return set() if trains is None else self._members.proven(trains.workers, YOUNG_S)

    def end_left_over(self, nodes: Collection[str]) -> None:
        left = {
            unit for unit in self._running.difference(self._workers) if self._members.slot(unit).node in nodes
        }
        if left:
            self._backend.stop(self.handle, "kill", left)

    def _plan_without_lost(self, now_s: float) -> NextPlan | None:
        trains = self._members.trains()
        if trains is None:
            return None
        trained = frozenset(trains.workers)
        self._lifetimes.train({worker: self._members.slot(worker) for worker in trained}, now_s)
        newcomers = self._lifetimes.newcomers(trained, now_s)
        reported = {self.plan.workers[rank] for rank in self._members.outcomes_with(self._plan_units())}
        lost = self._members.lost(trained, self._running | reported, newcomers)
        if not lost:
            return None
        left = [one for one in self.plan.members if one.worker not in lost]
        going_on = [one for one in left if one.worker in trained]
        on_gpus = any(member.device == "cuda" for member in self.plan.members)
        if not going_on or reported - lost or (on_gpus and lost & trained):
            return None
        slots = {worker: self._members.slot(worker) for worker in sorted(lost)}
        bad = self._lifetimes.mark_lost(slots, trained, self._reason_of, now_s)
        reasons = "".join(
            f": {reason}" for reason in {self._reason_of(worker): None for worker in slots} if reason
        )
        _log.warning(
            "job %s: lost the workers on %s, goes on without%s",
            self.handle.job,
            slots_text(slots.values()),
            reasons,
        )
        self._gone |= dict.fromkeys(sorted(lost & trained), now_s)
        self._backend.stop(self.handle, "kill", lost)
        if not lost & trained and bad is not None:
            return self.plan_without(left, bad)
        return next_plan(self.plan, going_on, self.target.allocation.cut), bad

    def _reason_of(self, worker: int) -> str:
        """A worker's last error; empty if it has none, or only noticed the loss of another worker."""
        message = self._members.message(worker)
        if not message:
            words = last_words(self.handle.files.worker_errors(worker))
            message = words if ERROR_LINE.match(words) else ""
        return "" if message.startswith(LOST_PEER) else message
