"""From the sizes of a pool to what changes: places and batches of its jobs."""

from __future__ import annotations

from typing import Literal

from pliant.tools.schedule.jobs import NodeGpus
from pliant.tools.schedule.policies.shadow_price.batches import best_batch
from pliant.tools.schedule.policies.shadow_price.knowledge import Knowledge
from pliant.tools.schedule.policies.shadow_price.places import Nodes, Placed, gathered, place
from pliant.tools.schedule.policies.shadow_price.shares import Shares
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.snapshot import Snapshot


def targets(
    shares: Shares, snapshot: Snapshot, known: Knowledge, retune: Literal["paid", "free"], dwell_s: float
) -> dict[str, Target]:
    """What differs from what the jobs of the pool hold."""
    members, found = shares.members, {}
    places = _places(shares, snapshot)
    for row, job in enumerate(members.jobs):
        gpus = shares.gpus(row)
        if not gpus:
            if job.gpu_type == members.pool.gpu_type and job.gpus:
                found[job.id] = Target(0)
            continue
        where = places.get(job.id, job.placement)
        stays = where == job.placement
        lasts_s = min(dwell_s, members.left[row] / members.whole[row, shares.chosen[row]])
        batch = best_batch(
            job,
            members.curves[row],
            int(shares.chosen[row]),
            known.noise_scale(job, snapshot.time_s),
            worth_s=float(members.rescale_s[row]) / max(lasts_s, 1e-9)
            if stays and retune == "paid"
            else None,
        )
        if not stays or batch != job.global_batch:
            found[job.id] = Target(gpus, members.pool.gpu_type, batch, where)
    return found


def _places(shares: Shares, snapshot: Snapshot) -> dict[str, NodeGpus]:
    """The places of the jobs that get another one."""
    members = shares.members
    pool = members.pool
    nodes = [node for node in snapshot.nodes if node.up and node.gpus and node.gpu_type == pool.gpu_type]
    stay: list[Placed] = []
    seek: list[Placed] = []
    for row, job in enumerate(members.jobs):
        gpus = shares.gpus(row)
        if gpus:
            worth = float(shares.values[row, shares.chosen[row]])
            keeps = job.gpus == gpus and job.gpu_type == pool.gpu_type
            (stay if keeps else seek).append(Placed(job.id, gpus, worth, job.placement))
    taken = Nodes.of(nodes, stay)
    found = place(taken, seek)
    for placed in stay:
        if placed.job_id not in found and (closer := gathered(taken, placed)) is not None:
            found[placed.job_id] = closer
    return found
