import pytest

from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput import Placement, plan_batch, shares
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.policies.ares.goodput import AresGoodput
from pliant.tools.schedule.policies.ares.policy import Ares
from pliant.tools.schedule.policies.ares.unknown_demand import apportion, equal_split, reserved_gpus
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, allocated, cluster, curves, decided, job, mixed_cluster, opened, sizes
from tests.tools.profile.rows_builder import step
from tests.tools.schedule.policies.started import joined, started

BENT = {1: 1.0, 2: 1.9, 4: 3.4, 8: 5.0}
"""eff(4) = 0.85, eff(8) = 0.63: a ceiling of 4 from one GPU."""


def steps(held: Session, time_s: float, *jobs: Job) -> dict[str, str]:
    """What the decision at a time does, by job; these have come until then."""
    for each in jobs:
        held.submit(each, time_s)
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
            4,
            [job("a", gpus=3, gpu_seconds=3), job("b", gpus=2, gpu_seconds=20), job("c", gpu_seconds=30)],
            {"a": 3, "c": 1},
            id="a job whose minimum is not free is skipped and one behind it runs",
        ),
        pytest.param(
            *(16, [bent("a", 10), bent("b", 20)], {"a": 4, "b": 4}), id="GPUs beyond every ceiling stay idle"
        ),
    ],
)
def test_who_gets_how_many_gpus(gpus: int, jobs: list[Job], expected: dict[str, int]) -> None:
    assert decided(opened(Ares(), cluster(gpus), *jobs, throughput=curves(bent=BENT)), 0) == expected


def test_early_finishes_preempt_and_leftovers_go_where_they_help() -> None:
    held = started(Ares(), cluster(4), job("old", gpus=4, gpu_seconds=400))
    assert steps(held, 10, job("new", at=10, gpus=4, gpu_seconds=40)) == {"old": "preempt", "new": "start"}
    held.end("new", 20)
    assert steps(held, 20) == {"old": "resume"}
    assert held.jobs["old"].samples_done(20) == pytest.approx(40)

    held = started(Ares(), cluster(4), job("large", gpus=4, gpu_seconds=100))
    assert steps(held, 24, job("small", at=24, gpus=4, gpu_seconds=8)) == {}, "V = 96, F = 104"
    assert sizes(held) == {"large": 4}

    # 7 GPUs: a has its ceiling 4; of the other 3, b takes 2 and no job the last.
    held = opened(Ares(), cluster(7), bent("a", 10), bent("b", 20), throughput=curves(bent=BENT))
    assert decided(held, 0) == {"a": 4, "b": 3}
    assert steps(held, 0, job("c", gpus=1, gpu_seconds=30)) == {"b": "shrink", "c": "start"}

    for third in (2.0, 2.1):  # no faster; faster, but eff(3) = 0.7
        jobs = (job("a", gpus=2, low=2, gpu_seconds=10, model="stairs"), job("b", gpus=1, gpu_seconds=1))
        speeds = curves(stairs={1: 1.0, 2: 2.0, 3: third, 4: 4.0})
        assert decided(opened(Ares(), cluster(3, 1), *jobs, throughput=speeds), 0) == {"a": 2, "b": 1}


def test_a_job_shrinks_to_what_is_left_and_accumulates_its_batch() -> None:
    second = job("a", gpus=8, low=1, gpu_seconds=80, batch={"size": 50, "per_gpu_max": 7})
    held = started(Ares(), cluster(8), job("first", gpus=6, gpu_seconds=6), second)
    state = held.jobs["a"]
    assert sizes(held) == {"first": 6, "a": 2}
    assert state.global_batch == 50
    plan = plan_batch(state.global_batch, state.gpus, state.spec.batch.per_gpu_max)
    assert (plan.local, plan.accum) == (7, 4)
    assert [shares(share, plan.accum) for share in shares(50, 2)] == [(7, 6, 6, 6), (7, 6, 6, 6)]

    held = opened(Ares(), cluster(4), job("a", gpus=4, gpu_seconds=40, batch=64))
    held.set_allocations([allocated("a", (("n0", 4),), 128)], 0)
    assert steps(held, 0) == {"a": "rebatch"}
    assert held.jobs["a"].global_batch == 64


