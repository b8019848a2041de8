"""A policy in use: active jobs, free GPUs, what changed; all callers decide through this code.

``schedule`` opens a session for one decision, ``run`` keeps one beside real processes, ``replay`` drives
one by simulated events. None of them asks which policy it holds.
"""

from __future__ import annotations

import copy
import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pliant.schemas.cluster import Cluster, Preemptible
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.forecast import Demand, WorkForecast
from pliant.tools.schedule.jobs import JobState, NodeGpus, Phase
from pliant.tools.schedule.policy import (
    Decision,
    Explanation,
    Policy,
    PolicyError,
    Reserved,
    Target,
    blame,
    blaming,
)
from pliant.tools.schedule.session.allocations import AllocationUpdate, Transition, in_net
from pliant.tools.schedule.session.assignment import (
    Demands,
    NoPlaceError,
    PlacementTakenError,
    assign,
    changes_gpus,
    differs,
    is_plain_start,
    is_plain_stop,
    may_get_fewer,
    start,
)
from pliant.tools.schedule.session.cluster_state import ClusterState, is_of_gpu, make
from pliant.tools.schedule.session.on_cpus import CpuStarts
from pliant.tools.schedule.session.quarantine import node_of
from pliant.tools.schedule.session.rules import RuleBook
from pliant.tools.schedule.snapshot import ENDS, Change, Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.job import Job
    from pliant.schemas.schedule import ForecastState, PolicyState, TeamStanding
    from pliant.tools.schedule.session.parts import TeamParts
    from pliant.tools.schedule.snapshot import Oracle


MOST_ROUNDS: Final = 10
"""What the policy of one team leaves is offered to others so often at one decision."""
_PAUSE_S: Final = 0.2
"""For each job, before a copy of a policy is asked what to do without some."""
_FREES_FIRST: Final = {"reject": 0, "preempt": 1, "shrink": 2, "rebatch": 3, "move": 4}


