"""The latest end of each job, as docs/delay-bound.md promises it: written from that page alone.

It shares no code with the policy that keeps the promise, nor with the report that holds runs against it: it
deals GPUs one by one, on nodes, and knows curves by every size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.job import Job
from pliant.schemas.runinfo import EqualDeals

Curves = Mapping[str, Mapping[int, float]]
"""Samples per second by model and every number of GPUs."""
_NEARLY: Final = 1e-9
"""What sums of fractions may miss by rounding, relative to them."""
_MICROSECOND: Final = 1e-6
_MOST_DEALS: Final = 100_000


def came_in(jobs: Sequence[Job], cluster: Cluster, ends_s: Mapping[str, float]) -> dict[str, float]:
    """When each job came into play: it is submitted, and those before it leave room in its user's limit."""
    found: dict[str, float] = {}
    for user in sorted({job.user for job in jobs}):
        own = [job for job in jobs if job.user == user]
        limit = cluster.user_limits.get(user) or cluster.user_limits.get("*")
        if limit is None:
            found |= {job.id: job.submit_time for job in own}
            continue
        inside: list[Job] = []
        waiting: list[Job] = []
        comes = [(job.submit_time, 1, job.id) for job in own]
        ends = [(ends_s[job.id], 0, job.id) for job in own if job.id in ends_s]
        for time_s, is_new, job_id in sorted([*ends, *comes]):
            inside = [job for job in inside if ends_s.get(job.id, math.inf) > time_s]
            waiting += [job for job in own if is_new and job.id == job_id]
            waiting.sort(key=lambda job: (-job.priority, job.submit_time, job.id))
            while waiting:
                both = [*inside, waiting[0]]
                if limit.jobs is not None and len(both) > limit.jobs:
                    break
                if limit.gpus is not None and sum(job.gpus.requested for job in both) > limit.gpus:
                    break
                inside.append(waiting.pop(0))
                found[both[-1].id] = time_s
    return found


@dataclass
class _Dealt:
    """A job in the reference."""

    job: Job
    enters_s: float
    sizes: dict[int, float]
    """Samples per second by each size that it may have."""
    samples: float
    done: float = 0.0
    had_gpu_s: float = 0.0
    sat_out: int = 0
    got: int = 0
    on: dict[int, int] = field(default_factory=dict)
    """What it has got by node, where nodes matter to it."""

    @property
    def least(self) -> int:
        return min(self.sizes)

    @property
    def most(self) -> int:
        return max(self.sizes, key=lambda size: (self.sizes[size], -size))

    @property
    def takes(self) -> int:
        able = [size for size in self.sizes if size <= self.got]
        return max(able, key=lambda size: (self.sizes[size], -size)) if able else 0

    @property
    def is_bound(self) -> bool:
        """Whether it matters to it on which nodes its GPUs are."""
        return bool(self.job.resources.worker) or self.job.gpus.per_replica > 1


def latest_ends(
    jobs: Sequence[Job],
    cluster: Cluster,
    curves: Curves,
    terms: EqualDeals,
    came_in_s: Mapping[str, float],
    *,
    hides_work: bool = False,
) -> dict[str, float]:
    """By job; a job that never came in, or never ends in the reference, is left out.

    :param hides_work: whether the policy did not know the work of the jobs.
    """
    nodes = cluster.expanded()
    coming = [
        _entering(job, cluster, curves, terms, came_in_s[job.id], hides_work=hides_work)
        for job in jobs
        if job.id in came_in_s
    ]
    there: list[_Dealt] = []
    found: dict[str, float] = {}
    now = -math.inf
    for _ in range(_MOST_DEALS):
        if not there and not coming:
            break
        if not there:
            now = max(now, min(each.enters_s for each in coming))
        there += [each for each in coming if each.enters_s <= now + _MICROSECOND]
        coming = [each for each in coming if each.enters_s > now + _MICROSECOND]
        _deal(there, nodes)
        for each in there:
            size = each.takes
            each.sat_out = 0 if size else each.sat_out + 1
            each.had_gpu_s += size * terms.deal_s
            each.done += each.sizes[size] * (terms.deal_s - terms.lost_s) if size else 0.0
        now += terms.deal_s
        found |= {each.job.id: now for each in there if each.done >= each.samples * (1 - _NEARLY)}
        there = [each for each in there if each.job.id not in found]
    return found


