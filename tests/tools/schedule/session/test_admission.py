import numpy as np
import pytest

from pliant.schemas.checks import check_after, oversized
from pliant.schemas.cluster import UserLimit
from pliant.schemas.errors import BadInputError
from pliant.schemas.job import updated
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.explain import explanations
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision, PolicyError
from pliant.tools.schedule.predict_start import copy_of, predictions
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.hidden import HiddenJobs
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import FREE_CHANGES, allocated, cluster, job, session
from tests.tools.replay.world import play, story
from tests.tools.schedule.session.test_session import Says, opened, steps


def placed(held: Session) -> dict[str, dict[str, int]]:
    return {name: dict(state.placement) for name, state in held.jobs.items()}


def changes(held: Session) -> list[tuple[str, str]]:
    """What the policy is to be shown next, of whom."""
    return [
        (change.kind, change.job.id if change.job is not None else f"{change.node.name} {change.gpus}")
        for change in held.changes.entries
        if change.job is not None or change.node is not None
    ]


def on(held: Session, **places: dict[str, int]) -> Session:
    held.set_allocations([allocated(name, tuple(place.items())) for name, place in places.items()], 1.0)
    held.changes.entries.clear()
    return held


def elastic(name: str, low: int = 1, high: int = 8, gpus: int = 1):
    return job(name, gpus=gpus, low=low, high=high, work={"samples": 1000})


def test_a_held_job_leaves_and_arrives_when_it_is_released() -> None:
    held = on(opened(cluster(4), job("a", gpus=2), job("b", gpus=4)), a={"n0": 2})
    held.admission.hold("a", 2.0, "alice")
    assert changes(held) == [("cancelled", "a")]
    with pytest.raises(PolicyError):
        steps(held, 3.0, b=5)
    held.rollback([allocated("a", (("n0", 2),))], 3.0)
    assert placed(held)["a"] == {"n0": 2}, "it goes on until the policy decides"
    assert steps(held, 4.0, b=4) == [("a", "preempt"), ("b", "start")]
    assert isinstance(held.policy, Says)
    assert list(held.policy.seen[-1].jobs) == ["b"]
    with pytest.raises(PolicyError, match="not an active job"):
        steps(held, 5.0, a=2)
    # A job that is held has left and arrives when released.
    held = on(opened(cluster(4), job("a", gpus=2), job("b")), a={"n0": 2})
    held.admission.hold("a", 2.0, "alice")
    held.admission.hold("a", 2.5, "alice")
    held.maintenance.lose("a", 3.0)
    held.admission.prioritize("a", 3.0, 5.0)
    held.admission.release("b", 3.5)
    assert changes(held) == [("cancelled", "a")]
    assert "a" not in predictions(copy_of(held), 3.5, decides_now=True)
    held.admission.release("a", 4.0)
    assert changes(held) == [("cancelled", "a"), ("arrived", "a")]
    held.admission.hold("a", 5.0, "alice")
    held.end("a", 6.0, "cancelled")
    assert changes(held)[2:] == [("cancelled", "a")], "it has left once"
    assert not held.hidden.held


def test_with_many_jobs_few_looks_at_each_show_which_are_hidden(monkeypatch: pytest.MonkeyPatch):
    """A decision is asked for and explained every second, of thousands of jobs."""
    looks: list[str] = []
    hides = HiddenJobs.hides
    monkeypatch.setattr(HiddenJobs, "hides", lambda held, name: looks.append(name) or hides(held, name))
    held = session(make_policy("fifo"), cluster(4), None)
    for number in range(100):
        held.submit(job(f"j{number}", work={"samples": 10}), 0.0)
    held.admission.hold("j50", 1.0, "alice")
    held.decide(2.0)
    assert explanations(held, 2.0)["j50"].reason == "held by alice"
    assert len(looks) < 10 * len(held.jobs)