def test_jobs_of_unchanged_size_keep_their_gpus() -> None:
    held = started(Ares(), cluster(4, 4, 4), *(job(name, gpus=3, gpu_seconds=1000) for name in "abc"))
    before = {name: held.jobs[name].placement for name in "ac"}
    held.end("b", 1)
    assert steps(held, 1, job("d", at=1, gpus=2, gpu_seconds=1)) == {"d": "start"}
    assert {name: held.jobs[name].placement for name in "ac"} == before


def test_each_job_has_the_type_on_which_it_ends_first() -> None:
    # x is three times as fast on fast GPUs: 2 of them beat 4 slow ones. y does not care for fast ones.
    nodes, speeds = mixed_cluster(slow=(4,), fast=(2,)), power(x_fast=3.0, y_fast=1.0)
    work = ("x", 10), ("y", 100)
    jobs = [job(model, low=1, high=4, work={"samples": samples}, model=model) for model, samples in work]
    held = started(Ares(), nodes, *jobs, throughput=speeds)
    assert (sizes(held), types(held)) == ({"x": 2, "y": 4}, {"x": "fast", "y": "slow"})


def power(**rates: float) -> TimedSteps:
    """Samples per GPU-second by model and type."""

    def seconds(model: str, gpu_type: str, placement: Placement, batch: int) -> float | None:
        rate = rates.get(f"{model}_{gpu_type}", 1.0) * sum(placement)
        return batch / rate if rate else None

    return TimedSteps(seconds)


def types(held: Session) -> dict[str, str | None]:
    return {job_id: state.gpu_type for job_id, state in held.jobs.items() if state.gpus}


@pytest.mark.parametrize(("fast", "lost"), [(1.0, False), (3.0, False), (3.0, True)])
def test_a_job_stays_on_its_type_until_it_loses_its_gpus(fast: float, lost: bool) -> None:
    jobs = [job(name, gpus=4, model="x", work={"samples": work}) for name, work in (("a", 60), ("b", 600))]
    nodes = mixed_cluster(fast=(4,), slow=(4,))
    held = started(Ares(), nodes, *jobs, throughput=power(x_slow=1.0, x_fast=fast))
    assert types(held) == {"a": "fast", "b": "slow"}
    held.end("a", 5)
    if lost:
        held.maintenance.lose("b", 5)
    assert steps(held, 5) == ({"b": "resume"} if lost else {})
    assert types(held) == {"b": "fast" if lost else "slow"}


def test_a_type_that_cannot_run_a_job_is_left_to_others() -> None:
    nodes, speeds = mixed_cluster(small=(8,), big=(2,)), power(x_small=0.0, x_big=2.0)
    wide = job("a", gpus=2, low=1, high=8, work={"samples": 40}, model="x")
    held = started(Ares(), nodes, wide, throughput=speeds)
    assert (sizes(held), types(held)) == ({"a": 2}, {"a": "big"})
    assert held.policy.dump_state()["jobs"] == {"a": 20}


RATES = {(4,): 4.0, (2, 2): 2.0, (1, 1, 1, 1): 1.0}
SPREAD = TimedSteps(lambda model, kind, place, batch: batch / RATES.get(place, float(sum(place))))
"""Four GPUs are the slower the more nodes they are spread over."""


@pytest.mark.parametrize(("compact_s", "moves"), [(90, True), (96, False), (None, False)])
def test_a_scattered_job_is_gathered_where_that_pays(compact_s: float | None, moves: bool) -> None:
    """b is on two halves of nodes, as a and c held the others. 400 samples, 20 done: 190 s at 2 a second,
    95 s at 4.
    """
    jobs = [job(name, gpus=g, gpu_seconds=s) for name, g, s in (("a", 2, 10), ("c", 2, 12), ("b", 4, 400))]
    held = opened(Ares(compact_s=compact_s), cluster(4, 4), *jobs, throughput=SPREAD)
    held.set_allocations([allocated("a", (("n0", 2),)), allocated("c", (("n1", 2),))], 0)
    held.decide(0)
    assert held.jobs["b"].placement == (("n0", 2), ("n1", 2))
    for name in "ac":
        held.end(name, 10)
    assert steps(held, 10) == ({"b": "move"} if moves else {})
    assert len(held.jobs["b"].placement) == (1 if moves else 2)
    assert steps(held, 11) == {}


