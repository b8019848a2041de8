import json

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.policies import gavel
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, curves, decided, job, mixed_cluster, opened, sizes
from tests.tools.profile.rows_builder import step, throughput
from tests.tools.schedule.policies.started import started

ROUND_S = 360.0


def rounds(policy: Policy, nodes: Cluster, jobs: list[Job], count: int) -> Session:
    held = opened(policy, nodes, *jobs)
    for number in range(count):
        held.decide(ROUND_S * number)
    return held


def received(held: Session, count: int) -> dict[str, float]:
    """Rounds for which each job had GPUs."""
    return {
        job_id: state.attained_service_s(count * ROUND_S) / state.spec.gpus.requested / ROUND_S
        for job_id, state in held.jobs.items()
    }


def test_jobs_take_turns_on_the_type_that_suits_them() -> None:
    jobs = [job(name, gpu_seconds=1e6) for name in "abc"]
    assert received(rounds(gavel.Gavel(), cluster(2), jobs, 30), 30) == {"a": 20, "b": 20, "c": 20}

    jobs = [job("wide", gpus=4, gpu_seconds=1e6), *(job(f"j{i}", gpu_seconds=1e6) for i in range(4))]
    held = rounds(gavel.Gavel(), cluster(4), jobs, 40)
    # equal GPU-time: 40 rounds of 4 GPUs among five jobs are 32 each, which are 8 rounds of the wide one
    assert received(held, 40) == pytest.approx({"wide": 8, **{f"j{i}": 32 for i in range(4)}}, abs=1)

    held = rounds(gavel.Gavel(), cluster(2), [job(name, gpus=2, gpu_seconds=1e6) for name in "ab"], 2)
    reason = "entitled to 50% of the time on gpu (360 s received), priority 0.67"
    assert held.explain(ROUND_S)["a"].reason == reason
    assert {
        each.traits.default_interval_s for each in (gavel.Gavel, gavel.GavelFtf, gavel.GavelMakespan)
    } == {ROUND_S}
    # A job gets the GPU type that suits it.
    rates = {("even", "old"): 1.0, ("even", "new"): 1.5, ("picky", "old"): 1.0, ("picky", "new"): 6.0}
    jobs = [job(name, model=name, batch=16, work={"samples": 1e6}) for name in ("even", "picky")]
    held = started(gavel.Gavel(), mixed_cluster(old=(1,), new=(1,)), *jobs, throughput=_measured(rates))
    assert {each.id: each.gpu_type for each in held.jobs.values()} == {"even": "old", "picky": "new"}


def test_a_tied_job_has_no_share_elsewhere_and_no_gpu_idles() -> None:
    # Two fast and four slow GPUs, six jobs, one tied to the fast type: each has its equal share exactly.
    # Equal time on each GPU is a third of a fast one to the tied job. The others have a third of a fast
    # one, too, and the rest of their time on slow ones: 1/3 of 2 and 2/3 of 1, as on average.
    rates = {("any", "fast"): 2.0, ("any", "slow"): 1.0, ("tied", "fast"): 1.0, ("tied", "slow"): 0.0}
    jobs = [job(f"j{n}", model="any" if n else "tied", batch=16, work={"samples": 1e6}) for n in range(6)]
    held = started(gavel.Gavel(), mixed_cluster(fast=(2,), slow=(4,)), *jobs, throughput=_measured(rates))
    parts = {job_id: each.reason for job_id, each in held.explain(0).items()}
    assert all("33% of the time on fast" in each for each in parts.values())
    assert ["67% of the time on slow" in parts[f"j{n}"] for n in range(6)] == [False] + [True] * 5
    # No GPU idles while a job could use it.
    jobs = [job("wide", gpus=3, gpu_seconds=1e6), job("pair", gpus=2, gpu_seconds=1e6)]
    held = rounds(gavel.Gavel(), mixed_cluster(a=(3,), b=(2,)), jobs, 1)
    assert sizes(held) == {"wide": 3, "pair": 2}

    held = rounds(gavel.Gavel(), cluster(4), [job(gpus=2, gpu_seconds=1e6)], 1)
    assert held.decided.quiet_until_s == float("inf")