def test_jobs_of_a_drained_node_finish_with_its_gpus() -> None:
    held = on(opened(cluster(4, 4), elastic("a"), elastic("b")), a={"n0": 2}, b={"n1": 3})
    held.maintenance.drain("n0", 2.0, now=False)
    assert changes(held) == [("node_down", "n0 -4"), ("cancelled", "a")]
    assert steps(held, 3.0, b=4) == [("b", "grow")]
    assert placed(held) == {"a": {"n0": 2}, "b": {"n1": 4}}
    seen = held.policy.seen[-1]  # type: ignore[attr-defined]
    assert (list(seen.jobs), seen.total_gpus) == (["b"], 4)
    held.end("a", 5.0)
    assert held.cluster.free.free_on("n0") == 0, "what comes free there stays out of service"
    held.maintenance.undrain("n0", 6.0)
    assert held.cluster.free.free_on("n0") == 4
    assert changes(held) == [("node_up", "n0 4")]
    # GPUs of a bound job are out of service until it ends.
    held = on(opened(cluster(4, 4), job("a", gpus=6), elastic("b")), a={"n0": 4, "n1": 2})
    held.maintenance.drain("n0", 2.0, now=False)
    assert changes(held) == [("node_down", "n0 -4"), ("cancelled", "a"), ("capacity", "n1 -2")]
    assert held.snapshot(2.0).total_gpus == 2
    assert steps(held, 3.0, b=2) == [("b", "start")]
    assert placed(held)["b"] == {"n1": 2}
    held.end("a", 4.0)
    assert changes(held) == [("capacity", "n1 2")]
    assert held.snapshot(4.0).total_gpus == 4
    assert steps(held, 5.0, b=4) == [("b", "grow")]


def test_jobs_have_to_leave_at_once_in_place_where_they_can() -> None:
    # a has enough on the other node, b is not elastic, c holds nothing elsewhere and is moved.
    held = on(
        opened(cluster(4, 4, 4), elastic("a"), job("b", gpus=2), elastic("c")),
        a={"n0": 1, "n1": 1},
        b={"n0": 2},
        c={"n0": 1},
    )
    held.maintenance.drain("n0", 2.0, now=True)
    found = steps(held, 3.0, c=1)
    assert sorted(found) == [("a", "shrink"), ("b", "preempt"), ("c", "move")]
    assert placed(held)["a"] == {"n1": 1}
    assert "n0" not in placed(held)["c"]
    seen = held.policy.seen[-1]  # type: ignore[attr-defined]
    assert [(each.kind, each.job.id) for each in seen.changes if each.job is not None] == [
        *(("lost", "a"), ("lost", "b"), ("lost", "c"))
    ]
    # A bound job may be made to leave or lose its GPUs.
    held = on(opened(cluster(4, 4), job("a", gpus=2)), a={"n0": 2})
    held.maintenance.drain("n0", 2.0, now=False)
    held.maintenance.drain("n0", 3.0, now=True)
    assert changes(held)[-1] == ("arrived", "a")
    assert steps(held, 4.0, a=2) == [("a", "move")]
    held.maintenance.drain("n0", 5.0, now=False)
    assert held.cluster.drained == {"n0": True}, "nothing undoes that but a resume"
    held = on(opened(cluster(4, 4), job("a", gpus=2)), a={"n0": 2})
    held.maintenance.drain("n0", 2.0, now=False)
    held.maintenance.lose("a", 3.0)
    assert changes(held)[-1] == ("arrived", "a")
    assert steps(held, 4.0, a=2) == [("a", "resume")]
    assert placed(held)["a"] == {"n1": 2}


