"""Sessions rebuilt from an event log or a schedule."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster, Shares
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.schedule import PolicyState
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.from_log import CarriedOver, correct, session_from_events, session_from_schedule
from pliant.tools.schedule.jobs import Observation, Phase
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.registry import BUILT_IN, make_policy
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.testing.harness import some_jobs
from tests.builders import cluster, job
from tests.effort import examples

NODES = cluster(4, 4)


def submit(spec, time: float | None = None) -> Event:
    at = spec.submit_time if time is None else time
    return Event(at, "submit", spec.id, detail={"job": job_fields(spec)})


def start(job_id: str, time: float = 1, step: str = "start", **place: int) -> Event:
    return Event(time, step, job_id, gpus=sum(place.values()), placement=tuple(place.items()))


def rebuilt(*events: Event, **more) -> Session:
    return session_from_events(events, more.pop("policy", None) or Fifo(), NODES, CurveThroughput(), **more)


ELASTIC = job("a", gpus=2, low=1, high=8, work={"samples": 1000})


def test_a_log_holds_who_has_what_and_how_far_jobs_are() -> None:
    held = rebuilt(
        submit(ELASTIC),
        start("a", 10, n0=2),
        Event(20, "progress", "a", samples_done=15),
        Event(30, "grow", "a", gpus=4, placement=(("n0", 4),), samples_done=30, overhead_seconds=5),
    )
    state = held.jobs["a"]
    assert state.samples_done(45) == 30 + 10 * 4, "it trains from 35 s on"
    correct(state, Event(50, "epoch", "a", loss=0.5, samples_done=90))
    assert (state.gpus, state.placement, state.phase) == (4, (("n0", 4),), Phase.RUNNING)
    assert state.attained_service_s(60) == 20 * 2 + 30 * 4
    assert state.samples_done(60) == 90 + 10 * 4
    assert (list(state.losses), state.rescales, state.first_start_s) == ([0.5], 1, 10)
    # What a job has measured is known to policies.
    seen = {"placement": [2, 1], "local_batch": 4, "accum": 1, "step_seconds": 0.5}
    measured = Event(3.0, "progress", "a", samples_done=8.0, detail={"observed": seen, "noise_scale": 12.0})
    found = rebuilt(submit(ELASTIC), measured).jobs["a"]
    assert found.observations == (Observation((2, 1), 4, 1, 0.5),)
    assert found.noise_scale == 12.0
    # What comes after now is not known yet.
    held = rebuilt(submit(ELASTIC), submit(job("b", at=50)), now_s=20)
    assert list(held.jobs) == ["a"]


def test_preempted_lost_and_swapped_jobs() -> None:
    log = [submit(ELASTIC), start("a", n0=1)]
    preempted = rebuilt(*log, Event(2, "preempt", "a", gpus=0))
    lost = rebuilt(*log, Event(2, "requeue", "a", gpus=0))
    assert [held.jobs["a"].phase for held in (preempted, lost)] == [Phase.PREEMPTED] * 2
    assert [change.kind for change in preempted.changes] == ["arrived"]
    assert [change.kind for change in lost.changes] == ["arrived", "lost"]
    # Jobs that change places in one decision.
    held = rebuilt(
        submit(job("a", gpus=4)),
        submit(job("b", gpus=4)),
        start("a", n0=4),
        start("b", n1=4),
        start("a", 2, "move", n1=4),
        start("b", 2, "move", n0=4),
    )
    assert held.jobs["a"].placement == (("n1", 4),)
    # A node that is down has no GPUs and no jobs.
    log = [
        submit(ELASTIC),
        start("a", n0=1),
        Event(2, "node_down", detail={"node": "n0"}),
        Event(2, "requeue", "a", gpus=0),
    ]
    held = rebuilt(*log)
    assert (held.up_gpus, held.jobs["a"].gpus) == (4, 0)
    assert [change.kind for change in held.changes] == ["arrived", "node_down", "lost"]
    assert rebuilt(*log, Event(3, "node_up", detail={"node": "n0"})).up_gpus == 8


@pytest.mark.parametrize(
    ("event", "kind"),
    [("finish", "finished"), ("fail", "failed"), ("cancel", "cancelled"), ("reject", "rejected")],
)
def test_a_job_that_ended_is_known_but_not_active(event, kind):
    held = rebuilt(
        submit(ELASTIC),
        start("a", n0=1),
        Event(5, event, "a", gpus=0),
        Event(6, "progress", "a", samples_done=7),  # a last line that came late
    )
    assert (list(held.jobs), list(held.ended), held.changes[-1].kind) == ([], ["a"], kind)
    assert held.free.by_type == {"gpu": 8}


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([start("a", n0=1)], "event 1 (start): 'a' is not known"),
        ([submit(ELASTIC), submit(ELASTIC)], 'event 2 (submit): job "a" was submitted before'),
        ([Event(1, "submit", "a", detail={"job": {"id": "a"}})], "event 1 (submit): detail: /job/model"),
        ([submit(ELASTIC), start("a", n0=5)], "cannot hold 5 GPUs on n0"),
        ([submit(ELASTIC), start("a", x=1)], "cannot hold 1 GPUs on x"),
        ([Event(1, "node_down", detail={"node": "x"})], "event 1 (node_down): 'x' is not known"),
    ],
)
def test_a_log_that_contradicts_itself_is_bad_input(events, complaint):
    with pytest.raises(BadInputError) as caught:
        rebuilt(*events, source="events.jsonl")
    assert str(caught.value).startswith("events.jsonl: ")
    assert complaint in str(caught.value)


def test_a_schedule_is_taken_up_where_it_stands() -> None:
    jobs = [job("a", gpus=8), job("b", gpus=4), job("later", at=99), job("out", gpus=8, batch=4)]
    found = decide(jobs, NODES, None, Question("fifo"))
    held = session_from_schedule(found, make_policy("fifo"), CurveThroughput())
    assert ({state.id: state.gpus for state in held.jobs.values()}) == {"a": 8, "b": 0}
    assert list(held.ended) == ["out"]
    held.end("a", 10)
    assert [(transition.job.id, transition.step) for transition in held.decide(10)] == [("b", "start")]
    found = decide([job("a", gpus=8)], NODES, None, Question("fifo"))
    smaller = found.model_copy(update={"cluster": cluster(4)})
    with pytest.raises(BadInputError, match='schedule: it contradicts itself: job "a" cannot hold'):
        session_from_schedule(smaller, make_policy("fifo"), CurveThroughput())


# A live run: jobs arrive, jobs end, the log grows; at any moment the process may die and start again.
STORY = st.lists(st.tuples(st.sampled_from(["submit", "submit", "finish", "down", "up"]), st.integers(0, 40)))


class Live:
    """Keeps a session and the log that a runner would write of it."""

    def __init__(self, name: str, nodes: Cluster = NODES, users: str = " ") -> None:
        self.name = name
        self.nodes = nodes
        self.held = Session(make_policy(name), nodes, CurveThroughput())
        self.log: list[Event] = []
        self.time = 0.0
        drawn = enumerate(some_jobs(41))
        self.pool = [each.model_copy(update={"user": users[at % len(users)].strip()}) for at, each in drawn]

    def happen(self, kind: str, index: int) -> None:
        self.time += 7.0
        active = sorted(self.held.jobs)
        if kind == "submit":
            spec = self.pool[index].model_copy(update={"submit_time": self.time})
            if spec.id not in self.held.jobs and spec.id not in self.held.ended:
                self.held.submit(spec, self.time)
                self.log.append(submit(spec))
        elif kind == "finish" and active:
            job_id = active[index % len(active)]
            self.held.end(job_id, self.time)
            self.log.append(Event(self.time, "finish", job_id, gpus=0))
        elif kind in ("down", "up"):
            name = f"n{index % 2}"
            (self.held.node_down if kind == "down" else self.held.node_up)(name, self.time)
            self.log.append(Event(self.time, f"node_{kind}", detail={"node": name}))

    def decide(self) -> None:
        for transition in self.held.decide(self.time):
            state = transition.job
            step = "move" if transition.step == "rebatch" else transition.step
            place, batch = state.placement, state.global_batch
            self.log.append(Event(self.time, step, state.id, state.gpus, place, batch))

    def lives(self, before, after) -> PolicyState:
        """The state of the policy between the two."""
        for kind, index in before:
            self.happen(kind, index)
            self.decide()
        state = PolicyState.model_validate_json(self.held.policy_state().model_dump_json())
        for kind, index in after:
            self.happen(kind, index)
        return state

    def reopened(self, carried: PolicyState | None) -> Session:
        return session_from_events(
            self.log, make_policy(self.name), self.nodes, CurveThroughput(), CarriedOver(carried)
        )


def view(held: Session, time: float) -> dict[str, object]:
    return {
        state.id: (state.placement, state.samples_done(time), state.attained_service_s(time))
        for state in held.jobs.values()
    }


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@settings(max_examples=3, deadline=None)
@given(before=STORY, after=STORY)
@example(before=[("down", 0), ("submit", 1), ("up", 0)], after=[])
def test_kept_carried_and_rebuilt_policies_decide_alike(name, before, after):
    live = Live(name)
    carried, rebuilt_ = live.reopened(live.lives(before, after)), live.reopened(None)
    now = live.time
    assert view(carried, now) == view(rebuilt_, now) == view(live.held, now)
    for held in (live.held, carried, rebuilt_):
        held.decide(live.time)
    assert view(carried, now) == view(live.held, now)
    if rebuilt_.policy.rebuilds_state:
        assert view(rebuilt_, now) == view(live.held, now)
    assert carried.changes_seen == rebuilt_.changes_seen == live.held.changes_seen


TEAMS = Shares.model_validate(
    {"teams": {"x": {"users": ("a",), "weight": 2.0}, "y": {"users": {"b": 1.0, "c": 2.0}}}}
)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@settings(max_examples=examples(2), deadline=None)
@given(before=STORY, after=STORY)
def test_policies_of_teams_decide_alike_in_another_process(name, before, after):
    live = Live(name, NODES.model_copy(update={"shares": TEAMS}), "abcd")
    carried = live.reopened(live.lives(before, after))
    assert carried.usage is not None
    assert live.held.usage is not None
    assert carried.usage.until(live.time + 1) == live.held.usage.until(live.time + 1), "to the last digit"
    for held in (live.held, carried):
        held.decide(live.time)
    assert view(carried, live.time) == view(live.held, live.time)
    assert carried.standings(live.time) == live.held.standings(live.time)