def test_every_job_is_explained() -> None:
    jobs = [bent(f"j{number:02}", 40 + number) for number in range(11)]
    held = opened(Ares(), cluster(6), *jobs, throughput=curves(bent=BENT))
    assert held.explain(0) == {}
    held.decide(0)
    why = held.explain(0)
    assert why["j01"].reason == (
        "F = 41 (2nd of 11), ceiling 4 by alpha 0.75 (eff(6) = 0.70), 2 free after the jobs before it"
    )
    assert why["j10"].reason == "F = 50 (11th of 11), needs 1 GPU, 0 free after the jobs before it"


@pytest.mark.parametrize(
    ("pool", "gpus", "reserved"),
    [(0.1, 64, 7), (0.1, 30, 3), (0.01, 4, 1), (0.5, 0, 0), (4, 64, 4), (80, 64, 64)],
)
def test_the_pool_is_a_number_of_gpus_or_a_fraction_rounded_up(pool: float, gpus: int, reserved: int) -> None:
    assert reserved_gpus(pool, gpus) == reserved


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [(7, [4, 4], [4, 3]), (5, [10, 20, 30], [1, 2, 2]), (3, [0, 5], [0, 3]), (4, [0], [0]), (0, [], [])],
)
def test_a_number_is_cut_in_proportion(total: int, weights: list[int], parts: list[int]) -> None:
    assert apportion(total, weights) == parts


@pytest.mark.parametrize(
    ("total", "limits", "split"),
    [
        pytest.param(7, [(1, 9)] * 3, [3, 2, 2], id="the first ones get the rest"),
        pytest.param(4, [(3, 3), (2, 2), (1, 9)], [3, 0, 1], id="who does not fit waits, one behind it runs"),
        pytest.param(2, [(1, 9)] * 3, [1, 1, 0], id="first come"),
        pytest.param(3, [], [], id="no jobs"),
    ],
)
def test_gpus_are_split_equally(total: int, limits: list[tuple[int, int]], split: list[int]) -> None:
    assert equal_split(total, limits) == split


def test_the_pool_is_there_while_jobs_of_unknown_demand_run() -> None:
    held = started(Ares(pool=2), cluster(8), KNOWN)
    assert sizes(held) == {"known": 8}
    assert joined(held, 1, job("x", gpus=1, low=1)) == {"known": 6, "x": 2}
    assert joined(held, 2, job("y", gpus=4, low=1)) == {"known": 6, "x": 1, "y": 1}
    held.end("x", 3)
    held.end("y", 3)
    assert decided(held, 3) == {"known": 8}

    # Alone, x has the whole cluster; beside a job of known demand, y (the first to come) leaves it no room.
    held = started(Ares(pool=2), cluster(8), job("y", gpus=2), job("x", at=1, gpus=5))
    assert sizes(held) == {"x": 5, "y": 2}
    assert joined(held, 2, KNOWN.model_copy(update={"submit_time": 2.0})) == {"known": 6, "y": 2}
    # The pool does not depend on the other jobs.
    held = opened(Ares(pool=2), cluster(8), job("x", gpus=1, low=1), job("y", gpus=1, low=1))
    for number in range(5):
        result = joined(held, number, job(f"j{number}", at=number, gpus=6, gpu_seconds=60 - number))
        assert {i: n for i, n in result.items() if i in "xy"} == {"x": 1, "y": 1}


KNOWN = job("known", gpus=8, low=1, gpu_seconds=800)