def test_a_bound_job_comes_back_and_a_drained_node_stays_drained() -> None:
    held = on(opened(cluster(4, 4), job("a", gpus=6)), a={"n0": 4, "n1": 2})
    held.maintenance.drain("n0", 2.0, now=False)
    held.maintenance.drain("n1", 2.0, now=False)
    held.maintenance.undrain("n0", 3.0)
    assert list(held.hidden.bound) == ["a"], "it still finishes on the other one"
    held.maintenance.undrain("n1", 4.0)
    assert (held.hidden.bound, held.snapshot(4.0).total_gpus, held.cluster.free.by_type) == (
        {},
        8,
        {"gpu": 2},
    )
    assert changes(held)[-1] == ("arrived", "a")
    # A setback of a bound job leaves it bound to what it still holds.
    held = on(opened(cluster(4, 4), elastic("a")), a={"n0": 2, "n1": 2})
    held.maintenance.drain("n0", 2.0, now=False)
    held.set_allocations([allocated("a", (("n0", 1), ("n1", 1)))], 3.0)
    assert placed(held)["a"] == {"n0": 1, "n1": 1}
    assert (list(held.hidden.bound), held.snapshot(3.0).total_gpus) == (["a"], 3)
    # Drained node that goes down is still drained when back.
    held = on(opened(cluster(4, 4), job("a", gpus=2)), a={"n0": 2})
    held.maintenance.drain("n0", 2.0, now=False)
    assert [state.id for state in held.maintenance.node_down("n0", 3.0)] == ["a"]
    assert held.maintenance.node_down("n0", 3.0) == []
    held.maintenance.node_up("n0", 4.0)
    assert held.cluster.free.free_on("n0") == 0
    held.maintenance.undrain("n0", 5.0)
    assert held.cluster.free.free_on("n0") == 4
    held.maintenance.node_down("n0", 6.0)
    held.maintenance.drain("n0", 7.0, now=False)
    held.maintenance.undrain("n0", 8.0)
    assert held.cluster.free.free_on("n0") == 0, "it is still down"
    held.maintenance.node_up("n0", 9.0)
    assert held.cluster.free.free_on("n0") == 4


def test_another_node_of_bound_job_comes_back_with_all_its_gpus():
    held = on(opened(cluster(4, 4), job("a", gpus=6)), a={"n0": 4, "n1": 2})
    held.maintenance.drain("n0", 2.0, now=False)
    held.maintenance.node_down("n1", 3.0)
    assert held.snapshot(3.0).total_gpus == 0
    held.maintenance.node_up("n1", 4.0)
    assert held.snapshot(4.0).total_gpus == 4
    assert sum(change.gpus for change in held.changes.entries) == 4 - 8
    held.cluster.withdraw("n0/1", 5.0, 9.0)
    held.maintenance.undrain("n0", 6.0)
    assert held.snapshot(6.0).total_gpus == 7
    assert sum(change.gpus for change in held.changes.entries) == 7 - 8


def limited(*nodes: int, **limits: UserLimit):
    found = {"*" if user == "others" else user: limit for user, limit in limits.items()}
    return cluster(*nodes).model_copy(update={"user_limits": found})


def owned(name: str, user: str, gpus: int = 1, **more):
    return job(name, gpus=gpus, user=user, work={"samples": 1000}, **more)


def test_limits_of_jobs_and_gpus_of_a_user() -> None:
    nodes = limited(8, alice=UserLimit(gpus=4))
    held = opened(
        nodes, owned("a", "alice", 3), owned("b", "alice", 2), owned("c", "alice", 1), owned("d", "bob", 8)
    )
    assert list(held.in_play) == ["a", "d"], "c would overtake b"
    assert held.hidden.limited == dict.fromkeys("bc", "beyond the limit of user alice: 4 GPUs")
    assert steps(held, 1.0, a=3) == [("a", "start")]
    held.end("a", 2.0)
    assert list(held.in_play) == ["b", "c", "d"]
    assert changes(held) == [("finished", "a"), ("arrived", "b"), ("arrived", "c")]
    # Limits of jobs and GPUs.
    nodes = limited(8, alice=UserLimit(jobs=1), others=UserLimit(jobs=2))
    jobs = [owned(f"{user}{at}", user) for user in ("alice", "bob", "eve") for at in range(3)]
    assert list(opened(nodes, *jobs).in_play) == ["alice0", "bob0", "bob1", "eve0", "eve1"]
    # Jobs that run without a GPU count as jobs alone.
    held = opened(limited(2, alice=UserLimit(gpus=2)), *(owned(name, "alice", 0) for name in "ab"))
    held.decide(1.0)
    held.submit(owned("c", "alice", 2), 1.0)
    assert [bool(each.gpus) for each in held.jobs.values()] == [True, True, False]
    assert not held.hidden.limited
    # Under a limit of GPUs no job grows beyond what it requested.
    nodes = limited(8, alice=UserLimit(gpus=4))
    held = opened(nodes, owned("a", "alice", 2, low=1, high=8), owned("b", "bob", 2, low=1, high=8))
    assert [held.jobs[name].max_gpus(8) for name in "ab"] == [2, 8]
    with pytest.raises(PolicyError, match='gives "a" 3 GPUs, its limits are 1 to 2'):
        steps(held, 1.0, a=3)
    refused = oversized([owned("a", "alice", 5), owned("b", "alice", 4), owned("c", "bob", 8)], nodes)
    assert refused == {"a": 'requests 5 GPUs, user "alice" may hold 4'}


