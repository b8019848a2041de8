import math

import numpy as np
import pytest

from pliant.tools.schedule.policies.ones import search
from pliant.tools.schedule.policies.ones.limits import Sizes
from pliant.tools.schedule.policies.ones.population import Population
from pliant.tools.schedule.remaining_work import RemainingWork, known_work

INF = math.inf
SCALING = [0.0, 1.0, 1.1, 1.2, 1.3]
"""GPU-seconds for a sample on 0 to 4 GPUs."""


def problem(
    *utilization: list[float],
    gpus: int = 4,
    work: RemainingWork | list[float] | None = None,
    new: tuple[int, ...] = (),
    longest: tuple[int, ...] = (),
) -> search.SharingProblem:
    width = max(map(len, utilization))
    table = np.array([each + [INF] * (width - len(each)) for each in utilization])
    jobs = len(table)
    left = known_work(np.ones(jobs)) if work is None else work
    left = left if isinstance(left, RemainingWork) else known_work(left)
    order = np.array(longest or range(jobs))
    return search.SharingProblem(gpus, Sizes(table), left, np.array(new, dtype=np.int64), order)


def genomes(*rows: list[int]) -> search.Genomes:
    return np.array(rows, dtype=np.int16)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def in_full(world: search.SharingProblem, result: search.Offspring) -> list[list[int]]:
    return search.fill_idle(world, result, rng()).tolist()


def test_reorder_packs_workers_and_children_inherit_each_gpu() -> None:
    # Figure 10 of the paper: jobs 2, 1, 0, idle GPUs last.
    scattered = genomes([2, search.IDLE, 1, 2, 0, 1])
    packed = search.reorder(search.counts_of(scattered, 3), search.first_genes(scattered, 3), 6)
    assert packed.tolist() == [[2, 2, 1, 1, 0, search.IDLE]]
    # Of each GPU the children inherit one parent each.
    any_size = [0.0] + [1.0] * 64
    world = problem(any_size, any_size, gpus=64)
    first = search.crossover(world, genomes([0] * 64, [1] * 64), rng(), 20).counts[:, 0]
    assert set((first[:20] + first[20:]).tolist()) == {0, 64, 128}, "parents of one kind, or one of each"
    mixed = first[:20][(first[:20] > 0) & (first[:20] < 64)]
    assert len(mixed), "a coin for each GPU mixes the parents"

    gang = [0.0, INF, 1.0, INF, 1.0]
    world = problem(gang, SCALING)
    result = search.crossover(world, genomes([0, 0, 1, 1], [1, 0, 0, 1]), rng(), 30)
    assert set(result.counts[:, 0].tolist()) <= {0, 2, 4}, "a job of two or four GPUs has nothing else"
    assert (search.fill_idle(world, result, rng()).sum(axis=1) == 4).all()


def test_refresh_and_mutations_move_gpus_where_they_help() -> None:
    limited = [0.0, 1.0, 1.1, INF, INF]
    world = problem(limited, SCALING)
    assert in_full(world, search.refresh(world, genomes([0, 0, 0, 0]))) == [[2, 2]]

    one = [0.0, 1.0, INF, INF, INF]
    world = problem(SCALING, SCALING, one, one, new=(2, 3), longest=(1, 0, 2, 3))
    assert in_full(world, search.refresh(world, genomes([0, 0, 1, 1]))) == [[2, 0, 1, 1]]
    assert in_full(world, search.refresh(world, genomes([0, search.IDLE, search.IDLE, 1])))[0][2:] == [1, 1]

    one = [0.0, 1.0]
    world = problem(*[one] * 6, new=(4, 2, 0, 1, 3, 5))
    assert in_full(world, search.refresh(world, genomes([5, 5, 5, 5]))) == [[1, 1, 1, 0, 1, 0]]

    # Growing job 0 adds 0.1 · 10, growing job 1 adds 0.1 · 1, resuming job 2 adds 1.3 · 1.
    few = [0.0, 1.0, 1.1, INF, INF]
    world = problem(few, few, SCALING, work=[10.0, 1.0, 1.0])
    assert in_full(world, search.refresh(world, genomes([0, 1, search.IDLE, search.IDLE]))) == [[2, 2, 0]]
    world = problem(few, few, SCALING, work=[100.0, 1.0, 1.0])
    assert in_full(world, search.refresh(world, genomes([0, 1, search.IDLE, search.IDLE]))) == [[1, 2, 1]]
    # A mutation gives the GPUs of a job to others first.
    world = problem(SCALING, SCALING)
    result = search.mutate(world, genomes([0, 0, 0, 0]), rng(), 40, 1.0)
    assert not result.counts.any(), "at rate 1 every job is preempted"
    counts = search.fill_idle(world, result, rng())
    assert (counts[:, 1] > 0).all(), "job 1 was preempted in no genome, so it is served first"
    assert (counts.sum(axis=1) == 4).all()
    kept = search.mutate(world, genomes([0, 0, 0, 0]), rng(), 40, 0.0)
    assert (kept.counts == [4, 0]).all()


