"""A policy in use: active jobs, free GPUs, what changed; all callers decide through this code.

``schedule`` opens a session for one decision, ``run`` keeps one beside real processes, ``replay`` drives
one by simulated events. None of them asks which policy it holds.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pliant.schemas.cluster import Cluster, Preemptible
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import End
from pliant.schemas.job import GpuTimeWork
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.forecast import Demand, WorkForecast
from pliant.tools.schedule.jobs import JobState, Observation
from pliant.tools.schedule.learned_speeds import LearnedSpeeds
from pliant.tools.schedule.policy import Decision, Explanation, Policy, PolicyError
from pliant.tools.schedule.session.admission import Admission, first_holder
from pliant.tools.schedule.session.allocations import AllocationEvent, Transition, in_net
from pliant.tools.schedule.session.allocator import Allocator
from pliant.tools.schedule.session.assigner import Assigner, frees_first
from pliant.tools.schedule.session.assignment import NoPlaceError, RoomShare
from pliant.tools.schedule.session.book import JobBook
from pliant.tools.schedule.session.changes import SessionChanges
from pliant.tools.schedule.session.cluster import ClusterNodes
from pliant.tools.schedule.session.decided import Dwell, LastDecision
from pliant.tools.schedule.session.evictions import Evictions
from pliant.tools.schedule.session.hidden import HiddenJobs
from pliant.tools.schedule.session.maintenance import Maintenance
from pliant.tools.schedule.session.part import SessionPart
from pliant.tools.schedule.session.policy_host import PolicyHost, lazy_rng
from pliant.tools.schedule.session.quarantine import Quarantine
from pliant.tools.schedule.session.windows import Windows
from pliant.tools.schedule.snapshot import ENDS, Change, Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.job import Job
    from pliant.schemas.schedule import PolicyState
    from pliant.tools.schedule.entitlements import TeamUsage
    from pliant.tools.schedule.session.team_quota import TeamQuota
    from pliant.tools.schedule.snapshot import Oracle


MOST_ROUNDS: Final = 10
"""Maximum rounds per decision in which GPUs that one team's policy leaves free are offered to others."""
_PAUSE_S: Final = 0.2
"""Seconds for each job until a copy of a policy is asked again what to do without some jobs."""