class Session(ClusterState):
    """The cluster and its jobs, and the policy that decides about them."""

    def __init__(
        self,
        policy: Policy,
        cluster: Cluster,
        throughput: Throughput,
        rng: np.random.Generator | None = None,
        *,
        seed: int = 0,
        oracle: Oracle | None = None,
        forecast: WorkForecast | None = None,
        demand: Demand = "stated",
        preemptible: Preemptible = "all",
        trace: Sequence[Job] = (),
    ) -> None:
        """:param demand: "predicted": policies see a prediction where jobs state no work.
        :param preemptible: "stated": what a job that cannot save holds, it keeps until it ends.
        :param trace: all jobs of a replay, for a policy that knows the future.
        """
        super().__init__(cluster, throughput)
        self.policy = policy
        # Changes before `changes`, in a resumed session; `carry` says which still count.
        self.past: Sequence[Change] = ()
        self.changes_seen = 0
        self.ask_again_s: float | None = None
        # Rounds before this time may be skipped while `changes` is empty.
        self.quiet_until_s = -math.inf
        self.oracle = oracle if policy.asks_oracle else None
        # Whether jobs leave GPUs that would slow them down.
        self._trims = policy.elasticity != "none" and self.oracle is None
        self.forecast = forecast or WorkForecast(seed=seed)
        self.demand = demand
        # Jobs of the trace that have not arrived.
        self._to_come = {job.id: job for job in trace if not job.on_cpus} if policy.knows_future else {}
        # Changes that `forecast` has learned from.
        self.foreseen_changes = 0
        self.seed = seed
        # The policy's only source of randomness.
        self.rng = lazy_rng(seed) if rng is None else rng
        # Jobs that keep their GPUs for a time although the last decision wanted them changed.
        self.kept_until_s: Mapping[str, float] = {}
        # What the last decision said of jobs that it admitted or rejected.
        self.admissions: Mapping[str, Mapping[str, Any]] = {}
        self._rules = RuleBook(policy, self.nodes, self.speeds)
        # The policies of the owners, where teams share the cluster; they are asked instead of `policy`.
        self._parts: TeamParts | None = None
        if self.usage is not None:
            from pliant.tools.schedule.session.parts import TeamParts

            self._parts = TeamParts(policy, self.usage, self.nodes, self.speeds, self.capacities)
        self._dwell = Dwell(cluster.min_run_seconds, cluster.cooldown_seconds, pins=preemptible == "stated")
        # Whether all jobs that share GPUs may do so under this policy.
        self._parted = policy.packs
        # Whether the last decision was carried out and `Decision.outlasts_ends`.
        self._outlasts_ends = False
        # Changes at which the policy was not asked, before `changes`.
        self._unseen: list[Change] = []
        # Jobs that wait although the policy gave them GPUs; its next snapshot says so.
        self._refused: list[Change] = []
        # Not before is a copy of the policy asked what to do without some jobs.
        self._without_at_s = -math.inf
        # Jobs that have given GPUs back to other teams in the present decision.
        self._cut: set[str] = set()

    def give_gpus_to_one_job(self) -> None:
        """No two jobs share GPUs any more; those that do are parted before the next decision."""
        self.speeds.share_nothing()
        self._parted = False

    def put_back(self, updates: Sequence[AllocationUpdate], time_s: float) -> None:
        """A decision could not be executed: jobs hold what they held; the policy sees which wait again."""
        self._outlasts_ends = False
        undone = self.adopt(updates, time_s)
        self._refused += [Change(self.now_s, "lost", found.job) for found in undone if not found.job.gpus]

    def snapshot(self, time_s: float) -> Snapshot:
        """What the policy would see now."""
        free = self.free
        return make(
            Snapshot,
            (
                time_s,
                self.nodes,
                self.in_play,
                self.speeds,
                tuple(self.changes),
                self.up_gpus,
                free.by_type,
                free,
                self.oracle,
                self.forecast,
                tuple(self._to_come.values()) if self._to_come else (),
            ),
        )

    def submit(self, job: Job, time_s: float) -> JobState:
        if self._to_come:
            self._to_come.pop(job.id, None)
        state = super().submit(job, time_s)
        state.is_pinned = self._dwell.pins and not job.can_save
        return state

    def update(self, job_id: str, time_s: float, spec: Job) -> None:
        super().update(job_id, time_s, spec)
        self.jobs[job_id].is_pinned = self._dwell.pins and not self.jobs[job_id].spec.can_save
        self._outlasts_ends = False

    def decide(self, time_s: float) -> list[Transition]:
        """Ask the policy, check its answer, place it. Transitions that free GPUs come first.

        Held jobs, and jobs that must leave a drained node, give up their GPUs before it is asked.

        :raises PolicyError: the answer breaks a rule, or the policy of another package raised an exception.
        """
        time_s = self._at(time_s)
        self.slowed.clear()
        done = self._decide_rounds(time_s)
        self.cores_change = False
        return done + self._start_on_cpus(time_s) if self.admission.on_cpus else done

    def _decide_rounds(self, time_s: float) -> list[Transition]:
        """Ask the policy, and again while what the policy of one team leaves is of use to others."""
        if self._parts is None:
            return self._decide_once(time_s)
        self._cut.clear()
        done = self._decide_once(time_s)
        for _ in range(MOST_ROUNDS):
            if not self._parts.leaves_room(self.in_play.values(), time_s, self._without_at_s):
                break
            again_s, admissions, kept = self.ask_again_s, self.admissions, self.kept_until_s
            done = in_net([*done, *self._decide_once(time_s)])
            self.ask_again_s = min((at for at in (again_s, self.ask_again_s) if at is not None), default=None)
            self.admissions = {**admissions, **self.admissions}
            self.kept_until_s = {**kept, **self.kept_until_s}
        return sorted(done, key=_frees_first)

    def leaves_unasked(self, time_s: float) -> bool:
        """Whether the policy need not be asked, for it would change nothing; it sees later what happened."""
        changes = self.changes
        if not self._outlasts_ends or not changes or changes[-1][1] not in ENDS:
            return False
        if self._some_must_leave or self._refused or self.cores_change or self.quarantine.next_s < math.inf:
            return False
        if len(changes) > 1 and any(change.kind not in ENDS for change in changes):
            return False
        self._at(time_s)
        self._unseen += changes
        changes.clear()
        return True

    def _decide_once(self, time_s: float) -> list[Transition]:
        freed, learns = self._make_leave(time_s) if self._some_must_leave else [], self.learns
        if learns:
            self._foresee(time_s)
        if self._unseen:
            self.changes[:0] = self._unseen
            self._unseen.clear()
        seen = self.snapshot(time_s)
        if self._refused:  # not of the log, so they do not count as changes that were seen
            seen = seen._replace(changes=(*self._refused, *seen.changes))
        decision = self._answer(self._asked, seen)
        self._refused, self.kept_until_s = [], {}
        self.changes_seen += len(self.changes)
        self.changes.clear()
        self.ask_again_s = decision.ask_again_s
        self.quiet_until_s = -math.inf if decision.quiet_until_s is None else decision.quiet_until_s
        self.admissions = decision.admissions
        self._outlasts_ends = decision.outlasts_ends and self.ask_again_s is None and not learns
        if not decision.targets and not decision.rejected:
            return freed
        self._rules.check(decision, seen.jobs, self.free.by_type, self.up_gpus)
        try:
            done = self._apply(decision, time_s)
        except NoPlaceError as error:
            done = self._decide_without(error, decision, time_s)
        if self._outlasts_ends:
            self._outlasts_ends = self.ask_again_s is None and self._is_as_decided(decision, len(done))
        if freed:
            done = in_net([*freed, *done])
        if self.changes and any(change.kind == "arrived" for change in self.changes):
            self.ask_again_s = math.nextafter(time_s, math.inf)  # their user's limit has room now
        return done

    def _answer(self, asked: Policy | TeamParts, seen: Snapshot) -> Decision:
        try:
            decision = asked.decide(seen, self.rng)
        except (Exception, SystemExit) as error:
            blame(type(self.policy), error)
            raise
        self._rules.check_form(decision)
        return decision

    def _decide_without(
        self, homeless: NoPlaceError | None, decision: Decision, time_s: float
    ) -> list[Transition]:
        """Ask what else to do where waiting jobs find no place on the only nodes that they may run on.

        Nothing stops for them, and GPUs that they cannot use are for others. A copy of the policy answers:
        the policy itself goes on to see these jobs, and knows the same after a restart.

        Among many jobs that takes long, so it is done ever so often, and in between jobs start beside those
        that run, as far as the decision allows.

        :param decision: of which only the rejections were carried out.
        """
        self._outlasts_ends, self.quiet_until_s = False, -math.inf
        if homeless is not None and time_s < self._without_at_s:
            return self._start_beside(homeless, decision, time_s)
        self._without_at_s = time_s + len(self.in_play) * _PAUSE_S
        asked, named = self._copy_of_asked(), dict.fromkeys(decision.targets)
        done, told, hidden = list[Transition](), 0, set[str]()
        while homeless is not None:
            done += homeless.rejected
            jobs, new = self.in_play, self._without_place(homeless.job_ids, decision)
            hidden.update(new)
            left = {job_id: job for job_id, job in jobs.items() if job_id not in hidden}
            changes = [*self.changes[told:], *(Change(time_s, "cancelled", jobs[job_id]) for job_id in new)]
            changes += [Change(time_s, "lost", left[job_id]) for job_id in decision.targets if job_id in left]
            told = len(self.changes)
            try:
                decision = self._answer(asked, self.snapshot(time_s)._replace(jobs=left, changes=changes))
                self._rules.check(decision, left, self.free.by_type, self.up_gpus)
                named.update(dict.fromkeys(decision.targets))
                done, homeless = [*done, *self._apply(decision, time_s)], None
            except NoPlaceError as error:
                homeless = error
            except PolicyError:
                self.turned_away.update({each.job.id: each.reason for each in done})
                raise
            self._ask_again_by(decision.ask_again_s)
            self.admissions = {**self.admissions, **decision.admissions}
        self._refused += [
            Change(time_s, "lost", self.jobs[job_id]) for job_id in named if job_id in self.jobs
        ]
        return done

    def _start_beside(
        self, homeless: NoPlaceError | None, decision: Decision, time_s: float
    ) -> list[Transition]:
        """Carry out what a decision says of waiting jobs that have a place while nothing stops."""
        plain = {
            job_id: target
            for job_id, target in decision.targets.items()
            if not self.jobs[job_id].gpus and target.placement is None and target.beside is None
        }
        done = list[Transition]()
        while homeless is not None:
            done += homeless.rejected
            for job_id in homeless.job_ids:
                plain.pop(job_id, None)
            left, targets = sum(self.free.by_type.values()), {}
            for job_id, target in plain.items():
                if target.gpus <= left:
                    targets[job_id], left = target, left - target.gpus
            try:
                done, homeless = [*done, *self._apply(Decision(targets), time_s)], None
            except NoPlaceError as error:
                homeless = error
        self._ask_again_by(self._without_at_s)
        self._refused += [Change(time_s, "lost", self.jobs[job_id]) for job_id in decision.targets]
        return done

    def _ask_again_by(self, at_s: float | None) -> None:
        self.ask_again_s = min((each for each in (at_s, self.ask_again_s) if each is not None), default=None)

    def _copy_of_asked(self) -> Policy | TeamParts:
        """The policy as it is now; it shares what belongs to the session."""
        parts = (
            self.cluster,
            self.speeds,
            self.capacities,
            self.free,
            self.forecast,
            self.oracle,
            self.usage,
        )
        shared = (*parts, self.nodes, *self.nodes, *self.jobs.values(), *self._to_come.values())
        return copy.deepcopy(self._asked, {id(thing): thing for thing in shared})

    def _without_place(self, homeless: Sequence[str], decision: Decision) -> dict[str, None]:
        """These jobs, and others that wait and for which the nodes that they may run on have too few left."""
        total, rigid = sum(self.free.by_type.values()), self.policy.elasticity == "none"
        left: dict[int, int] = {}
        found = dict.fromkeys(homeless)
        for job_id, job in self.in_play.items():
            if not job.barred or job.gpus or job_id in decision.targets:
                continue
            where = id(job.barred)  # the same for all jobs that may run on the same nodes
            if where not in left:
                left[where] = total - sum(self.free.free_on(self.nodes[index].name) for index in job.barred)
            if left[where] < (job.requested if rigid else job.min_gpus):
                found[job_id] = None
        return found

    def _start_on_cpus(self, time_s: float) -> list[Transition]:
        """Start jobs that need no GPU wherever nodes have cores and memory left, first those that come first.

        They keep what they have until they end. Nodes without GPUs are taken first, then those with the
        fewest GPUs free, none of which a place of such jobs is out of service.
        """
        admission, jobs = self.admission, self.jobs
        waiting = [
            job
            for job_id in admission.on_cpus
            if not (job := jobs[job_id]).gpus
            and not (job_id in admission.held or admission.keeps_waiting(job_id))
            and self.quarantine.held_until_s(job_id) is None
        ]
        if not waiting:
            return []
        closed = {node_of(slot) for slot in self.quarantine.out_of_service if not is_of_gpu(slot)}
        open_nodes = [node for node in self.nodes if node.up and node.name not in closed]
        open_nodes.sort(key=lambda node: (node.made_gpus > 0, self.free.free_on(node.name), node.index))
        places = CpuStarts(open_nodes, self._left_by_others({}), self.free, self.capacities, self.quarantine)
        starts = places.starts(waiting, self._could_start())
        found = [self._change(job, ((node.name, 1),), job.global_batch, time_s) for job, node in starts]
        return [change for change in found if change is not None]

    def _could_start(self) -> Iterator[tuple[JobState, int]]:
        """Jobs with demands that wait though enough GPUs are free, and the fewest that they start on."""
        by_type, rigid = self.free.by_type, self.policy.elasticity == "none"
        for job in self.in_play.values():
            if job.gpus or not job.takes_room or self.quarantine.held_until_s(job.id) is not None:
                continue
            least = job.requested if rigid else job.min_gpus
            if any(count >= least and job.may_use(kind) for kind, count in by_type.items()):
                yield job, least

    def _is_as_decided(self, decision: Decision, changes: int) -> bool:
        """Whether a decision was carried out whole."""
        targets, jobs = decision.targets, self.jobs
        if changes != len(targets) + len(decision.rejected) or self._refused:
            return False
        return not [job_id for job_id, target in targets.items() if jobs[job_id].gpus != target.gpus]

    @property
    def _asked(self) -> Policy | TeamParts:
        return self.policy if self._parts is None else self._parts

    def look_ahead(self) -> None:
        """The policy of this copy may decide with less effort."""
        self._asked.look_ahead()

    def standings(self, time_s: float) -> tuple[TeamStanding, ...]:
        """How teams stand after a decision; none where the cluster is one pool."""
        if self._parts is None:
            return ()
        return self._parts.standings(self.in_play.values(), time_s)

    @property
    def learns(self) -> bool:
        """Whether the forecast is used, and so learns from jobs that finish."""
        return self.demand == "predicted" or self.policy.asks_forecast

    def _foresee(self, time_s: float) -> None:
        self._learn_from(self.changes, self.changes_seen)
        if self.demand == "predicted" and not self.policy.asks_forecast:
            self.forecast.foresee(self.in_play.values(), time_s)

    def explain(self, time_s: float) -> Mapping[str, Explanation]:
        """Why each active job holds what it holds; ask after ``decide``.

        :raises PolicyError: the policy of another package raised an exception, or returned something else.
        """
        seen = self.snapshot(self._at(time_s))
        with blaming(type(self.policy)):
            found = self._asked.explain(seen)
        self._rules.check_explained(found)
        return found

    def reserved(self, time_s: float) -> Mapping[str, Sequence[Reserved]]:
        """What jobs are to hold later, as the policy has planned it; ask after ``decide``."""
        seen = self.snapshot(self._at(time_s))
        with blaming(type(self.policy)):
            return self._asked.reserved(seen)

    def _learn_from(self, changes: Sequence[Change], first: int) -> None:
        """Learn from jobs that finished; ``first`` is the number of changes before these."""
        new = changes[max(0, self.foreseen_changes - first) :]
        finished = [change.job for change in new if change.kind == "finished" and change.job is not None]
        self.foreseen_changes = max(self.foreseen_changes, first + len(changes))
        self.forecast.learn(finished)

    def forecast_state(self) -> ForecastState | None:
        """The predictor for the next call in another process; None if none is used."""
        if not self.learns:
            return None
        from pliant.schemas.schedule import ForecastState

        return ForecastState(changes_seen=self.foreseen_changes, predictor=self.forecast.document())

    def predict(self, demand: Demand, state: ForecastState | None) -> None:
        """Set how the work of jobs is predicted; call it before :meth:`carry`."""
        self.demand = demand
        if state is not None:
            self.forecast, self.foreseen_changes = WorkForecast(state.predictor), state.changes_seen

    def policy_state(self) -> PolicyState:
        """What the policy carries to its next call in another process."""
        from pliant.schemas.schedule import PolicyState

        with blaming(type(self.policy)):
            state = self._asked.dump_state()
        return PolicyState(
            policy=self.policy.name,
            version=self._state_version,
            changes_seen=self.changes_seen,
            state=state,
        )

    @property
    def _state_version(self) -> int:
        """Parts keep their states in another form."""
        return self.policy.state_version + (0 if self._parts is None else self._parts.state_version)

    def carry(self, carried: PolicyState | None) -> bool:
        """Let a fresh policy resume from carried state: it then sees only later changes.

        Returns False, and shows the policy all of the history, if the state is empty, another policy's,
        of another version, or newer than this session.
        """
        known = (self.policy.name, self._state_version)
        fits = (
            carried is not None
            and carried.state is not None
            and (carried.policy, carried.version) == known
            and carried.changes_seen <= len(self.past) + len(self.changes)
        )
        if self.learns:
            self._learn_from([*self.past, *self.changes], 0)
        seen, parts = carried.changes_seen if fits and carried is not None else 0, self._parts
        if parts is not None and fits and carried is not None and not parts.has_states(carried.state):
            seen = 0  # its policies rebuild what they need from the whole history
        self.changes = [*self.past[seen:], *self.changes[max(0, seen - len(self.past)) :]]
        self.past = ()
        if fits and carried is not None:
            with blaming(type(self.policy)):
                self._asked.load_state(carried.state, ChainMap(self.jobs, self.ended))
            self.changes_seen = seen
        return fits

    @property
    def _some_must_leave(self) -> bool:
        """Whether jobs may have to give up GPUs before the policy is asked."""
        admission = self.admission
        return self._parts is not None or not self._parted or bool(admission.drained) or admission.hide_jobs

    def _make_leave(self, time_s: float) -> list[Transition]:
        """Take the GPUs that jobs have to leave, and those that come back to their team; the policy sees them
        as lost.
        """
        leavers = self.leavers(elastic=self.policy.elasticity != "none")
        left = self.adopt(leavers, time_s) if leavers else []
        if not self._parted:
            left += self.adopt(self._guests(), time_s)
            self._parted = True
        if self._parts is not None:
            bound = [job for job_id in self.admission.bound if (job := self.jobs[job_id]).requested]
            lent = self._parts.reclaim_bound(bound, self.in_play.values(), self.admission.drained, time_s)
            left += self.adopt(lent, time_s) if lent else []
            hidden = [job for job_id, job in self.jobs.items() if job.gpus and self.admission.hides(job_id)]
            lent = self._parts.reclaim(self.in_play.values(), time_s, hidden)
            left += self.adopt(lent, time_s) if lent else []
            self._cut |= {each.job_id for each in lent if each.placement}
        if not left:
            return left
        seen = self.in_play
        lost = (Change(time_s, "lost", each.job) for each in left if each.job.id in seen)
        self._refused = [*self._refused, *lost]
        return left

    def _guests(self) -> list[AllocationUpdate]:
        """Of each pair that shares GPUs, the later job is to hold nothing."""
        pairs = ((job, self.jobs[job.beside]) for job in self.jobs.values() if job.beside is not None)
        late = (job for job, other in pairs if (job.granted_s, job.id) > (other.granted_s, other.id))
        return [AllocationUpdate(job.id) for job in late]

    def _apply(self, decision: Decision, time_s: float) -> list[Transition]:
        if (changed := self._change_plainly(decision, time_s)) is not None:
            return changed
        transitions = []
        for job_id, reason in decision.rejected.items():
            before = self.jobs[job_id].placement
            transitions.append(Transition(self.end(job_id, time_s, "rejected"), "reject", before, reason))
        targets = self._to_change(decision, time_s)
        try:
            places = self._assign(targets)
        except NoPlaceError as error:
            error.rejected = transitions
            raise
        except PolicyError:  # the rejected jobs have left
            self.turned_away.update(decision.rejected)
            raise
        jobs = self.jobs
        for job_id in places:
            if jobs[job_id].beside is not None:
                self._part(jobs[job_id], time_s)
        for job_id, target in _sharing_last(targets):
            job, place = jobs[job_id], places.get(job_id)
            if place is None and changes_gpus(job, target):
                scarce = self.quarantine.next_s < math.inf or self.kept_until_s or job.room is not None
                if not job.gpus and scarce:
                    self._refused.append(Change(time_s, "lost", job))
                continue  # no GPU type has enough GPUs for it: it keeps what it has
            batch = target.global_batch or job.global_batch
            after = AllocationUpdate.of(job) if place is None else place
            other = None if place is None or target.beside is None else self.jobs[target.beside]
            transition = self._change(job, after.placement, batch, time_s, after.servers, beside=other)
            if transition is not None:
                transitions.append(transition)
        return sorted(transitions, key=_frees_first) if len(transitions) > 1 else transitions

    def _change_plainly(self, decision: Decision, time_s: float) -> list[Transition] | None:
        """What most decisions come to: jobs stop, and others start. Returns None if anything else changes."""
        targets, jobs = decision.targets, self.jobs
        if decision.rejected or self.quarantine.next_s < math.inf:
            return None
        if len(targets) == 1:  # one job starts, as most often
            ((job_id, target),) = targets.items()
            if is_plain_start(job := jobs[job_id], target):
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
            self.free.give(placement)
        return self._start_and_stop(targets, time_s, freed)

    def _start_and_stop(
        self, targets: Mapping[str, Target], time_s: float, freed: Sequence[NodeGpus] = ()
    ) -> list[Transition]:
        """:param freed: what the jobs that stop have given back already."""
        jobs = self.jobs
        places = {job_id: self._place_of(jobs[job_id], target) for job_id, target in targets.items()}
        homeless = [job_id for job_id, place in places.items() if place is None and jobs[job_id].barred]
        if homeless and time_s < self._without_at_s and not freed:
            self._refused += [Change(time_s, "lost", jobs[job_id]) for job_id in homeless]
            self._ask_again_by(self._without_at_s)
        elif homeless:
            for taken in filter(None, places.values()):
                self.free.give(taken)
            for placement in freed:
                self.free.take(placement)
            raise NoPlaceError(homeless)
        done = []
        for job_id, place in places.items():
            job = jobs[job_id]
            if place:
                batch = targets[job_id].global_batch or job.global_batch
                done.append(self._begin(job, place, batch, time_s))
            elif place is not None:
                done.append(self._stop(job, time_s))
        return sorted(done, key=_frees_first) if len(done) > 1 else done

    def _place_of(self, job: JobState, target: Target) -> NodeGpus | None:
        """Taken from the free GPUs; empty if it stops. Returns None if there is no place for it."""
        if not target.gpus:
            return ()
        if (trims := self._trims) or not job.any_number:
            target = self._useful(job, target)
            if not target.gpus:
                return None
        accumulates = self.policy.accumulates
        return start(job, target, self.free, self.speeds, sizes_jobs=trims, accumulates=accumulates)

    def _to_change(self, decision: Decision, time_s: float) -> dict[str, Target]:
        """The targets that differ from what jobs have and that the dwell rule allows now.

        The policy is asked again once the first of the others is allowed.
        """
        targets, jobs = {}, self.jobs
        trims = self._trims
        for job_id, target in decision.targets.items():
            job = jobs[job_id]
            useful = self._useful(job, target) if trims or not job.any_number else target
            if differs(job, useful):
                targets[job_id] = useful
        self.kept_until_s = self._dwell.kept_until_s(targets, jobs, time_s)
        if self.kept_until_s:
            for job_id in self.kept_until_s:
                del targets[job_id]
            again_s = min(self.kept_until_s.values())
            if again_s == math.inf:
                self.quiet_until_s = -math.inf  # it is not as the policy decided
                return targets
            self._ask_again_by(again_s)
            self.quiet_until_s = min(again_s, self.quiet_until_s)
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
        useful = self.speeds.useful(
            job,
            gpus,
            gpu_type,
            global_batch=batch or job.global_batch,
            accumulates=self.policy.accumulates,
        )
        return target._replace(gpus=useful, servers=None) if 0 < useful < gpus else target

    def _assign(self, targets: Mapping[str, Target]) -> dict[str, AllocationUpdate]:
        jobs = self.jobs
        moving = {job_id: each for job_id, each in targets.items() if changes_gpus(jobs[job_id], each)}
        if not moving:
            return {}
        demanding = bool([job_id for job_id in moving if jobs[job_id].takes_room])
        try:
            return assign(
                moving,
                self.jobs,
                self.free,
                self.speeds,
                self.quarantine,
                in_part=bool(self.kept_until_s),
                demands=self._left_by_others if demanding else None,
                sizes_jobs=self._trims,
                accumulates=self.policy.accumulates,
                cut=self._cut,
                in_teams=self._parts is not None,
            )
        except PlacementTakenError as taken:
            what = f'places "{taken.job_id}" on {taken.placement}, where not all of these GPUs are free'
            raise PolicyError.broke_rule(self.policy.name, what) from None

    def _left_by_others(self, moving: Mapping[str, Target]) -> Demands:
        staying = (job for job in self.jobs.values() if job.gpus and (job.takes_room or not job.requested))
        return Demands(self.capacities, self._index, (job for job in staying if job.id not in moving))