def test_the_most_important_job_is_next_and_rejections_make_room() -> None:
    nodes = limited(8, alice=UserLimit(jobs=1))
    held = opened(nodes, *(owned(name, "alice") for name in "abc"))
    assert steps(held, 1.0, a=1) == [("a", "start")]
    held.admission.prioritize("c", 1.0, 5.0)
    held.admission.hold("a", 2.0, "alice")
    assert list(held.in_play) == ["c"]
    held.admission.release("a", 3.0)
    assert list(held.in_play) == ["c"], "it has to wait for its turn again"
    assert steps(held, 3.0, c=1) == [("a", "preempt"), ("c", "start")]
    held.end("c", 4.0)
    assert list(held.in_play) == ["a"]
    # A policy is asked again where its rejection makes room.
    nodes = limited(8, alice=UserLimit(jobs=1))
    held = opened(nodes, owned("a", "alice"), owned("b", "alice"))
    assert isinstance(held.policy, Says)
    held.policy.next = Decision(rejected={"a": "too late"})
    assert [each.step for each in held.decide(1.0)] == ["reject"]
    assert list(held.in_play) == ["b"]
    assert held.decided.due_s == pytest.approx(1.0)
    assert held.decided.due_s > 1.0, "a time that has passed is no wish"
    assert steps(held, held.decided.due_s, b=1) == [("b", "start")]


def test_an_updated_job_keeps_its_place_within_its_limit() -> None:
    for nodes, jobs in (
        (cluster(8), [member(number, limit=1, hold=number == 0) for number in range(2)]),
        (limited(8, ann=UserLimit(gpus=3)), [owned("s-0", "ann", 3, hold=True), owned("s-1", "ann", 2)]),
    ):
        held = opened(nodes, *jobs)
        assert steps(held, 1.0, **{"s-1": jobs[1].gpus.requested}) == [("s-1", "start")]
        held.admission.release("s-0", 2.0)
        for asked in ({"retries": 3}, {"gpus": {"requested": 3}}):
            held.update("s-1", 3.0, updated(jobs[1], asked))
            assert list(held.in_play) == ["s-1"], "one that waits does not take its place"
    held.update("s-1", 5.0, updated(jobs[1], {"gpus": {"requested": 4}}))
    assert list(held.in_play) == ["s-0"]


# Jobs that wait for others, and arrays.


def member(number: int, *, limit: int | None = 2, **more: object):
    return job(f"s-{number}", array={"name": "s", "index": number, "limit": limit}, gpu_seconds=10, **more)


def test_a_job_waits_for_those_before_it() -> None:
    held = opened(cluster(8), job("a"), job("b"), job("c", after={"a": "ok", "b": "any"}))
    held.changes.entries.clear()
    assert list(held.in_play) == ["a", "b"]
    words = "waits for job a to finish and for job b to end"
    assert explanations(held, 1.0)["c"].reason == words
    held.end("b", 2.0, "failed")
    held.end("a", 3.0, "finished")
    assert changes(held) == [("failed", "b"), ("finished", "a"), ("arrived", "c")]
    assert list(held.in_play) == ["c"]

    # It takes nothing of its user's limit, and starts once the other has ended.
    waits = owned("b", "ann", after={"a": "ok"}, gpus=8)
    running = job("a", gpus=8, user="bob", gpu_seconds=400)
    held = opened(
        limited(8, ann=UserLimit(jobs=1)), running, waits, owned("c", "ann", hold=True), policy=Fifo
    )
    assert explanations(held, 1.0)["c"].reason == "held by ann"
    held.admission.hold("b", 1.0, "ann")
    held.admission.release("b", 2.0)
    held.admission.release("c", 2.0)
    assert list(held.in_play) == ["a", "c"]
    held.end("c", 3.0)
    held.decide(3.0)
    assert predictions(copy_of(held), 3.0)["b"].start_s == 53


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ("a", "job a"),
        ("ab", "jobs a and b"),
        ("abc", "jobs a, b and c"),
        ("abcd", "jobs a, b and 2 more"),
        ("abcdef", "jobs a, b and 4 more"),
    ],
)
def test_of_many_jobs_a_waiting_one_names_the_first(others: str, words: str):
    last = job("z", after=dict.fromkeys(others, "any"))
    held = opened(cluster(8), *map(job, others), last)
    assert explanations(held, 1.0)["z"].reason == f"waits for {words} to end"


