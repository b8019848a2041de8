"""Who gets how many GPUs under Ares, and what it says about it."""

from __future__ import annotations

import numpy as np
import pytest

from pliant.schemas.job import Job
from pliant.tools.profile.throughput import Placement, plan_batch, shares
from pliant.tools.schedule.policies.ares.policy import Ares
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.predict_start import copy_of, predictions
from pliant.tools.schedule.session.holdings import Holding
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, cluster, curves, decided, job, mixed_cluster, opened, session, sizes

BENT = {1: 1.0, 2: 1.9, 4: 3.4, 8: 5.0}
"""eff(4) = 0.85, eff(8) = 0.63: a ceiling of 4 from one GPU."""


THREE = ("a", 3, 3), ("b", 2, 20), ("c", 1, 30)
"""Name, GPUs, GPU-seconds."""


def steps(held: Session, time_s: float) -> dict[str, str]:
    """What the decision at a time does, by job."""
    return {transition.job.id: transition.step for transition in held.decide(time_s)}


def bent(name: str, gpu_seconds: float, **more: object) -> Job:
    return job(name, low=1, gpu_seconds=gpu_seconds, model="bent", **more)


@pytest.mark.parametrize(
    ("gpus", "jobs", "expected"),
    [
        pytest.param(
            *(8, [job("long", low=1, gpu_seconds=100), job("short", low=1, gpu_seconds=10)], {"short": 8}),
            id="the earliest virtual finish time first, as wide as possible",
        ),
        pytest.param(
            *(2, [job(name, gpus=2, gpu_seconds=10) for name in "cab"], {"a": 2}),
            id="of equal virtual finish times by arrival, then by id",
        ),
        pytest.param(
            *(4, [job(name, gpus=gpus, gpu_seconds=s) for name, gpus, s in THREE], {"a": 3, "c": 1}),
            id="a job whose minimum is not free is skipped and one behind it runs",
        ),
        pytest.param(
            *(16, [bent("a", 10), bent("b", 20)], {"a": 4, "b": 4}),
            id="GPUs beyond every ceiling stay idle",
        ),
    ],
)
def test_who_gets_how_many_gpus(gpus: int, jobs: list[Job], expected: dict[str, int]) -> None:
    assert decided(opened(Ares(), cluster(gpus), *jobs, throughput=curves(bent=BENT)), 0) == expected


def test_an_earlier_virtual_finish_time_preempts_a_later_one() -> None:
    held = opened(Ares(), cluster(4), job("old", gpus=4, gpu_seconds=400))
    held.decide(0)
    held.submit(job("new", at=10, gpus=4, gpu_seconds=40), 10)
    assert steps(held, 10) == {"old": "preempt", "new": "start"}
    held.end("new", 20)
    assert steps(held, 20) == {"old": "resume"}
    assert held.jobs["old"].samples_done(20) == pytest.approx(40)

    held = opened(Ares(), cluster(4), job("large", gpus=4, gpu_seconds=100))
    held.decide(0)
    held.submit(job("small", at=24, gpus=4, gpu_seconds=8), 24)  # V = 96, F = 104
    assert steps(held, 24) == {}
    assert sizes(held) == {"large": 4}


def test_a_leftover_goes_to_the_first_job_that_gains_by_it() -> None:
    # 7 GPUs: a has its ceiling 4; of the other 3, b takes 2 and no job the last.
    held = opened(Ares(), cluster(7), bent("a", 10), bent("b", 20), throughput=curves(bent=BENT))
    assert decided(held, 0) == {"a": 4, "b": 3}
    held.submit(job("c", gpus=1, gpu_seconds=30), 0)
    assert steps(held, 0) == {"b": "shrink", "c": "start"}

    for third in (2.0, 2.1):  # no faster; faster, but eff(3) = 0.7
        jobs = (job("a", gpus=2, low=2, gpu_seconds=10, model="stairs"), job("b", gpus=1, gpu_seconds=1))
        speeds = curves(stairs={1: 1.0, 2: 2.0, 3: third, 4: 4.0})
        assert decided(opened(Ares(), cluster(3, 1), *jobs, throughput=speeds), 0) == {"a": 2, "b": 1}


