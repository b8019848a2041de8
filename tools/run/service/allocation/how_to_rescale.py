"""How a running gang gets from the slots that it has to those that it shall have: a pure function.

In place: a plan that names the workers that stay and new ones for the slots that are added. The new ones
are started at once and get ready while training goes on. Where that cannot be, the gang saves a checkpoint,
leaves, and is launched again; the log says why. So does one that an earlier version started, where new ones
would not understand its workers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pliant.tools.run.service.allocation.change_steps import Target
from pliant.tools.run.service.allocation.slots import Slot
from pliant.tools.run.statedir.contract.plan import PROTOCOL, Member, Plan


@dataclass(frozen=True, slots=True)
class Crew:
    """What the launcher knows of a gang's workers."""

    plan: Plan
    """The newest plan."""
    trains: Plan | None
    """The plan that its workers train under; None: they do not train yet."""
    reports: bool
    """Its script has reported progress."""


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Checkpoint, leave, launch."""

    reason: str


@dataclass(frozen=True, slots=True)
class InPlace:
    """A plan with these members, and with new workers on these slots."""

    members: tuple[Member, ...]
    joining: tuple[Slot, ...] = ()


Way = Relaunch | InPlace | None
"""None: something has to happen first."""


def way_to(target: Target, crew: Crew, busy: Collection[Slot], *, in_place: bool = True) -> Way:
    """How to get there, or to the next step on the way.

    Slots that are given up are left before others that are still in use have to be free, so that two jobs
    can exchange slots.

    :param busy: slots that something still runs on, but for those of the plan's own members.
    :param in_place: the backend can change the processes of an attempt; a change of the batch alone needs
        none of that.
    """
    if target.job.elastic == "none":
        return Relaunch("the job is not elastic")
    if not in_place and {Slot.parse(member.slot) for member in crew.plan.members} != set(target.slots):
        return Relaunch("its backend starts and ends an attempt as a whole")
    if crew.trains is None:
        return Relaunch("its script does not change its workers while it trains") if crew.reports else None
    trained = set(crew.trains.workers)
    if crew.plan.generation > crew.trains.generation and trained >= set(crew.plan.workers):
        return None
    wanted = set(target.slots)
    stay = [member for member in crew.plan.members if Slot.parse(member.slot) in wanted]
    if not any(member.worker in trained for member in stay):
        return Relaunch("it keeps none of its slots")
    stay.sort(key=lambda member: member.worker not in trained)
    held = {Slot.parse(member.slot) for member in stay}
    joining = tuple(slot for slot in target.slots if slot not in held)
    if not any(slot in busy for slot in joining):
        if joining and crew.plan.protocol != PROTOCOL:
            return Relaunch("its workers are of another version than new ones")
        return InPlace(tuple(stay), joining)
    return InPlace(tuple(stay)) if len(stay) < len(crew.plan.members) else None