def test_mutations_give_gpus_away_and_the_fittest_leave_none() -> None:
    world = problem(SCALING, SCALING, work=[10.0, 1.0])
    counts = np.array([[4, 0], [0, 1], [0, 4], [2, 2], [0, 4]])
    assert world.scores(counts, np.array([[10.0, 1.0]])).tolist() == pytest.approx([13, 1, 1.3, 12.1, 1.3])
    assert search.select(world, counts, rng(), 4).tolist() == [2, 3, 0, 1], "equal genomes count once"

    # Two jobs of unknown work alike: under one draw one of them is the shorter for every genome.
    ones = np.ones(2)
    unknown = RemainingWork(np.full(2, np.nan), 100 * ones, 0 * ones, 2 * ones, 2 * ones)
    world = problem(SCALING, SCALING, work=unknown)
    counts = np.array([[4, 0], [3, 1], [1, 3], [0, 4]])
    orders = {
        tuple(search.select(world, counts, np.random.default_rng(seed), 4).tolist()) for seed in range(30)
    }
    assert {order[0] for order in orders} == {0, 3}, "the shorter job alone is best, whichever it is"
    assert all(order[0] != 0 or order.index(1) < order.index(2) for order in orders)
    assert all(order[0] != 3 or order.index(2) < order.index(1) for order in orders)

    ones = np.ones(2)
    work = RemainingWork(np.array([500.0, np.nan]), 1000 * ones, 0 * ones, 30 * ones, 10 * ones)
    drawn = work.draws(rng(), 4000)
    assert (drawn[:, 0] == 500).all()
    assert np.mean(1000 / (1000 + drawn[:, 1])) == pytest.approx(0.75, abs=0.01), "the mean of Be(30, 10)"


def test_generations_do_not_get_worse_and_are_carried_over() -> None:
    gang = [0.0, INF, INF, 1.0]
    world = problem(gang, SCALING, SCALING, gang, gpus=5, work=[5.0, 9.0, 2.0, 7.0])
    result, stream, best = search.beginning(world, rng(), 8), rng(), []
    for _ in range(12):
        result = search.evolve(world, result, stream, 8, 0.3)
        counts = search.counts_of(result, 4)
        assert result.shape[1] == 5
        assert (world.sizes.fitted(counts) == counts).all()
        first = counts[:1]
        best.append((int(world.idle(first)[0]), float(world.scores(first, world.work.draws(rng(), 1))[0])))
    assert best == sorted(best, reverse=True)
    # A population is carried over changes of jobs and GPUs.
    last = Population(["a", "b", "c"], genomes([0, 0, 1, 2], [2, 1, 1, search.IDLE]))
    assert last.of(["c", "a"], 4).tolist() == [
        [1, 1, 0, search.IDLE],
        [0, search.IDLE, search.IDLE, search.IDLE],
    ]
    assert last.of(["c", "a"], 2).tolist() == [[1, 1], [0, search.IDLE]], "the last GPUs are cut off"
    assert last.of(["b"], 5).tolist() == [
        [0] + [search.IDLE] * 4,
        [0, 0, search.IDLE, search.IDLE, search.IDLE],
    ]

    result = genomes([0, 0, 2, search.IDLE], [1, 1, 1, 1])
    assert search.runs_of(result) == [[0, 2, 2, 1, search.IDLE, 1], [1, 4]]
    assert (search.from_runs(search.runs_of(result)) == result).all()