def test_a_job_shrinks_to_what_is_left_and_accumulates_its_batch() -> None:
    held = session(Ares(), cluster(8))
    held.submit(job("first", gpus=6, gpu_seconds=6), 0)
    held.submit(job("a", gpus=8, low=1, gpu_seconds=80, batch={"size": 50, "per_gpu_max": 7}), 0)
    held.decide(0)
    state = held.jobs["a"]
    assert sizes(held) == {"first": 6, "a": 2}
    assert state.global_batch == 50
    plan = plan_batch(state.global_batch, state.gpus, state.spec.batch.per_gpu_max)
    assert (plan.local, plan.accum) == (7, 4)
    assert [shares(share, plan.accum) for share in shares(50, 2)] == [(7, 6, 6, 6), (7, 6, 6, 6)]

    held = opened(Ares(), cluster(4), job("a", gpus=4, gpu_seconds=40, batch=64))
    held.adopt([Holding("a", (("n0", 4),), 128)], 0)
    assert steps(held, 0) == {"a": "rebatch"}
    assert held.jobs["a"].global_batch == 64


def test_jobs_of_unchanged_size_keep_their_gpus() -> None:
    held = opened(Ares(), cluster(4, 4, 4), *(job(name, gpus=3, gpu_seconds=1000) for name in "abc"))
    held.decide(0)
    before = {name: held.jobs[name].placement for name in "ac"}
    held.end("b", 1)
    held.submit(job("d", at=1, gpus=2, gpu_seconds=1), 1)
    assert steps(held, 1) == {"d": "start"}
    assert {name: held.jobs[name].placement for name in "ac"} == before

    held = opened(Ares(), cluster(4), job("a", gpus=4, gpu_seconds=40))
    held.decide(0)
    held.lose("a", 3)
    assert steps(held, 3) == {"a": "resume"}

    held = opened(Ares(), cluster(4, 4), job("a", gpus=8, low=1, gpu_seconds=80))
    held.decide(0)
    held.node_down("n1", 1)
    assert steps(held, 1) == {"a": "resume"}
    assert sizes(held) == {"a": 4}
    held.node_up("n1", 2)
    assert steps(held, 2) == {"a": "grow"}
    held.node_down("n0", 3)
    held.node_down("n1", 3)
    assert steps(held, 3) == {}
    assert sizes(held) == {}


def test_a_job_that_came_and_went_meanwhile_changes_nothing() -> None:
    held = session(Ares(), cluster(4))
    held.decide(0)
    held.submit(job("a", at=1, gpus=4, gpu_seconds=40), 1)
    held.end("a", 2, "cancelled")
    decision = held.policy.decide(held.snapshot(3), np.random.default_rng(0))
    assert decision == Decision(outlasts_ends=True)


def power(**rates: float) -> TimedSteps:
    """Samples per GPU-second by model and type."""

    def seconds(model: str, gpu_type: str, placement: Placement, batch: int) -> float | None:
        rate = rates.get(f"{model}_{gpu_type}", 1.0) * sum(placement)
        return batch / rate if rate else None

    return TimedSteps(seconds)


def types(held: Session) -> dict[str, str | None]:
    return {job_id: state.gpu_type for job_id, state in held.jobs.items() if state.gpus}


def test_the_first_job_picks_the_type_on_which_it_gains_most() -> None:
    # x is three times as fast on fast GPUs: 2 of them beat 4 slow ones. y does not care for fast ones.
    nodes = mixed_cluster(slow=(4,), fast=(2,))
    held = session(Ares(), nodes, power(x_fast=3.0, y_fast=1.0))
    held.submit(job("a", gpus=1, low=1, high=4, work={"samples": 10}, model="x"), 0)
    held.submit(job("b", gpus=1, low=1, high=4, work={"samples": 100}, model="y"), 0)
    held.decide(0)
    assert (sizes(held), types(held)) == ({"a": 2, "b": 4}, {"a": "fast", "b": "slow"})


