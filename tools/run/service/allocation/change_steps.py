"""From what jobs hold and what they shall hold to the steps between: a pure function, the heart of ``run``.

Stops come first, then resizes, then starts; within each kind by job id. A job whose slots and batch stay
as they are is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pliant.schemas.job import Job
from pliant.tools.run.service.allocation.slots import Slot, alike, filled, kept
from pliant.tools.run.statedir.share import Share


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
class StopJob:
    """A job gives up all its slots."""

    before: Target
    event: Literal["preempt"] = "preempt"

    @property
    def job_id(self) -> str:
        """Whose step it is."""
        return self.before.job.id


@dataclass(frozen=True, slots=True)
class ResizeJob:
    """A running job goes on with other slots or another cut of its batch."""

    before: Target
    after: Target

    @property
    def job_id(self) -> str:
        """Whose step it is."""
        return self.after.job.id

    @property
    def event(self) -> Literal["grow", "shrink", "move"]:
        """What it is called in the log; a change of the batch alone is a ``move`` to the same place."""
        change = len(self.after.slots) - len(self.before.slots)
        return "grow" if change > 0 else "shrink" if change < 0 else "move"


@dataclass(frozen=True, slots=True)
class StartJob:
    """A job gets slots; ``resume`` if it had some before."""

    after: Target
    event: Literal["start", "resume"]

    @property
    def job_id(self) -> str:
        """Whose step it is."""
        return self.after.job.id


Step = StopJob | ResizeJob | StartJob


def plan_steps(
    held: Mapping[str, Target],
    wanted: Mapping[str, Share],
    node_gpus: Mapping[str, int],
    started: Collection[str] = (),
    doubt: Callable[[Slot], int] = alike,
) -> list[Step]:
    """The steps from ``held`` to ``wanted``, with concrete slots.

    :param held: by job id; jobs that hold nothing are absent.
    :param wanted: by job id; a job that is absent, or gets no GPU, gives up what it holds.
    :param node_gpus: slots of every node.
    :param started: jobs that have run before.
    :param doubt: what speaks against a slot.
    :raises ValueError: the shares do not fit the nodes.
    """
    shares = {job_id: share for job_id, share in sorted(wanted.items()) if share.gpus}
    survivors = {
        job_id: kept(held[job_id].slots if job_id in held else (), share.placement)
        for job_id, share in shares.items()
    }
    taken = {slot for slots in survivors.values() for slot in slots}
    steps: dict[type[Step], list[Step]] = {StopJob: [], ResizeJob: [], StartJob: []}
    steps[StopJob] = [StopJob(target) for job_id, target in sorted(held.items()) if job_id not in shares]
    for job_id, share in shares.items():
        slots = filled(survivors[job_id], share.placement, node_gpus, taken, doubt)
        taken.update(slots)
        step = _step(held.get(job_id), Target(share, slots), again=job_id in started)
        if step is not None:
            steps[type(step)].append(step)
    return [step for kind in steps.values() for step in kind]


def _step(before: Target | None, after: Target, *, again: bool) -> Step | None:
    if before is None:
        return StartJob(after, "resume" if again else "start")
    if set(before.slots) == set(after.slots) and before.cut == after.cut:
        return None
    return ResizeJob(before, after)
