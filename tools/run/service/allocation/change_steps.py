"""From what jobs hold and what they shall hold to the steps between: a pure function, the heart of ``run``.

Stops come first, then resizes, then starts; within each kind by job id. A job whose slots and batch stay
as they are is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pliant.schemas.job import Job
from pliant.tools.run.service.allocation.slots import Slot, filled, kept
from pliant.tools.run.statedir.share import Share

Change = Literal["start", "resume", "grow", "shrink", "move", "preempt"]


@dataclass(frozen=True, slots=True)
class Target:
    """A share on concrete slots, survivors first: what shall run."""

    share: Share
    slots: tuple[Slot, ...]

    @property
    def job(self) -> Job:
        """The job."""
        return self.share.job

    @property
    def cut(self) -> tuple[int | None, int, float]:
        """(global batch, micro-steps, learning-rate scale)."""
        return self.share.global_batch, self.share.accum, self.share.lr_scale


@dataclass(frozen=True, slots=True)
class Step:
    """A change for one job: it gets slots, goes on with others or with another cut, or gives up all."""

    job_id: str
    event: Change
    """What it is called in the log; a change of the batch alone is a ``move`` to the same place."""
    before: Target | None
    """None: it holds nothing."""
    after: Target | None
    """None: it gives up all its slots."""


def plan_steps(
    held: Mapping[str, Target],
    wanted: Mapping[str, Share],
    node_gpus: Mapping[str, int],
    started: Collection[str] = (),
    doubt: Callable[[Slot], int] | None = None,
) -> list[Step]:
    """The steps from ``held`` to ``wanted``, with concrete slots.

    :param held: by job id; jobs that hold nothing are absent.
    :param wanted: by job id; a job that is absent, or gets no GPU, gives up what it holds.
    :param node_gpus: slots of every node.
    :param started: jobs that have run before.
    :param doubt: what speaks against a slot.
    :raises InfeasibleError: the shares do not fit the nodes.
    """
    shares = {job_id: share for job_id, share in sorted(wanted.items()) if share.gpus}
    lead = _leaders(shares, held)
    survivors: dict[str, tuple[Slot, ...]] = {}
    taken: set[Slot] = set()
    for job_id, share in shares.items():
        own = held[job_id].slots if job_id in held and job_id not in lead else ()
        survivors[job_id] = kept([slot for slot in own if slot not in taken], share.placement)
        taken.update(survivors[job_id])
    gone = sorted(held.keys() - shares.keys())
    stops = [Step(job_id, "preempt", held[job_id], None) for job_id in gone]
    resizes, starts = list[Step](), list[Step]()
    given: dict[str, tuple[Slot, ...]] = {}
    for job_id, share in sorted(shares.items(), key=lambda item: item[0] in lead):
        if job_id in lead:
            slots = _in_order(given[lead[job_id]], held.get(job_id))
        else:
            slots = filled(survivors[job_id], share.placement, node_gpus, taken, doubt)
        given[job_id] = slots
        taken.update(slots)
        before, after = held.get(job_id), Target(share, slots)
        if before is None:
            starts.append(Step(job_id, "resume" if job_id in started else "start", None, after))
        elif set(before.slots) != set(after.slots) or before.cut != after.cut:
            added = len(after.slots) - len(before.slots)
            event: Change = "grow" if added > 0 else "shrink" if added < 0 else "move"
            resizes.append(Step(job_id, event, before, after))
    return [*stops, *resizes, *starts]


def _leaders(shares: Mapping[str, Share], held: Mapping[str, Target]) -> dict[str, str]:
    """Of two jobs on the same slots, the one that takes those of the other, and that other.

    They agree on it, and on the nodes. The one that holds its slots already leads; of two alike the first.
    """
    found = {}
    for job_id, share in shares.items():
        other = shares.get(share.beside or "")
        if other is not None and (other.beside, other.placement) == (job_id, share.placement):
            names = (job_id, other.job.id)
            first = min(names, key=lambda name: (not _stays(held.get(name), shares[name]), name))
            if first != job_id:
                found[job_id] = first
    return found


def _stays(target: Target | None, share: Share) -> bool:
    """Whether a job that holds slots has as many on each node as it shall have."""
    return target is not None and len(kept(target.slots, share.placement)) == len(target.slots) == share.gpus


def _in_order(slots: tuple[Slot, ...], before: Target | None) -> tuple[Slot, ...]:
    """The slots as a job has them already, where they are the same."""
    return before.slots if before is not None and set(before.slots) == set(slots) else slots
