"""Which GPUs the jobs of a decision get: from sizes, types and wishes to exact nodes, all jobs at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from pliant.tools.schedule.free_gpus import FreeGpus
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.session.withheld import Withheld
from pliant.tools.schedule.speeds import Speeds

Wish = tuple[JobState, Target]
_NO_PLACE: Final[NodeGpus] = ()


class PlacementTakenError(Exception):
    """A placement that a policy named is not free, even after every job that moves has moved."""

    def __init__(self, job_id: str, placement: NodeGpus) -> None:
        super().__init__(job_id)
        self.job_id = job_id
        self.placement = placement


def differs(job: JobState, target: Target) -> bool:
    """Whether a target asks for anything that the job does not have already."""
    batch = target.global_batch
    return changes_gpus(job, target) or (bool(target.gpus) and batch not in (None, job.global_batch))


def changes_gpus(job: JobState, target: Target) -> bool:
    """Whether a target asks for other GPUs than the job holds."""
    return (
        target.gpus != job.gpus
        or (bool(target.gpus) and target.gpu_type not in (None, job.gpu_type))
        or target.placement not in (None, job.placement)
    )


def assign(
    wishes: Mapping[str, Wish],
    free: FreeGpus,
    speeds: Speeds,
    withheld: Withheld | None = None,
    *,
    in_part: bool = False,
) -> dict[str, NodeGpus]:
    """Places of all jobs that can have one, taken from ``free``; every other job keeps what it holds.

    On one GPU type every job that may get what it wishes for can have a place. On several, the GPUs left of
    each may be too few for a job whose policy named no type: it then keeps its place, or goes on waiting.

    :param in_part: they are a part of what was decided, so GPUs that they count on may not become free.
    :raises PlacementTakenError: a place that the policy named is not free, though nothing is withheld.
    """
    stay: set[str] = set()
    limits = withheld or Withheld()
    while True:
        moving = {job_id: wish for job_id, wish in wishes.items() if job_id not in stay} if stay else wishes
        try:
            places, without = _attempt(moving, free, speeds, limits)
        except PlacementTakenError as taken:
            if limits.next_s == math.inf and not in_part:
                raise
            places, without = {}, taken.job_id
        if without is None:
            return places
        stay.add(without)


def _attempt(
    moving: Mapping[str, Wish], free: FreeGpus, speeds: Speeds, withheld: Withheld
) -> tuple[dict[str, NodeGpus], str | None]:
    """Assign GPUs to all jobs, or to none and say which job found no place."""
    for job, _ in moving.values():
        free.give(job.placement)
    places: dict[str, NodeGpus] = {}
    turns = moving.items() if len(moving) == 1 else sorted(moving.items(), key=lambda item: _turn(*item[1]))
    try:
        for job_id, (job, target) in turns:
            place = _allowed(job, target, free, speeds, withheld)
            if place is None:
                _undo(moving, places, free)
                return {}, job_id
            free.take(place)
            places[job_id] = place
    except PlacementTakenError:
        _undo(moving, places, free)
        raise
    return places, None


def _undo(moving: Mapping[str, Wish], places: Mapping[str, NodeGpus], free: FreeGpus) -> None:
    for taken in places.values():
        free.give(taken)
    for job, _ in moving.values():
        free.take(job.placement)


def _turn(job: JobState, target: Target) -> int:
    """Named places first, then those who shrink or change type, then those who start or grow."""
    if target.placement is not None or target.gpus == 0:
        return 0
    return 1 if target.gpus <= job.gpus else 2


def _allowed(
    job: JobState, target: Target, free: FreeGpus, speeds: Speeds, withheld: Withheld
) -> NodeGpus | None:
    """A place without what is withheld from the job."""
    if target.gpus > job.gpus and withheld.held_until_s(job.id) is not None:
        return None
    own = dict(job.placement)
    hidden = tuple(
        (name, count)
        for name, most in withheld.hidden_from(job.id).items()
        if (count := min(most, free.free_on(name) - own.get(name, 0))) > 0
    )
    if not hidden:
        return _choose(job, target, free, speeds)
    free.take(hidden)
    try:
        return _choose(job, target, free, speeds)
    finally:
        free.give(hidden)


def _choose(job: JobState, target: Target, free: FreeGpus, speeds: Speeds) -> NodeGpus | None:
    if target.gpus == 0:
        return _NO_PLACE
    if target.placement is not None:
        if all(free.free_on(name) >= count for name, count in target.placement):
            return target.placement
        raise PlacementTakenError(job.id, target.placement)
    if target.gpu_type is not None:
        return free.choose(target.gpus, (target.gpu_type,), keep=job.placement)
    return free.choose(target.gpus, _types_fastest_first(job, target.gpus, speeds), keep=job.placement)


def _types_fastest_first(job: JobState, gpus: int, speeds: Speeds) -> list[str]:
    types = list(speeds.gpu_types)
    if len(types) == 1:
        return types
    rates = {kind: speeds.rate(job, gpus, kind) for kind in types}
    able = [kind for kind in types if rates[kind] > 0]
    return sorted(able, key=lambda kind: (-rates[kind], kind != job.gpu_type, kind))
