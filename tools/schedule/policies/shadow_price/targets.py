"""From the sizes of a pool to what changes: places and batches of its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pliant.tools.schedule.jobs import NodeGpus, gpus_of
from pliant.tools.schedule.policies.shadow_price.batches import best_batch
from pliant.tools.schedule.policies.shadow_price.curves import MOST_NOISE
from pliant.tools.schedule.policies.shadow_price.knowledge import Knowledge
from pliant.tools.schedule.policies.shadow_price.places import Nodes, Placed, gathered, place
from pliant.tools.schedule.policies.shadow_price.shares import Shares
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.speeds import shape_of

Retune = Literal["paid", "free"]


@dataclass(frozen=True)
class Placing:
    """One pool whose sizes are decided."""

    shares: Shares
    snapshot: Snapshot
    known: Knowledge
    dwell_s: float

    def targets(self, retune: Retune) -> dict[str, Target]:
        """What differs from what the jobs hold that get GPUs of the pool."""
        members = self.shares.members
        found: dict[str, Target] = {}
        places = self._places()
        for row, job in enumerate(members.jobs):
            if not self.shares.gpus(row):
                continue
            where = self._whole_or_less(row, places[job.id]) if job.id in places else job.placement
            stays, gpus = where == job.placement, gpus_of(where)
            pinned = stays and self.shares.guard.pinned[row]
            batch = job.global_batch if pinned else self._batch(row, gpus, retune if stays else "free")
            if not stays or batch != job.global_batch:
                found[job.id] = Target(gpus, members.pool.gpu_type, batch, where)
        return found

    def _places(self) -> dict[str, NodeGpus]:
        """The places of the jobs that get another one."""
        members = self.shares.members
        kind = members.pool.gpu_type
        rows = {job.id: row for row, job in enumerate(members.jobs)}
        stay: dict[int, Placed] = {}
        seek: list[Placed] = []
        for row, job in enumerate(members.jobs):
            gpus = self.shares.gpus(row)
            if gpus:
                worth = max(0.0, float(self.shares.values[row, self.shares.chosen[row]]))
                pinned = bool(self.shares.guard.pinned[row])
                cost = worth * float(members.rescale_s[row]) / self.dwell_s
                placed = Placed(job.id, gpus, worth, job.placement, pinned, cost)
                if job.gpus == gpus and job.gpu_type == kind:
                    stay[row] = placed
                else:
                    seek.append(placed)
        up = [node for node in self.snapshot.nodes if node.up and node.gpus and node.gpu_type == kind]
        nodes = Nodes.of(up, [*stay.values()], lambda job, where: self._loss(rows[job.job_id], job, where))
        found = place(nodes, seek)
        for row, placed in stay.items():
            if placed.pinned or placed.job_id in found:
                continue
            if not nodes.is_compact(placed.gpus, placed.held):
                slower = 1.0 - float(members.scattered[row])
                found |= gathered(nodes, placed, slower * placed.worth)
        return found

    def _loss(self, row: int, job: Placed, where: NodeGpus) -> float:
        """What a job makes less at a place than at a compact one, while it is there."""
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
        shape = shape_of(where) if where else None
        speed = self.snapshot.speeds.rate(
            job, gpus, members.pool.gpu_type, global_batch=batch, placement=shape
        )
        if not curve.rates[np.searchsorted(members.sizes, gpus)].any():
            return 0.0
        noise_scale = self.known.noise_scale(job, self.snapshot.time_s)
        if noise_scale is None:
            return speed
        noise_scale = min(noise_scale, MOST_NOISE)
        return speed * (noise_scale + curve.base) / (noise_scale + batch)

    def _batch(self, row: int, gpus: int, retune: Retune) -> int:
        members = self.shares.members
        size = int(np.searchsorted(members.sizes, gpus))
        lasts_s = min(self.dwell_s, members.left[row] / max(members.whole[row, size], 1e-300))
        return best_batch(
            members.jobs[row],
            members.curves[row],
            size,
            self.known.noise_scale(members.jobs[row], self.snapshot.time_s),
            worth_s=None if retune == "free" else float(members.rescale_s[row]) / max(lasts_s, 1e-9),
        )
