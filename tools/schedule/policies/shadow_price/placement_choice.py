"""From the sizes of a pool to what changes: the nodes and the batches of its jobs.

Jobs that keep their size stay; the others are placed by descending size: whole nodes, then best fit. A job
that no node has room for is spread over several, or smaller jobs make way for it: what moves cost them has to
be less than what it would lose by its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pliant.tools.schedule.jobs import NodeGpus, NodeState, gpus_of
from pliant.tools.schedule.policies.shadow_price.curves import MOST_NOISE, best_batch
from pliant.tools.schedule.policies.shadow_price.job_estimates import Knowledge
from pliant.tools.schedule.policies.shadow_price.reference import NodeRooms
from pliant.tools.schedule.policies.shadow_price.sizes import PoolShares
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.rates import cut
from pliant.tools.schedule.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class SeatedJob:
    """A job that has a place, or needs one."""

    job_id: str
    gpus: int
    worth: float
    """Worth of it: those that lose least by a move make way."""
    held: NodeGpus = ()
    pinned: bool = False
    move_cost: float = 0.0
    """Cost of a move, in the unit of ``worth``, over the time in which it has to pay."""
    together: int = 1
    """GPUs of a replica that are on one node; 1 if they may be on several."""


Loss = Callable[[SeatedJob, NodeGpus], float]
"""Loss of a job at a place, against on as few nodes as possible, in the unit of its worth."""


def all_of_it(job: SeatedJob, place: NodeGpus) -> float:
    """A job makes nothing unless its place is compact."""
    del place
    return job.worth


@dataclass(slots=True)
class NodeSpace:
    """The nodes of one pool while a decision is being placed."""

    free: dict[str, int]
    node_gpus: int
    """GPUs of the largest."""
    loss: Loss = all_of_it
    stay: dict[str, SeatedJob] = field(default_factory=dict)
    """Jobs on one node alone, which may have to make way."""
    on: dict[str, list[str]] = field(default_factory=dict)
    """The same by node."""

    @classmethod
    def of(cls, nodes: Sequence[NodeState], stay: Sequence[SeatedJob], loss: Loss = all_of_it) -> NodeSpace:
        made = cls({node.name: node.gpus for node in nodes}, max(node.gpus for node in nodes), loss)
        for job in stay:
            made.take(job.held)
            if len(job.held) == 1 and not job.pinned:
                made.stay[job.job_id] = job
                made.on.setdefault(job.held[0][0], []).append(job.job_id)
        return made

    def take(self, place: NodeGpus) -> None:
        for name, count in place:
            self.free[name] -= count

    def give(self, place: NodeGpus) -> None:
        for name, count in place:
            self.free[name] += count

    def leave(self, job: SeatedJob) -> None:
        if self.stay.pop(job.job_id, None) is not None:
            self.on[job.held[0][0]].remove(job.job_id)
        self.give(job.held)

    def copy(self) -> NodeSpace:
        on = {name: [*ids] for name, ids in self.on.items()}
        return NodeSpace(dict(self.free), self.node_gpus, self.loss, dict(self.stay), on)

    def become(self, other: NodeSpace) -> None:
        self.free, self.stay, self.on = other.free, other.stay, other.on

    def is_compact(self, job: SeatedJob, place: NodeGpus) -> bool:
        return len(place) <= len(parts(job, self.node_gpus))


def parts(job: SeatedJob, node_gpus: int) -> list[int]:
    """A size as whole nodes, as far as whole replicas fill them, and a rest."""
    node_gpus = node_gpus - node_gpus % job.together or node_gpus
    whole, rest = divmod(job.gpus, node_gpus)
    return [node_gpus] * whole + [rest] * (rest > 0)


def place(nodes: NodeSpace, seekers: Sequence[SeatedJob]) -> dict[str, NodeGpus]:
    """Places of all seekers, and of the jobs that make way for them. There must be as many GPUs free."""
    waiting = sorted(seekers, key=_turn)
    places: dict[str, NodeGpus] = {}
    while waiting:
        seeker = waiting.pop(0)
        places[seeker.job_id], moved = _placed(nodes, seeker)
        if moved:
            waiting = sorted([*waiting, *moved], key=_turn)
    return places


def gathered(nodes: NodeSpace, job: SeatedJob, gain: float) -> dict[str, NodeGpus]:
    """Places that put a job that stays on fewer nodes, its own and of those that make way; empty if none pay.

    :param gain: what it makes more there.
    """
    if gain <= job.move_cost:
        return {}
    trial = nodes.copy()
    trial.leave(job)
    places = place(trial, [job])
    moved = [nodes.stay[job_id] for job_id in places if job_id != job.job_id]
    closer = all(nodes.is_compact(each, places[each.job_id]) for each in (job, *moved))
    if not closer or gain <= sum(each.move_cost for each in (job, *moved)):
        return {}
    nodes.become(trial)
    return places


def _turn(seeker: SeatedJob) -> tuple[float, float, str]:
    return (-seeker.gpus, -seeker.worth, seeker.job_id)


def _placed(nodes: NodeSpace, seeker: SeatedJob) -> tuple[NodeGpus, list[SeatedJob]]:
    """A place, taken, and the jobs that make way."""
    held = dict(seeker.held)
    picks: list[tuple[str, int]] = []
    moved: list[SeatedJob] = []
    for part in parts(seeker, nodes.node_gpus):
        name = _fitting(nodes, part, held)
        if name is None:
            leaving = _leaving(nodes, part)
            nodes.give(tuple(picks))
            spread = _spread(nodes, seeker)
            has_place = gpus_of(spread) == seeker.gpus
            if not leaving or (
                has_place and nodes.loss(seeker, spread) <= sum(job.move_cost for job in leaving)
            ):
                nodes.take(spread)
                return spread, moved
            nodes.take(tuple(picks))
            for job in leaving:
                nodes.leave(job)
            moved += leaving
            name = leaving[0].held[0][0]
        picks.append((name, part))
        nodes.take(((name, part),))
    return tuple(picks), moved


def _fitting(nodes: NodeSpace, gpus: int, held: Mapping[str, int]) -> str | None:
    """The fullest node with room, of equal ones one that the job holds most of."""
    fits = [(free, -held.get(name, 0), name) for name, free in nodes.free.items() if free >= gpus]
    return min(fits)[2] if fits else None


def _leaving(nodes: NodeSpace, gpus: int) -> list[SeatedJob]:
    """Smaller jobs of one node that lose least and leave it ``gpus`` free; empty: there is no such node."""
    best: tuple[float, str] | None = None
    best_leaving: list[SeatedJob] = []
    for name, ids in nodes.on.items():
        missing, lost = gpus - nodes.free[name], 0.0
        leaving: list[SeatedJob] = []
        jobs = sorted(
            (nodes.stay[job_id] for job_id in ids), key=lambda job: (job.worth / job.gpus, job.job_id)
        )
        for job in jobs:
            if missing > 0 and job.gpus < gpus:
                leaving.append(job)
                lost, missing = lost + job.worth, missing - job.gpus
        if missing <= 0 and leaving and (best is None or (lost, name) < best):
            best, best_leaving = (lost, name), leaving
    return best_leaving


def _spread(nodes: NodeSpace, job: SeatedJob) -> NodeGpus:
    """Whole replicas on the emptiest nodes; fewer GPUs where these have no room for all of them."""
    picks, gpus = [], job.gpus
    for name, free in sorted(nodes.free.items(), key=lambda item: (-item[1], item[0])):
        count = min(free - free % job.together, gpus)
        if count:
            picks.append((name, count))
            gpus -= count
    return tuple(picks)


Retune = Literal["paid", "free"]


@dataclass(frozen=True)
class Placing:
    """One pool whose sizes are decided."""

    shares: PoolShares
    snapshot: Snapshot
    known: Knowledge
    dwell_s: float

    def targets(self, retune: Retune) -> dict[str, Target]:
        members = self.shares.members
        target_by_job: dict[str, Target] = {}
        places = self._places()
        bound = any(job.room is not None for job in members.jobs)
        roomy = self._with_room(places) if bound else {}
        for row in self.shares.served:
            job = members.jobs[row]
            if roomy:
                where = roomy[job.id]
            else:
                where = self._whole_or_less(row, places[job.id]) if job.id in places else job.placement
            gpus = job.spec.gpus.whole(gpus_of(where))
            if gpus < job.min_gpus:  # the nodes have no room for whole replicas
                target_by_job |= {job.id: Target(0)} if job.gpus else {}
                continue
            if gpus < gpus_of(where):
                where = cut(where, gpus, job.placement)
            stays = where == job.placement
            pinned = stays and self.shares.guard.pinned[row]
            batch = job.global_batch if pinned else self._batch(row, gpus, retune if stays else "free")
            if not stays or batch != job.global_batch:
                target_by_job[job.id] = Target(gpus, members.pool.gpu_type, batch, where)
        return target_by_job

    def _places(self) -> dict[str, NodeGpus]:
        """Of jobs that move; the others stay."""
        members = self.shares.members
        if all(map(self._stays, self.shares.served)):
            return {}
        kind = members.pool.gpu_type
        rows = {job.id: row for row, job in enumerate(members.jobs)}
        stay: dict[int, SeatedJob] = {}
        seek: list[SeatedJob] = []
        for row in self.shares.served:
            job, gpus = members.jobs[row], self.shares.gpus[row]
            worth = max(0.0, float(self.shares.values[row, self.shares.chosen[row]]))
            pinned = bool(self.shares.guard.pinned[row])
            cost = worth * float(members.change_s[row]) / self.dwell_s
            together = self.snapshot.free.on_one_node(job.per_replica, kind)
            placed = SeatedJob(job.id, gpus, worth, job.placement, pinned, cost, together)
            if job.gpus == gpus and job.gpu_type == kind:
                stay[row] = placed
            else:
                seek.append(placed)
        up = [node for node in self.snapshot.nodes if node.up and node.gpus and node.gpu_type == kind]
        nodes = NodeSpace.of(
            up, [*stay.values()], lambda job, where: self._loss(rows[job.job_id], job, where)
        )
        places = place(nodes, seek)
        for row, placed in stay.items():
            apart = not placed.pinned and len(placed.held) > len(parts(placed, members.pool.node_gpus))
            if apart and placed.job_id not in places:
                slower = 1.0 - float(members.scattered[row])
                places |= gathered(nodes, placed, slower * placed.worth)
        return places

    def _stays(self, row: int) -> bool:
        """Whether a job keeps its GPUs, and is on as few nodes as can be."""
        job, gpus, pool = self.shares.members.jobs[row], self.shares.gpus[row], self.shares.members.pool
        same = job.gpus == gpus and job.gpu_type == pool.gpu_type
        return same and len(job.placement) <= -(-gpus // pool.node_gpus)

    def _with_room(self, places: Mapping[str, NodeGpus]) -> dict[str, NodeGpus]:
        """Places with all that jobs demand of nodes: of jobs that cannot wait first, then of jobs that stay,
        then of those of most worth a GPU. Others get fewer GPUs, or none.
        """
        members, due = self.shares.members, self.shares.guard.places
        kind = members.pool.gpu_type
        rooms = NodeRooms([node for node in self.snapshot.nodes if node.gpu_type == kind])
        chosen: dict[str, NodeGpus] = {}
        for row, place_of_row in due.items():
            job = members.jobs[row]
            same = dict(place_of_row) == dict(job.placement)
            chosen[job.id] = job.placement if same else place_of_row
            rooms.take(job, place_of_row)
        rows = [row for row in range(len(members.jobs)) if self.shares.gpus[row] and row not in due]
        stays = {row for row in rows if members.jobs[row].id not in places}
        worth = self.shares.values[range(len(members.jobs)), self.shares.chosen]
        for row in sorted(rows, key=lambda row: (row not in stays, -worth[row] / self.shares.gpus[row], row)):
            job, gpus = members.jobs[row], self.shares.gpus[row]
            wanted = job.placement if row in stays else self._whole_or_less(row, places[job.id])
            if rooms.fits(job, wanted):
                rooms.take(job, wanted)
                chosen[job.id] = wanted
                continue
            sizes = [size for size in reversed(job.sizes(gpus)) if size <= gpus]
            tried = (rooms.place(job, size) for size in sizes)
            chosen[job.id] = next((place for place in tried if place), ())
        return chosen

    def _loss(self, row: int, job: SeatedJob, where: NodeGpus) -> float:
        """Loss of a job at a place, against at a compact one, while it is there."""
        members = self.shares.members
        compact = self._goodput(row, job.gpus)
        if not compact > 0:
            return 0.0
        slower = max(0.0, 1.0 - self._goodput(row, job.gpus, where) / compact)
        lasts_s = min(self.dwell_s, members.left[row] / compact)
        return job.worth * slower * float(lasts_s) / self.dwell_s

    def _whole_or_less(self, row: int, where: NodeGpus) -> NodeGpus:
        """The place, or its largest part alone where the job is faster there."""
        members = self.shares.members
        node_gpus = members.pool.node_gpus
        if len(where) <= -(-gpus_of(where) // node_gpus):
            return where
        part = (max(where, key=lambda each: each[1]),)
        whole = self._goodput(row, gpus_of(where), where)
        return part if self._goodput(row, part[0][1], part) > whole else where

    def _goodput(self, row: int, gpus: int, where: NodeGpus = ()) -> float:
        """Progress per second at a place, or on as few nodes as possible; 0 where the size is infeasible."""
        members = self.shares.members
        job, curve = members.jobs[row], members.curves[row]
        batch = self._batch(row, gpus, "free")
        speeds = self.snapshot.speeds
        if where:
            speed = speeds.rate_at(job, where, batch)
        else:
            speed = speeds.rate(job, gpus, members.pool.gpu_type, global_batch=batch)
        if not curve.rates[members.sizes.searchsorted(gpus)].any():
            return 0.0
        noise_scale = self.known.noise_scale(job, self.snapshot.time_s)
        if noise_scale is None:
            return speed
        noise_scale = min(noise_scale, MOST_NOISE)
        return speed * (noise_scale + curve.base) / (noise_scale + batch)

    def _batch(self, row: int, gpus: int, retune: Retune) -> int:
        members = self.shares.members
        job, curve = members.jobs[row], members.curves[row]
        if len(curve.batches) == 1:
            return job.reference_batch
        size = int(members.sizes.searchsorted(gpus))
        noise_scale, worth_s = self.known.noise_scale(job, self.snapshot.time_s), None
        if retune != "free":
            rate = max(float(members.whole[row, size]), 1e-300)
            lasts_s = min(self.dwell_s, float(members.left[row]) / rate)
            worth_s = float(members.change_s[row]) / max(lasts_s, 1e-9)
        return best_batch(job, curve, size, noise_scale, worth_s=worth_s)