def test_between_equal_types_a_job_stays_where_it_is() -> None:
    jobs = (job("a", gpus=4, gpu_seconds=4), job("b", gpus=4, gpu_seconds=40))
    held = opened(Ares(), mixed_cluster(one=(4,), two=(4,)), *jobs)
    held.decide(0)
    assert types(held) == {"a": "one", "b": "two"}
    held.end("a", 1)
    assert steps(held, 1) == {}


def test_a_type_that_cannot_run_a_job_is_left_to_others() -> None:
    policy = Ares()
    held = session(policy, mixed_cluster(small=(8,), big=(2,)), power(x_small=0.0, x_big=2.0))
    held.submit(job("a", gpus=2, low=1, high=8, work={"samples": 40}, model="x"), 0)
    held.decide(0)
    assert (sizes(held), types(held)) == ({"a": 2}, {"a": "big"})
    assert policy.dump_state()["jobs"] == {"a": 20}


RATES = {(4,): 4.0, (2, 2): 2.0, (1, 1, 1, 1): 1.0}
SPREAD = TimedSteps(lambda model, kind, place, batch: batch / RATES.get(place, float(sum(place))))
"""Four GPUs are the slower the more nodes they are spread over."""


def scattered(policy: Ares) -> Session:
    """Job b on two halves of nodes, as a and c held the others; now they are gone."""
    held = session(policy, cluster(4, 4), SPREAD)
    for name, seconds in (("a", 10), ("c", 12)):
        held.submit(job(name, gpus=2, gpu_seconds=seconds), 0)
    held.submit(job("b", gpus=4, gpu_seconds=400), 0)
    held.adopt([Holding("a", (("n0", 2),)), Holding("c", (("n1", 2),))], 0)
    held.decide(0)
    assert held.jobs["b"].placement == (("n0", 2), ("n1", 2))
    held.end("a", 10)
    held.end("c", 10)
    return held


@pytest.mark.parametrize(("compact_s", "moves"), [(90, True), (96, False), (None, False)])
def test_a_scattered_job_is_gathered_where_that_pays(compact_s: float | None, moves: bool) -> None:
    """400 samples, 20 done: 190 s at 2 a second, 95 s at 4."""
    held = scattered(Ares(compact_s=compact_s))
    assert steps(held, 10) == ({"b": "move"} if moves else {})
    assert len(held.jobs["b"].placement) == (1 if moves else 2)
    assert steps(held, 11) == {}


def test_every_job_is_explained() -> None:
    held = session(Ares(pool=1), cluster(4, 4), curves(bent=BENT))
    held.submit(job("a", gpus=1, low=1, gpu_seconds=40, model="bent"), 0)
    held.submit(job("b", gpus=3, gpu_seconds=60), 0)
    held.submit(job("c", gpus=2, low=2, gpu_seconds=80, model="bent"), 0)
    held.submit(job("e", gpus=1), 0)
    assert decided(held, 0) == {"a": 4, "b": 3, "e": 1}

    why = held.explain(0)

    assert why["a"].reason == "F = 40 (1st of 3), ceiling 4 by alpha 0.75 (eff(8) = 0.62)"
    assert why["b"].reason == "F = 60 (2nd of 3), ceiling 3 by its fixed size"
    assert why["c"].reason == "F = 80 (3rd of 3), needs 2 GPUs, 0 free after the jobs before it"
    assert why["c"].needs_gpus == 2
    assert why["e"].reason == "unknown demand: an equal share of the pool"

    held = session(Ares(), cluster(6), curves(bent=BENT))
    for number in range(11):
        held.submit(job(f"j{number:02}", gpus=1, low=1, gpu_seconds=40 + number, model="bent"), 0)
    held.decide(0)
    why = held.explain(0)
    assert why["j01"].reason == (
        "F = 41 (2nd of 11), ceiling 4 by alpha 0.75 (eff(6) = 0.70), 2 free after the jobs before it"
    )
    assert why["j10"].reason == "F = 50 (11th of 11), needs 1 GPU, 0 free after the jobs before it"

    held = opened(Ares(), cluster(1), job("a", gpus=1, work={"samples": 5}))
    assert held.explain(0) == {}