@pytest.mark.parametrize(
    ("pool", "jobs", "expected"),
    [
        pytest.param(4, [job("x"), KNOWN], {"known": 7, "x": 1}, id="what the pool cannot use goes on"),
        pytest.param(1, [job(n, low=1) for n in "xyz"], {"x": 3, "y": 3, "z": 2}, id="alone it is all GPUs"),
        pytest.param(4, [job("x", gpus=2, low=1, batch=3)], {"x": 3}, id="infeasible sizes are passed over"),
    ],
)
def test_the_pool_shares_all_that_it_can_use(pool, jobs, expected) -> None:
    assert decided(opened(Ares(pool=pool), cluster(4, 4), *jobs), 0) == expected


def test_the_pool_is_widened_for_a_large_job_and_is_of_all_types() -> None:
    held = started(Ares(pool=1), cluster(8), KNOWN, job("x", gpus=3), job("y", gpus=3))
    assert sizes(held) == {"known": 5, "x": 3}
    assert held.explain(0)["y"].reason == "unknown demand: needs 3 GPUs, the pool has too few left"
    held.end("x", 1)
    assert decided(held, 1) == {"known": 5, "y": 3}
    # On mixed types each type gives its part.
    jobs = job("known", low=1, gpu_seconds=800), *(job(name, low=1) for name in "xyz")
    held = started(Ares(pool=6), mixed_cluster(one=(8,), two=(4,)), *jobs)
    assert [(held.jobs[n].gpus, held.jobs[n].gpu_type) for n in "xyz"] == [(2, "one"), (2, "one"), (2, "two")]
    held.end("x", 1)
    held.decide(1)
    assert [(held.jobs[n].gpus, held.jobs[n].gpu_type) for n in "yz"] == [(4, "one"), (2, "two")]


BATCH = 32
GPUS = (1, 2, 4, 8)


def profile(sync_s: float = 0.1) -> Profile:
    """A sample takes 0.1 s, and k GPUs k − 1 times ``sync_s``: large batches scale further."""
    rows = (
        step(gpus, 2**power, 0.1 * 2**power + sync_s * (gpus - 1), model="conv")
        for gpus in GPUS
        for power in range(8)
    )
    return Profile(tuple(rows))


def conv(name: str = "a", **more: object) -> Job:
    """A job that may train at 32 to 256 samples on 1 to 8 GPUs."""
    stated = {"elastic": "size+batch", "gpus": 1, "low": 1, "high": 8, "work": {"samples": 50_000.0}} | more
    return job(name, model="conv", batch={"size": BATCH, "min": BATCH, "max": 256}, **stated)  # type: ignore[arg-type]


def decided_twice(noise_scale: float | None, *jobs: Job) -> Session:
    """All jobs arrived and decided for, once without known noise and once with."""
    held = started(AresGoodput(), cluster(8), *jobs, throughput=ThroughputBySize(profile()))
    for state in held.jobs.values():
        state.noise_scale = noise_scale
    held.decide(1)
    return held


def test_batch_and_size_grow_where_noise_is_large():
    # At 32 samples, four GPUs bring less than alpha.
    for noise, elastic in ((None, "size+batch"), (1.0, "size+batch"), (1e6, "size")):
        held = decided_twice(noise, conv(elastic=elastic))
        assert (sizes(held), held.jobs["a"].global_batch) == ({"a": 2}, BATCH)

    held = decided_twice(1e6, conv())
    assert held.jobs["a"].global_batch > BATCH
    assert sizes(held) == {"a": 8}

    jobs = [conv(name, work={"samples": samples}) for name, samples in (("long", 9e4), ("short", 1e4))]
    assert sizes(decided_twice(1e6, *jobs)) == {"short": 8}


@pytest.mark.parametrize(("samples", "changes"), [(50_000.0, True), (400.0, False)])
def test_a_job_changes_its_batch_where_it_ends_sooner(samples: float, changes: bool):
    held = decided_twice(64.0, conv(high=2, work={"samples": samples}))
    before = held.jobs["a"].global_batch
    held.jobs["a"].noise_scale = 1e6
    held.decide(2)
    assert (held.jobs["a"].global_batch > before) is changes
    assert held.jobs["a"].gpus == 2
