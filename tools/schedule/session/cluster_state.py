"""Jobs and GPUs as they stand, advanced by the caller, and what has changed: a session without its policy.

Whether there is room for what jobs shall hold, all at once: a pure function.

What a decision does to a job: the effects a session reports, and what it means to hold GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import End
from pliant.schemas.job import Job
from pliant.schemas.resources import Capacities
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.free_gpus import FreeGpus
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, Phase, gpus_of, node_states
from pliant.tools.schedule.rates import GpuSharing, Speeds, shape_of
from pliant.tools.schedule.session.withheld import Withheld, node_of
from pliant.tools.schedule.snapshot import Change, ChangeKind


class ClusterState:
    """The cluster and its jobs.

    Times are seconds on the caller's clock; one that steps back counts as standing still. Progress follows
    ``JobState.samples_per_second``; the caller corrects it by measurements or adds rescale cost.
    """

    def __init__(self, cluster: Cluster, throughput: Throughput) -> None:
        self.cluster = cluster
        self.nodes: Sequence[NodeState] = node_states(cluster)
        sharing = GpuSharing(cluster, throughput) if cluster.shares_gpus else None
        self.speeds = Speeds(throughput, self.nodes, sharing)
        self.free = FreeGpus(self.nodes)
        self.capacities = Capacities(cluster.expanded())
        """What nodes have beside GPUs, for jobs that state demands."""
        self.jobs: dict[str, JobState] = {}
        """Active jobs, in order of submission."""
        self.ended: MutableMapping[str, JobState] = {}
        self.turned_away: dict[str, str] = {}
        """Reasons of jobs that are out though no policy decided so, until the log has them."""
        self.changes: list[Change] = []
        """What happened since the policy was last asked."""
        self.slowed: dict[str, float] = {}
        """Samples per second of jobs that go on at another speed, as another job came to their GPUs or left
        them, since the last decision at least: for the caller to read and to clear."""
        self.withheld = Withheld()
        """Slots, and further GPUs, that all jobs or one of them do not get for a time."""
        self.now_s = 0.0
        self.up_gpus = sum(node.gpus for node in self.nodes)
        """GPUs of the nodes that are up."""
        self._index = {node.name: node.index for node in self.nodes}
        self.noted_until_s = 0.0
        """The time of the latest change."""

    def submit(self, job: Job, time_s: float) -> JobState:
        """A job arrives. It counts as arrived at its submit_time, or now if that lies ahead.

        A job that comes late (a cron call, a slow poll) counts no earlier than the change before it, so
        submit the jobs of one batch in order of (submit_time, id).

        :raises ValueError: a job of that id is or was there.
        :raises BadInputError: the model is not profiled and its work cannot be known without.
        """
        if job.id in self.jobs or job.id in self.ended:
            raise ValueError(f'job "{job.id}" was submitted before')
        state = job_state(job, self.speeds)
        if self.capacities.limits(job):
            state.room = self.capacities.room(job)
            self._look_at_room([state])
        self.jobs[job.id] = state
        self._arrive(state, min(self._at(time_s), job.submit_time))
        return state

    def take_up(self, job: Job, time_s: float) -> JobState | None:
        """As :meth:`submit`, of a job that was acknowledged: where its work cannot be computed, it is out.

        Where it demands more of nodes than any has, nothing looked at that, and its demands do not count. The
        policy is not notified of a job that is out at once. Returns None for it.

        :raises ValueError: a job of that id is or was there.
        """
        try:
            return self.submit(self.capacities.without_what_never_fits(job), time_s)
        except (BadInputError, ArithmeticError) as error:
            self.ended[job.id] = JobState(job, 1, None)
            self.turned_away[job.id] = str(error)
            return None

    def turn_away(self, job_id: str, time_s: float, reason: str) -> None:
        """A job that is there cannot be served on this cluster, or by this policy."""
        self.end(job_id, time_s, "rejected")
        self.turned_away[job_id] = reason

    def end(self, job_id: str, time_s: float, outcome: End = "finished") -> JobState:
        """A job leaves for good; whatever it holds is free."""
        state, time_s = self.jobs.pop(job_id), self._at(time_s)
        self.withheld.release(job_id)
        self._leave(state, time_s)
        hold(state, time_s, ())
        self.ended[job_id] = state
        self._note(outcome, time_s, job=state)
        return state

    def lose(self, job_id: str, time_s: float) -> JobState:
        """A job lost its GPUs without the policy's doing (crash, node gone) and waits again.

        Nothing happens to a job that holds none.
        """
        state, time_s = self.jobs[job_id], self._at(time_s)
        if state.gpus:
            self._leave(state, time_s)
            hold(state, time_s, ())
            self._note("lost", time_s, job=state)
        return state

    def node_down(self, name: str, time_s: float) -> list[JobState]:
        """A node vanishes; returns the jobs that ran on it, which wait again."""
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

    def node_up(self, name: str, time_s: float) -> None:
        """A node comes back, empty."""
        node, time_s = self.free.node(name), self._at(time_s)
        if not node.up:
            self._bring_back(node, time_s)

    def _look_at_room(self, jobs: Iterable[JobState]) -> None:
        """See how many workers of jobs the nodes that are up have room for."""
        demanding = [job for job in jobs if job.room is not None]
        if not demanding:
            return
        up = [node for node, state in zip(self.capacities.nodes, self.nodes, strict=True) if state.up]
        capacities = self.capacities if len(up) == len(self.nodes) else Capacities(up)
        for job in demanding:
            job.room_now = capacities.room(job.spec)

    def _arrive(self, job: JobState, time_s: float) -> None:
        """A job that holds nothing is there from now on."""
        self._note("arrived", time_s, job=job)

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

    def withdraw(self, slot: str, time_s: float, until_s: float) -> None:
        """A slot (``node/index``) that no job holds goes out of service until a time.

        :raises KeyError: there is no such node.
        :raises ValueError: no GPU of the node is free.
        """
        node, time_s = self.free.node(node_of(slot)), self._at(time_s)
        if slot not in self.withheld.out_of_service:
            if node.up:
                self.free.take(((node.name, 1),))
            self._resize(node, -1, time_s)
        self.withheld.withdraw(slot, until_s)

    def restore(self, slot: str, time_s: float) -> None:
        """A slot has proved to be good: every job may get it again."""
        time_s = self._at(time_s)
        if self.withheld.restore(slot):
            self._put_back(slot, time_s)

    def advance(self, time_s: float) -> None:
        """Time has passed: what was withheld until now goes back."""
        self._at(time_s)

    def _put_back(self, slot: str, time_s: float) -> None:
        node = self.free.node(node_of(slot))
        self._resize(node, 1, time_s)
        self.free.give(((node.name, 1),))

    def _resize(self, node: NodeState, gpus: int, time_s: float) -> None:
        """A node has more or fewer GPUs in service; while it is down, that counts once it is up again."""
        node.gpus += gpus
        if node.up:
            self.up_gpus += gpus
            self._note("capacity", time_s, node=node, gpus=gpus)

    def adopt(self, holdings: Sequence[Holding], time_s: float) -> list[Transition]:
        """These jobs hold these GPUs from ``time_s`` on: a log or a schedule says so, no policy is asked.

        All of them change at once, so jobs may take over each other's GPUs. Returns what changed. Where one
        of them cannot be, nothing changes.

        :raises KeyError: a job is not active.
        :raises ValueError: a node is unknown, down or has too few free GPUs.
        """
        time_s = self._at(time_s)
        return self._take_over(holdings, company_in(holdings, self.jobs, self._room_on), time_s)

    def _take_over(
        self, holdings: Sequence[Holding], company: Mapping[str, str], time_s: float
    ) -> list[Transition]:
        """Let jobs hold what there is room for."""
        for holding in holdings:
            self._leave(self.jobs[holding.job_id], time_s)
        found = []
        for holding in holdings:
            job, place = self.jobs[holding.job_id], holding.placement
            other = self.jobs.get(company.get(job.id, ""))
            if other is None:
                self.free.take(self.in_service(place))
            batch = holding.global_batch or job.global_batch
            found.append(self._change(job, place, batch, time_s, holding.servers, beside=other))
        return [transition for transition in found if transition is not None]

    def _leave(self, job: JobState, time_s: float) -> None:
        """A job's GPUs are free, or another job's alone. What the job itself holds is left to the caller."""
        if job.beside is None:
            self.free.give(job.placement)
        else:
            self._part(job, time_s)

    def _part(self, job: JobState, time_s: float) -> None:
        """Of two jobs on the same GPUs the other has them alone from now on."""
        if job.beside is None:
            return
        other = self.jobs[job.beside]
        self._train_at(other, self._rate(other), time_s)
        job.settle(time_s)
        job.beside = other.beside = None

    def _join(self, job: JobState, other: JobState, time_s: float) -> None:
        """Two jobs that hold the same GPUs train on them together from now on."""
        place, kind = job.placement, job.gpu_type or ""
        parts = self.speeds.parts(job, other, kind, place) or (self.cluster.sharing.speed,) * 2
        for each, part in zip((job, other), parts, strict=True):
            self._train_at(each, self._rate(each) * part, time_s)
        job.beside, other.beside = other.id, job.id

    def _train_at(self, job: JobState, rate: float, time_s: float) -> None:
        job.change_speed(time_s, rate)
        self.slowed[job.id] = rate

    def counted(self, job: JobState) -> NodeGpus:
        """What a job takes of the GPUs that are in service; shared GPUs count for one job of the two."""
        return job.placement if job.counts_gpus else ()

    def in_service(self, placement: NodeGpus) -> NodeGpus:
        """The part of a placement that counts in ``free``."""
        return placement

    def _room_on(self, name: str) -> int:
        """GPUs of a node that no job holds; 0 where there is no such node."""
        return self.free.free_on(name) if name in self._index else 0

    def _at(self, time_s: float) -> float:
        self.now_s = max(self.now_s, time_s)
        if self.now_s >= self.withheld.next_s:
            for until_s, slot in self.withheld.expire(self.now_s):
                self._put_back(slot, until_s)
        return self.now_s

    def _note(
        self,
        kind: ChangeKind,
        time_s: float,
        job: JobState | None = None,
        node: NodeState | None = None,
        gpus: int = 0,
    ) -> None:
        self.noted_until_s = max(self.noted_until_s, time_s)
        self.changes.append(Change(self.noted_until_s, kind, job, node, gpus))

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
        """A job holds this place from now on, which the caller has booked.

        :param beside: a job that holds the same GPUs, alone so far.
        """
        before = job.placement
        unchanged = batch == job.global_batch and servers == job.servers and beside is None
        if place == before and (not place or unchanged):
            return None
        step, same_batch = step_of(job, place), batch == job.global_batch
        hold(job, time_s, place, servers)
        job.global_batch = batch
        if place:
            job.gpu_type = self.free.node(place[0][0]).gpu_type
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
        return Transition(job, step, before)

    def _rate(self, job: JobState) -> float:
        """Samples per second of a job on what it holds, alone."""
        kind, shape = job.gpu_type, shape_of(job.placement)
        return self.speeds.rate(job, job.gpus, kind, global_batch=job.global_batch, placement=shape)


def company_in(
    holdings: Sequence[Holding], jobs: Mapping[str, JobState], room_on: Callable[[str], int]
) -> dict[str, str]:
    """The jobs that come to GPUs that another one holds alone by then, and which one that is.

    Jobs may take over each other's GPUs.

    :param jobs: all active ones.
    :param room_on: GPUs of a node that no job holds now; 0 where there is no such node.
    :raises KeyError: a job is not active.
    :raises ValueError: a node is unknown or has too few GPUs for one of them.
    """
    moving = {each.job_id: jobs[each.job_id] for each in holdings}
    alone = _left_alone(holdings, moving, jobs)
    freed = _on_nodes(job.placement for job in moving.values() if job.frees_gpus(moving))
    company: dict[str, str] = {}
    for job_id, place, beside in ((each.job_id, each.placement, each.beside) for each in holdings):
        if beside is not None and place and alone.get(beside) == place:
            company[job_id] = beside
            del alone[beside]
            continue
        for name, count in place:
            freed[name] -= count
            if room_on(name) + freed[name] < 0:
                text = f'job "{job_id}" cannot hold {count} GPUs on {name}: they are not there or taken'
                raise ValueError(text)
        alone[job_id] = place
    return company


def _left_alone(
    holdings: Iterable[Holding], moving: Mapping[str, JobState], jobs: Mapping[str, JobState]
) -> dict[str, NodeGpus]:
    """The jobs that stay where they are, have nothing beside them by then, and are to get company."""
    named = (jobs.get(each.beside or "") for each in holdings)
    stay = (job for job in named if job is not None and job.id not in moving)
    return {job.id: job.placement for job in stay if job.beside is None or job.beside in moving}


def _on_nodes(placements: Iterable[NodeGpus]) -> Counter[str]:
    """GPUs of all these placements by node."""
    found = Counter[str]()
    for placement in placements:
        for name, count in placement:
            found[name] += count
    return found


Step = Literal["start", "resume", "grow", "shrink", "move", "rebatch", "preempt", "reject"]


class Transition(NamedTuple):
    """One effect of a decision on one job; the job's state already shows it.

    ``rebatch`` changes only the global batch. ``before`` is the placement held until now.
    """

    job: JobState
    step: Step
    before: NodeGpus = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one job holds, as a log or a schedule says; an empty placement: nothing."""

    job_id: str
    placement: NodeGpus = ()
    global_batch: int | None = None
    """None: as it is."""
    servers: NodeGpus = ()
    """Where its parameter servers are."""
    beside: str | None = None
    """The job that holds the same GPUs; one of two that share may say so, or both."""

    @classmethod
    def of(cls, job: JobState) -> Holding:
        """What a job holds now."""
        return cls(job.id, job.placement, job.global_batch, job.servers, job.beside)