def test_jobs_after_a_failed_one_and_arrays_with_a_limit() -> None:
    later = (job("b", after={"a": "ok"}), job("c", after={"b": "ok"}), job("d", after={"b": "any"}))
    held = opened(cluster(8), job("a"), *later)
    held.end("a", 1.0, "failed")
    assert list(held.in_play) == []
    assert held.end_unsatisfiable(2.0) == {
        "b": "was to start after job a, which failed",
        "c": "was to start after job b, which was cancelled",
    }
    assert list(held.in_play) == ["d"]
    # A clean-up after an array waits for the end of all, and for one failure.
    after = dict.fromkeys(("s-0", "s-1"), "failed")
    held = opened(cluster(8), member(0), member(1), job("z", after=after))
    held.end("s-0", 1.0)
    assert explanations(held, 1.0)["z"].reason == "waits for array s to end"
    held.end("s-1", 2.0, "failed")
    assert list(held.in_play) == ["z"]
    # Nor one after a job that is too large.
    jobs = [job("a", gpus=9), job("b", gpu_seconds=1, after={"a": "ok"}), job("c", gpu_seconds=1)]
    schedule = decide(jobs, cluster(8), None, Question("fifo"))
    assert {verdict.job: verdict.reason for verdict in schedule.rejected}["b"] == (
        "was to start after job a, which was rejected"
    )
    # Of an array as many are shown as its limit allows.
    held = opened(cluster(8), *(member(number) for number in range(4)))
    assert list(held.in_play) == ["s-0", "s-1"]
    assert explanations(held, 1.0)["s-3"].reason == "beyond the limit of array s: 2 jobs at a time"
    held.admission.prioritize("s-3", 1.0, 5.0)
    held.end("s-0", 2.0)
    assert list(held.in_play) == ["s-1", "s-3"]
    held.admission.hold("s-3", 3.0, "ann")
    assert list(held.in_play) == ["s-1", "s-2"]
    held.admission.release("s-3", 4.0)
    assert list(held.in_play) == ["s-1", "s-2"]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([job("a", after={"b": "ok"})], 'there is no job "b" that it could wait for'),
        ([job("a", after={"b": "ok"}), job("b", after={"a": "any"})], "it waits for itself"),
    ],
)
def test_jobs_that_could_never_start_are_refused(jobs: list, message: str):
    with pytest.raises(BadInputError, match=message):
        check_after(jobs, (), "jobs")


class Picky(Fifo):
    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if "big" in snapshot.jobs:
            return Decision(rejected={"big": "it is too big"}, ask_again_s=snapshot.time_s)
        return super().decide(snapshot, rng)


def test_a_replay_keeps_order_and_limits_and_cancels_hopeless():
    jobs = [
        job("a", gpu_seconds=100),
        job("b", gpu_seconds=10, after={"a": "ok"}),
        job("big", gpus=8, at=5, gpu_seconds=1),
        job("c", gpu_seconds=1, after={"big": "ok"}),
        job("d", gpu_seconds=1, hold=True),
        *(member(number) for number in range(3)),
    ]
    engine = play(Picky(), jobs, cluster(8), simulated=FREE_CHANGES)
    starts = {name: at for at, name, _, _ in story(engine, "start")}
    assert starts == {"a": 0, "d": 0, "s-0": 0, "s-1": 0, "s-2": 10, "b": 100}
    (cancel,) = (event for event in engine.log.events() if event.event == "cancel")
    assert (cancel.job, cancel.detail) == ("c", {"reason": "was to start after job big, which was rejected"})
    assert engine.counters.cancelled == 1
