"""Random but possible logs: what a run writes while jobs come, train, fail, lose nodes and end."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.events import typed
from pliant.schemas.io import write_cluster, write_schedule
from pliant.schemas.job import ArrayPlace, Changes, Job
from pliant.schemas.schedule import PolicyUse, Schedule
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log import events
from pliant.tools.run.statedir.log.snapshot import Rebuilding
from pliant.tools.run.statedir.requests import JobAction, NodeAction, Order, order_event
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import schedule_of
from pliant.tools.schedule.demand import submit_detail
from pliant.tools.schedule.from_log import apply_events, correct, session_for_run
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.allocations import Transition
from pliant.tools.schedule.session.saved import Basis
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.testing.harness import some_jobs
from tests.builders import cluster

NODES = cluster(4, 4)
BASIS = Basis.of(NODES, None)
BEGAN_S = 1_700_000_000.0
ORDERS: dict[str, JobAction] = {"hold": "hold", "unhold": "release", "priority": "priority"}
HAPPENINGS = (
    *(["submit"] * 5 + ["train"] * 6 + ["finish"] * 2),
    *("fail", "requeue", "cancel", *ORDERS, "drain", "node", "wait"),
)
UPDATING = (*HAPPENINGS, *["update", "again"] * 2)
"""Also jobs that are updated, and requeued while they run or after their end."""
REPORTS = ("progress", "progress", "epoch", "checkpoint")


def rebuilding(basis: Basis = BASIS) -> Rebuilding:
    return Rebuilding(basis, lambda: session_for_run(make_policy("fifo"), NODES, throughput_for(None, NODES)))


class Story:
    """A run under a policy, and its log so far.

    :param seed: equal seeds give equal stories.
    :param most_active: jobs at a time.
    :param happenings: what happens; all equally likely, as are ``reports``.
    :param linked: jobs wait for each other, belong to arrays, or are held from the start.
    :param name: what a job is called, from its usual id.
    """

    def __init__(
        self,
        seed: int,
        policy: str = "fifo",
        *,
        nodes: Cluster = NODES,
        most_jobs: int = 200,
        most_active: int = 200,
        happenings: Sequence[str] = HAPPENINGS,
        reports: Sequence[str] = REPORTS,
        name: Callable[[str], str] = str,
        linked: bool = False,
    ) -> None:
        self._random = random.Random(seed)
        self.now_s = BEGAN_S
        self.session = Session(make_policy(policy), nodes, throughput_for(None, nodes))
        needs_work = "demand" in self.session.policy.traits.needs
        own = {"preemptible": True}  # the log adds what stops of others lose
        made = (job.model_copy(update={"id": name(job.id), **own}) for job in some_jobs(most_jobs))
        self._jobs = [job for job in made if job.work is not None or not needs_work]
        self._most_active = most_active
        self._happenings = happenings
        self._reports = reports
        self._linked = linked
        self._down: str | None = None
        self.schedule = Schedule(time=BEGAN_S, policy=PolicyUse(name=policy), cluster=nodes)
        self.events = [events.run_event(self.schedule, "hash", BEGAN_S)]

    def go_on(self, steps: int, *, last: bool = True) -> list[Event]:
        """Let things happen, and the policy decide now and then; returns the whole log.

        :param last: see :meth:`decide`.
        """
        for _ in range(steps):
            if self._random.random() < 0.8:  # else at the time of the last one
                self.now_s += self._random.choice([0.25, 1.0, 7.0, 40.0])
            self._happen(self._random.choice(self._happenings))
            self._cancel_unsatisfiable()
            if self._random.random() < 0.6:
                self.decide(last=last)
        return self.events

    def decide(self, *, last: bool = True) -> None:
        """The policy is asked; what it decides is in the log.

        :param last: keep the schedule, which takes longer than the decision.
        """
        transitions = self.session.decide(self.now_s)
        self.events.append(events.decision_event(self.now_s, 0.0, self.session.policy.name, 0.001))
        for transition in transitions:
            self.events.append(_transition_event(transition, self.now_s))
        self._cancel_unsatisfiable()
        if last:
            self.schedule = schedule_of(self.session, transitions, self.now_s)

    def write(self, state: Path) -> StateDir:
        with State(state) as held:
            held.record(self.events)
        return self.write_inputs(StateDir(state))

    def write_inputs(self, dirs: StateDir) -> StateDir:
        """What is there besides the log: the cluster, and the last schedule."""
        write_cluster(self.session.cluster.spec, dirs.cluster)
        write_schedule(self.schedule, dirs.schedule)
        return dirs

    def _happen(self, what: str) -> None:
        if what == "submit" and self._jobs and len(self.session.jobs) < self._most_active:
            self._submit()
        elif what == "node":
            self._node()
        elif what == "drain":
            self._drain()
        elif what == "again" and (known := sorted({*self.session.jobs, *self.session.book.ended})):
            order = Order(action="requeue", job=self._random.choice(known), user="bob", asked_s=self.now_s)
            self.events.append(order_event(len(self.events), order, self.now_s))
            apply_events(self.session, [self.events[-1]])
        elif self.session.jobs:
            job = self._random.choice(sorted(self.session.jobs.values(), key=lambda job: job.id))
            self._job(what, job)

    def _submit(self) -> None:
        spec = self._jobs.pop(0).model_copy(update={"submit_time": self.now_s})
        spec = self._link(spec) if self._linked else spec
        state = self.session.submit(spec, self.now_s)
        detail = submit_detail(state, self.session.cluster.speeds)
        self.events.append(events.submit_event(spec, self.now_s, detail))

    def _link(self, spec: Job) -> Job:
        known = sorted({*self.session.jobs, *self.session.book.ended})
        others = self._random.sample(known, min(len(known), self._random.choice([0, 0, 1, 2])))
        after = {other: self._random.choice(["ok", "any"]) for other in others}
        place = ArrayPlace(name=self._random.choice("xy"), index=len(known), limit=2)
        array = place if self._random.random() < 0.4 else None
        return spec.model_copy(update={"after": after, "array": array, "hold": self._random.random() < 0.1})

    def _cancel_unsatisfiable(self) -> None:
        for job_id, reason in self.session.end_unsatisfiable(self.now_s).items():
            self.events.append(events.cancel_event(job_id, self.now_s, reason))

    def _node(self) -> None:
        name, self._down = self._down or "n1", None if self._down else "n1"
        change = self.session.maintenance.node_down if self._down else self.session.maintenance.node_up
        if self._down:  # first the jobs leave it
            there = [job.id for job in self.session.jobs.values() if name in dict(job.placement)]
            for job_id in sorted(there):
                self.events.append(events.interruption_event(job_id, self.now_s, f"node {name} is down"))
                self.session.maintenance.lose(job_id, self.now_s)
        self.events.append(Event(self.now_s, "node_down" if self._down else "node_up", detail={"node": name}))
        change(name, self.now_s)

    def _drain(self) -> None:
        name = self._random.choice([node.name for node in self.session.cluster.nodes])
        action: NodeAction = "drain" if name not in self.session.cluster.drained else "resume"
        at_once = action == "drain" and self._random.random() < 0.5
        order = Order(action=action, node=name, user="alice", asked_s=self.now_s, now=at_once)
        self.events.append(order_event(len(self.events), order, self.now_s))
        apply_events(self.session, [self.events[-1]])

    def _job(self, what: str, job: JobState) -> None:
        now = self.now_s
        if what == "train" and job.gpus:
            self._say(job, self._trained(job))
        elif what == "finish" and job.gpus:
            self._say(job, events.finish_event(job.id, now, 1, job.samples_done(now)))
            self.session.end(job.id, now, "finished")
        elif what == "requeue" and job.gpus:
            self._say(job, events.interruption_event(job.id, now, "interrupted"))
            self.session.maintenance.lose(job.id, now)
        elif what == "fail" and job.gpus:
            detail = {"attempt": 1, "reason": "exit code 1", "failures": 1}
            self._say(job, Event(now, "fail", job.id, gpus=0, placement=(), detail=detail))
            self.session.end(job.id, now, "failed")
        elif what == "cancel":
            self._say(job, events.cancel_event(job.id, now))
            if job.first_start_s is not None:
                self.events.append(events.release_event(job.id, now))
            self.session.end(job.id, now, "cancelled")
        elif what == "update" and not job.gpus:
            gpus = self._random.randint(1, 4)
            changes: Changes = {
                "gpus": {"requested": gpus, "min": gpus, "max": gpus},
                "retries": self._random.choice([None, 1]),
            }
            order = Order(action="update", job=job.id, user="alice", asked_s=now, changes=changes)
            self._say(job, order_event(len(self.events), order, now))
            apply_events(self.session, [self.events[-1]])
        elif what in ORDERS:
            rank = float(self._random.randint(-1, 2)) if what == "priority" else None
            order = Order(action=ORDERS[what], job=job.id, user="alice", asked_s=now, priority=rank)
            self._say(job, order_event(len(self.events), order, now))
            apply_events(self.session, [self.events[-1]])

    def _trained(self, job: JobState) -> Event:
        name = self._random.choice(self._reports)
        detail: dict[str, object] = {"attempt": self._random.choice([1, 1, 2])}
        if name == "progress" and self._random.random() < 0.5:
            seen = [count for _, count in job.placement]
            detail["observed"] = {
                "placement": sorted(seen, reverse=True),
                "local_batch": self._random.choice([8, 16]),
                "accum": 1,
                "step_seconds": self._random.random(),
            }
            detail["noise_scale"] = self._random.random() * 100
        loss = self._random.random() if name != "checkpoint" else None
        done = job.samples_done(self.now_s) * self._random.choice([1.0, 1.0, 0.9])
        return Event(self.now_s, name, job.id, samples_done=done, loss=loss, detail=detail)  # type: ignore[arg-type]

    def _say(self, job: JobState, event: Event) -> None:
        self.events.append(event)
        correct(self.session, job, typed(event))


def _transition_event(transition: Transition, now_s: float) -> Event:
    job = transition.job
    if transition.step == "reject":
        return events.reject_event(job.id, now_s, transition.reason)
    step = "move" if transition.step == "rebatch" else transition.step
    detail = {"accum": 1, "lr_scale": 1.0, "reason": "the policy said so"}
    return Event(now_s, step, job.id, job.gpus, job.placement, job.global_batch, detail=detail)