def in_net(transitions: Sequence[Transition]) -> list[Transition]:
    """One transition for each job, from what it held first to what it holds now."""
    first = {each.job.id: each for each in reversed(transitions)}
    if len(first) == len(transitions):
        return list(transitions)
    last = {each.job.id: each for each in transitions}
    return [_net(first[job_id], each) for job_id, each in last.items()]


def _net(first: Transition, last: Transition) -> Transition:
    if first is last:
        return last
    return Transition(last.job, _net_step(last.job, first.before), first.before)


def _net_step(job: JobState, before: NodeGpus) -> Step:
    held = gpus_of(before)
    if not job.gpus:
        return "preempt"
    return "move" if job.gpus == held else "grow" if job.gpus > held else "shrink"


def step_of(job: JobState, place: NodeGpus) -> Step:
    """What it means for a job to hold this place from now on."""
    gpus = gpus_of(place)
    if gpus == 0:
        return "preempt"
    if job.gpus == 0:
        return "start" if job.phase is Phase.WAITING else "resume"
    if gpus != job.gpus:
        return "grow" if gpus > job.gpus else "shrink"
    return "move" if place != job.placement else "rebatch"


def hold(job: JobState, time_s: float, place: NodeGpus, servers: NodeGpus = ()) -> None:
    """Book what was done until now; the job holds this place from now on, nothing if it is empty."""
    job.settle(time_s)
    if not job.gpus:
        job.granted_s = time_s
    job.changed_s = time_s
    job.gpus, job.placement, job.servers = gpus_of(place), place, servers
    if place:
        job.phase = Phase.RUNNING
        if job.first_start_s is None:
            job.first_start_s = time_s
        return
    if job.phase is Phase.RUNNING:
        job.phase = Phase.PREEMPTED
    job.gpu_type, job.samples_per_second = None, 0.0
