"""Which GPUs the jobs of a decision get: from its targets to exact nodes, all jobs at once.

Policies count GPUs. Where jobs demand more than that, :class:`Demands` tracks what is left of CPUs, memory
and bandwidth for all policies alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pliant.schemas.checks import MANY, Amounts, Capacities, fitting, servers_for
from pliant.tools.schedule.jobs import JobState, NodeGpus, gpus_of
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.session.allocations import Transition
from pliant.tools.schedule.session.quarantine import Quarantine

DemandsOf = Callable[[Mapping[str, Target]], "Demands"]
"""Given the targets of the jobs that move, what the others leave."""
_NO_PLACE: Final[NodeGpus] = ()
_NOTHING: Final = Target(0)


class RoomShare(NamedTuple):
    """The most GPUs of a type that a job can have where others may run on the same nodes only."""

    gpus: int
    gpu_type: str | None
    """None: of any type."""

    def of(self, room: Mapping[str, int]) -> dict[str, int]:
        """What a job then has room for, by GPU type."""
        kinds = room if self.gpu_type is None else (self.gpu_type,)
        return {kind: min(most, self.gpus) if kind in kinds else most for kind, most in room.items()}


JobPlace = tuple[NodeGpus, NodeGpus]
"""GPUs of a job by node, and the nodes of its parameter servers."""


class PlacementTakenError(Exception):
    """A placement that a policy named is not free, even after all moves."""

    def __init__(self, job_id: str, placement: NodeGpus) -> None:
        super().__init__(job_id)
        self.job_id = job_id
        self.placement = placement


class NoPlaceError(Exception):
    """Jobs that wait have no place, even after all moves, or too little room for what they are to have."""

    def __init__(self, job_ids: Sequence[str], shares: Mapping[str, RoomShare] | None = None) -> None:
        super().__init__(*job_ids)
        self.job_ids = job_ids
        self.shares: Mapping[str, RoomShare] = shares or {}
        self.rejected: Sequence[Transition] = ()


def differs(job: JobState, target: Target) -> bool:
    batch = target.global_batch
    if changes_gpus(job, target):
        return True
    return batch is not None and batch != job.global_batch and target.gpus > 0


def changes_gpus(job: JobState, target: Target) -> bool:
    """Whether a target asks for other GPUs, company on them or parameter servers than the job has."""
    gpus, gpu_type, _, placement, servers, beside = target
    return (
        gpus != job.gpus
        or (gpus > 0 and (beside != job.beside or gpu_type not in (None, job.gpu_type)))
        or placement not in (None, job.placement)
        or servers not in (None, job.servers)
    )


def may_get_fewer(job: JobState, target: Target) -> bool:
    """Whether a target may be cut: the job is elastic and has its GPUs to itself."""
    gpus, _, _, _, _, beside = target
    return job.is_elastic and gpus > job.min_gpus and beside is None


def assign(
    targets: Mapping[str, Target],
    jobs: Mapping[str, JobState],
    free: FreeGpus,
    speeds: Speeds,
    quarantine: Quarantine | None = None,
    *,
    in_part: bool = False,
    demands: DemandsOf | None = None,
    sizes_jobs: bool = False,
    accumulates: bool = True,
    cut: Collection[str] = (),
    in_teams: bool = False,
) -> dict[str, JobPlace]:
    """Places of all jobs that can have one, taken from ``free``; every other job keeps what it holds.

    A job stays where no GPU type has enough GPUs left for it, or where its demands or replicas do not fit.

    :param jobs: all active jobs.
    :param in_part: other targets of the decision are deferred, so GPUs may not become free as it assumes.
    :param demands: what other jobs leave of CPUs, memory and bandwidth; None: no job here demands any.
    :param sizes_jobs: cut elastic jobs to the part of their place that makes them fastest.
    :param accumulates: also to sizes that need several micro-steps for a step.
    :param cut: jobs that have just given up GPUs: what they kept is theirs, also where others would be closer
        together with it, so that they train on.
    :param in_teams: teams share the cluster: no job that waits for CPUs is to keep GPUs from others.
    :raises PlacementTakenError: a place that the policy named is not free, though nothing is in quarantine.
    :raises NoPlaceError: for jobs that may run on some nodes of a type only, or that demand more than GPUs
        where teams share the cluster.
    """
    limits = quarantine or Quarantine()
    moving = targets
    stay: set[str] = set()
    while True:
        if stay:
            moving = {job_id: target for job_id, target in moving.items() if job_id not in stay}
        world = _World(
            free,
            speeds,
            limits,
            None if demands is None else demands(moving),
            sizes_jobs,
            accumulates,
            cut,
            in_teams,
        )
        try:
            places, without = _attempt(moving, jobs, world)
        except PlacementTakenError as taken:
            picky = demands is not None or any(jobs[job_id].barred for job_id in targets)
            if limits.next_s == math.inf and not in_part and not picky:
                raise
            places, without = {}, taken.job_id
        if without is None:
            return places
        target = moving[without]
        if jobs[without].room is not None and target.placement is not None:
            kind = free.node(target.placement[0][0]).gpu_type
            elsewhere = target._replace(gpu_type=kind, placement=None, servers=None)
            moving = {**moving, without: elsewhere}
        else:
            stay.add(without)


def is_plain_start(job: JobState, target: Target) -> bool:
    """Whether a job that holds and demands nothing else gets GPUs, wherever they are free."""
    gpus, gpu_type, _, placement, _, beside = target
    plain = gpus > 0 and not job.gpus and placement is None and beside is None and not job.takes_room
    return plain and (gpu_type is None or job.types is None or gpu_type in job.types)


def is_plain_stop(job: JobState, target: Target) -> bool:
    """Whether a job that has its GPUs to itself loses them, and nothing else is said of it."""
    return target == _NOTHING and job.gpus > 0 and job.beside is None


def start(
    job: JobState, target: Target, free: FreeGpus, speeds: Speeds, *, sizes_jobs: bool, accumulates: bool
) -> NodeGpus | None:
    """As :func:`assign` where plain starts and stops are all that a decision comes to, as most do.

    :param target: one that names a GPU type has only GPUs that make the job faster if it is consolidated.
    """
    gpus, gpu_type, batch, _, _, _ = target
    types = _types_fastest_first(job, gpus, speeds) if gpu_type is None else (gpu_type,)
    place = free.choose(gpus, types, per_replica=job.per_replica, barred=job.barred)
    if place is None:
        return None
    may_be_cut = sizes_jobs and may_get_fewer(job, target)
    if may_be_cut and (gpu_type is None or not speeds.is_consolidated(place, job.per_replica)):
        place = speeds.useful_part(job, place, batch or job.global_batch, accumulates=accumulates)
    free.take(place)
    return place


@dataclass(slots=True)
class _World:
    free: FreeGpus
    speeds: Speeds
    quarantine: Quarantine
    demands: Demands | None
    sizes_jobs: bool
    accumulates: bool
    cut: Collection[str]
    in_teams: bool

    def stays(self, job: JobState, target: Target) -> bool:
        """Whether a job goes on around the GPUs that it holds."""
        named = target.placement is not None or target.gpu_type not in (None, job.gpu_type)
        return job.id in self.cut and bool(job.gpus and target.gpus) and target.beside is None and not named


def _attempt(
    moving: Mapping[str, Target], jobs: Mapping[str, JobState], world: _World
) -> tuple[dict[str, JobPlace], str | None]:
    """Places of all jobs but those that wait and found none; or none, and a running job that found none."""
    free = world.free
    left = [
        job.placement
        for job_id, target in moving.items()
        if (job := jobs[job_id]).gpus and job.frees_gpus(moving) and not world.stays(job, target)
    ]
    for placement in left:
        free.give(placement)
    places: dict[str, JobPlace] = {}
    taken: list[NodeGpus] = []
    turns: Iterable[tuple[str, Target]] = moving.items()
    if len(moving) > 1:
        turns = sorted(turns, key=lambda item: _turn(jobs[item[0]], item[1]))
    try:
        for job_id, target in turns:
            job = jobs[job_id]
            if world.cut and world.stays(job, target) and job.frees_gpus(moving):
                free.give(job.placement)
                left.append(job.placement)
            if target.beside is None:
                place = _place(job, target, world)
            else:
                other = jobs[target.beside]
                held = places[other.id][0] if other.id in places else other.placement
                place = _beside(job, target, other, held, world)
            if place is None and not job.gpus and (target.placement is None or job.room is None):
                continue  # it holds nothing that others count on
            if place is None and job.gpus and job.per_replica > 1 and _keeps(job, world):
                free.take(job.placement)
                taken.append(job.placement)
                continue
            if place is None:
                _undo(left, taken, free)
                return {}, job_id
            if target.beside is None:
                free.take(place[0])
                taken.append(place[0])
            places[job_id] = place
        _check_homes(moving, places, jobs, world)
    except (PlacementTakenError, NoPlaceError):
        _undo(left, taken, free)
        raise
    return places, None


def _check_homes(
    moving: Mapping[str, Target],
    places: Mapping[str, JobPlace],
    jobs: Mapping[str, JobState],
    world: _World,
) -> None:
    waiting = [job for job_id in moving if job_id not in places and not (job := jobs[job_id]).gpus]
    left = world.demands if world.in_teams else None
    if homeless := [job.id for job in waiting if job.barred or (left is not None and left.limits(job))]:
        raise NoPlaceError(homeless)


def _keeps(job: JobState, world: _World) -> bool:
    """Whether a running job can stay where it is: so far no other job was given GPUs of its place.

    Replicas often do not fit the GPUs that a policy counts; without this, each would begin all again.
    """
    if any(world.free.free_on(name) < count for name, count in job.placement):
        return False
    left, place, servers = world.demands, job.placement, job.servers
    return left is None or (left.fits(job, place) and left.take(job, place, servers, world.free) == servers)


def _undo(left: Iterable[NodeGpus], taken: Iterable[NodeGpus], free: FreeGpus) -> None:
    for placement in taken:
        free.give(placement)
    for placement in left:
        free.take(placement)


def _turn(job: JobState, target: Target) -> tuple[int, int, int]:
    """Named places first, then jobs that shrink or change type, jobs that start or grow, jobs that share.

    Jobs that may not run on some nodes come before those that may run anywhere, and large replicas before
    small ones, which fit what those leave.
    """
    if target.beside is not None:
        return 3, 0, 0
    if target.placement is not None or target.gpus == 0:
        return 0, 0, 0
    shrinks = target.gpus <= job.gpus or job.barred
    return (1 if shrinks else 2), -len(job.barred), -job.per_replica


def _beside(job: JobState, target: Target, other: JobState, gpus: NodeGpus, world: _World) -> JobPlace | None:
    """The place of the job to share with, where the two can share it."""
    quarantine, left = world.quarantine, world.demands
    if gpus_of(gpus) != target.gpus or quarantine.held_until_s(job.id) is not None:
        return None
    if any(name in quarantine.hidden_from(job.id) for name, _ in gpus) or world.free.bars(gpus, job.barred):
        return None
    if world.free.splits(gpus, job.per_replica):
        return None
    kind = world.speeds.gpu_type_of(gpus)
    if (
        not job.may_use(kind)
        or target.gpu_type not in (None, kind)
        or world.speeds.parts(job, other, kind, gpus) is None
    ):
        return None
    if left is None or job.room is None:
        return (gpus, ())
    servers = left.take(job, gpus, target.servers, world.free) if left.fits(job, gpus) else None
    return None if servers is None else (gpus, servers)


def _place(job: JobState, target: Target, world: _World) -> JobPlace | None:
    """A place with everything that the job demands, parameter servers included."""
    free, left = world.free, world.demands
    if job.types is not None and target.gpus:
        named = target.placement and free.node(target.placement[0][0]).gpu_type
        if not job.may_use(named or target.gpu_type or job.types[0]):
            return None
        if job.barred and free.bars(target.placement or (), job.barred):
            return None
    if left is None or job.room is None:
        gpus = _allowed(job, target, world) if target.gpus else _NO_PLACE
        return None if gpus is None else (gpus, ())
    if target.placement is not None and (
        free.splits(target.placement, job.per_replica) or not left.fits(job, target.placement)
    ):
        return None
    useless = () if target.placement is not None else left.hidden_from(job, free)
    free.take(useless)
    try:
        gpus = _allowed(job, target, world)
    finally:
        free.give(useless)
    if gpus is None:
        return None
    servers = left.take(job, gpus, target.servers, free)
    return None if servers is None else (gpus, servers)


def _allowed(job: JobState, target: Target, world: _World) -> NodeGpus | None:
    """A place without quarantined GPUs, and without GPUs that would slow the job down."""
    quarantined = world.quarantine.next_s < math.inf
    place = _without_quarantined(job, target, world) if quarantined else _choose(job, target, world)
    if not (place and world.sizes_jobs and may_get_fewer(job, target)):
        return place
    batch = target.global_batch or job.global_batch
    return world.speeds.useful_part(job, place, batch, accumulates=world.accumulates)


def _without_quarantined(job: JobState, target: Target, world: _World) -> NodeGpus | None:
    free, quarantine = world.free, world.quarantine
    if target.gpus > job.gpus and quarantine.held_until_s(job.id) is not None:
        return None
    own = dict(job.placement)
    hidden = tuple(
        (name, count)
        for name, most in quarantine.hidden_from(job.id).items()
        if (count := min(most, free.free_on(name) - own.get(name, 0))) > 0
    )
    if not hidden:
        return _choose(job, target, world)
    free.take(hidden)
    try:
        return _choose(job, target, world)
    finally:
        free.give(hidden)


def _choose(job: JobState, target: Target, world: _World) -> NodeGpus | None:
    free = world.free
    if target.gpus == 0:
        return _NO_PLACE
    if target.placement is not None:
        if all(free.free_on(name) >= count for name, count in target.placement):
            return target.placement
        raise PlacementTakenError(job.id, target.placement)
    types: Sequence[str] = (target.gpu_type or "",)
    if target.gpu_type is None:
        types = _types_fastest_first(job, target.gpus, world.speeds)
    stays = bool(world.cut) and world.stays(job, target)
    each, own = job.per_replica, job.placement
    return free.choose(target.gpus, types, keep=own, per_replica=each, stays=stays, barred=job.barred)


def _types_fastest_first(job: JobState, gpus: int, speeds: Speeds) -> Sequence[str]:
    types = list(speeds.gpu_types)
    if len(types) == 1:
        return types
    rates = {kind: speeds.rate(job, gpus, kind) for kind in types}
    able = [kind for kind in types if rates[kind] > 0]
    return sorted(able, key=lambda kind: (-rates[kind], kind != job.gpu_type, kind))


class Demands:
    """What running jobs leave of each node. ``jobs``: those that keep their GPUs."""

    def __init__(
        self,
        capacities: Capacities,
        index: Mapping[str, int],
        jobs: Iterable[JobState],
        confined: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """:param confined: nodes that jobs may not use for now."""
        self._capacities = capacities
        self._confined = confined or {}
        self._index = index
        # By node; a node that is missing is untouched.
        self._left: dict[int, dict[str, float]] = {}
        # Jobs without GPUs by node.
        self._on_cpus = Counter[int]()
        for job in jobs:
            self.book(job, job.placement, job.servers)

    def limits(self, job: JobState) -> bool:
        return job.takes_room and self._capacities.limits_demands(job.spec)

    def useful_on(self, job: JobState, index: int, spare: int) -> int:
        """How many of the free GPUs of a node its CPUs, memory and bandwidth are enough for."""
        return fitting(self.left_on(index), job.spec.resources.worker, spare)

    def hidden_from(self, job: JobState, free: FreeGpus) -> NodeGpus:
        """Free GPUs of no use to the job: their node lacks what its workers need."""
        if not job.spec.resources.worker:
            return ()
        hidden_gpus = []
        for index, node in enumerate(self._capacities.nodes):
            spare = free.free_on(node.name)
            if spare and (useless := spare - self.useful_on(job, index, spare)):
                hidden_gpus.append((node.name, useless))
        return tuple(hidden_gpus)

    def fits_without_gpus(self, index: int, demand: Amounts) -> bool:
        """Whether a node has room for one more job without GPUs.

        A node that states no cores has room for as many such jobs as it has GPUs, at least one.
        """
        node = self._capacities.nodes[index]
        full = node.cpus is None and self._on_cpus[index] >= max(1, node.gpus)
        return not full and fitting(self.left_on(index), demand, 1) > 0

    def fits(self, job: JobState, place: NodeGpus) -> bool:
        demand = job.spec.resources.worker
        return all(fitting(self.left_on(self._index[name]), demand, count) == count for name, count in place)

    def take(self, job: JobState, place: NodeGpus, named: NodeGpus | None, free: FreeGpus) -> NodeGpus | None:
        """Book a place and return nodes for the parameter servers; None if there is no room for them.

        :param named: the nodes that a policy has chosen for them.
        """
        servers = self._servers(job, gpus_of(place), named, free)
        if servers is not None:
            self.book(job, place, servers)
        return servers

    def _servers(
        self, job: JobState, workers: int, named: NodeGpus | None, free: FreeGpus
    ) -> NodeGpus | None:
        demand = job.spec.resources.ps
        missing = servers_for(job.spec, workers)
        up = {node.name for node in free.nodes if node.up} - self._confined.get(job.id, frozenset())
        for chosen in (named, job.servers):
            suits = chosen and gpus_of(chosen) == missing and up.issuperset(dict(chosen))
            if suits and all(self._room(name, demand, count) == count for name, count in chosen or ()):
                return chosen
        places = []
        constraint = self._capacities.constraint_of(job.spec)
        for index in self._server_nodes(demand) if missing else ():
            node, name = self._capacities.nodes[index], self._capacities.nodes[index].name
            if constraint is not None and not constraint.allows(node):
                continue
            if name in up and (count := self._room(name, demand, missing)):
                places.append((index, name, count))
                missing -= count
            if not missing:
                break
        return None if missing else tuple((name, count) for _, name, count in sorted(places))

    def _server_nodes(self, demand: Amounts) -> Sequence[int]:
        """Nodes without GPUs, most room first, so that jobs stay apart."""
        servers = [index for index, node in enumerate(self._capacities.nodes) if not node.gpus]
        return sorted(servers, key=lambda index: (-fitting(self.left_on(index), demand, MANY), index))

    def _room(self, name: str, demand: Amounts, most: int) -> int:
        return fitting(self.left_on(self._index[name]), demand, most)

    def left_on(self, index: int) -> Amounts:
        """What is left of a node, of the resources that it states."""
        return self._left.get(index, self._capacities.of_node[index])

    def book(self, job: JobState, place: NodeGpus, servers: NodeGpus, sign: int = 1) -> None:
        """Take what the job demands on a place; ``sign`` -1: give it back."""
        for name, _ in place if not job.requested else ():
            self._on_cpus[self._index[name]] += sign
        for each, demand in ((place, job.spec.resources.worker), (servers, job.spec.resources.ps)):
            for name, count in each if demand else ():
                index = self._index[name]
                left = self._left.setdefault(index, dict(self._capacities.of_node[index]))
                for resource, amount in demand.items():
                    if resource in left:
                        left[resource] -= sign * amount * count
