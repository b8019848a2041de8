import pytest

from pliant.tools.schedule.jobs import Observation, node_states
from pliant.tools.schedule.policies.sia import configurations as sia
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


def test_a_fixed_batch_stays_where_nothing_is_measured():
    spec = job("a", gpus=3, low=3, high=4, gpu_seconds=9.0)
    unstated = spec.model_copy(update={"batch": spec.batch.model_copy(update={"size": None})})
    result = opened(Sia(knowledge="measured"), cluster(4), unstated)
    assert decided(result, 0.0) == {"a": 4}
    assert result.jobs["a"].global_batch == 3


def gpus(*nodes: int) -> sia.GpuType:
    return sia.gpu_types(node_states(mixed_cluster(gpu=nodes, other=(2,))))["gpu"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param((2,), [(1, 1), (1, 2)], id="A of section 3.3"),
        pytest.param((4,), [(1, 1), (1, 2), (1, 4)], id="B of section 3.3"),
        pytest.param((4, 4, 4), [(1, 1), (1, 2), (1, 4), (2, 8), (3, 12)], id="whole nodes beyond one"),
        pytest.param((6, 6), [(1, 1), (1, 2), (1, 4), (1, 6), (2, 12)], id="of no power of two"),
        pytest.param((8, 4, 8), [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16)], id="smaller ones are not whole"),
    ],
)
def test_configurations_are_parts_of_a_node_and_whole_nodes(nodes, expected):
    assert [(one.nodes, one.gpus) for one in gpus(*nodes).configurations] == expected


def test_configurations_are_placeable_within_the_limits_of_jobs() -> None:
    assert [limit.gpus for limit in gpus(4, 4).limits] == [8]

    # Twelve GPUs have room for two such jobs, not for three.
    kind = gpus(6, 6)
    (four,) = (limit for limit in kind.limits if limit.least == 4)
    assert four.gpus == 8
    assert [kind.counted(one, four) for one in kind.configurations] == [0, 0, 4, 4, 8]
    # A job gets what lies within its limits.
    three = gpus(4, 4, 4)
    for sizes, each, expected in (
        (range(2, 10), 1, [2, 4, 8]),
        ((2, 3, 12), 1, [2, 12]),
        (range(2, 13, 2), 2, [2, 4, 8, 12]),
        (range(8, 13, 8), 8, [8]),  # a replica of eight is on two nodes
        (range(3, 13, 3), 3, [3]),  # no node of four is whole replicas
    ):
        assert [one.gpus for one in three.for_job(sizes, each)] == expected

    assert gpus(4, 4).for_job(range(3, 4), 1) == (sia.Configuration(1, 3, "gpu", listed=False),)
    assert gpus(4, 4).for_job(range(6, 8), 1) == (sia.Configuration(2, 6, "gpu", listed=False),)
    assert gpus(4, 4).for_job(range(9, 10), 1) == ()


def test_small_jobs_make_room_and_odd_sizes_take_what_remains() -> None:
    # Each node has a job of one GPU; the one on the first has the same cost as that on the second.
    seats = [
        sia.Seat(name, sia.Configuration(1, count, "gpu"), node)
        for name, count, node in (("a", 1, (("gpu-0", 1),)), ("b", 1, (("gpu-1", 1),)), ("c", 4, ()))
    ]
    assert sia.place(gpus(4, 4), seats) == {"a": (("gpu-1", 1),), "b": (("gpu-1", 1),), "c": (("gpu-0", 4),)}
    # A job of an odd size takes what remains.
    odd = sia.Configuration(1, 3, "gpu", listed=False)
    four, one = (sia.Configuration(1, count, "gpu") for count in (4, 1))
    b = sia.Seat("b", four, (("gpu-1", 4),))
    seats = [sia.Seat("a", odd, (("gpu-0", 3),)), b, sia.Seat("c", one, ())]
    assert sia.place(gpus(4, 4), seats)["c"] == (("gpu-0", 1),)
    seats = [sia.Seat("a", odd, (("gpu-0", 2), ("gpu-1", 1))), sia.Seat("b", four, ())]
    assert sia.place(gpus(4, 4), seats) == {"a": (("gpu-1", 3),), "b": (("gpu-0", 4),)}
