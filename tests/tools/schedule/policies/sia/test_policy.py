import pytest

from pliant.tools.schedule.jobs import Observation
from pliant.tools.schedule.policies.sia.policy import Sia
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, cluster, curves, decided, job, mixed_cluster, opened
from tests.tools.schedule.policies.started import started

TABLE_1 = {
    ("J1", "A", 1): 1.0, ("J1", "A", 2): 1.5, ("J1", "B", 1): 1.5, ("J1", "B", 2): 2.5, ("J1", "B", 4): 3.5,
    ("J2", "A", 1): 1.2, ("J2", "A", 2): 2.1, ("J2", "B", 1): 1.0, ("J2", "B", 2): 1.9, ("J2", "B", 4): 3.6,
}  # fmt: skip
"""The paper's normalised goodputs by job, GPU type and GPUs."""


def table_1(model: str, kind: str, place: tuple[int, ...], batch: int) -> float | None:
    rate = TABLE_1.get((model, kind, sum(place)))
    return batch / rate if rate else None


def held(session: Session) -> dict[str, tuple[str | None, int]]:
    return {name: (state.gpu_type, state.gpus) for name, state in session.jobs.items() if state.gpus}


def of_table_1(grown: int, **parameters: object) -> Session:
    """Two jobs that may grow to twice ``grown`` GPUs each."""
    policy = Sia(**parameters)
    policy.load_state({"restarts": {}, "largest": {"J1": grown, "J2": grown}}, {})
    jobs = [job(name, high=4, model=name, work={"samples": 1e9}) for name in ("J1", "J2")]
    return started(policy, mixed_cluster(A=(2,), B=(4,)), *jobs, throughput=TimedSteps(table_1))


@pytest.mark.parametrize(
    ("grown", "parameters", "expected"),
    [
        pytest.param(2, {"p": 1.0}, {"J1": ("B", 4), "J2": ("A", 2)}, id="the largest sum is 3.5 + 2.1"),
        pytest.param(2, {}, {"J1": ("B", 4), "J2": ("A", 2)}, id="G^-0.5: 0.53 + 0.69, against 0.82 + 0.53"),
        pytest.param(0, {}, {"J1": ("B", 1), "J2": ("A", 1)}, id="one GPU each at first: 1.5 + 1.2"),
    ],
)
def test_table_1(grown: int, parameters: dict[str, float], expected: dict[str, tuple[str, int]]):
    assert held(of_table_1(grown, **parameters)) == expected


def grower(most: int, speeds: dict[int, float]) -> Session:
    """A job alone on as many GPUs as it may have, after the first decision."""
    spec = job("a", high=most, model="net", gpu_seconds=1e6)
    return started(Sia(), cluster(most), spec, throughput=curves(net=speeds))


def test_a_job_doubles_at_most():
    result = grower(8, {1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0})
    assert [decided(result, 36_000.0 * hour)["a"] for hour in range(5)] == [1, 2, 4, 8, 8]

    result = grower(2, {1: 10.0, 2: 20.0})
    result.jobs["a"].train_from(90_000.0, 10.0)
    assert decided(result, 60_000.0) == {"a": 1}
    assert decided(result, 90_000.0) == {"a": 2}


@pytest.mark.parametrize(("age_s", "gpus"), [(40.0, 1), (50.0, 2)])
def test_a_young_job_does_not_restart_for_a_little(age_s: float, gpus: int):
    """Two GPUs are 1.65 times one; r = T / (T + 30) is 0.57 after 40 s and 0.63 after 50 s: 0.94 and 1.03."""
    assert decided(grower(2, {1: 10.0, 2: 16.5}), age_s) == {"a": gpus}


def test_past_restarts_weigh():
    """After one restart r is (T - 30) / (T + 30): 0.5 at 90 s, 0.51 at 93; four GPUs are 1.98 times two."""
    result = grower(4, {1: 10.0, 2: 20.0, 4: 39.6})
    assert [decided(result, time_s)["a"] for time_s in (0.0, 60.0, 90.0, 93.0)] == [1, 2, 2, 4]


