import pytest

from pliant.tools.schedule.jobs import Observation
from pliant.tools.schedule.policies.pollux.policy import Pollux
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, cluster, curves, decided, job, mixed_cluster, opened
from tests.tools.schedule.policies.started import joined, started

FLAT = curves(flat={1: 10.0, 8: 10.0}, fast={1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0})


@pytest.mark.parametrize(
    ("nodes", "jobs", "expected"),
    [
        pytest.param((4, 4), {"a": "fast"}, {"a": 8}, id="a job alone"),
        pytest.param(
            (4,), {"flat": "flat", "fast": "fast"}, {"fast": 3, "flat": 1}, id="one makes use of them"
        ),
        pytest.param((4, 4), dict.fromkeys("abcd", "fast"), dict.fromkeys("abcd", 2), id="equal jobs"),
    ],
)
def test_gpus_go_to_jobs_that_scale(nodes: tuple[int, ...], jobs: dict[str, str], expected: dict[str, int]):
    coming = (job(name, high=sum(nodes), model=model) for name, model in jobs.items())
    assert decided(opened(Pollux(), cluster(*nodes), *coming, throughput=FLAT), 0.0) == expected


def test_a_newcomer_gets_room_but_a_young_job_is_not_disturbed():
    old = job("old", high=8, model="fast", work={"samples": 1e9})
    held = started(Pollux(), cluster(4, 4), old, throughput=FLAT)
    assert joined(held, 3600.0, job("new", at=3600, high=8, model="fast")) == {"new": 4, "old": 4}

    # Five GPUs, a holds four of them and is seconds old: the one that the end of b frees stays idle.
    steep = curves(fast={1: 10.0, 4: 40.0, 5: 44.0})
    jobs = (job("b", model="fast"), job("a", high=5, model="fast"))
    held = opened(Pollux(), cluster(5), *jobs, throughput=steep)
    assert decided(held, 0.0) == {"a": 4, "b": 1}
    held.end("b", 10.0)
    assert decided(held, 10.0) == {"a": 4}
    assert decided(held, 4000.0) == {"a": 5}


@pytest.mark.parametrize(("cells", "matrices"), [(6 * 2 * 9, 9), (1, 4)])
def test_a_population_is_smaller_where_matrices_are_large(cells, matrices, monkeypatch: pytest.MonkeyPatch):
    """Six jobs on two nodes; four matrices are kept in any case."""
    monkeypatch.setattr("pliant.tools.schedule.policies.pollux.policy._MOST_KEPT", cells)
    jobs = [job(name, high=8, model="fast") for name in "abcdef"]
    held = opened(Pollux(population=40), cluster(4, 4), *jobs, throughput=FLAT)
    assert sum(decided(held, 0.0).values()) <= 8
    (kept,) = held.policy.dump_state()["populations"].values()
    assert len(kept["found"]) == matrices


def batching(knowledge: str, **more: object) -> Session:
    """With a job that may change its batch."""
    spec = job("a", elastic="size+batch", batch={"size": 64, "min": 32, "max": 1024}, work={"samples": 1e9})
    return started(Pollux(knowledge=knowledge, **more), cluster(1), spec)


@pytest.mark.parametrize(("knowledge", "batch"), [("measured", 32), ("profile", 64)])
def test_batches_begin_with_what_is_known(knowledge: str, batch: int):
    """A job that only measures with its smallest batch; with the author's where noise is unknown."""
    assert batching(knowledge).jobs["a"].global_batch == batch


UP_TO_THREE = TimedSteps(lambda model, kind, place, batch: batch / sum(place) if sum(place) <= 3 else None)


@pytest.mark.parametrize("elastic", ["size", "size+batch"])
def test_a_fit_is_not_trusted_where_no_speed_is_known(elastic: str):
    batch = {"size": 64, "min": 32, "max": 1024}
    spec = job("a", high=8, elastic=elastic, batch=batch, work={"samples": 1e9})
    held = opened(Pollux(knowledge="measured"), cluster(8), spec, throughput=UP_TO_THREE)
    for round_s, gpus in ((0.0, 1), (36_000.0, 2), (72_000.0, 3), (108_000.0, 3)):
        assert decided(held, round_s) == {"a": gpus}
        held.jobs["a"].observe(Observation((gpus,), 32, 1, 0.4, 0.0))


@pytest.mark.parametrize(("retune", "batch"), [("free", 80), ("paid", 32)])
def test_a_young_job_changes_its_batch_where_that_is_free(retune: str, batch: int):
    """0.1 s and 0.01 s a sample at φ = 640: the best batch is sqrt(10 · 640) = 80, a third better."""
    held = batching("measured", retune=retune)
    state = held.jobs["a"]
    state.observe(Observation((1,), 32, 1, 0.42, 0.0))
    state.observe(Observation((1,), 64, 1, 0.74, 0.0))
    state.noise_scale = 640.0
    held.decide(60.0)
    assert state.global_batch == pytest.approx(batch, abs=8)
    held.decide(360_000.0)
    assert state.global_batch == pytest.approx(80, abs=8)


def test_a_waiting_job_queues_for_its_fastest_type():
    jobs = [job(name, model="flat") for name in "abcd"]
    held = started(Pollux(), mixed_cluster(t4=(2,), a100=(2,)), *jobs, throughput=FLAT)
    assert sorted(state.gpu_type or "" for state in held.jobs.values()) == ["a100", "a100", "t4", "t4"]
