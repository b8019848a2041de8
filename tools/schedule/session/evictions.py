"""Jobs give up GPUs before the policy is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.admission import Admission
from pliant.tools.schedule.session.allocations import Transition, allocation_event
from pliant.tools.schedule.session.assigner import Assigner
from pliant.tools.schedule.session.cluster import ClusterNodes
from pliant.tools.schedule.session.maintenance import Maintenance

if TYPE_CHECKING:
    from pliant.tools.schedule.session.team_quota import TeamQuota


class Evictions:
    """Takes GPUs that jobs must leave, and those that come back to their team; the policy sees them lost."""

    def __init__(
        self,
        policy: Policy,
        cluster: ClusterNodes,
        jobs: Mapping[str, JobState],
        *,
        admission: Admission,
        maintenance: Maintenance,
        assigner: Assigner,
        quota: TeamQuota | None,
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._admission = admission
        self._maintenance = maintenance
        self._assigner = assigner
        self._quota = quota
        self._elastic = policy.traits.elasticity != "none"
        # Whether all jobs that share GPUs may do so under this policy.
        self._separated = policy.traits.packs

    def separate_all(self) -> None:
        """No two jobs share GPUs any more; those that do are separated before the next decision."""
        self._cluster.speeds.share_nothing()
        self._separated = False

    @property
    def may_be_due(self) -> bool:
        """Whether jobs may have to give up GPUs before the policy is asked."""
        shared = self._quota is not None or not self._separated
        closed = self._cluster.state.drained or self._cluster.confined
        return shared or bool(closed) or self._admission.state.any

    def evict(self, time_s: float) -> list[Transition]:
        """Let jobs give up what they have to."""
        left = self._cut(self._maintenance.evictions(elastic=self._elastic), time_s)
        if not self._separated:
            left += self._cut(dict.fromkeys(self._borrowers(), ()), time_s)
            self._separated = True
        if self._quota is not None:
            left += self._reclaim(self._quota, time_s)
        if left:
            seen = self._admission.visible_jobs
            for each in left:
                if each.job.id in seen:
                    self._assigner.decided.refuse(each.job, time_s)
        return left

    def _reclaim(self, quota: TeamQuota, time_s: float) -> list[Transition]:
        """Take back the GPUs that teams have borrowed and others are entitled to."""
        jobs, hidden, seen = self._jobs, self._admission.state, self._admission.visible_jobs
        bound = [job for job_id in hidden.bound if (job := jobs[job_id]).requested]
        kept = quota.reclaim.bound_updates(bound, seen.values(), self._cluster.drained, time_s)
        done = self._cut(kept, time_s)
        seen = self._admission.visible_jobs
        unseen = [job for job_id, job in jobs.items() if job.gpus and hidden.hides(job_id)]
        kept = quota.reclaim.updates(seen.values(), time_s, unseen)
        done += self._cut(kept, time_s)
        self._assigner.cut |= {job_id for job_id, place in kept.items() if place}
        return done

    def _cut(self, kept: Mapping[str, NodeGpus], time_s: float) -> list[Transition]:
        """Let jobs keep these parts of what they hold."""
        if not kept:
            return []
        jobs = ((self._jobs[job_id], place) for job_id, place in kept.items())
        events = [allocation_event(job, place, time_s, servers=job.servers) for job, place in jobs]
        return self._maintenance.set_allocations(events, time_s)

    def _borrowers(self) -> list[str]:
        """The later job of each pair that shares GPUs."""
        jobs = self._jobs
        pairs = ((job, jobs[job.beside]) for job in jobs.values() if job.beside is not None)
        late = (job for job, other in pairs if (job.granted_s, job.id) > (other.granted_s, other.id))
        return [job.id for job in late]