@pytest.mark.parametrize(("penalty", "gpus"), [(1.1, [2, 2]), (1.5, [1, 1, 1, 1])])
def test_the_penalty_is_what_a_waiting_job_costs(penalty: float, gpus: list[int]):
    """Two jobs on one GPU each cost 2; one on two, the other none, 0.71 + λ: 1.81 or 2.21."""
    fast = curves(fast={1: 10.0, 2: 20.0})
    jobs = [job(name, high=2, model="fast", gpu_seconds=1e6) for name in "abcd"]
    result = opened(Sia(penalty=penalty), cluster(4), *jobs, throughput=fast)
    assert decided(result, 0.0) == dict.fromkeys("abcd", 1)
    assert list(decided(result, 360_000.0).values()) == gpus


@pytest.mark.parametrize("parameters", [{"penalty": 1.01}, {"p": 1.0, "penalty": 0.01}])
def test_a_lone_job_starts_at_the_least_penalties(parameters: dict[str, float]):
    assert decided(opened(Sia(**parameters), cluster(1), job("a", gpu_seconds=1e6)), 0.0) == {"a": 1}


def test_rigid_jobs_and_fixed_gpus_with_a_free_batch() -> None:
    # Both run best on B, which has four GPUs; the one that loses more on A goes to B.
    speeds = {("x", "A"): 1.0, ("x", "B"): 1.2, ("y", "A"): 1.0, ("y", "B"): 3.0}
    steps = TimedSteps(lambda model, kind, place, batch: batch / speeds[model, kind] / sum(place))
    jobs = [job(name, gpus=4, model=name, gpu_seconds=1e6) for name in "xy"]
    result = started(Sia(), mixed_cluster(A=(4,), B=(4,)), *jobs, throughput=steps)
    assert held(result) == {"x": ("A", 4), "y": ("B", 4)}

    jobs = [job("three", gpus=3, gpu_seconds=1e6), job("six", gpus=6, gpu_seconds=1e6)]
    assert decided(opened(Sia(), cluster(4, 4, 4), *jobs), 0.0) == {"six": 6, "three": 3}

    # 0.1 s and 0.01 s a sample at φ = 640 on two GPUs: the best batch is 2 · sqrt(10 · 320) = 113.
    steps = TimedSteps(lambda model, kind, place, batch: 0.1 + 0.01 * batch / sum(place))
    batch = {"size": 64, "min": 32, "max": 1024}
    spec = job("a", gpus=2, low=2, high=2, elastic="size+batch", batch=batch, work={"samples": 1e9})
    result = started(Sia(retune="free"), cluster(2, 2), spec, throughput=steps)
    assert (result.jobs["a"].gpus, result.jobs["a"].global_batch) == (2, 64)
    result.jobs["a"].noise_scale = 640.0
    assert decided(result, 60.0) == {"a": 2}
    assert result.jobs["a"].global_batch == pytest.approx(113, abs=20)

    result = grower(2, {1: 10.0, 2: 20.0})
    result.jobs["a"].noise_scale = 640.0
    assert decided(result, 36_000.0) == {"a": 2}
    assert result.jobs["a"].global_batch == 960


def bootstrapped(knowledge: str, *observations: Observation) -> Session:
    """One replica is three times as fast on B as on A; by the profile, several are no faster."""
    alone = {"A": 1.0, "B": 3.0}
    steps = TimedSteps(lambda model, kind, place, batch: batch / alone[kind])
    spec = job("a", high=2, batch=12, work={"samples": 1e9})
    result = opened(Sia(knowledge=knowledge), mixed_cluster(A=(4,), B=(4,)), spec, throughput=steps)
    for seen in observations:
        result.jobs["a"].observe(seen)
    return result


def test_types_without_measurements_are_known_by_one_replica() -> None:
    # By measurements alone all types are alike at first.
    for knowledge, kind in (("bootstrap", "B"), ("measured", "A")):
        result = bootstrapped(knowledge)
        result.decide(0.0)
        assert held(result) == {"a": (kind, 1)}

    # Two A were found to be 1.2 times one, so two B are 3.6 times one A, by a fit of two measurements.
    one = Observation((1,), 12, 1, 12.0, 0.0, "A")
    two = Observation((2,), 6, 1, 10.0, 4.0, "A")
    for knowledge in ("bootstrap", "measured"):
        result = bootstrapped(knowledge, one, two)
        explained = result.policy.explain  # made by the decision
        result.decide(0.0)
        assert held(result) == {"a": ("B", 2)}
        times, _, rest = explained(result.snapshot(0.0))["a"].reason.partition(" ")
        assert float(times) == pytest.approx(3.6, rel=0.05), knowledge
        assert rest.startswith("times the goodput"), knowledge
