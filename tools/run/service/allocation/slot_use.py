"""Which jobs share slots, and which are on slots that another one is to get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pliant.tools.run.service.allocation.change_steps import Target
from pliant.tools.run.service.allocation.slots import Slot


def companions(targets: Mapping[str, Target]) -> dict[str, str]:
    """The jobs that shall have the same slots as another one, and which that is."""
    first: dict[Slot, str] = {}
    found: dict[str, str] = {}
    for job_id, target in targets.items():
        other = first.setdefault(min(target.slots), job_id)
        if other != job_id and set(targets[other].slots) == set(target.slots):
            found[job_id], found[other] = other, job_id
    return found


class SlotUse:
    """The jobs that something of runs, or may run, on some slots.

    :param asked: the slots that will be asked for.
    :param company: the jobs that may be on the same slots, and with which other one.
    """

    def __init__(self, asked: Iterable[Slot], company: Mapping[str, str]) -> None:
        self._company = company
        self._jobs: dict[Slot, set[str]] = {slot: set() for slot in asked}

    def add(self, job_id: str, slots: Iterable[Slot]) -> None:
        """A job is on slots."""
        for slot in slots:
            if (there := self._jobs.get(slot)) is not None:
                there.add(job_id)

    def taken_from(self, job_id: str, slots: Iterable[Slot]) -> set[Slot]:
        """Those of the slots that other jobs are on, but for the one that it shares them with."""
        own = {job_id, self._company.get(job_id, job_id)}
        return {slot for slot in slots if not self._jobs[slot] <= own}