class Session:
    """The cluster and its jobs, and the policy that decides about them.

    Times are seconds on the caller's clock, which never steps back here. Progress follows
    ``JobState.samples_per_second``; the caller corrects it by measurements or adds rescale cost.

    Callers use its parts directly: ``cluster`` and ``maintenance`` for nodes and slots, ``admission`` for
    holds and priorities, ``policy_host`` for predictions and explanations.
    """

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
        physics: Throughput | None = None,
    ) -> None:
        """:param throughput: what is known of speeds; :class:`LearnedSpeeds` learns what jobs measure.
        :param demand: "predicted": policies see a prediction where jobs state no work.
        :param preemptible: "stated": what a job that cannot save holds, it keeps until it ends.
        :param trace: all jobs of a replay, for a policy that knows the future.
        :param physics: how fast jobs train where that is simulated and more than is known.
        """
        self.policy = policy
        self.seed = seed
        self.hidden = HiddenJobs()
        self.changes = SessionChanges(self.hidden)
        self.quarantine = Quarantine()
        # What jobs measure, where that is kept.
        self.learned = throughput.fresh() if isinstance(throughput, LearnedSpeeds) else None
        self.cluster = ClusterNodes(
            cluster, self.learned or throughput, self.changes, self.quarantine, physics=physics
        )
        self.book = JobBook(self.cluster)
        # Active jobs, in order of submission.
        self.jobs = self.book.active
        self.admission = Admission(self.cluster, self.book, self.changes, self.hidden)
        # What teams have used, where teams share the cluster.
        self.usage: TeamUsage | None = None
        # The policies of the owners, where teams share the cluster; they are asked instead of `policy`.
        self.quota: TeamQuota | None = None
        if cluster.shares is not None:
            from pliant.tools.schedule.entitlements import TeamUsage
            from pliant.tools.schedule.session.team_quota import TeamQuota

            self.usage = TeamUsage.under(cluster.shares)
            nodes = self.cluster
            self.quota = TeamQuota(policy, self.usage, nodes.nodes, nodes.speeds, nodes.capacities)
        self.allocator = Allocator(self.cluster, self.jobs, self.usage)
        self.maintenance = Maintenance(self.cluster, self.jobs, self.allocator, self.changes, self.hidden)
        rigid = policy.traits.elasticity == "none"
        self.windows = Windows(self.cluster, self.book, self.maintenance, self.hidden, rigid=rigid)
        if self.windows.any:  # else the two would form a cycle for nothing
            self.cluster.windows = self.windows
        self.policy_host = PolicyHost(
            policy,
            self.cluster,
            self.admission,
            self.changes,
            quota=self.quota,
            rng=lazy_rng(seed) if rng is None else rng,
            oracle=oracle,
            forecast=forecast or WorkForecast(seed=seed),
            demand=demand,
            trace=trace,
        )
        self._dwell = Dwell(cluster.min_run_seconds, cluster.cooldown_seconds, pins=preemptible == "stated")
        self.assigner = Assigner(
            policy,
            self.cluster,
            self.jobs,
            admission=self.admission,
            allocator=self.allocator,
            quarantine=self.quarantine,
            dwell=self._dwell,
            in_teams=self.quota is not None,
            trims=policy.traits.elasticity != "none" and self.policy_host.oracle is None,
        )
        self.evictions = Evictions(
            policy,
            self.cluster,
            self.jobs,
            admission=self.admission,
            maintenance=self.maintenance,
            assigner=self.assigner,
            quota=self.quota,
        )
        # Changes at which the policy was not asked, before `changes`.
        self._unseen: list[Change] = []

    @property
    def parts(self) -> dict[str, SessionPart[Any]]:
        """The parts with a state that a restart must keep."""
        parts: dict[str, SessionPart[Any]] = {
            "changes": self.changes,
            "cluster": self.cluster,
            "quarantine": self.quarantine,
            "book": self.book,
            "admission": self.admission,
        }
        return parts if self.learned is None else parts | {"speeds": self.learned}

    @property
    def decided(self) -> LastDecision:
        """What the last decision says of the time after it."""
        return self.assigner.decided

    @property
    def in_play(self) -> Mapping[str, JobState]:
        """Active jobs that the policy sees, in order of submission."""
        return self.admission.visible_jobs

    def snapshot(self, time_s: float) -> Snapshot:
        """What the policy would see now."""
        return self.policy_host.snapshot(time_s)

    def explain(self, time_s: float) -> Mapping[str, Explanation]:
        """Why each active job holds what it holds; ask after ``decide``."""
        return self.policy_host.explain(time_s)

    # Jobs arrive and end.

    def pins(self, job: Job) -> bool:
        """Whether a job keeps GPUs until it ends: it cannot save, and such jobs are not preempted here."""
        return self._dwell.pins and not job.can_save

    def submit(self, job: Job, time_s: float) -> JobState:
        """A job arrives. It counts as arrived at its submit_time, or now if that lies ahead.

        Late arrivals count no earlier than the last change, so submit a batch in order of (submit_time, id).

        :raises ValueError: the id was submitted before.
        :raises BadInputError: the model is not profiled and its work cannot be known without.
        """
        job_id, book = job.id, self.book
        if self.policy_host.future:
            self.policy_host.future.pop(job_id, None)
        if job_id in self.jobs or job_id in book.ended:
            raise ValueError(f'job "{job_id}" was submitted before')
        if self.learned is not None:
            self._renew(self.learned.request(job.model, job.gpus.requested), time_s)
        alike = book.alike(job)
        state = book.state_of(job, alike)
        state.is_pinned = self.pins(job)
        if not state.requested:
            self.hidden.on_cpus[job_id] = True
        self.jobs[job_id] = state
        now_s, arrived_s = self.cluster.at(time_s), state.arrival[0]
        arrived_s = now_s if now_s < arrived_s else arrived_s
        if alike is not None:
            self.changes.show("arrived", arrived_s, state)
        elif job.hold:
            self.hidden.held[job_id] = first_holder(job)
        elif job.after or job.array is not None or self.cluster.spec.user_limits:
            self.admission.arrive(state, arrived_s)
        else:
            self.changes.note("arrived", arrived_s, state)
            book.remember(state)
        return state

    def submit_accepted(self, job: Job, time_s: float) -> JobState | None:
        """As :meth:`submit`, for a job that was already accepted; None if its work cannot be computed.

        Demands that no node can meet are dropped, since acceptance does not check them.

        :raises ValueError: the id was submitted before.
        """
        try:
            return self.submit(self.cluster.capacities.without_what_never_fits(job), time_s)
        except (BadInputError, ArithmeticError) as error:
            self.book.ended[job.id] = JobState(job, 1, None)
            self.book.outcomes[job.id] = "rejected"
            self.book.rejections[job.id] = str(error)
            self.admission.admit_after(job, self.cluster.at(time_s))
            return None

    def reject(self, job_id: str, time_s: float, reason: str) -> None:
        """Reject an active job that this cluster or this policy cannot serve."""
        self.end(job_id, time_s, "rejected")
        self.book.rejections[job_id] = reason

    def end(self, job_id: str, time_s: float, outcome: End = "finished") -> JobState:
        """A job leaves for good; its GPUs are free."""
        state, time_s, some_hidden = self.jobs[job_id], self.cluster.at(time_s), self.hidden.any
        partner = self.maintenance.give_back(job_id, time_s) if some_hidden else None
        del self.jobs[job_id]
        if self.quarantine.next_s < math.inf:
            self.quarantine.release(job_id)
        self.allocator.leave(state, time_s)
        self.allocator.set(state, time_s, ())
        ended = self.book.ended
        ended[job_id] = state
        if outcome != "finished" and job_id in ended:  # which may forget it
            self.book.outcomes[job_id] = outcome
        if self.windows.any:
            self.windows.release(state)
        if not some_hidden:
            self.changes.show(outcome, time_s, state)
            return state
        self.changes.note(outcome, time_s, state)
        self.maintenance.keep_others_from(partner, time_s)
        self.hidden.forget(job_id)
        self.admission.admit_after(state.spec, time_s)
        return state

    def end_unsatisfiable(self, time_s: float, outcome: End = "cancelled") -> dict[str, str]:
        """End the jobs that wait for jobs which ended otherwise than they had to; returns them, and why."""
        ended: dict[str, str] = {}
        while unsatisfiable := dict(self.hidden.unsatisfiable):
            for job_id in unsatisfiable:
                self.end(job_id, time_s, outcome)
            ended |= unsatisfiable
        return ended

    def revive(self, job_id: str, time_s: float) -> None:
        """A job that has ended waits again. One that was rejected is left as it is.

        :raises KeyError: no such job has ended.
        """
        outcomes = self.book.outcomes
        if outcomes.get(job_id) == "rejected":
            return
        state, time_s = self.book.ended.pop(job_id), self.cluster.at(time_s)
        outcomes.pop(job_id, None)
        if not state.requested:
            self.hidden.on_cpus[job_id] = True
        self.jobs[job_id] = state
        self.cluster.update_room([state])
        self.admission.arrive(state, time_s)

    def take_batch(self, job_id: str, batch: int, samples_done: float, time_s: float) -> None:
        """A job has changed its batch by itself, at this progress; its speed changes with it.

        :raises KeyError: the job is not active.
        """
        job, time_s = self.jobs[job_id], self.cluster.at(time_s)
        if batch != job.reference_batch:
            self.allocator.take_batch(job, batch, samples_done, time_s)
            self.changes.note("batch", time_s, job)

    def observe(self, job: JobState, observation: Observation, time_s: float) -> None:
        """A job has measured its speed. Jobs of its model count on it, where speeds are learned.

        Beside another job it says nothing of others; nor does work in GPU-seconds, if a guess says what these
        are in samples.
        """
        job.observe(observation)
        learned = self.learned
        if learned is None or job.beside is not None:
            return
        if not (learned.guesses and isinstance(job.spec.work, GpuTimeWork)):
            self._renew(learned.observe(job.spec.model, observation), time_s)

    def _renew(self, models: Collection[str], time_s: float) -> None:
        """The speeds of these models have changed; to the policy their jobs have changed."""
        if not models:
            return
        self.cluster.speeds.forget(models)
        self.cluster.training_speeds.forget(models)
        self.book.renew_kinds(models)
        for job in self.jobs.values():
            if job.spec.model in models:
                job.is_speed_guessed = job.is_speed_guessed and self.cluster.speeds.is_guess(job.spec.model)
                self.changes.note("batch", self.cluster.at(time_s), job)

    def update(self, job_id: str, time_s: float, spec: Job) -> None:
        """A job asks for something else from now on; the policy sees it cancelled, and arrive again.

        :param spec: of the same work; what it holds stays. One that makes no sense here changes nothing.
        :raises KeyError: the job is not active.
        """
        job, time_s, new = self.jobs[job_id], self.cluster.at(time_s), self.book.state_as(spec)
        self.decided.outlasts_ends = False
        if new is None:
            return
        self.changes.note("cancelled", time_s, job)
        before = job.requested
        job.take_spec(new)
        if job_id not in self.hidden.held and job_id not in self.hidden.bound:
            self.admission.readmit(job, time_s, more=job.requested > before)
        job.is_pinned = self.pins(job.spec)
        self.windows.release(job)

    # What they hold.

    def set_allocations(self, events: Sequence[AllocationEvent], time_s: float) -> list[Transition]:
        """Apply what jobs hold from ``time_s`` on, as a log or a schedule says; no policy is asked.

        All change at once, so jobs may take over each other's GPUs; on an error, nothing changes.

        :raises KeyError: a job is not active.
        :raises ValueError: a node is unknown, down or has too few free GPUs.
        """
        return self.maintenance.set_allocations(events, time_s)

    def rollback(self, events: Sequence[AllocationEvent], time_s: float) -> None:
        """A decision could not be executed: jobs hold what they held; the policy sees which wait again."""
        self.decided.outlasts_ends = False
        for undone in self.set_allocations(events, time_s):
            if not undone.job.gpus:
                self.decided.refuse(undone.job, self.changes.now_s)

    # The policy decides.

    def decide(self, time_s: float) -> list[Transition]:
        """Ask the policy, check its answer, place it. Transitions that free GPUs come first.

        Held jobs, and jobs that must leave a drained node, give up their GPUs before it is asked.

        :raises PolicyError: the answer breaks a rule, or the policy of another package raised an exception.
        """
        time_s = self.cluster.at(time_s)
        self.allocator.slowed.clear()
        done = self._decide_once(time_s) if self.quota is None else self._decide_rounds(self.quota, time_s)
        self.changes.state.concern_cpus = False
        return done + self.assigner.start_on_cpus(time_s) if self.hidden.on_cpus else done

    def _decide_rounds(self, quota: TeamQuota, time_s: float) -> list[Transition]:
        """Ask the policies, and again while what the policy of one team leaves is of use to others."""
        self.assigner.cut.clear()
        done, decided = self._decide_once(time_s), self.decided
        for _ in range(MOST_ROUNDS):
            if not quota.leaves_room(self.in_play.values(), time_s, decided.retry_s):
                break
            again_s, admissions, kept = decided.due_s, decided.admissions, decided.kept_until_s
            done = in_net([*done, *self._decide_once(time_s)])
            decided.decide_by(again_s)
            decided.admissions = {**admissions, **decided.admissions}
            decided.kept_until_s = {**kept, **decided.kept_until_s}
        return sorted(done, key=frees_first)

    def leaves_unasked(self, time_s: float) -> bool:
        """Whether the policy need not be asked, for it would change nothing; it sees later what happened."""
        changes, decided = self.changes.entries, self.decided
        if not decided.outlasts_ends or not changes or changes[-1][1] not in ENDS:
            return False
        if self.evictions.may_be_due or decided.refused or self.changes.state.concern_cpus:
            return False
        if self.quarantine.next_s < math.inf:
            return False
        if len(changes) > 1 and any(change.kind not in ENDS for change in changes):
            return False
        self.cluster.at(time_s)
        self._unseen += changes
        changes.clear()
        return True

    def _decide_once(self, time_s: float) -> list[Transition]:
        host, log, decided = self.policy_host, self.changes, self.decided
        confined = self.windows.confine(time_s) if self.windows.any else []
        freed, learns = self.evictions.evict(time_s) if self.evictions.may_be_due else [], host.learns
        if learns:
            host.foresee(time_s)
        if self._unseen:
            log.entries[:0] = self._unseen
            self._unseen.clear()
        seen = host.snapshot(time_s)
        if decided.refused:  # not of the log, so they do not count as changes that were seen
            seen = seen._replace(changes=(*decided.refused, *seen.changes))
        if confined:
            seen = seen._replace(changes=(*seen.changes, *confined))
        decision = host.decide(seen)
        decided.refused, decided.kept_until_s = [], {}
        log.seen += len(log.entries)
        log.entries.clear()
        decided.due_s = decision.ask_again_s
        if self.windows.next_s < math.inf:
            decided.decide_by(self.windows.next_s)
        decided.quiet_until_s = -math.inf if decision.quiet_until_s is None else decision.quiet_until_s
        decided.admissions = decision.admissions
        decided.outlasts_ends = decision.outlasts_ends and decided.due_s is None and not learns
        if not decision.targets and not decision.rejected:
            return freed
        host.rules.check(decision, seen.jobs, self.cluster.free.by_type, self.cluster.up_gpus)
        try:
            done = self._apply(decision, time_s, shares=self.policy.traits.elasticity != "none")
        except NoPlaceError as error:
            done = self._decide_without(error, decision, time_s)
        if decided.outlasts_ends:
            as_decided = self.assigner.is_as_decided(decision, len(done))
            decided.outlasts_ends = decided.due_s is None and as_decided
        if freed:
            done = in_net([*freed, *done])
        if log.entries and any(change.kind == "arrived" for change in log.entries):
            decided.due_s = math.nextafter(time_s, math.inf)  # their user's limit has room now
        return done

    def _apply(self, decision: Decision, time_s: float, *, shares: bool = False) -> list[Transition]:
        """:param shares: jobs that get more than the only nodes that they may run on have, are to share them.
        :raises NoPlaceError: there is no room for some of it; all rejections were carried out.
        """
        crowded = NoPlaceError((), self.assigner.room_shares(decision) if shares else {})
        if not crowded.shares and (changed := self.assigner.change_plainly(decision, time_s)) is not None:
            return changed
        transitions = []
        for job_id, reason in decision.rejected.items():
            before = self.jobs[job_id].placement
            transitions.append(Transition(self.end(job_id, time_s, "rejected"), "reject", before, reason))
        if crowded.shares:
            crowded.rejected = transitions
            raise crowded
        try:
            transitions += self.assigner.change(decision, time_s)
        except NoPlaceError as error:
            error.rejected = transitions
            raise
        except PolicyError:  # the rejected jobs have left
            self.book.rejections.update(decision.rejected)
            raise
        return sorted(transitions, key=frees_first) if len(transitions) > 1 else transitions

    def _decide_without(
        self, unplaced: NoPlaceError | None, decision: Decision, time_s: float
    ) -> list[Transition]:
        """Ask what else to do where jobs find too little room on the only nodes that they may run on.

        Elastic ones share it: each counts as one that has no room for more. Nothing stops for others, and
        GPUs that they cannot use are for the rest. A copy of the policy answers: the policy itself goes on
        to see these jobs as they are, and knows the same after a restart.

        Among many jobs that takes long, so it is done ever so often, and in between jobs start beside those
        that run, as far as the decision allows.

        :param decision: of which only the rejections were carried out.
        """
        decided, host, log = self.decided, self.policy_host, self.changes
        decided.outlasts_ends, decided.quiet_until_s = False, -math.inf
        if unplaced is not None and time_s < decided.retry_s:
            return self._start_only(unplaced, decision, time_s)
        decided.retry_s = time_s + len(self.in_play) * _PAUSE_S
        asked, named = host.copied([*self.jobs.values(), self.usage]), dict.fromkeys(decision.targets)
        done, notified, without = list[Transition](), 0, set[str]()
        shares = dict[str, RoomShare]()
        while unplaced is not None:
            done += unplaced.rejected
            jobs, new = self.in_play, self.assigner.without_place(unplaced, decision)
            without.update(new)
            more, shares = not unplaced.shares.keys() <= shares.keys(), {**shares, **unplaced.shares}
            left = {job_id: job for job_id, job in jobs.items() if job_id not in without}
            resized = [left[job_id] for job_id in unplaced.shares if job_id in left]
            changes = [*log.entries[notified:], *(Change(time_s, "cancelled", jobs[each]) for each in new)]
            changes += [Change(time_s, kind, job) for job in resized for kind in ("cancelled", "arrived")]
            changes += [Change(time_s, "lost", left[job_id]) for job_id in decision.targets if job_id in left]
            notified = len(log.entries)
            try:
                seen = host.snapshot(time_s)._replace(jobs=left, changes=changes)
                with _limited(jobs, shares):
                    decision = host.decide(seen, asked)
                    host.rules.check(decision, left, self.cluster.free.by_type, self.cluster.up_gpus)
                for job_id in shares:
                    decision.rejected.pop(job_id, None)
                named.update(dict.fromkeys(decision.targets))
                done, unplaced = [*done, *self._apply(decision, time_s, shares=more)], None
            except NoPlaceError as error:
                unplaced = error
            except PolicyError:
                self.book.rejections.update({each.job.id: each.reason for each in done})
                raise
            decided.decide_by(decision.ask_again_s)
            decided.admissions = {**decided.admissions, **decision.admissions}
        for job in [self.jobs[job_id] for job_id in named if job_id in self.jobs]:
            decided.refuse(job, time_s)
        return done

    def _start_only(
        self, unplaced: NoPlaceError | None, decision: Decision, time_s: float
    ) -> list[Transition]:
        """Carry out what a decision says of waiting jobs that have a place while nothing stops."""
        plain = {
            job_id: target
            for job_id, target in decision.targets.items()
            if not self.jobs[job_id].gpus and target.placement is None and target.beside is None
        }
        done = list[Transition]()
        while unplaced is not None:
            done += unplaced.rejected
            for job_id in (*unplaced.job_ids, *unplaced.shares):
                plain.pop(job_id, None)
            left, targets = sum(self.cluster.free.by_type.values()), {}
            for job_id, target in plain.items():
                if target.gpus <= left:
                    targets[job_id], left = target, left - target.gpus
            try:
                done, unplaced = [*done, *self._apply(Decision(targets), time_s)], None
            except NoPlaceError as error:
                unplaced = error
        self.decided.decide_by(self.decided.retry_s)
        for job_id in decision.targets:
            self.decided.refuse(self.jobs[job_id], time_s)
        return done

    def restore_state(self, saved: PolicyState | None) -> bool:
        """Let a fresh policy resume from a saved state: it then sees only later changes.

        Returns False, and shows the policy all of the history, if the state is empty, another policy's,
        of another version, or newer than this session; or if the cluster has reservations, for what they
        have kept from jobs since is not in a log.
        """
        saved = None if self.windows.any else saved
        return self.policy_host.restore_state(saved, ChainMap(self.jobs, self.book.ended))


@contextmanager
def _limited(jobs: Mapping[str, JobState], shares: Mapping[str, RoomShare]) -> Iterator[None]:
    """These jobs have room for their shares and no more meanwhile."""
    limited = [(job, share) for job_id, share in shares.items() if (job := jobs.get(job_id)) is not None]
    before = [(job, job.room, job.room_now, job.kind) for job, _ in limited]
    for job, share in limited:
        job.limit_room(share.of(job.room or {}))
        job.room_now = share.of(job.room_now or {})
    try:
        yield
    finally:
        for job, room, room_now, kind in before:
            job.limit_room(room)
            job.room_now, job.kind = room_now, kind