def _frees_first(transition: Transition) -> int:
    return _FREES_FIRST.get(transition.step, 5)


def _sharing_last(targets: Mapping[str, Target]) -> Iterable[tuple[str, Target]]:
    if not [each for each in targets.values() if each.beside]:
        return targets.items()
    return sorted(targets.items(), key=lambda item: item[1].beside is not None)


def lazy_rng(seed: int) -> np.random.Generator:
    """``np.random.default_rng(seed)``, made when the first number is drawn.

    Most policies draw none, and importing NumPy takes longer than their decisions.
    """
    return cast("np.random.Generator", _LazyRng(seed))


class _LazyRng:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: np.random.Generator | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling ask for such
            raise AttributeError(name)
        if self._made is None:
            import numpy as np

            self._made = np.random.default_rng(self._seed)
        return getattr(self._made, name)


@dataclass(frozen=True, slots=True)
class Dwell:
    """The cluster's rule on how long a job keeps its GPUs before a policy may change them.

    A job that ends, is cancelled or loses its node leaves at any time.
    """

    min_run_s: float = 0.0
    """A job that got GPUs is not preempted earlier."""
    cooldown_s: float = 0.0
    """A job whose GPUs or batch changed keeps them for this time."""
    pins: bool = False
    """A job that cannot save keeps its GPUs until it ends."""

    @property
    def holds(self) -> bool:
        """Whether it keeps anything."""
        return bool(self.min_run_s or self.cooldown_s or self.pins)

    def kept_until_s(
        self, targets: Mapping[str, Target], jobs: Mapping[str, JobState], time_s: float
    ) -> dict[str, float]:
        """Jobs that keep their GPUs although a policy wants a change, and until when."""
        if not self.holds:
            return {}
        found = {}
        for job_id, target in targets.items():
            job = jobs[job_id]
            until_s = job.changed_s + self.cooldown_s if target.gpus else job.granted_s + self.min_run_s
            if job.is_pinned:
                until_s = math.inf
            if job.gpus and until_s > time_s:
                found[job_id] = until_s
        return found


