import re
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.cluster import Shares, UserLimit
from pliant.schemas.errors import BadInputError, InfeasibleError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.events import typed
from pliant.schemas.io import profile_hash, profile_to_columns
from pliant.schemas.profile import Profile
from pliant.schemas.schedule import PolicyState, Schedule
from pliant.schemas.text import width_of
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.explain import table
from pliant.tools.schedule.from_log import CarriedOver, correct, session_from_events, session_from_schedule
from pliant.tools.schedule.jobs import Observation, Phase
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.srtf import Srtf
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import BUILT_IN, make_policy, policy_class
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, mixed_cluster
from tests.effort import examples
from tests.strategies import schedules
from tests.tools.profile.rows_builder import step
from tests.tools.run.stories import Story
from tests.tools.schedule.histories import decide_from, submitted

NODES = cluster(4, 4)


PROFILE = Profile(
    tuple(step(*each, model="m") for each in ((1, 8, 1.0), (1, 16, 2.0), (2, 8, 1.1), (2, 16, 2.1)))
)


def held(schedule: Schedule) -> dict[str, tuple[str, int]]:
    return {given.job: (given.action, given.gpus) for given in schedule.allocations}


def ask(*jobs, policy: str = "fifo", now: float | None = None, **more) -> Schedule:
    question = Question(policy, more.pop("parameters", {}), timing=False, **more)
    return decide(jobs, NODES, None, question, now_s=now)


def test_a_schedule_holds_who_runs_who_waits_and_who_comes_later() -> None:
    found = ask(job("b", gpus=4), job("a", gpus=6), job("late", at=30.5))
    assert held(found) == {"a": ("start", 6)}
    assert [(verdict.job, verdict.reason) for verdict in found.waiting] == [
        ("b", "first in line: waits until 4 GPUs of one type are free"),
        ("late", "arrives at 30.5 s"),
    ]
    assert [each.id for each in found.jobs] == ["a", "b", "late"]
    assert found.time == 0
    # The schedule repeats policy parameters and seed.
    found = ask(job("a"), parameters={"backfill": "easy"}, seed=3)
    assert found.policy.model_dump() == {"name": "fifo", "parameters": {"backfill": "easy"}, "seed": 3}
    # A rejected job says why.
    found = ask(job("a", gpus=8, batch=4), job("b"))
    assert [verdict.job for verdict in found.rejected] == ["a"]
    assert "does not run on 8 GPUs" in found.rejected[0].reason
    assert [each.id for each in found.jobs] == ["b", "a"]
    # Now is the first arrival unless it is given.
    assert ask(job("a", at=7), job("b", at=9)).time == 7
    assert ask(job("a", at=7), now=3).waiting[0].reason == "arrives at 7 s"
    assert set(held(ask(job("a", at=7), job("b", at=9), now=9))) == {"a", "b"}
    assert (ask().time, ask().allocations, ask().waiting) == (0, (), ())


def test_batches_learning_rates_and_the_time_of_a_decision() -> None:
    found = decide([job("a", gpus=2, model="m", batch=64)], cluster(2), PROFILE, Question("fifo"))
    batch = found.allocations[0].batch
    assert batch is not None
    assert (batch.global_, batch.local, batch.accum) == (64, 16, 2)
    assert found.profile is not None
    assert found.profile["local_batch"] == [8, 16, 8, 16]
    assert ask(job("a", batch={"size": None})).allocations[0].batch is None, "it is left to the script"
    rows = Profile(tuple(step(gpus, local, 0.1, model="m") for gpus in (1, 2) for local in (8, 16)))
    batch, work = {"size": 8, "min": 8, "max": 32}, {"samples": 1e6}
    grows = job("a", model="m", gpus=2, low=1, high=2, work=work, batch=batch, elastic="size+batch")
    (found,) = decide([grows], cluster(2), rows, Question("max-bs")).allocations
    assert found.batch is not None
    assert found.batch.global_ > 8
    assert found.lr_scale == found.batch.global_ / 8
    jobs = [job("a", gpus=3), job("b", gpus=2), job("c", at=5)]
    timed = decide(jobs, NODES, None, Question("fifo"))
    assert timed.decision_seconds is not None
    assert timed.model_copy(update={"decision_seconds": None}) == ask(*jobs)