def _entering(
    job: Job, cluster: Cluster, curves: Curves, terms: EqualDeals, came_s: float, *, hides_work: bool
) -> _Dealt:
    nodes = cluster.expanded()
    assert job.work is not None
    samples = float(job.work.samples)  # type: ignore[union-attr]
    requested, replica, total = job.gpus.requested, job.gpus.per_replica, sum(node.gpus for node in nodes)
    most = (job.gpus.max or total) if job.elastic != "none" else requested
    limit = cluster.user_limits.get(job.user) or cluster.user_limits.get("*")
    if limit is not None and limit.gpus is not None:
        most = min(most, requested)
    least = (job.gpus.min or replica) if job.elastic != "none" else requested
    room = sum(_holds(node, job) for node in nodes)
    rates = {size: rate / replica for size, rate in curves[job.model].items()}  # its GPUs share their samples
    sizes = {
        size: rates[size]
        for size in range(least, min(most, room, total) + 1)
        if not size % replica and rates[size]
    }
    up_to = (
        [rates[size] for size in sizes if size <= requested] if job.elastic != "none" else [rates[requested]]
    )
    alone_s = samples / max(up_to)
    grace_s = terms.grace_s + terms.grace * alone_s
    if hides_work and terms.unstated_grace_s is not None:
        grace_s = terms.unstated_grace_s
    return _Dealt(job, came_s + grace_s, sizes, samples)


def _holds(node: Node, job: Job) -> int:
    """Workers that the node holds alone, in whole replicas."""
    most = node.gpus
    for name, amount in job.resources.worker.items():
        has = _has(node, name)
        if has is not None and amount:
            most = min(most, math.floor(has / amount + _NEARLY))
    return most - most % job.gpus.per_replica


def _has(node: Node, name: str) -> float | None:
    stated = {"cpu": node.cpus, "memory": node.memory, "bandwidth": node.bandwidth, "gpu": node.gpus}
    return stated[name] if name in stated else node.resources.get(name)


def _deal(there: Sequence[_Dealt], nodes: Sequence[Node]) -> None:
    """Smallest sizes first, then one more at a time to the job that has fewest."""
    for each in there:
        each.got, each.on = 0, {}
    order = sorted(there, key=lambda each: (each.had_gpu_s, round(each.enters_s, 6), each.job.id))
    over = sorted((each for each in order if each.sat_out >= len(there)), key=lambda each: -each.sat_out)
    order = [*over, *(each for each in order if each not in over)]
    able = [each for each in order if _gets(each, each.least, there, nodes)]
    while able:
        one = min(able, key=lambda each: each.got)
        more = one.job.gpus.per_replica
        if one.got + more > one.most or not _gets(one, more, there, nodes):
            able = [each for each in able if each is not one]


def _gets(one: _Dealt, more: int, there: Sequence[_Dealt], nodes: Sequence[Node]) -> bool:
    """Give that many GPUs to a job; False if they are not left."""
    if sum(each.got for each in there) + more > sum(node.gpus for node in nodes):
        return False
    before = dict(one.on)
    replica = one.job.gpus.per_replica
    for _ in range(more // replica if one.is_bound else 0):
        at = next((at for at, node in enumerate(nodes) if _has_room(one, at, node, there)), None)
        if at is None:
            one.on = before
            return False
        one.on[at] = one.on.get(at, 0) + replica
    one.got += more
    return True


def _has_room(one: _Dealt, at: int, node: Node, there: Sequence[_Dealt]) -> bool:
    """Whether a node has GPUs, and what its workers demand, for one more replica."""
    replica = one.job.gpus.per_replica
    if sum(each.on.get(at, 0) for each in there) + replica > node.gpus:
        return False
    for name, amount in one.job.resources.worker.items():
        taken = sum(each.on.get(at, 0) * each.job.resources.worker.get(name, 0.0) for each in there)
        has = _has(node, name)
        if has is not None and amount and (has - taken) / amount + _NEARLY < replica:
            return False
    return True