@pytest.mark.parametrize("policy", [gavel.Gavel, gavel.GavelFtf, gavel.GavelMakespan, gavel.GavelThroughput])
def test_a_job_that_arrives_between_two_solutions_waits(policy: type[gavel.Gavel]):
    held = opened(policy(renew_s=1000), cluster(4), job("first", at=1, gpu_seconds=1e6))
    held.decide(ROUND_S)
    held.submit(job("late", at=400, gpu_seconds=1e6), 400)
    result = [decided(held, ROUND_S * number) for number in range(2, 5)]
    assert result == [{"first": 1}, {"first": 1}, {"first": 1, "late": 1}]


def test_a_solution_stands_while_nothing_changes_and_is_kept():
    held = opened(gavel.Gavel(renew_s=1000), cluster(1), *(job(name, at=1, gpu_seconds=1e6) for name in "ab"))
    held.decide(ROUND_S)
    state = held.policy.dump_state()
    assert state["renewal"] == (ROUND_S, False, {"a": (0.5,), "b": (0.5,)})
    for number in range(2, 9):
        held.decide(ROUND_S * number)
    assert held.policy.dump_state()["renewal"] == state["renewal"]
    assert received(held, 9) == {"a": 4, "b": 4}

    held = opened(gavel.Gavel(), cluster(1), job("a", at=1, gpu_seconds=1e6))
    held.decide(ROUND_S)
    other = gavel.Gavel(renew_s=1000)
    other.load_state(json.loads(json.dumps(held.policy.dump_state())), held.jobs)
    held.policy = other
    assert decided(held, 2 * ROUND_S) == {"a": 1}


def test_makespan_and_finish_time_fairness_by_hand() -> None:
    # It takes all of one GPU; an eighth and three eighths of the other would do for the others.
    jobs = [job("long", gpu_seconds=8e5), job("a", gpu_seconds=1e5), job("b", gpu_seconds=3e5)]
    held = rounds(gavel.GavelMakespan(), cluster(2), jobs, 40)
    assert received(held, 40) == pytest.approx({"long": 40, "a": 20, "b": 20}, abs=1)
    # Finish time fairness gives more where more was promised.
    jobs = [job("long", gpu_seconds=3e6), job("short", gpu_seconds=1e6)]
    held = rounds(gavel.GavelFtf(), cluster(1), jobs, 20)
    assert received(held, 20) == pytest.approx({"long": 10, "short": 10}, abs=1)

    held = rounds(gavel.GavelFtf(), cluster(1), [job("ahead", gpu_seconds=36_000)], 50)
    held.submit(job("late", at=50 * ROUND_S, gpu_seconds=36_000), 50 * ROUND_S)
    for number in range(50, 60):
        held.decide(ROUND_S * number)
    # alone until half of its work was done, "ahead" was promised most of the GPU; "late" has always shared
    assert received(held, 60)["ahead"] - 50 > received(held, 60)["late"]


def _measured(rates: dict[tuple[str, str], float]) -> ThroughputBySize:
    """Speeds by model and GPU type; 0: the model does not run there."""
    rows = (
        step(1, 16, 16 / rate if rate else None, model=model, gpu_type=gpu_type)
        for (model, gpu_type), rate in rates.items()
    )
    return throughput(*rows)


def test_the_most_steps_a_second_come_first():
    """On two GPUs: a does 4 steps a second, b 1 on each of two GPUs, c 1."""
    jobs = [
        job("a", gpu_seconds=1e6, batch=1, model="quick"),
        job("b", gpus=2, gpu_seconds=1e6, batch=2),
        job("c", gpu_seconds=1e6, batch=1),
    ]
    held = opened(gavel.GavelThroughput(), cluster(2), *jobs, throughput=curves(quick={1: 4.0, 2: 8.0}))
    assert decided(held, 0.0) == {"a": 1, "c": 1}


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        ([2], {gavel.Kind((4.0,), 1): (1.0,), gavel.Kind((2.0,), 2): (0.5,), gavel.Kind((0.5,), 1): (0.0,)}),
        (
            [1, 1],
            {gavel.Kind((5.0, 4.0), 1): (1.0, 0.0), gavel.Kind((2.0, 3.0), 1): (0.0, 1.0)},
        ),  # 5 + 3 is more than 4 + 2
        ([1, 2], {gavel.Kind((5.0, 4.0), 2): (0.0, 1.0)}),
        ([2], {}),
    ],
)
def test_each_kind_goes_where_the_sum_is_largest(capacity, expected):
    assert gavel.most_throughput(dict.fromkeys(expected, 1), capacity) == expected