def test_explaining_adds_what_is_needed_and_when_it_starts(monkeypatch):
    work = {"a": (8, 800), "b": (4, 400), "c": (8, 80)}
    jobs = [job(name, gpus=gpus, gpu_seconds=seconds) for name, (gpus, seconds) in work.items()]
    plain, explained = ask(*jobs), ask(*jobs, explain=True)
    assert [(each.needs_gpus, each.predicted_start) for each in plain.waiting] == [(None, None)] * 2
    waiting = [(each.job, each.needs_gpus, each.predicted_start) for each in explained.waiting]
    assert waiting == [("b", 4, 100), ("c", 8, 200)]
    assert [given.predicted_end for given in explained.allocations] == [100]
    without = [given.model_copy(update={"predicted_end": None}) for given in explained.allocations]
    assert list(plain.allocations) == without
    assert plain.policy_state == explained.policy_state
    # The policy is asked once why.
    asked, explain = [], Srtf.explain
    monkeypatch.setattr(Srtf, "explain", lambda self, seen: asked.append(1) or explain(self, seen))
    ask(job("a", gpus=8), job("b", gpus=8), policy="srtf", explain=True)
    assert asked == [1]


@pytest.mark.parametrize(
    ("jobs", "reason"),
    [
        ([job("a", gpus=9)], 'job "a" needs 9 GPUs, the cluster has 8'),
        (
            [job("a", gpus=99, elastic="size"), job("b", gpus=99, elastic="size")],
            'job "a" needs 99 GPUs of one type, the cluster has 8.*; of 2 jobs none fits',
        ),
    ],
)
def test_jobs_none_of_which_can_be_served_are_infeasible(jobs, reason: str):
    with pytest.raises(InfeasibleError, match=f"jobs: {reason}"):
        ask(*jobs)


@pytest.mark.parametrize(("policy", "at"), [("fifo", 100.0), *((policy, 0.0) for policy in BUILT_IN)])
def test_a_job_larger_than_cluster_is_rejected_by_every_policy(policy: str, at: float):
    works = {"gpu_seconds": 60.0, "low": 1, "high": 8}
    large = job("big", at=at, gpus=9, gpu_seconds=60.0, model="unknown", batch=32)
    found = decide([job("a", batch=32, model="m", **works), large], NODES, PROFILE, Question(policy))
    assert [(out.job, out.reason) for out in found.rejected] == [("big", "needs 9 GPUs, the cluster has 8")]
    assert set(held(found)) == {"a"}
    assert {each.id for each in found.jobs} == {"a", "big"}


def test_missing_profiles_are_said(monkeypatch) -> None:
    with pytest.raises(BadInputError, match='model "n" is not profiled'):
        decide([job("a", model="n")], NODES, PROFILE, Question("fifo"))
    monkeypatch.setattr(Srtf, "traits", replace(Srtf.traits, needs=frozenset({"profile"})))
    with pytest.raises(UsageError, match='policy "srtf" needs a profile'):
        ask(job("a", gpu_seconds=10), policy="srtf")


# From a log.

INFO = {
    "policy": "fifo",
    "simulated": False,
    "trace_hash": "0",
    "cluster": {"nodes": [{"name": "n0", "gpus": 4}]},
    "pliant_version": "0",
}


def log(*events: Event) -> tuple[Event, ...]:
    return (Event(0, "decision", detail=INFO), *events)


def from_log(*events: Event, now: float, policy: str = "fifo", **more) -> Schedule:
    return decide_from(log(*events), Question(policy, timing=False), now_s=now, **more)


def test_the_log_alone_is_enough_and_new_jobs_may_not_fit() -> None:
    events = submitted(job("a", gpus=4), job("b", at=1, gpus=4))
    first = from_log(*events, now=2)
    assert held(first) == {"a": ("start", 4)}
    started = Event(2, "start", "a", 4, (("n0", 4),), 960)
    again = from_log(*events, started, now=3, previous=first)
    assert held(again) == {"a": ("keep", 4)}
    ended = Event(9, "finish", "a", 0)
    assert held(from_log(*events, started, ended, now=9)) == {"b": ("start", 4)}
    # The files of a state directory win over what the log began with.
    found = from_log(*submitted(job("a", gpus=8)), now=1, cluster=NODES)
    assert held(found) == {"a": ("start", 8)}
    # A preempted job is in the schedule and waits.
    long, short = job("a", gpus=4, gpu_seconds=4000), job("b", at=1, gpus=4, gpu_seconds=4)
    events = [*submitted(long, short), Event(0, "start", "a", 4, (("n0", 4),))]
    found = from_log(*events, now=2, policy="srtf")
    assert held(found) == {"a": ("keep", 4)}, "it cannot save"
    found = from_log(*events, now=2, policy="srtf", cluster=cluster(4).with_preemptible("all"))
    assert held(found) == {"a": ("preempt", 0), "b": ("start", 4)}
    assert [verdict.job for verdict in found.waiting] == ["a"]
    # A new job of the log that does not fit is rejected.
    found = from_log(*submitted(job("a", gpus=4), job("big", gpus=9)), now=1, new=["a", "big"])
    assert (held(found), [each.job for each in found.rejected]) == ({"a": ("start", 4)}, ["big"])


