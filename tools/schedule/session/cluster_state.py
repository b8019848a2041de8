"""Jobs and GPUs as they stand, advanced by the caller, and what has changed: a session without its policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Final

from pliant.schemas.checks import Capacities
from pliant.schemas.cluster import MOST_OF_NODE, Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import End
from pliant.schemas.job import Job
from pliant.schemas.job_table import JobForm
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import (
    SAMPLES_WITHOUT_GPU,
    WAITING,
    JobState,
    NodeGpus,
    NodeState,
    gpus_of,
    node_states,
)
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.rates import GpuSharing, Speeds
from pliant.tools.schedule.session.admission import Admission, first_holder
from pliant.tools.schedule.session.allocations import (
    AllocationUpdate,
    Step,
    Transition,
    company_in,
    set_allocation,
    step_of,
)
from pliant.tools.schedule.session.dependencies import wait_of
from pliant.tools.schedule.session.quarantine import Quarantine, node_of
from pliant.tools.schedule.snapshot import Change, ChangeKind

if TYPE_CHECKING:
    from pliant.tools.schedule.shares import TeamUsage

_MOST_FORMS: Final = 4096
"""Forms of jobs of which a job is kept."""


class ClusterState:
    """The cluster and its jobs.

    Times are seconds on the caller's clock, which never steps back here. Progress follows
    ``JobState.samples_per_second``; the caller corrects it by measurements or adds rescale cost.

    Invariants: every GPU in service is free, or held by one job or by two that share it. ``changes`` names
    only jobs that the policy can see.
    """

    def __init__(self, cluster: Cluster, throughput: Throughput) -> None:
        self.cluster = cluster
        self.nodes: Sequence[NodeState] = node_states(cluster)
        sharing = GpuSharing(cluster, throughput) if cluster.shares_gpus else None
        self.speeds = Speeds(throughput, self.nodes, sharing)
        self.free = FreeGpus(self.nodes)
        # CPUs, memory and bandwidth of nodes, for jobs that state demands.
        self.capacities = Capacities(cluster.expanded())
        # Active jobs, in order of submission.
        self.jobs: dict[str, JobState] = {}
        self.ended: MutableMapping[str, JobState] = {}
        # Jobs that have ended without having finished, and how.
        self.fell: dict[str, End] = {}
        # Jobs rejected without a decision of the policy, and why, until the log has them.
        self.turned_away: dict[str, str] = {}
        # What happened since the policy was last asked.
        self.changes: list[Change] = []
        # Whether anything has happened since the last decision while there were jobs without GPUs.
        self.cores_change = False
        # Samples per second of jobs that began or stopped sharing GPUs; the caller clears it.
        self.slowed: dict[str, float] = {}
        self.quarantine = Quarantine()
        self.now_s = 0.0
        # GPUs of the nodes that are up.
        self.up_gpus = sum(node.gpus for node in self.nodes)
        self._index = {node.name: node.index for node in self.nodes}
        # By form the first job that arrived, of forms whose jobs keep their batch and nothing limits.
        self._alike: dict[JobForm, JobState] = {}
        self.noted_until_s = 0.0
        self.admission = Admission()
        # What teams have used, where teams share the cluster.
        self.usage: TeamUsage | None = None
        if cluster.shares is not None:
            from pliant.tools.schedule.shares import TeamUsage

            self.usage = TeamUsage.under(cluster.shares)

    @property
    def has_news(self) -> bool:
        """Whether something has happened that calls for a decision."""
        return self.cores_change or bool(self.changes)

    @property
    def in_play(self) -> Mapping[str, JobState]:
        """Active jobs that the policy sees, in order of submission."""
        if not self.admission.hide_jobs:
            return self.jobs
        return {job_id: job for job_id, job in self.jobs.items() if not self.admission.hides(job_id)}

    # Jobs arrive, end and lose their GPUs.

    def submit(self, job: Job, time_s: float) -> JobState:
        """A job arrives. It counts as arrived at its submit_time, or now if that lies ahead.

        Late arrivals count no earlier than the last change, so submit a batch in order of (submit_time, id).

        :raises ValueError: the id was submitted before.
        :raises BadInputError: the model is not profiled and its work cannot be known without.
        """
        job_id = job.id
        if job_id in self.jobs or job_id in self.ended:
            raise ValueError(f'job "{job_id}" was submitted before')
        form: JobForm | None = job.__dict__.get("form")
        alike = None if form is None else self._alike.get(form)
        if alike is not None and self.capacities.constraint_of(job) is not None:  # by its label
            alike = None
        state = self._state_of(job, alike)
        if not state.requested:
            self.admission.on_cpus[job_id] = True
        self.jobs[job_id] = state
        now_s, arrived_s = self._at(time_s), state.arrival[0]
        arrived_s = now_s if now_s < arrived_s else arrived_s
        if alike is not None:
            self._show("arrived", arrived_s, state)
        elif job.hold:
            self.admission.held[job_id] = first_holder(job)
        elif job.after or job.array is not None or self.cluster.user_limits:
            self._arrive(state, arrived_s)
        else:
            self._note("arrived", arrived_s, job=state)
            keeps_batch = not job.batch.regimes
            plain = state.room is None and keeps_batch and state.requested
            if form is not None and plain and len(self._alike) < _MOST_FORMS:
                self._alike[form] = state
        return state

    def _state_of(self, job: Job, alike: JobState | None = None) -> JobState:
        state = job_state(job, self.speeds, alike)
        if alike is None and state.requested and (state.takes_room or state.types is not None):
            room = self.capacities.room_for(job)
            state.room, state.barred, state.kind = room.by_type, room.barred, None
            if state.barred or state.takes_room:
                state.any_node, state.room_by_node = False, room.by_node
            self._look_at_room([state])
        return state

    def take_up(self, job: Job, time_s: float) -> JobState | None:
        """As :meth:`submit`, for a job that was already accepted; None if its work cannot be computed.

        Demands that no node can meet are dropped, since acceptance does not check them.

        :raises ValueError: the id was submitted before.
        """
        try:
            return self.submit(self.capacities.without_what_never_fits(job), time_s)
        except (BadInputError, ArithmeticError) as error:
            self.ended[job.id], self.fell[job.id] = JobState(job, 1, None), "rejected"
            self.turned_away[job.id] = str(error)
            self._move_up(job, self._at(time_s))
            return None

    def turn_away(self, job_id: str, time_s: float, reason: str) -> None:
        """Reject an active job that this cluster or this policy cannot serve."""
        self.end(job_id, time_s, "rejected")
        self.turned_away[job_id] = reason

    def end(self, job_id: str, time_s: float, outcome: End = "finished") -> JobState:
        """A job leaves for good; its GPUs are free."""
        state, time_s, hidden = self.jobs[job_id], self._at(time_s), self.admission.hide_jobs
        partner = self._give_back(job_id, time_s) if hidden else None
        del self.jobs[job_id]
        if self.quarantine.next_s < inf:
            self.quarantine.release(job_id)
        self._leave(state, time_s)
        self._hold(state, time_s, ())
        self.ended[job_id] = state
        if outcome != "finished" and job_id in self.ended:  # which may forget it
            self.fell[job_id] = outcome
        if not hidden:
            self._show(outcome, time_s, state)
            return state
        self._note(outcome, time_s, job=state)
        self._keep_others_from(partner, time_s)
        self.admission.forget(job_id)
        self._move_up(state.spec, time_s)
        return state

    def end_unsatisfiable(self, time_s: float, outcome: End = "cancelled") -> dict[str, str]:
        """End the jobs that wait for jobs which ended otherwise than they had to; returns them, and why."""
        found: dict[str, str] = {}
        while unsatisfiable := dict(self.admission.unsatisfiable):
            for job_id in unsatisfiable:
                self.end(job_id, time_s, outcome)
            found |= unsatisfiable
        return found

    def revive(self, job_id: str, time_s: float) -> None:
        """A job that has ended waits again. One that was rejected is left as it is.

        :raises KeyError: no such job has ended.
        """
        if self.fell.get(job_id) == "rejected":
            return
        state, time_s = self.ended.pop(job_id), self._at(time_s)
        self.fell.pop(job_id, None)
        if not state.requested:
            self.admission.on_cpus[job_id] = True
        self.jobs[job_id] = state
        self._look_at_room([state])
        self._arrive(state, time_s)

    def lose(self, job_id: str, time_s: float) -> JobState:
        """A job lost its GPUs without the policy's doing (crash, node gone) and waits again."""
        state, time_s = self.jobs[job_id], self._at(time_s)
        partner = self._give_back(job_id, time_s)
        if state.gpus:
            self._leave(state, time_s)
            self._hold(state, time_s, ())
            self._note("lost", time_s, job=state)
        self._keep_others_from(partner, time_s)
        self._unbind(job_id, time_s)
        return state

    def _arrive(self, job: JobState, time_s: float) -> None:
        """The policy sees a new job only once it waits for no other one and the limits have room for it."""
        wait = wait_of(job.spec, self._outcome) if job.spec.after else None
        array = job.spec.array
        if wait is not None:
            self.admission.awaiting[job.id] = wait.words
            if wait.is_unsatisfiable:
                self.admission.unsatisfiable[job.id] = wait.words
        elif array is not None and array.limit is not None:
            self.admission.line_up(job, array)
            self._admit_next_of(array.name, time_s)
        else:
            self._come_in(job, time_s)

    def _outcome(self, job_id: str) -> End | None:
        """How a job has ended. Returns None if it has not, or is to come."""
        return self.fell.get(job_id, "finished") if job_id in self.ended else None

    def _move_up(self, left: Job, time_s: float) -> None:
        """A job has ended, or is held: those that waited for it or for its room come in."""
        waiting = self.admission.awaiting
        for job_id in [job_id for job_id in waiting if left.id in self.jobs[job_id].spec.after]:
            self.admission.let_in(job_id)
            self._arrive(self.jobs[job_id], time_s)
        if left.array is not None and self.admission.in_line:
            self._admit_next_of(left.array.name, time_s)
        self._admit(left.user, time_s)

    def _admit_next_of(self, array: str, time_s: float) -> None:
        for job in self.admission.next_in_line(self.jobs.values(), array):
            del self.admission.in_line[job.id]
            self._come_in(job, time_s)

    def _come_in(self, job: JobState, time_s: float, *, was_in: bool = False, more: bool = False) -> None:
        """The policy sees a job once its user's limit has room for it.

        :param was_in: it is within the limit, and stays unless it asks for ``more`` than there is room for.
        """
        limit = self.cluster.limit_of(job.spec.user) if self.cluster.user_limits else None
        if limit is None:
            self._note("arrived", time_s, job=job)
            return
        if limit.gpus is not None:
            job.most = job.spec.gpus.requested
        if was_in and not (more and self.admission.exceeds(self.jobs.values(), job.spec.user, limit)):
            self._note("arrived", time_s, job=job)
        else:
            self.admission.limit(job, limit)
        self._admit(job.spec.user, time_s)

    def _admit(self, user: str, time_s: float) -> None:
        limit = self.cluster.limit_of(user) if self.admission.limited else None
        if limit is not None:
            for job in self.admission.within_limit(self.jobs.values(), user, limit):
                del self.admission.limited[job.id]
                self._note("arrived", time_s, job=job)

    def _look_at_room(self, jobs: Iterable[JobState]) -> None:
        """Recompute how many workers of these jobs the nodes that are up have room for."""
        demanding = [job for job in jobs if job.room is not None]
        if not demanding:
            return
        capacities = None
        if not self.free.all_up:
            nodes = zip(self.capacities.nodes, self.nodes, strict=True)
            capacities = Capacities([node for node, state in nodes if state.up], self.capacities)
        for job in demanding:
            job.room_now = job.room if capacities is None else capacities.room(job.spec)

    # Operators command: jobs held and updated, priorities.

    def hold_back(self, job_id: str, time_s: float, by: str) -> None:
        """A job gives up its GPUs at the next decision and gets none; the policy sees it cancelled.

        :param by: who asked for it.
        :raises KeyError: the job is not active.
        """
        job, time_s = self.jobs[job_id], self._at(time_s)
        self._note("cancelled", time_s, job=job)
        self.admission.held[job_id] = by
        self.admission.let_in(job_id)
        self._move_up(job.spec, time_s)

    def let_go(self, job_id: str, time_s: float) -> None:
        """A held job arrives again, for the policy. Any other job is left as it is.

        :raises KeyError: the job is not active.
        """
        job, time_s = self.jobs[job_id], self._at(time_s)
        if self.admission.held.pop(job_id, None) is not None:
            self._arrive(job, time_s)

    def take_batch(self, job_id: str, batch: int, samples_done: float, time_s: float) -> None:
        """A job has changed its batch by itself, at this progress; its speed changes with it.

        :raises KeyError: the job is not active.
        """
        job, time_s = self.jobs[job_id], self._at(time_s)
        if batch == job.reference_batch:
            return
        job.take_batch(batch, samples_done)
        if job.beside is not None:
            self._join(job, self.jobs[job.beside], time_s)
        elif job.gpus:
            self._train_at(job, self._rate(job), time_s)
        self._note("batch", time_s, job=job)

    def update(self, job_id: str, time_s: float, spec: Job) -> None:
        """A job asks for something else from now on; the policy sees it cancelled, and arrive again.

        :param spec: of the same work; what it holds stays. One that makes no sense here changes nothing.
        :raises KeyError: the job is not active.
        """
        job, time_s, new = self.jobs[job_id], self._at(time_s), self.state_as(spec)
        if new is None:
            return
        self._note("cancelled", time_s, job=job)
        before = job.requested
        job.take_spec(new)
        if job_id in self.admission.held or job_id in self.admission.bound:
            return
        if self.admission.keeps_waiting(job_id):
            self.admission.let_in(job_id)
            self._arrive(job, time_s)
        else:
            self._come_in(job, time_s, was_in=True, more=job.requested > before)

    def state_as(self, spec: Job) -> JobState | None:
        """What a job becomes that asks for something else; None: it makes no sense on this cluster."""
        try:
            return self._state_of(self.capacities.without_what_never_fits(spec))
        except (BadInputError, ArithmeticError):  # it was checked when it was ordered, on the cluster then
            return None

    def prioritize(self, job_id: str, time_s: float, priority: float) -> None:
        """Change the priority of a job.

        :raises KeyError: the job is not active.
        """
        job, time_s = self.jobs[job_id], self._at(time_s)
        if priority != job.priority:
            job.spec = job.spec.model_copy(update={"priority": priority})
            job.priority = priority
            self._note("priority", time_s, job=job)
            self._admit(job.spec.user, time_s)

    def leavers(self, *, elastic: bool) -> list[AllocationUpdate]:
        """What jobs that must give up GPUs at once hold instead.

        These jobs are held, wait for a limit or another job, or sit on a drained node.

        :param elastic: jobs may keep what they hold on other nodes.
        """
        admission = self.admission
        if not admission.hide_jobs and not admission.drained:
            return []
        found = [AllocationUpdate(job_id) for job_id in admission.must_wait() if self.jobs[job_id].gpus]
        leaving = admission.must_be_left()
        for job_id, job in self.jobs.items() if leaving else ():
            rest = tuple((name, count) for name, count in job.placement if name not in leaving)
            if job_id in admission.held or admission.keeps_waiting(job_id) or rest == job.placement:
                continue
            gpus = gpus_of(rest)
            stays = elastic and job.spec.elastic != "none" and gpus >= job.spec.min_gpus
            stays = stays and job.spec.gpus.allows(gpus)
            stays = stays and job.beside is None
            found.append(
                AllocationUpdate(job_id, rest, None, job.servers) if stays else AllocationUpdate(job_id)
            )
        return found

    # Nodes vanish and come back, are drained and resume.

    def node_down(self, name: str, time_s: float) -> list[JobState]:
        """A node vanishes; returns the jobs that ran on it, which wait again."""
        if name in self.admission.drained:
            return self._drained_node_down(name, time_s)
        node, time_s = self.free.node(name), self._at(time_s)
        if not node.up:
            return []
        hit = [
            job
            for job in self.jobs.values()
            if any(held == name for held, _ in (*job.placement, *job.servers))
        ]
        self._take_away(node, time_s)
        return [self.lose(job.id, time_s) for job in sorted(hit, key=lambda job: job.id)]

    def _drained_node_down(self, name: str, time_s: float) -> list[JobState]:
        if name in self.admission.vanished:
            return []
        self.admission.vanished[name] = time_s = self._at(time_s)
        return [self.lose(job_id, time_s) for job_id in sorted(self.jobs) if self._is_on(job_id, name)]

    def node_up(self, name: str, time_s: float) -> None:
        """A node comes back, empty; a drained one still gets no work."""
        if name in self.admission.drained:
            self.admission.vanished.pop(name, None)
            return
        node, time_s = self.free.node(name), self._at(time_s)
        if not node.up:
            self._bring_back(node, time_s)

    def drain(self, name: str, time_s: float, *, now: bool) -> None:
        """A node gets no further work.

        :param now: its jobs leave it at the next decision; else they keep what they hold until they end.
        :raises KeyError: there is no such node.
        """
        node, time_s = self.free.node(name), self._at(time_s)
        drained = self.admission.drained
        with self._rebound([job_id for job_id in self.jobs if self._is_on(job_id, name)], time_s):
            if name not in drained and not node.up:
                self.admission.vanished[name] = time_s
            elif name not in drained:
                self._take_away(node, time_s)
            drained[name] = now or drained.get(name, False)

    def resume(self, name: str, time_s: float) -> None:
        """A drained node gets work again, and slots of the node that wait for this go back into service.

        :raises KeyError: there is no such node.
        """
        node, time_s = self.free.node(name), self._at(time_s)
        if name in self.admission.drained:
            self._resume_drained(node, time_s)
        for slot in self.quarantine.until_resumed(name, time_s):
            self.restore(slot, time_s)

    def _resume_drained(self, node: NodeState, time_s: float) -> None:
        name = node.name
        there = [job_id for job_id in self.jobs if self._is_on(job_id, name)]
        with self._rebound(there, time_s):
            del self.admission.drained[name]
            if self.admission.vanished.pop(name, None) is None:
                self._bring_back(node, time_s)
                self.free.take(((name, sum(self._taken_on(name, self.jobs[job_id]) for job_id in there)),))

    def _take_away(self, node: NodeState, time_s: float) -> None:
        self.free.lose(node)
        node.up = False
        self.up_gpus -= node.gpus
        self._look_at_room(self.jobs.values())
        self._note("node_down", time_s, node=node, gpus=-node.gpus)

    def _bring_back(self, node: NodeState, time_s: float) -> None:
        node.up = True
        self.up_gpus += node.gpus
        self.free.regain(node)
        self._look_at_room(self.jobs.values())
        self._note("node_up", time_s, node=node, gpus=node.gpus)

    def _resize(self, node: NodeState, gpus: int, time_s: float) -> None:
        """Change the GPUs in service of a node; one that is down counts them when it is up again."""
        self.free.resize(node, gpus)
        if node.up:
            self.up_gpus += gpus
            self._note("capacity", time_s, node=node, gpus=gpus)

    # Slots go out of service for a time.

    def withdraw(self, slot: str, time_s: float, until_s: float) -> None:
        """A slot (``node/index``) that no job holds goes out of service until a time.

        :raises KeyError: there is no such node.
        :raises ValueError: no GPU of the node is free.
        """
        node, time_s = self.free.node(node_of(slot)), self._at(time_s)
        if slot not in self.quarantine.out_of_service and is_of_gpu(slot):
            if node.up:
                self.free.take(((node.name, 1),))
            self._resize(node, -1, time_s)
        self.quarantine.withdraw(slot, until_s)

    def restore(self, slot: str, time_s: float) -> None:
        """A slot proved good: every job may get it again."""
        time_s = self._at(time_s)
        if self.quarantine.restore(slot):
            self._put_back(slot, time_s)

    def advance(self, time_s: float) -> None:
        """Time has passed: slots whose time is up go back into service."""
        self._at(time_s)

    def _put_back(self, slot: str, time_s: float) -> None:
        node = self.free.node(node_of(slot))
        if not is_of_gpu(slot):
            return
        self._resize(node, 1, time_s)
        self.free.give(((node.name, 1),))

    def _at(self, time_s: float) -> float:
        self.now_s = now_s = time_s if time_s > self.now_s else self.now_s
        if now_s >= self.quarantine.next_s:
            self.cores_change = self.cores_change or bool(self.admission.on_cpus)
            for until_s, slot in self.quarantine.expire(now_s):
                self._put_back(slot, until_s)
        return now_s

    def _note(
        self,
        kind: ChangeKind,
        time_s: float,
        job: JobState | None = None,
        node: NodeState | None = None,
        gpus: int = 0,
    ) -> None:
        """Record a change, unless it concerns a job hidden from the policy."""
        self.cores_change = self.cores_change or bool(self.admission.on_cpus)
        if job is None or not (self.admission.hide_jobs and self.admission.hides(job.id)):
            self._show(kind, time_s, job, node, gpus)

    def _show(
        self,
        kind: ChangeKind,
        time_s: float,
        job: JobState | None = None,
        node: NodeState | None = None,
        gpus: int = 0,
    ) -> None:
        """As :meth:`_note`, for what the policy can see."""
        self.cores_change = self.cores_change or bool(self.admission.on_cpus)
        self.noted_until_s = until_s = time_s if time_s > self.noted_until_s else self.noted_until_s
        self.changes.append(make(Change, (until_s, kind, job, node, gpus)))

    # Jobs come to hold GPUs and leave them.

    def adopt(self, updates: Sequence[AllocationUpdate], time_s: float) -> list[Transition]:
        """These jobs hold these GPUs from ``time_s`` on, as a log or a schedule says; no policy is asked.

        All change at once, so jobs may take over each other's GPUs; on an error, nothing changes.

        :raises KeyError: a job is not active.
        :raises ValueError: a node is unknown, down or has too few free GPUs.
        """
        time_s = self._at(time_s)
        on_gpus = [each for each in updates if self.jobs[each.job_id].requested]
        company = company_in(on_gpus, self.jobs, self._room_on)
        if not self.admission.drained:
            return self._take_over(updates, company, time_s)
        with self._rebound((update.job_id for update in updates), time_s):
            return self._take_over(updates, company, time_s)

    def _take_over(
        self, updates: Sequence[AllocationUpdate], company: Mapping[str, str], time_s: float
    ) -> list[Transition]:
        for update in updates:
            self._leave(self.jobs[update.job_id], time_s)
        found = []
        for update in updates:
            job, place = self.jobs[update.job_id], update.placement
            other = self.jobs.get(company.get(job.id, ""))
            if other is None and job.requested:
                self.free.take(self.admission.in_service(place))
            batch = update.global_batch or job.global_batch
            found.append(self._change(job, place, batch, time_s, update.servers, beside=other))
        return [transition for transition in found if transition is not None]

    def _change(
        self,
        job: JobState,
        place: NodeGpus,
        batch: int,
        time_s: float,
        servers: NodeGpus = (),
        *,
        beside: JobState | None = None,
    ) -> Transition | None:
        """Let a job hold a place that the caller has booked.

        :param beside: a job that holds the same GPUs, alone so far.
        """
        before, same_batch = job.placement, batch == job.global_batch
        if place == before:
            unchanged = same_batch and servers == job.servers and beside is None
            if not place or unchanged:
                return None
        step = step_of(job, place)
        self._hold(job, time_s, place, servers)
        job.global_batch = batch
        if place:
            job.gpu_type = self.speeds.gpu_type_of(place) if job.requested else None
            job.train_from(time_s, self._rate(job))
        if beside is None and job.beside is not None:  # a batch changes, and nothing else
            beside = self.jobs[job.beside]
        if beside is not None:
            self._join(job, beside, time_s)
        if step == "preempt":
            job.preemptions += 1
        elif step == "move" and same_batch:
            job.moves += 1
        elif step not in ("start", "resume"):
            job.rescales += 1
        return make(Transition, (job, step, before, ""))

    def _begin(self, job: JobState, place: NodeGpus, batch: int, time_s: float) -> Transition:
        """As :meth:`_change`, for a job that holds nothing and gets GPUs of its own."""
        step: Step = "start" if job.phase is WAITING else "resume"
        self._hold(job, time_s, place)
        job.global_batch, job.gpu_type = batch, self.speeds.gpu_type_of(place)
        job.train_from(time_s, self._rate(job))
        return make(Transition, (job, step, (), ""))

    def _stop(self, job: JobState, time_s: float) -> Transition:
        """As :meth:`_change`, for a job that has its GPUs to itself and gives them all back."""
        before = job.placement
        self._hold(job, time_s, ())
        job.preemptions += 1
        return make(Transition, (job, "preempt", before, ""))

    def _hold(self, job: JobState, time_s: float, place: NodeGpus, servers: NodeGpus = ()) -> None:
        if self.usage is not None and job.requested:
            self._use(job, gpus_of(place) - job.gpus, time_s)
        set_allocation(job, time_s, place, servers)

    def _use(self, job: JobState, more: float, time_s: float) -> None:
        """A job uses more GPUs from now on, or fewer; two jobs on the same GPUs use half of them each."""
        if self.usage is not None:
            self.usage.hold(self.usage.shares.owner_of(job.spec), more, time_s)

    def _leave(self, job: JobState, time_s: float) -> None:
        """A job's GPUs are free, or its partner's alone; the caller updates the job."""
        if job.beside is not None:
            self._part(job, time_s)
        elif job.placement and job.requested:
            self.free.give(job.placement)

    def counted(self, job: JobState) -> NodeGpus:
        """What a job takes of the GPUs in service; nothing if it is bound."""
        return () if job.id in self.admission.bound else self.admission.in_service(_taken(job))

    def _taken_on(self, name: str, job: JobState) -> int:
        return dict(_taken(job)).get(name, 0)

    def _room_on(self, name: str) -> int:
        """GPUs of a node that no job holds, drained or not; 0 for an unknown node."""
        if name in self.admission.drained:
            taken = sum(self._taken_on(name, job) for job in self.jobs.values())
            return 0 if name in self.admission.vanished else self.free.node(name).gpus - taken
        return self.free.free_on(name) if name in self._index else 0

    def _is_on(self, job_id: str, name: str) -> bool:
        return any(held == name for held, _ in self.jobs[job_id].placement)

    # Two jobs share GPUs.

    def _join(self, job: JobState, other: JobState, time_s: float) -> None:
        """Two jobs start to share GPUs."""
        place, kind = job.placement, job.gpu_type or ""
        parts = self.speeds.parts(job, other, kind, place) or (self.cluster.sharing.speed,) * 2
        for each, part in zip((job, other), parts, strict=True):
            self._train_at(each, self._rate(each) * part, time_s)
            if each.beside is None:
                self._use(each, -each.gpus / 2, time_s)
        job.beside, other.beside = other.id, job.id

    def _part(self, job: JobState, time_s: float) -> None:
        """Two jobs stop sharing GPUs: the other one has them alone."""
        if job.beside is None:
            return
        other = self.jobs[job.beside]
        self._train_at(other, self._rate(other), time_s)
        job.settle(time_s)
        for each in (job, other):
            self._use(each, each.gpus / 2, time_s)
        job.beside = other.beside = None

    def _train_at(self, job: JobState, rate: float, time_s: float) -> None:
        job.change_speed(time_s, rate)
        self.slowed[job.id] = rate

    def _rate(self, job: JobState) -> float:
        """Samples per second of a job that has its GPUs alone.

        GPUs that a batch chosen by the job itself leaves without a sample idle until the next decision.
        """
        if not job.requested:
            return SAMPLES_WITHOUT_GPU
        rate = self.speeds.rate_at(job, job.placement, job.global_batch)
        if rate or not job.batch_changes:
            return rate
        part = self.speeds.useful_part(job, job.placement, job.global_batch)
        return self.speeds.rate_at(job, part, job.global_batch)

    # Jobs are bound to drained nodes: their GPUs are out of the policy's hands.

    @contextmanager
    def _rebound(self, job_ids: Iterable[str], time_s: float) -> Iterator[None]:
        """Around a change of these jobs or their nodes: see afterwards which of them are bound.

        For the policy, a job that becomes bound is cancelled, and one that is released arrives.
        """
        ids = list(dict.fromkeys(job_ids))
        for job_id in ids:
            self._give_back(job_id, time_s)
        yield
        for job_id in ids:
            job = self.jobs[job_id]
            name = self.admission.binding(job)
            if name is None:
                self._unbind(job_id, time_s)
            else:
                self._note("cancelled", time_s, job=job)
                self.admission.bound[job_id] = name
                self._resize_others(job_id, -1, time_s)

    def _unbind(self, job_id: str, time_s: float) -> None:
        if self.admission.bound.pop(job_id, None) is not None:
            self._note("arrived", time_s, job=self.jobs[job_id])

    def _give_back(self, job_id: str, time_s: float) -> str | None:
        """Return a bound job's GPUs on other nodes to service.

        Returns the bound job that keeps them alone once this one has left, if any.
        """
        if job_id not in self.admission.bound:
            return None
        self._resize_others(job_id, 1, time_s)
        job = self.jobs[job_id]
        return job.beside if _taken(job) else None

    def _keep_others_from(self, job_id: str | None, time_s: float) -> None:
        """A bound job keeps shared GPUs alone: those on other nodes stay out of service."""
        if job_id is not None and job_id in self.admission.bound:
            self._resize_others(job_id, -1, time_s)

    def _resize_others(self, job_id: str, sign: int, time_s: float) -> None:
        for name, count in self.admission.in_service(_taken(self.jobs[job_id])):
            self._resize(self.free.node(name), sign * count, time_s)


make: Final = tuple.__new__
"""Makes a named tuple in half the time."""


def is_of_gpu(slot: str) -> bool:
    """Whether a slot is one of the node's GPUs, and not a place of a job without GPUs, which come behind."""
    return int(slot.rpartition("/")[2]) < MOST_OF_NODE


def _taken(job: JobState) -> NodeGpus:
    """GPUs that a job takes, in service or not; shared GPUs count for one of the two."""
    return job.placement if job.counts_gpus and job.requested else ()
