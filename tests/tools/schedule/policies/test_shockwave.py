"""Shockwave: windows worked out by hand, predictions, and rounds that the artifact would plan, too."""

import pytest

from pliant.schemas.job import Job
from pliant.tools.schedule.policies.common import Contention, trained_s
from pliant.tools.schedule.policies.shockwave import (
    MarketJob,
    Shockwave,
    Window,
    best_rounds,
    dealt,
    predicted_batches,
    remaining_s,
)
from pliant.tools.schedule.session.session import Session
from tests.builders import FREE_CHANGES, TimedSteps, cluster, decided, job, opened
from tests.tools.replay.world import ends, play

ROUND_S = 120.0


SPEEDS = TimedSteps(lambda model, kind, place, batch: 1.0 / sum(place))
"""Every batch takes a second on one GPU."""


def prospect(job_id: str, trained: float, remaining: float, rho: float = 1.0, gpus: int = 1) -> MarketJob:
    return MarketJob(job_id, gpus, trained, remaining, rho, False)


def rounds_of(members: list[MarketJob], gpus: int, rounds: int, restraint: float = 0.0) -> list[int]:
    return best_rounds(members, weights_of(members), Window(gpus, rounds, ROUND_S), restraint)


def weights_of(members: list[MarketJob]) -> list[float]:
    return [max(1.0, each.rho) ** 12 for each in members]


def test_rounds_go_where_they_are_worth_most():
    # ln((600 + 120 n) / 1800) twice: two rounds each.
    assert rounds_of([prospect("a", 600, 1200), prospect("b", 600, 1200)], 1, 4) == [2, 2]

    # Of 4 rounds: ln(240/120) = 0.69, ln(360/240) = 0.41, ln(480/360) = 0.29 against ln(600/480) = 0.22.
    members = [prospect("a", 120, 1200), prospect("b", 480, 1200)]
    assert rounds_of(members, 1, 3) == [3, 0]
    assert rounds_of(members, 1, 4) == [3, 1]

    # 1.2 ** 12 = 8.9: its rounds are worth 8.9 times as much.
    assert rounds_of([prospect("a", 600, 1200), prospect("b", 600, 1200, rho=1.2)], 1, 4) == [0, 4]

    # Three jobs on two GPUs: 3600 s of c decide when all is done, less 120 s for each round of it.
    members = [prospect("a", 120, 600), prospect("b", 120, 600), prospect("c", 1200, 3600)]
    assert rounds_of(members, 2, 3) == [3, 3, 0]
    assert rounds_of(members, 2, 3, restraint=1.0)[2] == 3

    assert rounds_of([prospect("a", 600, 130), prospect("b", 600, 1200)], 2, 5) == [2, 5]


def test_gangs_are_dealt_where_there_is_room():
    members = [prospect("a", 0, 1e4), prospect("b", 0, 1e4, gpus=2), prospect("c", 0, 1e4)]
    assert dealt(members, [2, 2, 1], Window(2, 3, ROUND_S)) == {"a": [0, 2], "b": [1], "c": [0]}

    members = [prospect("a", 0, 1e4, rho=3.0), prospect("b", 0, 1e4, rho=2.0), prospect("long", 1e4, 1e5)]
    assert dealt(members, [2, 1, 3], Window(2, 3, ROUND_S)) == {"a": [0, 1], "b": [2], "long": [0, 1, 2]}
    assert dealt(members[:2], [2, 1], Window(1, 3, ROUND_S)) == {"a": [0, 1], "b": [2]}


def adaptive(name: str = "a", **more: object) -> Job:
    """900 samples: 300 each with batches of 1, 2 and 4, if they were parted evenly."""
    regimes = ({"after": 0.2, "size": 2}, {"after": 0.9, "size": 4})
    return job(name, batch={"size": 1, "regimes": regimes}, work={"samples": 900.0}, **more)  # type: ignore[arg-type]


def at(samples: float, *changes: tuple[int, float]) -> Session:
    """Job a has trained so far, with these batches from these samples on."""
    held = opened(Shockwave(), cluster(1), adaptive(), throughput=SPEEDS)
    for batch, done in changes:
        held.take_batch("a", batch, done, 0.0)
    held.jobs["a"].report_progress(0.0, samples)
    return held


def test_the_rest_is_parted_evenly_among_batches_to_come():
    for samples, changes, expected in (
        (0, (), {1: 300.0, 2: 300.0, 4: 300.0}),
        (150, (), {1: 150.0, 2: 300.0, 4: 300.0}),
        (400, (), {1: 0.0, 2: 250.0, 4: 250.0}),
        (180, ((2, 180.0),), {2: 360.0, 4: 360.0}),
        (810, ((2, 180.0), (4, 810.0)), {4: 90.0}),
    ):
        assert predicted_batches(at(samples, *changes).jobs["a"], 900.0 - samples, 0.0) == expected


@pytest.mark.parametrize(("changes", "alone_s"), [((), 900.0), (((2, 180.0),), 180 + 720 / 2)])
def test_fairness_counts_what_was_trained_at_its_speed(changes, alone_s: float):
    """With the batch of now for all of it, a job that became faster would seem to be late."""
    held = at(180.0, *changes)
    stake = Contention().stake(held.jobs["a"], held.snapshot(0.0), 0.0)
    assert stake is not None
    assert stake.isolated_s == pytest.approx(alone_s)


def test_seconds_by_batch_and_idle_gpus_without_a_round() -> None:
    first, last = (at(*each).jobs["a"] for each in ((0,), (810, (2, 180.0), (4, 810.0))))
    speeds = opened(Shockwave(), cluster(1), throughput=SPEEDS).cluster.speeds
    assert remaining_s(first, 900.0, 0.0, speeds) == pytest.approx(300 + 150 + 75)
    assert trained_s(last, 0.0, speeds) == pytest.approx(180 + 315)
    assert remaining_s(last, 90.0, 0.0, speeds) == pytest.approx(22.5)

    # Two rounds of one GPU are planned for the jobs that need it, and nothing is left idle.
    jobs = [job(name, gpu_seconds=1e5) for name in "abc"]
    assert decided(opened(Shockwave(), cluster(4), *jobs), 0.0) == {"a": 1, "b": 1, "c": 1}

    jobs = [job(name, gpu_seconds=1200.0) for name in "ab"]
    engine = play(Shockwave(), jobs, cluster(1), simulated=FREE_CHANGES, interval_s=ROUND_S)
    assert ends(engine).keys() == {"a", "b"}
    assert max(ends(engine).values()) == pytest.approx(2400.0)
