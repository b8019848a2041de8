"""Workers that an attempt has lost: where one after the other dies, another one would fare no better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from pliant.tools.run.service.allocation.change_steps import Target
from pliant.tools.run.service.allocation.slots import Slot, counts
from pliant.tools.run.statedir.share import Share


@dataclass(frozen=True, slots=True)
class Setback:
    """Slots that the job does without from now on."""

    slots: tuple[Slot, ...]
    reason: str

    def and_also(self, other: Setback) -> Setback:
        """Both."""
        slots = tuple(dict.fromkeys([*self.slots, *other.slots]))
        return Setback(slots, f"{self.reason}; {other.reason}")

    def without(self, target: Target, cut: tuple[int | None, int, float], *, shared: bool) -> Target:
        """What is left of a target; ``cut`` is that of the plan that the others train under.

        :param shared: another job has the same slots. Two jobs share all slots or none, so nothing is left.
        """
        slots = tuple(slot for slot in target.slots if slot not in self.slots)
        if len(slots) == len(target.slots):
            return target
        if shared:
            slots = ()
        return Target(Share(target.job, counts(slots), *cut), slots)


def listed(slots: Iterable[Slot]) -> str:
    """Slots in a sentence."""
    return ", ".join(map(str, slots))


YOUNG_S: Final = 5.0
"""A worker that is lost before it has trained for so long has died young."""
TOO_MANY: Final = 5
"""After this many in a row the slot gets no further one for a while."""


class LostWorkers:
    """How old workers get, by slot; what one launcher has seen of one attempt."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._young: dict[Slot, int] = {}

    def train(self, workers: Mapping[int, Slot], now_s: float) -> None:
        """Workers are seen to train, each on its slot; one that grows old clears it."""
        for worker, slot in workers.items():
            if now_s - self._since_s.setdefault(worker, now_s) >= YOUNG_S:
                self._young[slot] = 0

    def newcomers(self, trained: Set[int], now_s: float) -> frozenset[int]:
        """Workers that have joined others and trained with them for a short time only.

        What one of these fails by, the others have got past.

        :param trained: the workers that train together.
        """
        since_s = {worker: self._since_s.get(worker, now_s) for worker in trained}
        first_s = min(since_s.values(), default=now_s)
        return frozenset(one for one, at_s in since_s.items() if first_s < at_s and now_s - at_s < YOUNG_S)

    def lose(
        self, slots: Mapping[int, Slot], trained: Set[int], message: Callable[[int], str], now_s: float
    ) -> Setback | None:
        """Count workers that are lost; the slots of theirs that should get no other one for a while.

        :param slots: by worker.
        :param trained: the workers that trained, how old they got is known where they were seen to; a slot on
            which one did not get so far has failed at once. So has that of one that had just joined others
            and says what it died of: another one would do the same, and each takes time from the others.
        :param message: what a worker said as its last word.
        """
        new = self.newcomers(trained, now_s)
        early = [worker for worker in slots if worker not in trained or (worker in new and message(worker))]
        blamed = {
            slot: blame
            for worker, slot in slots.items()
            if worker not in early and (blame := self._count(worker, slot, now_s))
        }
        bad = tuple(dict.fromkeys([*(slots[worker] for worker in early), *blamed]))
        if not bad:
            return None
        reasons = list(blamed.values())
        if early:
            when = "in their first steps" if trained >= set(early) else "before they trained"
            died = f"the new workers on {listed(slots[worker] for worker in early)} ended {when}"
            reasons.insert(0, ": ".join([died, *filter(None, map(message, early))][:2]))
        return Setback(bad, "; ".join(reasons))

    def _count(self, worker: int, slot: Slot, now_s: float) -> str:
        young = now_s - self._since_s.get(worker, now_s) < YOUNG_S
        self._young[slot] = self._young.get(slot, 0) + 1 if young else 0
        if self._young[slot] < TOO_MANY:
            return ""
        return f"lost {self._young.pop(slot)} workers in a row on {slot}"