COLUMNS = profile_to_columns(PROFILE.rows)
HASHED = INFO | {"profile_hash": profile_hash(COLUMNS)}


def of_run(info: dict[str, object], **more) -> Schedule:
    """A decision from a log that begins so, about a job that the profile knows."""
    events = (Event(0, "decision", detail=info), *submitted(job("a", gpus=2, model="m", batch=64)))
    return decide_from(events, Question("fifo", timing=False), now_s=1, cluster=cluster(2), **more)


def test_speeds_of_the_profile_of_the_log_or_of_the_cluster() -> None:
    found = of_run(HASHED, profile=PROFILE)
    assert found.profile == COLUMNS
    assert of_run(HASHED, previous=found).allocations == found.allocations
    with pytest.raises(BadInputError, match="the run began with a profile, expected its profile"):
        of_run(HASHED)
    # A log of an earlier version holds the profile.
    assert of_run(INFO | {"profile": COLUMNS}) == of_run(INFO, profile=PROFILE)
    # Without a profile the speeds that cluster states count.
    both = mixed_cluster(slow=(1,), fast=(1,)).model_copy(update={"speeds": {"fast": 2.5}})
    found = decide([job("a", work={"samples": 100})], both, None, Question("fifo"))
    assert [found.allocations[0].placement[0][0]] == ["fast-0"]
    throughput = throughput_for(None, both)
    assert [throughput.step_seconds("m", kind, (1,), 10, None) for kind in ("slow", "fast")] == [10.0, 4.0]


@pytest.mark.parametrize("events", [(), (Event(0, "submit", "a", detail={"job": {}}),)])
def test_a_log_that_does_not_name_its_cluster_is_bad_input(events):
    with pytest.raises(BadInputError, match="does not name a cluster in its first event"):
        decide_from(events, Question("fifo"), now_s=0)


@pytest.mark.parametrize("alike", ["parameters", "clock"])
def test_state_of_other_parameters_or_clocks_is_not_carried(alike: str):
    events = submitted(*(job(name, low=1, high=4, model="m", gpu_seconds=100) for name in "ab"))
    more = {"now": 1, "profile": PROFILE, "policy": "ares"}
    first = from_log(*events, **more)
    assert first.policy_state is not None
    spoiled = first.policy_state.model_copy(update={"state": "not what ares can read"})
    other = first.policy.model_copy(update={"parameters": {"alpha": 0.5}})
    previous = first.model_copy(update={"policy_state": spoiled})
    if alike == "parameters":
        events.append(Event(1, "decision", detail={"origin_s": 1.7e9}))
    else:
        previous = previous.model_copy(update={"policy": other})
    assert from_log(*events, **more, previous=previous) == first


# The table of a schedule.


JOBS = (job("a", gpus=8, gpu_seconds=1440.0), job("b", gpus=4, gpu_seconds=400.0))


def test_the_table_says_until_when_jobs_run_and_wait() -> None:
    found = decide(JOBS, cluster(8), None, Question("fifo", explain=True))
    assert table(found).splitlines() == [
        "job  action  GPUs     when                        where  batch  why",
        "a    start   8        ends in 3 min (at 180 s)    n0:8   960    runs on 8 GPUs",
        (
            "b    wait    needs 4  starts in 3 min (at 180 s)                "
            "first in line: waits until 4 GPUs of one type are free"
        ),
    ]
    # Without any job there is no table.
    assert table(decide((), cluster(8), None, Question("fifo", explain=True))) == "no job\n"
    # A narrow terminal loses columns but no digits.
    found = decide(JOBS, cluster(8), None, Question("fifo", explain=True))
    assert table(found, 60).splitlines()[2] == "b    wait    needs 4  starts in 3 min (at 180 s)"


GOES_BY_WORK = [
    name
    for name in BUILT_IN
    if not (policy := policy_class(name)).traits.uses_guessed_speeds
    and policy.traits.knows in ("work", "profile")
    and not policy.traits.needs_future
]


