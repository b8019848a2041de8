"""From the targets of a decision to what jobs hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.max_min import equal_shares
from pliant.tools.schedule.policy import Decision, Policy, PolicyError, Target
from pliant.tools.schedule.session.admission import Admission
from pliant.tools.schedule.session.allocations import Transition
from pliant.tools.schedule.session.allocator import Allocator
from pliant.tools.schedule.session.assignment import (
    Demands,
    JobPlace,
    NoPlaceError,
    PlacementTakenError,
    RoomShare,
    assign,
    changes_gpus,
    differs,
    is_plain_start,
    is_plain_stop,
    may_get_fewer,
    start,
)
from pliant.tools.schedule.session.cluster import ClusterNodes, is_of_gpu
from pliant.tools.schedule.session.decided import Dwell, LastDecision
from pliant.tools.schedule.session.on_cpus import CpuStarts
from pliant.tools.schedule.session.quarantine import Quarantine, node_of

_FREES_FIRST: Final = {"reject": 0, "preempt": 1, "shrink": 2, "rebatch": 3, "move": 4}


class Assigner:
    """Finds places for the jobs of a decision, and lets them hold these."""

    def __init__(
        self,
        policy: Policy,
        cluster: ClusterNodes,
        jobs: Mapping[str, JobState],
        *,
        admission: Admission,
        allocator: Allocator,
        quarantine: Quarantine,
        dwell: Dwell,
        in_teams: bool,
        trims: bool,
    ) -> None:
        """:param in_teams: teams share the cluster.
        :param trims: jobs leave GPUs that would slow them down.
        """
        self.decided = LastDecision()
        # Jobs that have given GPUs back to other teams in the present decision.
        self.cut: set[str] = set()
        self._policy = policy
        self._cluster = cluster
        self._jobs = jobs
        self._admission = admission
        self._allocator = allocator
        self._quarantine = quarantine
        self._dwell = dwell
        self._in_teams = in_teams
        self._trims = trims

    # Most decisions: jobs stop, and others start.

    def change_plainly(self, decision: Decision, time_s: float) -> list[Transition] | None:
        """Carry out a decision by which jobs stop and others start. Returns None if anything else changes.

        :raises NoPlaceError: jobs may run on some nodes only, and those have no room.
        """
        targets, jobs = decision.targets, self._jobs
        if decision.rejected or self._quarantine.next_s < math.inf:
            return None
        if len(targets) == 1:  # one job starts, as most often
            ((job_id, target),) = targets.items()
            if is_plain_start(jobs[job_id], target):
                return self._start_and_stop(targets, time_s)
        freed = []
        for job_id, target in targets.items():
            job = jobs[job_id]
            if job.per_replica > 1 and len(targets) > 1:
                return None  # large replicas choose first
            if target.gpus:
                plain = is_plain_start(job, target)
            else:
                plain = is_plain_stop(job, target) and not self._dwell.holds
                freed.append(job.placement)
            if not plain:
                return None
        for placement in freed:
            self._cluster.free.give(placement)
        return self._start_and_stop(targets, time_s, freed)

    def _start_and_stop(
        self, targets: Mapping[str, Target], time_s: float, freed: Sequence[NodeGpus] = ()
    ) -> list[Transition]:
        """:param freed: what the jobs that stop have given back already."""
        jobs = self._jobs
        turns: Iterable[tuple[str, Target]] = targets.items()
        if len(targets) > 1 and any(jobs[job_id].barred for job_id in targets):
            turns = sorted(turns, key=lambda item: -len(jobs[item[0]].barred))
        places = {
            job_id: self._place_of(jobs[job_id], target) if target.gpus else () for job_id, target in turns
        }
        if None in places.values():
            self._check_unplaced(places, time_s, freed)
        done = []
        for job_id, place in places.items():
            job = jobs[job_id]
            if place:
                batch = targets[job_id].global_batch or job.global_batch
                done.append(self._allocator.begin(job, place, batch, time_s))
            elif place is not None:
                done.append(self._allocator.stop(job, time_s))
        return sorted(done, key=frees_first) if len(done) > 1 else done

    def _check_unplaced(
        self, places: Mapping[str, NodeGpus | None], time_s: float, freed: Sequence[NodeGpus]
    ) -> None:
        """:raises NoPlaceError: waiting jobs have no place on the nodes that they may run on."""
        jobs, decided = self._jobs, self.decided
        unplaced = [job_id for job_id, place in places.items() if place is None and jobs[job_id].barred]
        if unplaced and time_s < decided.retry_s and not freed:
            for job_id in unplaced:
                decided.refuse(jobs[job_id], time_s)
            decided.decide_by(decided.retry_s)
        elif unplaced:
            for taken in filter(None, places.values()):
                self._cluster.free.give(taken)
            for placement in freed:
                self._cluster.free.take(placement)
            raise NoPlaceError(unplaced)

    def _place_of(self, job: JobState, target: Target) -> NodeGpus | None:
        """Taken from the free GPUs. Returns None if there is no place for it."""
        cluster = self._cluster
        if (trims := self._trims) or not job.any_number:
            target = self._useful(job, target)
            if not target.gpus:
                return None
        accumulates = self._policy.traits.accumulates
        return start(job, target, cluster.free, cluster.speeds, sizes_jobs=trims, accumulates=accumulates)

    # All others.

    def change(self, decision: Decision, time_s: float) -> list[Transition]:
        """Let jobs hold what a decision gives them, as far as there is room and the dwell rule allows it.

        :raises NoPlaceError: jobs may run on some nodes only, and those have no room.
        :raises PolicyError: the policy named a place that is not free.
        """
        jobs, decided, transitions = self._jobs, self.decided, list[Transition]()
        targets = self._to_change(decision, time_s)
        places = self._assign(targets)
        for job_id in places:
            if jobs[job_id].beside is not None:
                self._allocator.separate(jobs[job_id], time_s)
        for job_id, target in _sharing_last(targets):
            job, place = jobs[job_id], places.get(job_id)
            if place is None and changes_gpus(job, target):
                scarce = self._quarantine.next_s < math.inf or decided.kept_until_s or job.room is not None
                if not job.gpus and scarce:
                    decided.refuse(job, time_s)
                continue  # no GPU type has enough GPUs for it: it keeps what it has
            batch = target.global_batch or job.global_batch
            gpus, servers = (job.placement, job.servers) if place is None else place
            other = None if place is None or target.beside is None else jobs[target.beside]
            transition = self._allocator.change(job, gpus, batch, time_s, servers, beside=other)
            if transition is not None:
                transitions.append(transition)
        return transitions

    def _to_change(self, decision: Decision, time_s: float) -> dict[str, Target]:
        """The targets that differ from what jobs have and that the dwell rule allows now.

        The policy is asked again once the first of the others is allowed.
        """
        targets, jobs, decided = {}, self._jobs, self.decided
        trims = self._trims
        for job_id, target in decision.targets.items():
            job = jobs[job_id]
            useful = self._useful(job, target) if trims or not job.any_number else target
            if differs(job, useful):
                targets[job_id] = useful
        decided.kept_until_s = kept_until_s = self._dwell.kept_until_s(targets, jobs, time_s)
        if kept_until_s:
            for job_id in kept_until_s:
                del targets[job_id]
            again_s = min(kept_until_s.values())
            if again_s == math.inf:
                decided.quiet_until_s = -math.inf  # it is not as the policy decided
                return targets
            decided.decide_by(again_s)
            decided.quiet_until_s = min(again_s, decided.quiet_until_s)
        return targets

    def _useful(self, job: JobState, target: Target) -> Target:
        """The target cut to a size of the job, and to GPUs that do not slow it; a named placement of one is
        cut later.
        """
        if not job.any_number and target.gpus != (size := job.spec.gpus.whole(target.gpus)):
            target = target._replace(gpus=size, placement=None, servers=None)
        gpus, gpu_type, batch, placement, _, _ = target
        if not self._trims or gpu_type is None or placement is not None or not may_get_fewer(job, target):
            return target
        useful = self._cluster.speeds.useful(
            job,
            gpus,
            gpu_type,
            global_batch=batch or job.global_batch,
            accumulates=self._policy.traits.accumulates,
        )
        return target._replace(gpus=useful, servers=None) if 0 < useful < gpus else target

    def _assign(self, targets: Mapping[str, Target]) -> dict[str, JobPlace]:
        jobs = self._jobs
        moving = {job_id: each for job_id, each in targets.items() if changes_gpus(jobs[job_id], each)}
        if not moving:
            return {}
        demanding = bool([job_id for job_id in moving if jobs[job_id].takes_room])
        try:
            return assign(
                moving,
                jobs,
                self._cluster.free,
                self._cluster.speeds,
                self._quarantine,
                in_part=bool(self.decided.kept_until_s),
                demands=self._left_by_others if demanding else None,
                sizes_jobs=self._trims,
                accumulates=self._policy.traits.accumulates,
                cut=self.cut,
                in_teams=self._in_teams,
            )
        except PlacementTakenError as taken:
            what = f'places "{taken.job_id}" on {taken.placement}, where not all of these GPUs are free'
            raise PolicyError.broke_rule(self._policy.name, what) from None

    def _left_by_others(self, moving: Mapping[str, Target]) -> Demands:
        staying = (job for job in self._jobs.values() if job.gpus and (job.takes_room or not job.requested))
        others = (job for job in staying if job.id not in moving)
        return Demands(self._cluster.capacities, self._cluster.index, others, self._cluster.confined)

    def is_as_decided(self, decision: Decision, changes: int) -> bool:
        """Whether a decision was carried out whole."""
        targets, jobs = decision.targets, self._jobs
        if changes != len(targets) + len(decision.rejected) or self.decided.refused:
            return False
        return not [job_id for job_id, target in targets.items() if jobs[job_id].gpus != target.gpus]

    def without_place(self, unplaced: NoPlaceError, decision: Decision) -> dict[str, None]:
        """Waiting jobs without a place or a share, and others that wait for nodes with too few GPUs left.

        A job that runs and has no share of another type stays on its own.
        """
        free, nodes = self._cluster.free, self._cluster.nodes
        total, rigid = sum(free.by_type.values()), self._policy.traits.elasticity == "none"
        left: dict[int, int] = {}
        without = dict.fromkeys(unplaced.job_ids)
        out = (job_id for job_id, share in unplaced.shares.items() if not share.gpus)
        without |= dict.fromkeys(job_id for job_id in out if not self._jobs[job_id].gpus)
        if unplaced.shares:
            return without
        for job_id, job in self._admission.visible_jobs.items():
            if not job.barred or job.gpus or job_id in decision.targets:
                continue
            where = id(job.barred)  # the same for all jobs that may run on the same nodes
            if where not in left:
                left[where] = total - sum(free.free_on(nodes[index].name) for index in job.barred)
            if left[where] < (job.requested if rigid else job.min_gpus):
                without[job_id] = None
        return without

    def room_shares(self, decision: Decision) -> dict[str, RoomShare]:
        """Equal parts of nodes for elastic jobs that may run on those alone and get more than they have.

        Jobs that may run on the same nodes share them within what the decision gives each; those that run
        keep at least their minimum, and later ones whose minimum is too much get nothing.
        """
        jobs, targets, shares = self._admission.visible_jobs, decision.targets, dict[str, RoomShare]()
        crowded: dict[int, JobState] = {}
        sharing: dict[tuple[int, str | None], dict[JobState, int]] = {}
        for job_id, (gpus, gpu_type, _, _, _, beside) in targets.items():
            job = jobs[job_id]
            if gpus and job.barred and job.is_elastic and beside is None:
                sharing.setdefault((id(job.barred), gpu_type), {})[job] = gpus
                if gpus > job.gpus:
                    crowded[id(job.barred)] = job
        if not crowded:
            return shares
        places = [place for job_id in targets if (place := jobs[job_id].placement)]
        for job in [job for job in jobs.values() if job.gpus]:
            if id(job.barred) in crowded and job.is_elastic and job.id not in targets:
                sharing.setdefault((id(job.barred), job.gpu_type), {})[job] = job.gpus
                places.append(job.placement)
        by_type, by_node = self._cluster.free.with_places(places)
        nodes = self._cluster.nodes
        for (where, kind), wanted in sharing.items():
            if where not in crowded:
                continue
            kinds = [each for each in by_type if kind in (None, each) and crowded[where].may_use(each)]
            closed = [by_node[index] for index in crowded[where].barred if nodes[index].gpu_type in kinds]
            left = sum(by_type[each] for each in kinds) - sum(closed)
            if sum(wanted.values()) > left:
                parts = _parts(wanted, left)
                shares |= {job_id: RoomShare(gpus, kind) for job_id, gpus in parts.items()}
        return shares

    # Jobs without GPUs.

    def start_on_cpus(self, time_s: float) -> list[Transition]:
        """Start jobs that need no GPU wherever nodes have cores and memory left, first those that come first.

        They keep what they have until they end. Nodes without GPUs are taken first, then those with the
        fewest GPUs free, none of which a place of such jobs is out of service.
        """
        hidden, jobs, cluster, quarantine = self._admission.state, self._jobs, self._cluster, self._quarantine
        waiting = [
            job
            for job_id in hidden.on_cpus
            if not (job := jobs[job_id]).gpus
            and not (job_id in hidden.held or hidden.keeps_waiting(job_id))
            and quarantine.held_until_s(job_id) is None
        ]
        if not waiting:
            return []
        closed = {node_of(slot) for slot in quarantine.out_of_service if not is_of_gpu(slot)}
        open_nodes = [node for node in cluster.nodes if node.up and node.name not in closed]
        open_nodes.sort(key=lambda node: (node.made_gpus > 0, cluster.free.free_on(node.name), node.index))
        left, confined = self._left_by_others({}), cluster.confined
        places = CpuStarts(open_nodes, left, cluster.free, cluster.capacities, quarantine, confined=confined)
        starts = places.starts(waiting, self._could_start())
        done = [
            self._allocator.change(job, ((node.name, 1),), job.global_batch, time_s) for job, node in starts
        ]
        return [change for change in done if change is not None]

    def _could_start(self) -> Iterator[tuple[JobState, int]]:
        """Jobs with demands that wait though enough GPUs are free, and the fewest that they start on."""
        by_type, rigid = self._cluster.free.by_type, self._policy.traits.elasticity == "none"
        for job in self._admission.visible_jobs.values():
            if job.gpus or not job.takes_room or self._quarantine.held_until_s(job.id) is not None:
                continue
            least = job.requested if rigid else job.min_gpus
            if any(count >= least and job.may_use(kind) for kind, count in by_type.items()):
                yield job, least


def _parts(wanted: Mapping[JobState, int], room: int) -> dict[str, int]:
    """Max-min fair parts of what each wants; nothing for those whose minimum is more than is left."""
    left, limits = room, dict[JobState, tuple[int, int]]()
    for job in sorted(wanted, key=lambda job: not job.gpus):
        low = job.gpus if job.is_pinned and job.gpus else min(job.min_gpus, wanted[job])
        if low <= left:
            left -= low
            limits[job] = low, max(low, wanted[job])
    fair = equal_shares(room, list(limits.values()), [job.spec.gpus for job in limits])
    parts = dict(zip(limits, fair, strict=True))
    return {job.id: parts.get(job, 0) for job in wanted}


def frees_first(transition: Transition) -> int:
    """Sort key by which transitions that free GPUs come first."""
    return _FREES_FIRST.get(transition.step, 5)


def _sharing_last(targets: Mapping[str, Target]) -> Iterable[tuple[str, Target]]:
    if not [each for each in targets.values() if each.beside]:
        return targets.items()
    return sorted(targets.items(), key=lambda item: item[1].beside is not None)
