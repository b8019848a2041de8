"""What a gang says of slots on which its new workers died while the others trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pliant.tools.run.service.allocation.slots import Slot, counts
from pliant.tools.run.service.allocation.steps import Target
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

    def without(self, target: Target, cut: tuple[int | None, int, float]) -> Target:
        """What is left of a target; ``cut`` is that of the plan that the others train under."""
        slots = tuple(slot for slot in target.slots if slot not in self.slots)
        if len(slots) == len(target.slots):
            return target
        return Target(Share(target.job, counts(slots), *cut), slots)


def ended_early(slots: Sequence[Slot], messages: Sequence[str]) -> str:
    """The reason where new workers ended before they trained; ``messages``: what they said."""
    told = [message for message in messages if message]
    return ": ".join([f"the new workers on {listed(slots)} ended before they trained", *told[:1]])


def listed(slots: Iterable[Slot]) -> str:
    """Slots in a sentence."""
    return ", ".join(map(str, slots))
