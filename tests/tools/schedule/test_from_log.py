"""Sessions rebuilt from an event log or a schedule."""

from __future__ import annotations

import pytest

from pliant.schemas.cluster import Shares, UserLimit
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.schedule import PolicyState
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.from_log import CarriedOver, correct, session_from_events, session_from_schedule
from pliant.tools.schedule.jobs import Observation, Phase
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import BUILT_IN, make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job
from tests.tools.run.stories import Story
from tests.tools.schedule.histories import submitted

NODES = cluster(4, 4)


def start(job_id: str, time: float = 1, step: str = "start", **place: int) -> Event:
    return Event(time, step, job_id, gpus=sum(place.values()), placement=tuple(place.items()))


def rebuilt(*events: Event, **more) -> Session:
    return session_from_events(events, more.pop("policy", None) or Fifo(), NODES, CurveThroughput(), **more)


ELASTIC = job("a", gpus=2, low=1, high=8, work={"samples": 1000})


def test_a_log_holds_who_has_what_and_how_far_jobs_are() -> None:
    held = rebuilt(
        *submitted(ELASTIC),
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
    found = rebuilt(*submitted(ELASTIC), measured).jobs["a"]
    assert found.observations == (Observation((2, 1), 4, 1, 0.5),)
    assert found.noise_scale == 12.0
    # What comes after now is not known yet.
    held = rebuilt(*submitted(ELASTIC, job("b", at=50)), now_s=20)
    assert list(held.jobs) == ["a"]


def test_preempted_lost_and_swapped_jobs() -> None:
    log = [*submitted(ELASTIC), start("a", n0=1)]
    preempted = rebuilt(*log, Event(2, "preempt", "a", gpus=0))
    lost = rebuilt(*log, Event(2, "requeue", "a", gpus=0))
    assert [held.jobs["a"].phase for held in (preempted, lost)] == [Phase.PREEMPTED] * 2
    assert [change.kind for change in preempted.changes] == ["arrived"]
    assert [change.kind for change in lost.changes] == ["arrived", "lost"]
    # Jobs that change places in one decision.
    held = rebuilt(
        *submitted(job("a", gpus=4), job("b", gpus=4)),
        start("a", n0=4),
        start("b", n1=4),
        start("a", 2, "move", n1=4),
        start("b", 2, "move", n0=4),
    )
    assert held.jobs["a"].placement == (("n1", 4),)
    # A node that is down has no GPUs and no jobs.
    log = [
        *submitted(ELASTIC),
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
        *submitted(ELASTIC),
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
        (submitted(ELASTIC, ELASTIC), 'event 2 (submit): job "a" was submitted before'),
        ([Event(1, "submit", "a", detail={"job": {"id": "a"}})], "event 1 (submit): detail: /job/model"),
        ([*submitted(ELASTIC), start("a", n0=5)], "cannot hold 5 GPUs on n0"),
        ([*submitted(ELASTIC), start("a", x=1)], "cannot hold 1 GPUs on x"),
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


TEAMS = {"teams": {"x": {"users": ("a",), "weight": 2.0}, "y": {"users": {"b": 1.0, "c": 2.0}}}}
LIMITS = {"*": UserLimit(gpus=6, jobs=4)}


def known(held: Session, now_s: float) -> dict[str, object]:
    """All that decisions and reports of jobs have led to."""
    jobs = {
        state.id: (state.placement, state.samples_done(now_s), state.attained_service_s(now_s))
        for state in held.jobs.values()
    }
    return {
        "jobs": jobs,
        "in play": list(held.in_play),
        "commands": vars(held.commands),
        "fell": held.fell,
        "free": (held.up_gpus, held.free.by_type),
        "changes": held.changes_seen + len(held.changes),
        "used": held.usage and held.usage.until(now_s + 1),
    }


@pytest.mark.parametrize(
    ("rules", "more"),
    [
        pytest.param({}, {"happenings": ("submit", "node", "finish", "node")}, id="nodes fail"),
        pytest.param({}, {"linked": True}, id="linked"),
        pytest.param({"user_limits": LIMITS}, {"linked": True}, id="limits"),
        pytest.param({"shares": Shares.model_validate(TEAMS)}, {}, id="teams"),
    ],
)
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_kept_carried_and_rebuilt_policies_decide_alike(name, rules, more):
    """At any moment the process may end and another one go on from the log and the policy's state."""
    nodes = NODES.model_copy(update=rules)
    story = Story(sorted(BUILT_IN).index(name), name, nodes=nodes, **more)
    story._jobs = [each.model_copy(update={"user": "abcd"[at % 4]}) for at, each in enumerate(story._jobs)]
    events, live = story.go_on(30, last=False), story.session
    state = PolicyState.model_validate_json(live.policy_state().model_dump_json())
    carried, rebuilt_ = (
        session_from_events(events, make_policy(name), nodes, throughput_for(None, nodes), CarriedOver(each))
        for each in (state, None)
    )
    now_s = story.now_s + 7.0
    assert known(carried, now_s) == known(live, now_s)
    assert known(rebuilt_, now_s) == known(live, now_s)
    for held in (live, carried, rebuilt_):
        held.decide(now_s)
    assert carried.changes_seen == rebuilt_.changes_seen == live.changes_seen
    assert carried.standings(now_s) == live.standings(now_s)
    assert known(carried, now_s) == known(live, now_s)
    if rebuilt_.policy.rebuilds_state and not nodes.shares:
        assert known(rebuilt_, now_s) == known(live, now_s)