def test_the_predicted_start_is_what_happens() -> None:
    held = session(Ares(), cluster(8), curves(bent=BENT))
    for number in range(9):
        held.submit(
            job(f"j{number}", gpus=1 + number % 4, low=1, gpu_seconds=50 + 7 * number, model="bent"), 0
        )
    held.submit(job("rigid", gpus=7, gpu_seconds=200), 0)
    held.decide(0)
    expected = predictions(copy_of(held), 0)
    predicted = {job_id: each.start_s for job_id, each in expected.items() if each.start_s is not None}
    assert len(predicted) > 5
    started: dict[str, float] = {}
    while held.jobs:
        now_s, ended = min((s.finish_time_s() or float("inf"), i) for i, s in held.jobs.items())
        held.end(ended, now_s)
        started |= {e.job.id: now_s for e in held.decide(now_s) if e.step == "start"}
    assert predicted == {job_id: pytest.approx(time_s) for job_id, time_s in started.items()}


TOO_SMALL = 'model "linear" at batch 1 does not run on 2 GPUs of any type'


@pytest.mark.parametrize(
    ("impossible", "reason"),
    [
        (job("no", gpus=100, gpu_seconds=1e6), "needs 100 GPUs of one type, the cluster has 4"),
        (job("no", gpus=8, low=5, gpu_seconds=8), "needs 5 GPUs of one type, the cluster has 4"),
        (job("no", gpus=6), "needs 6 GPUs of one type, the cluster has 4"),
        (job("no", gpus=4, low=2, batch=1), TOO_SMALL),
        (job("no", gpus=4, low=2, batch=1, work={"samples": 9}), TOO_SMALL),
    ],
)
@pytest.mark.parametrize("comes_first", [True, False])
def test_a_job_that_can_never_run_is_rejected_with_the_reason(
    impossible: Job, reason: str, comes_first: bool
) -> None:
    held = session(Ares(), mixed_cluster(one=(4,), two=(4,)))
    if not comes_first:
        held.submit(job("first", gpu_seconds=5), 0)
        held.decide(0)
        held.end("first", 0)
        held.decide(0)
    held.submit(impossible, 0)
    assert [(transition.step, transition.reason) for transition in held.decide(0)] == [("reject", reason)]
    assert held.explain(0) == {}


def test_a_job_that_can_never_run_changes_nothing_for_the_others() -> None:
    # V is 60 when "new" arrives, so its F is 110 and "long", with 100, goes on.
    for others in ([], [job("no", gpus=100, gpu_seconds=1e6)], [job("no", gpus=100)]):
        jobs = (*others, job("long", gpu_seconds=100), job("new", at=60, gpu_seconds=50))
        assert decided(opened(Ares(), cluster(1), *jobs), 60) == {"long": 1}


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_stays_on_its_type_until_it_loses_its_gpus(lost: bool) -> None:
    held = session(Ares(), mixed_cluster(slow=(4,), fast=(4,)), power(x_slow=1.0, x_fast=3.0))
    held.submit(job("first", gpus=4, model="x", work={"samples": 60}), 0)
    held.submit(job("second", gpus=4, model="x", work={"samples": 600}), 0)
    held.decide(0)
    assert types(held) == {"first": "fast", "second": "slow"}
    held.end("first", 5)
    if lost:
        held.lose("second", 5)
    assert steps(held, 5) == ({"second": "resume"} if lost else {})
    assert types(held) == {"second": "fast" if lost else "slow"}