IDLE_ROUNDS: Final = 1000
"""While nothing runs or can arrive, a policy with rounds is asked this many times more."""


class IdleLimit:
    """Counts the decisions in a row that left nothing running and nothing to come."""

    def __init__(self) -> None:
        self._idle = 0

    def count(self, *, idle: bool) -> None:
        self._idle = self._idle + 1 if idle else 0

    @property
    def is_reached(self) -> bool:
        """Whether the first such decision had :data:`IDLE_ROUNDS` more after it."""
        return self._idle > IDLE_ROUNDS


def why_left(policy: str, job: JobState) -> str:
    """The reason given for a job that a policy never starts."""
    never = "never starts it" if job.phase is Phase.WAITING else "does not start it again"
    return f'policy "{policy}" {never}'


BAND: Final = 0.9
"""The probability that a job's progress lies in the recorded range."""
_DIGITS: Final = 6
_DENSE: Final = 32
"""The first predictions of a job are kept at every epoch, later ones ever more rarely."""


class ForecastLog:
    """Says when to record a job's predicted progress: once an epoch at most."""

    def __init__(self) -> None:
        # By job: the epoch at which it is due, and how often it was.
        self._next: dict[str, tuple[float, int]] = {}

    def due(self, session: Session, time_s: float) -> list[tuple[JobState, dict[str, Any]]]:
        """Running jobs that are due, with the detail of their events."""
        if not session.learns:
            return []
        for job_id in [job_id for job_id in self._next if job_id not in session.jobs]:
            del self._next[job_id]
        jobs = [job for job in session.jobs.values() if job.gpus and self._is_due(job, time_s)]
        if not jobs:
            return []
        alpha, beta = session.forecast.beta(jobs, time_s)
        low, high = session.forecast.band(jobs, time_s, BAND)
        values = zip((alpha / (alpha + beta)).tolist(), low.tolist(), high.tolist(), strict=True)
        return [
            (job, {"progress": {"samples_done": job.samples_done(time_s), **_named(three)}})
            for job, three in zip(jobs, values, strict=True)
        ]

    def _is_due(self, job: JobState, time_s: float) -> bool:
        size = job.epoch_samples
        if not size or not (job.predicted or job.total_samples is None):
            return False
        epochs = job.samples_done(time_s) / size
        next_epochs, times = self._next.get(job.id, (1.0, 0))
        if epochs < next_epochs:
            return False
        self._next[job.id] = (math.floor(epochs) + 1 + times // _DENSE, times + 1)
        return True


def _named(values: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), (round(value, _DIGITS) for value in values), strict=True))
