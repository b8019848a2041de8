"""The workers of an attempt by number: where each is, and whether it shows that it lives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.tools.run.service.allocation.slots import Slot
from pliant.tools.run.service.attempt.plan_file import read_plan_of
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.contract.presence import BEAT_S, Life, Sighting, last_beat

_ABSENCE_S: Final = 5.0
"""A launcher that was itself away for longer has seen nothing that it could blame a worker for."""


class Members:
    """All workers that the attempt's plans have ever named."""

    def __init__(self, files: AttemptDir, plan: Plan) -> None:
        self._files = files
        self._slots: dict[int, Slot] = {}
        self._presences: dict[int, str] = {}
        self._sightings: dict[int, Sighting] = {}
        self._beats: dict[int, tuple[float, float]] = {}
        self._looked_s = float("-inf")
        for path in files.path.glob("plan-*.json"):
            with contextlib.suppress(BadInputError):
                if (found := read_plan_of(path)) is not None:
                    self.add(found)
        self.add(plan)

    def add(self, plan: Plan) -> None:
        """Take up the workers of a plan."""
        for worker, member in zip(plan.workers, plan.members, strict=True):
            self._slots[worker] = Slot.parse(member.slot)
            if worker not in self._presences:
                path = self._files.presence(worker)
                self._presences[worker], self._sightings[worker] = str(path), Sighting(path)

    def slot(self, worker: int) -> Slot:
        """Where a worker is."""
        return self._slots[worker]

    def life(self, worker: int) -> Life:
        """What the worker's own file says."""
        return self._sightings[worker].life()

    def proven(self, workers: Iterable[int], age_s: float) -> set[Slot]:
        """Slots of workers that still ran so long after their generation had begun to train."""
        try:
            since_s = self._files.reached.stat().st_mtime
        except OSError:
            return set()
        return {
            self._slots[worker]
            for worker in workers
            if worker in self._slots and last_beat(self._files.presence(worker)) >= since_s + age_s
        }

    def silent(self, workers: Iterable[int], now_s: float, limit_s: float) -> list[int]:
        """Workers that have not shown for so long that they run, while somebody was looking all the time.

        They show it once in :data:`BEAT_S`; asked more often than that, it does not look.
        """
        if 0 <= now_s - self._looked_s < BEAT_S:
            return []
        if now_s - self._looked_s > _ABSENCE_S:
            self._beats.clear()
        self._looked_s = now_s
        found = []
        for worker in workers:
            beat = last_beat(self._presences[worker])
            before, since_s = self._beats.get(worker, (beat, now_s))
            self._beats[worker] = (beat, since_s if beat == before else now_s)
            if beat and now_s - self._beats[worker][1] >= limit_s and self.life(worker) == "alive":
                found.append(worker)
        return found


LOOK_S: Final = 1.0
"""Between two looks."""


class Lingering:
    """One attempt's units that are through, as one launcher has seen them."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._looked_s = float("-inf")

    def overdue(self, limits_s: Callable[[], Mapping[int, float]], now_s: float) -> list[int]:
        """Units that have had nothing to do for longer than each may.

        :param limits_s: of those that have nothing to do; asked once in :data:`LOOK_S`.
        """
        if 0 <= now_s - self._looked_s < LOOK_S:
            return []
        self._looked_s = now_s
        limits = limits_s()
        self._since_s = {unit: self._since_s.get(unit, now_s) for unit in limits}
        return [unit for unit, since_s in self._since_s.items() if now_s - since_s >= limits[unit]]
