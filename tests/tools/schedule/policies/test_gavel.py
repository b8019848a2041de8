import json
from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.policies import gavel
from pliant.tools.schedule.policies.common import Stake
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, curves, decided, job, mixed_cluster, opened, sizes
from tests.effort import examples
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
    assert {each.default_interval_s for each in (gavel.Gavel, gavel.GavelFtf, gavel.GavelMakespan)} == {
        ROUND_S
    }
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
    assert held.quiet_until_s == float("inf")


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
    other = gavel.Gavel(renew_s=1000)
    other.load_state(json.loads(json.dumps(state)), held.jobs)
    assert other.dump_state() == state
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


UNLIKE_SPEEDS = curves(best={2: 90.0}, next={2: 50.0}, early={1: 1.0}, late={1: 2.0})
UNLIKE = [
    job(name, gpus=gpus, model=name, batch=16 * gpus, work={"samples": 1e6})
    for name, gpus in (("best", 2), ("next", 2), ("early", 1), ("late", 1))
]
"""Three GPUs: a pair that is worth most, a pair that no longer fits, and two single ones."""


@pytest.mark.parametrize("renew_s", [0.0, 1e6])
def test_who_gets_idle_gpus_outlives_a_restart(renew_s: float):
    def rounds_of(*, restarts: bool) -> list[dict[str, int]]:
        held = opened(gavel.GavelThroughput(renew_s=renew_s), cluster(3), *UNLIKE, throughput=UNLIKE_SPEEDS)
        result = [decided(held, ROUND_S)]
        if restarts:
            state = json.loads(json.dumps(held.policy.dump_state()))
            held.policy = gavel.GavelThroughput(renew_s=renew_s)
            held.policy.load_state(state, held.jobs)
        return [*result, *(decided(held, ROUND_S * number) for number in range(2, 8))]

    result = rounds_of(restarts=True)
    assert result == rounds_of(restarts=False)
    assert result[0] == {"best": 2, "late": 1}, "idle GPUs go to the next most steps a second"


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


GAINS = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 8.0])
"""Far enough apart that no job can trade a rounding error of another for much."""


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[gavel.Kind], list[int]]:
    """Up to five jobs, some alike, on one to three GPU types; every job runs on some type."""
    capacity = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    kinds = [
        gavel.Kind(tuple(draw(st.tuples(*(GAINS for _ in capacity)))), draw(st.integers(1, 4)))
        for _ in range(draw(st.integers(1, 5)))
    ]
    return [kind for kind in kinds if gavel.best_rate(kind, capacity) > 0], capacity


def gain(kind: gavel.Kind, fractions: Sequence[float]) -> float:
    """What a job of that kind gains by its fractions."""
    return sum(worth * part for worth, part in zip(kind.gains, fractions, strict=True))


