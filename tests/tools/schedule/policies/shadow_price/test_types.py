"""GPUs of several types given out at once, against every way to give them out."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies.common import known_pools
from pliant.tools.schedule.policies.shadow_price import types
from pliant.tools.schedule.policies.shadow_price.job_estimates import Knowledge, PoolColumns
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.policies.shadow_price.prices import PriceMemory
from pliant.tools.schedule.policies.shadow_price.sizes import PoolShares, Rules
from pliant.tools.schedule.policies.shadow_price.types import shared_over_types, values_with_starts
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, decided, job, mixed_cluster, opened, sizes
from tests.effort import examples
from tests.tools.schedule.policies.started import joined, started

RULES = Rules(dwell_s=500.0, sweeps=3, future=0.0)
SPEEDS = CurveThroughput({"flat": {1: 1.0, 2: 1.5, 4: 2.0}}, {"fast": 2.0})


@st.composite
def jobs(draw: st.DrawFn, most: int = 4) -> list[Job]:
    result = []
    for number in range(draw(st.integers(1, most))):
        low, high = sorted((draw(st.integers(1, 3)), draw(st.integers(1, 4))))
        samples = float(draw(st.integers(100, 100_000)))
        model = draw(st.sampled_from(["linear", "flat"]))
        result.append(job(f"j{number}", gpus=low, low=low, high=high, model=model, work={"samples": samples}))
    return result


def columns_of(held: Session, time_s: float) -> list[PoolColumns]:
    snapshot, known = held.snapshot(time_s), Knowledge(900.0, 30.0, "stated", 1.0)
    known.use(snapshot.speeds)
    every = (
        PoolColumns.of(pool, list(snapshot.jobs.values()), known, time_s)
        for pool in known_pools(snapshot).values()
    )
    return [columns for columns in every if columns is not None]


def gained(types: Sequence[PoolColumns], shares: Sequence[PoolShares]) -> tuple[float, float, float]:
    """What was gained over no GPUs, the most that can be, and the largest gain of one job."""
    prices = {one.id: shared.prices[row] for shared in shares for row, one in enumerate(shared.members.jobs)}
    gains: dict[str, dict[tuple[int, int], float]] = {job_id: {(0, 0): 0.0} for job_id in prices}
    for kind, members in enumerate(types):
        own = values_with_starts(
            members, np.array([prices[state.id] for state in members.jobs]), RULES.dwell_s, 0.0
        )
        for row, state in enumerate(members.jobs):
            without = min(0.0, own[row, 0])
            options = ((size, float(own[row, size] - without)) for size in range(1, own.shape[1]))
            gains[state.id] |= {(kind, size): gain for size, gain in options if np.isfinite(gain)}
    room = [members.pool.gpus for members in types]
    best = 0.0
    for picks in itertools.product(*(each.items() for each in gains.values())):
        used = [sum(size for (kind, size), _ in picks if kind == each) for each in range(len(types))]
        if all(count <= most for count, most in zip(used, room, strict=True)):
            best = max(best, sum(gain for _, gain in picks))
    kinds = {members.pool.gpu_type: kind for kind, members in enumerate(types)}
    result = sum(
        gains[state.id][kinds[shared.members.pool.gpu_type], int(shared.chosen[row])]
        for shared in shares
        for row, state in enumerate(shared.members.jobs)
        if shared.chosen[row]
    )
    return result, best, max(gain for options in gains.values() for gain in options.values())


@settings(max_examples=examples(40), deadline=None)
@given(drawn=jobs())
def test_the_sum_over_types_is_the_best_but_for_one_job_a_type(drawn: list[Job]):
    held = opened(ShadowPrice(), mixed_cluster(slow=(3,), fast=(2,)), *drawn, throughput=SPEEDS)
    types = columns_of(held, 0.0)
    shares = shared_over_types(types, RULES, PriceMemory(), 0.0)
    members = [job.id for shared in shares for job in shared.members.jobs]
    able = {job.id for columns in types for job in columns.jobs}
    assert sorted(members) == sorted(able)
    for shared in shares:
        assert shared.members.sizes[shared.chosen].sum() <= shared.members.pool.gpus
    result, best, largest = gained(types, shares)
    assert best * (1 + 1e-9) >= result >= best - len(types) * largest


def test_a_job_runs_where_it_fits_and_one_type_is_one_pool() -> None:
    # The short one is fast for 250 s; the other then moves, and ends after 2125 s instead of 2000.
    drawn = [job("b", gpus=1, work={"samples": 500}), job("a", gpus=4, work={"samples": 16_000})]
    held = started(ShadowPrice(), mixed_cluster(slow=(4,), fast=(4,)), *drawn, throughput=SPEEDS)
    assert {state.id: state.gpu_type for state in held.jobs.values()} == {"a": "slow", "b": "fast"}
    # Prices are those of one pool where there is one type.
    drawn = [job(f"j{n}", low=1, high=4, work={"samples": 1000.0 * (n + 1)}) for n in range(3)]
    held = opened(ShadowPrice(), mixed_cluster(fast=(4,)), *drawn, throughput=SPEEDS)
    types = columns_of(held, 0.0)
    (shared,) = shared_over_types(types, RULES, PriceMemory(), 0.0)
    assert shared.members.jobs == types[0].jobs
    assert shared.chosen.tolist() == [4, 0, 0]
    assert shared.prices == pytest.approx(sorted(shared.prices, reverse=True))


@pytest.mark.parametrize(
    ("cost_s", "seen_s", "samples", "waits"),
    [
        (5.0, 5.0, 1600.0, False),
        (150.0, 150.0, 1600.0, True),
        (30.0, 300.0, 1600.0, True),
        (30.0, None, 1600.0, False),
        (30.0, None, 400.0, True),
    ],
)
def test_a_long_job_makes_way_for_a_short_one_where_that_pays(cost_s, seen_s, samples, waits):
    """The short one would be done in 200 or 50 s on the fast GPUs, and the slow one is too few for it.

    A change costs the long one what was stated twice, or what was seen. Once the other has waited for about
    as long, it makes way.
    """
    policy = ShadowPrice(rescale_s=cost_s)
    if seen_s is not None:
        changes = {"jobs": {}, "costs_s": {"linear": [seen_s] * 3}}
        policy.load_state({**policy.dump_state(), "changes": changes}, {})
    long = job("long", low=1, high=4, work={"samples": 100_000.0})
    held = started(policy, mixed_cluster(slow=(1,), fast=(4,)), long, throughput=SPEEDS)
    short = job("short", at=600.0, gpus=4, low=4, high=4, work={"samples": samples})
    assert joined(held, 600.0, short).get("short", 0) == (0 if waits else 4)
    assert (held.jobs["long"].gpu_type, held.jobs["long"].gpus) == (("fast", 4) if waits else ("slow", 1))
    held.decide(1000.0)
    assert held.jobs["short"].gpus == 4


def test_large_pools_of_types_settle_and_decisions_end() -> None:
    drawn = [job(f"j{n:02}", low=1, high=64, model="flat", work={"samples": 50_000.0}) for n in range(60)]
    held = started(ShadowPrice(), mixed_cluster(slow=(8,) * 20, fast=(8,) * 4), *drawn, throughput=SPEEDS)
    assert all(state.gpus for state in held.jobs.values())
    assert sum(state.gpus for state in held.jobs.values() if state.gpu_type == "fast") == 32
    assert any(state.gpu_type == "slow" for state in held.jobs.values())

    # Sizes of a large pool come from prices: what a job gains by joining it, others there may lose.
    drawn = [
        job(f"j{n}", gpus=low, low=low, high=high, work={"samples": samples})
        for n, (low, high, samples) in enumerate(
            ((4, 16, 9661), (1, 1, 10857), (1, 136, 3047), (1, 136, 12550), (130, 256, 221978), (8, 64, 2172))
        )
    ]
    held = opened(ShadowPrice(), mixed_cluster(a=(8,) * 17, b=(8,) * 17), *drawn)
    for time_s in (0.0, 60.0, 600.0):
        held.decide(time_s)
    assert sum(state.gpus for state in held.jobs.values()) > 128
    # Classes and weights far apart end a decision.
    work = {"samples": 1e5}
    high = [job(f"h{n}", gpus=5, priority=2, weight=1e4, work=work) for n in range(2)]
    rest = job("mid", priority=1, work=work), job("low", weight=1e-3, work=work)
    held = opened(ShadowPrice(), mixed_cluster(a=(8,), b=(8,)), *high, *rest)
    assert decided(held, 0.0).keys() == {"h0", "h1", "mid", "low"}


def parts_solved(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What part of the options of each program is handed to the solver, as it happens."""
    whole, solved = types._Program._solved, []

    def counted(program: types._Program, some: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        solved.append(len(some) / len(program._gains))
        return whole(program, some)

    monkeypatch.setattr(types._Program, "_solved", counted)
    monkeypatch.setattr(types, "_FEW_OPTIONS", 0)
    return solved


def test_caution_counts_on_one_type_and_halves_are_equal() -> None:
    free = job("a", low=1, high=4, elastic="size+batch", batch={"size": 64, "min": 64, "max": 1024})
    held = opened(ShadowPrice(), mixed_cluster(fast=(4,)), free, throughput=SPEEDS)
    held.jobs["a"].noise_scale = 1e6
    snapshot, known = held.snapshot(0.0), Knowledge(900.0, 30.0, "stated", 1.5)
    known.use(snapshot.speeds)
    (pool,) = known_pools(snapshot).values()
    for cautious, counts_s in ((True, 45.0), (False, 30.0)):
        columns = PoolColumns.of(pool, [*snapshot.jobs.values()], known, 0.0, cautious=cautious)
        assert columns is not None
        assert columns.change_s.tolist() == [counts_s]
    # Halves are equal whatever the solver rounds.
    result = types._has_most(np.array([[0.5, 0.5 - 1e-9, 0.0], [0.2, 0.5, 0.3], [0.0, 0.0, 1.0]]))
    assert result.tolist() == [[True, True, False], [False, True, False], [False, False, True]]


def test_a_job_in_halves_goes_where_the_prices_put_it(monkeypatch: pytest.MonkeyPatch):
    """It takes two GPUs and each type has one left; the other job gains too little to have any of them."""
    solved = parts_solved(monkeypatch)
    options = types._Options(
        np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([2, 2, 1, 1]), np.array([8.0, 7.0, 0.1, 0.1])
    )
    memory, program = PriceMemory(), types._Program(options, 2, [1, 1])
    for _ in range(2):
        assert program.parts(memory, "pools") == pytest.approx([0.5, 0.5, 0.0, 0.0])
    assert solved[0] == 1.0
    assert max(solved[1:], default=0) < 1.0
    market = types._Market([], {}, [], [], {"halved": 1, "most": 1}, 0.0, memory)
    assert market._of_equal("halved", np.array([0.5, 0.5 - 1e-9])) == 1
    assert market._of_equal("most", np.array([0.6, 0.4])) == 0


@pytest.mark.parametrize("low", [1, 5])
def test_many_jobs_that_run_on_one_of_two_types_are_shared_out(low: int):
    """With over a thousand options, of which the program divides some job between two sizes."""
    rng = np.random.default_rng(0)

    def seconds(model: str, kind: str, place: tuple[int, ...], batch: int) -> float | None:
        gpus, bend = sum(place), 0.7 + 0.04 * int(model)
        slower = 0.7 if 8 < gpus <= 24 else 1.0
        return None if kind == "v100" else 960 / (gpus**bend * slower)

    jobs = [
        job(f"j{n:02}", gpus=low, low=low, high=102, model=str(n % 7), work={"samples": 1e4 * samples})
        for n, samples in enumerate(rng.uniform(1, 10, 20).tolist())
    ]
    nodes = mixed_cluster(t4=(8,) * 13, v100=(8,))
    held = started(ShadowPrice(), nodes, *jobs, throughput=TimedSteps(seconds))
    assert sum(sizes(held).values()) == 104
