from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.tools.schedule.policies.pollux.policy import MatrixPopulation
from pliant.tools.schedule.policies.pollux.search import (
    WAITING,
    Matrices,
    PlacementProblem,
    first_come,
    repair,
    search,
)
from tests.effort import examples


def problem(
    capacity: Sequence[int],
    curves: Sequence[Sequence[float]],
    *,
    across: float = 0.8,
    least: Sequence[int] | None = None,
    most: Sequence[int] | None = None,
    held: Sequence[Sequence[int]] | None = None,
    factor: float = 0.9,
) -> PlacementProblem:
    """``curves[job][gpus]`` on one node; on several ``across`` of it. All jobs may take the whole cluster."""
    total = sum(capacity)
    inside = np.array([[curve[min(gpus, len(curve) - 1)] for gpus in range(total + 1)] for curve in curves])
    jobs = len(curves)
    return PlacementProblem(
        capacity=np.array(capacity),
        speedups=np.stack([inside, across * inside], axis=1),
        least=np.array(least or [1] * jobs),
        most=np.array(most or [total] * jobs),
        held=np.array(held or np.zeros((jobs, len(capacity)))).astype(np.int16)[None],
        restart_factor=np.full(jobs, factor),
        together=np.ones(jobs, dtype=np.int64),
    )


def matrix(*rows: Sequence[int]) -> Matrices:
    return np.array([rows], dtype=np.int16)


def found_by(task: PlacementProblem, seed: int = 0, earlier: Matrices | None = None) -> Matrices:
    start = task.held[:0] if earlier is None else earlier
    return search(task, start, np.random.default_rng(seed), population=40, generations=60)


def obeys(task: PlacementProblem, result: Matrices) -> bool:
    gpus, spans = result.sum(axis=2), np.count_nonzero(result, axis=2) > 1
    together = ((result > 0) & spans[:, :, None]).sum(axis=1)
    sized = (gpus == 0) | ((gpus >= task.least) & (gpus <= task.most))
    return bool(
        (result >= 0).all()
        and (result.sum(axis=1) <= task.capacity).all()
        and (together <= 1).all()
        and sized.all()
    )


LINEAR = (0.0, 1.0, 2.0, 3.0, 4.0)


def test_fitness_is_the_harmonic_mean_of_speedups():
    task = problem([4], [LINEAR, LINEAR])
    assert task.fitness(matrix([1], [3])) == pytest.approx(2 / (1 / 1 + 1 / 3))
    assert task.fitness(matrix([2], [2])) == pytest.approx(2)

    assert task.fitness(matrix([0], [4])) == pytest.approx(2 / (1 / WAITING + 1 / 4))

    task = problem([2, 2], [LINEAR, LINEAR], held=[[2, 0], [0, 0]], factor=0.5)
    assert task.job_speedups(matrix([2, 0], [0, 2])).tolist() == [[2.0, 2.0]]
    assert task.job_speedups(matrix([0, 2], [2, 0])).tolist() == [[1.0, 2.0]]
    assert task.job_speedups(matrix([0, 0], [2, 0])).tolist() == [[0.0, 2.0]]


@pytest.mark.parametrize(
    ("task", "given", "repaired"),
    [
        pytest.param(
            problem([4, 4, 4], [LINEAR] * 2),
            *(matrix([1, 1, 0], [0, 1, 1]), [[1, 1, 0], [0, 0, 1]]),
            id="one job of several nodes stays on a node",
        ),
        pytest.param(
            *(problem([4], [LINEAR] * 2), matrix([3], [3]), [[3], [1]]),
            id="later jobs give what a node lacks",
        ),
        pytest.param(
            problem([4], [LINEAR] * 2, least=[1, 4], most=[1, 4]),
            *(matrix([3], [4]), [[1], [0]]),
            id="gangs are whole or out",
        ),
    ],
)
def test_repair(task: PlacementProblem, given: Matrices, repaired: list[list[int]]):
    assert repair(task, given).tolist() == [repaired]


def test_all_get_the_least_in_turn_and_small_gains_move_nothing() -> None:
    task = problem([2, 4], [LINEAR] * 3, least=[1, 4, 2])
    assert first_come(task, task.held[0]).tolist() == [[1, 0], [0, 4], [0, 0]]
    task = problem([2, 2, 2], [LINEAR] * 2, least=[5, 1])
    assert first_come(task, task.held[0]).tolist() == [[2, 2, 1], [0, 0, 1]], "a gang that fits no node"
    # Nothing moves for less than a restart costs.
    task = problem([4, 4], [LINEAR, LINEAR], held=[[4, 0], [0, 4]])
    assert (found_by(task)[0] == task.held[0]).all()


def every_matrix(task: PlacementProblem) -> Iterator[Matrices]:
    columns = [
        [column for column in product(range(most + 1), repeat=task.jobs) if sum(column) <= most]
        for most in task.capacity.tolist()
    ]
    for chosen in product(*columns):
        result = np.array(chosen, dtype=np.int16).T[None]
        if obeys(task, result):
            yield result


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(
    capacity=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    gains=st.lists(
        st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=4, max_size=4), max_size=3, min_size=1
    ),
    runs=st.booleans(),
)
def test_the_search_reaches_the_optimum_of_tiny_instances(capacity, gains, runs):
    curves = [np.concatenate(([0.0], np.cumsum(sorted(gain, reverse=True)))).tolist() for gain in gains]
    task = problem(capacity, curves)
    if runs:
        held = first_come(task, task.held[0])
        task = problem(capacity, curves, held=held.tolist())
    best = max(float(task.fitness(each)[0]) for each in every_matrix(task))
    result = max(float(task.fitness(found_by(task, seed))[0]) for seed in range(4))
    assert result == pytest.approx(best)


def test_what_was_found_before_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    task = problem([4] * 4, [LINEAR] * 7)
    before = found_by(task, 1)
    again = search(task, before, np.random.default_rng(2), population=40, generations=0)
    assert task.fitness(again)[0] == task.fitness(before)[0]

    task = problem([4] * 6, [LINEAR] * 9)
    before = found_by(task)
    monkeypatch.setattr("pliant.tools.schedule.policies.pollux.search._ROOM", 2)
    assert (found_by(task) == before).all()

    result = found_by(problem([4, 4], [LINEAR] * 3))
    kept = MatrixPopulation.load(MatrixPopulation(["a", "b", "c"], ["n0", "n1"], result).dump())
    assert (kept.found == result).all()
    assert (kept.jobs, kept.nodes) == (["a", "b", "c"], ["n0", "n1"])