def limits(jobs: Sequence[gavel.Kind], capacity: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Dense rows over fractions[job][type]: at most all of the time, at most all GPUs."""
    time_rows = np.kron(np.eye(len(jobs)), np.ones(len(capacity)))
    gpu_rows = np.kron([job.gpus for job in jobs], np.eye(len(capacity)))
    return np.vstack([time_rows, gpu_rows]), np.concatenate([np.ones(len(jobs)), capacity])


def gains_matrix(jobs: Sequence[gavel.Kind], capacity: Sequence[int]) -> np.ndarray:
    """Rows of what each job gains, over the same variables; a type that is too small is worth nothing."""
    rows = np.zeros((len(jobs), len(jobs) * len(capacity)))
    for row, kind in enumerate(jobs):
        for index, gpus in enumerate(capacity):
            if kind.gpus <= gpus:
                rows[row, row * len(capacity) + index] = kind.gains[index]
    return rows


@settings(max_examples=examples(60))
@given(problems())
def test_no_job_can_gain_more_unless_a_poorer_one_loses(problem: tuple[list[gavel.Kind], list[int]]):
    jobs, capacity = problem
    result = gavel.max_min(Counter(jobs), capacity)
    if not jobs:
        return
    got = np.array([gain(job, result[job]) for job in jobs])
    rows, most = limits(jobs, capacity)
    parts = np.concatenate([result[job] for job in jobs])
    assert (parts >= 0).all()
    assert (rows @ parts <= most * (1 + 1e-6)).all()
    worth = gains_matrix(jobs, capacity)
    for index in range(len(jobs)):
        as_much = got[index] * (1 + 1e-4) + 1e-6  # what is equal is found equal but for rounding
        kept = [other for other in range(len(jobs)) if other != index and got[other] <= as_much]
        better = linprog(
            -worth[index],
            A_ub=np.vstack([rows, -worth[kept]]),
            b_ub=np.concatenate([most, -got[kept] * (1 - 2e-6)]),
        )
        assert -better.fun <= got[index] * (1 + 1e-3)


@given(problems(), st.randoms(use_true_random=False))
def test_rows_that_gain_alike_share_as_if_counted(problem: tuple[list[gavel.Kind], list[int]], draw: Random):
    jobs, capacity = problem
    rows = [*jobs, *jobs[:2], *jobs[:1]]
    draw.shuffle(rows)
    counted = gavel.max_min(Counter(rows), capacity)
    assert gavel.Kinds.of(rows).max_min(capacity).tolist() == [list(counted[kind]) for kind in rows]


@given(problems())
def test_one_program_makes_the_least_gain_as_large(problem: tuple[list[gavel.Kind], list[int]]):
    jobs, capacity = problem
    jobs, capacity = [gavel.Kind(job.gains[:1], job.gpus) for job in jobs], capacity[:1]
    jobs = [job for job in jobs if gavel.best_rate(job, capacity) > 0]
    if not jobs:
        return
    result, all_levels = (gavel.max_min(Counter(jobs), capacity, even=even) for even in (True, False))
    least = min(gain(job, all_levels[job]) for job in jobs)
    assert min(gain(job, result[job]) for job in jobs) == pytest.approx(least)
    taken = sum(result[job][0] * job.gpus for job in jobs)
    assert taken <= capacity[0] * (1 + 1e-9)
    above = {round(result[job][0], 9) for job in jobs if gain(job, result[job]) > least * (1 + 1e-9)}
    assert len(above) <= 1
    assert all(result[job][0] >= max(above, default=0.0) - 1e-9 for job in jobs)
    assert min(result[job][0] for job in jobs) == 1.0 or taken == pytest.approx(capacity[0])


@st.composite
def rivals(draw: st.DrawFn) -> tuple[list[gavel.Kind], list[Stake], list[int]]:
    """Jobs that have waited and run for some time."""
    jobs, capacity = draw(problems().filter(lambda problem: problem[0]))
    seconds = st.floats(0.0, 1e4)
    stakes = [Stake(draw(seconds), draw(st.floats(1.0, 1e4)), draw(st.floats(10.0, 1e4))) for _ in jobs]
    return jobs, stakes, capacity


@settings(max_examples=examples(40))
@given(rivals())
@example(
    (
        [gavel.Kind((0.0, 1.0), 1), gavel.Kind((0.0, 2.0), 2)],
        [Stake(0.0, 1.0, 10.0), Stake(208.0, 1.0, 43.0)],
        [1, 2],
    )
)
def test_the_largest_ratio_is_as_small_as_it_can_be(rival: tuple[list[gavel.Kind], list[Stake], list[int]]):
    """No program of the throughputs that it takes ends all jobs within a smaller one."""
    jobs, stakes, capacity = rival
    gained = [gain(*each) for each in zip(jobs, gavel.least_ratio(*rival), strict=True)]
    worst = max(stake.rho(got) for stake, got in zip(stakes, gained, strict=True))
    left = np.array([0.99 * worst * stake.isolated_s - stake.elapsed_s for stake in stakes])
    if (left <= 0).any():
        return
    needed = np.array([stake.remaining_samples for stake in stakes]) / left
    rows, most = limits(jobs, capacity)
    result = linprog(
        np.zeros(rows.shape[1]),
        A_ub=np.vstack([rows, -gains_matrix(jobs, capacity)]),
        b_ub=np.concatenate([most, -needed]),
    )
    assert result.status != 0


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