@pytest.mark.parametrize("name", GOES_BY_WORK)
def test_without_a_profile_no_reason_states_unmeasured_seconds(name: str) -> None:
    work = {"epochs": 5, "dataset_size": 4096}
    jobs = [job(each, elastic="size", low=1, high=4, gpus=2, work=work) for each in "abcd"]
    found = decide(jobs, cluster(4), None, Question(name, explain=True))
    assert all(given.predicted_end is None for given in found.allocations)
    reasons = [each.reason for each in (*found.allocations, *found.waiting)]
    known = r"leased until [^;]*|[\d.]+ (s|GPU-seconds) received"
    span = r"\d (s|min|h|GPU-s|GPU-seconds)\b"
    assert [each for each in reasons if re.search(span, re.sub(known, "", each))] == []


def test_of_jobs_that_arrive_later_the_first_are_listed() -> None:
    jobs = [job("a"), *(job(f"late{index}", at=10.0 + index) for index in range(7))]
    found = decide(jobs, cluster(8), None, Question("fifo", explain=True), now_s=0.0)
    *_, last, rest = table(found).splitlines()
    assert (last.split()[0], rest) == ("late4", "and 2 jobs that arrive later")
    assert "arrive later" not in table(decide(jobs[:6], cluster(8), None, Question("fifo"), now_s=0.0))
    # A job that arrives later says when.
    found = decide([job("a", at=0.0), job("late", at=90.0)], cluster(8), None, Question("fifo"), now_s=0.0)
    assert table(found).splitlines()[2].split("  ")[0] == "late"
    assert "arrives in 2 min (at 90 s)" in table(found)


@given(schedules(), st.integers(40, 200))
@settings(deadline=None, max_examples=examples(15))
def test_no_line_is_wider_than_the_terminal(schedule: object, width: int) -> None:
    assert max(map(width_of, table(schedule, width).splitlines())) <= width  # type: ignore[arg-type]


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
    correct(held, state, typed(Event(50, "epoch", "a", loss=0.5, samples_done=90)))
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
    # An update that makes no job, or one for no node of the cluster, leaves the job as it is.
    for gpus in ({"requested": 20}, {"types": ["h800"]}):
        update = Event(3.0, "update", "a", detail={"changes": {"gpus": gpus}})
        assert rebuilt(*submitted(ELASTIC), update).jobs["a"].spec.gpus == ELASTIC.gpus
    # What comes after now is not known yet.
    held = rebuilt(*submitted(ELASTIC, job("b", at=50)), now_s=20)
    assert list(held.jobs) == ["a"]


def test_preempted_lost_and_swapped_jobs() -> None:
    log = [*submitted(ELASTIC), start("a", n0=1)]
    preempted = rebuilt(*log, Event(2, "preempt", "a", gpus=0))
    lost = rebuilt(*log, Event(2, "requeue", "a", gpus=0))
    assert [held.jobs["a"].phase for held in (preempted, lost)] == [Phase.PREEMPTED] * 2
    assert [change.kind for change in preempted.changes.entries] == ["arrived"]
    assert [change.kind for change in lost.changes.entries] == ["arrived", "lost"]
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
    assert (held.cluster.up_gpus, held.jobs["a"].gpus) == (4, 0)
    assert [change.kind for change in held.changes.entries] == ["arrived", "node_down", "lost"]
    assert rebuilt(*log, Event(3, "node_up", detail={"node": "n0"})).cluster.up_gpus == 8


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
    assert (list(held.jobs), list(held.book.ended), held.changes.entries[-1].kind) == ([], ["a"], kind)
    assert held.cluster.free.by_type == {"gpu": 8}


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
    assert list(held.book.ended) == ["out"]
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
        "hidden": asdict(held.hidden),
        "nodes": asdict(held.cluster.state),
        "fell": held.book.outcomes,
        "free": (held.cluster.up_gpus, held.cluster.free.by_type),
        "changes": held.changes.seen + len(held.changes.entries),
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
    state = PolicyState.model_validate_json(live.policy_host.policy_state().model_dump_json())
    carried, rebuilt_ = (
        session_from_events(events, make_policy(name), nodes, throughput_for(None, nodes), CarriedOver(each))
        for each in (state, None)
    )
    now_s = story.now_s + 7.0
    assert known(carried, now_s) == known(live, now_s)
    assert known(rebuilt_, now_s) == known(live, now_s)
    for held in (live, carried, rebuilt_):
        held.decide(now_s)
    assert carried.changes.seen == rebuilt_.changes.seen == live.changes.seen
    assert carried.policy_host.standings(now_s) == live.policy_host.standings(now_s)
    assert known(carried, now_s) == known(live, now_s)
    if rebuilt_.policy.traits.rebuilds_state and not nodes.shares:
        assert known(rebuilt_, now_s) == known(live, now_s)
