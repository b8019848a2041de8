import signal

import numpy as np
import pytest

from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.las import Las
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.predict_start import (
    StartPrediction,
    advance,
    copy_of,
    in_order_of_arrival,
    next_moment_s,
    predictions,
)
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import cluster, job, opened, session
from tests.tools.schedule.test_decide import PROFILE

NODES = cluster(4)


def decided(*jobs: Job, policy: str = "fifo") -> Session:
    held = opened(make_policy(policy), NODES, *jobs)
    held.decide(0.0)
    return held


@pytest.mark.parametrize(("measured", "seconds"), [({}, 100.0), ({"a": 2.0}, 200.0)])
def test_jobs_start_when_others_end_at_the_speed_of_their_model(measured, seconds):
    found = predictions(decided(*(job(name, gpus=4, gpu_seconds=400) for name in "abc")), 0.0, measured)
    assert found["a"].end_s == seconds
    assert found["b"] == StartPrediction(start_s=seconds, jobs_ahead=0)
    assert found["c"] == StartPrediction(start_s=2 * seconds, jobs_ahead=1)


def test_ends_need_a_speed_and_a_policy_is_asked_first() -> None:
    held = decided(*(job(name, gpus=4, work={"samples": 800.0}) for name in "ab"))
    assert predictions(copy_of(held), 0.0) == {}
    found = predictions(copy_of(held), 0.0, {"a": 80.0})
    assert (found["a"].end_s, found["b"].start_s) == (10.0, 10.0)
    # With a profile it is predicted.
    held = session(make_policy("fifo"), NODES, throughput_for(Profile(PROFILE.rows), NODES))
    held.submit(job("a", gpus=1, model=PROFILE.rows[0].model, work={"samples": 800.0}), 0.0)
    held.decide(0.0)
    assert predictions(held, 0.0)["a"].end_s == pytest.approx(800.0 / held.jobs["a"].samples_per_second)
    # Nor has a job an end that should have ended, unless measured.
    held = decided(job("a", gpus=4, gpu_seconds=400), job("b", gpus=4, gpu_seconds=80))
    assert predictions(copy_of(held), 150.0) == {}
    held.jobs["a"].report_progress(150.0, 200.0)
    assert predictions(copy_of(held), 150.0, {"a": 2.0})["a"].end_s == 250.0
    # A policy is asked first and the session stays as it is.
    held = session(make_policy("fifo"), NODES)
    held.submit(job("a", gpus=4, gpu_seconds=400), 5.0)
    assert predictions(copy_of(held), 5.0, decides_now=True)["a"].start_s == 5.0
    assert predictions(copy_of(held), 5.0) == {}
    # Predicting leaves the session as it is.
    held = decided(*(job(name, gpus=4, gpu_seconds=400) for name in "ab"))

    def seen(each: JobState) -> tuple[object, ...]:
        return each.gpus, each.samples_per_second, each.samples_done(10.0)

    before = {name: seen(each) for name, each in held.jobs.items()}
    predictions(copy_of(held), 0.0, {"a": 2.0})
    assert {name: seen(each) for name, each in held.jobs.items()} == before


def asked(*jobs: Job, measured: dict[str, float] | None = None) -> dict[str, StartPrediction]:
    return predictions(decided(*jobs), 0.0, measured or {}, decides_now=True)


def test_jobs_without_an_end_have_a_place_and_long_looks_stop() -> None:
    found = asked(*(job(name, gpus=4, work={"samples": 800.0}) for name in "abc"))
    assert "a" not in found
    assert [found[name] for name in "bc"] == [StartPrediction(jobs_ahead=n, needs_gpus=4) for n in (0, 1)]
    # What is known comes before what is supposed.
    small, large = job("c", gpus=2, work={"samples": 800.0}), job("d", gpus=4, work={"samples": 800.0})
    running = [job(name, gpus=2, work={"samples": 800.0}) for name in "ab"]
    found = asked(*running, small, large, measured={"a": 80.0})
    assert (found["c"].start_s, found["c"].jobs_ahead) == (10.0, 0)
    assert found["d"].jobs_ahead == 1
    # The policy says how many GPUs a job waits for.
    elastic = job("b", gpus=4, low=1, gpu_seconds=80)
    assert asked(job("a", gpus=3, gpu_seconds=400), elastic)["b"].needs_gpus == 4
    # A decision that takes too long is broken off.
    held = session(Slow(), NODES)
    for name in "ab":
        held.submit(job(name, gpus=4, gpu_seconds=400), 0.0)
    before = signal.getsignal(signal.SIGALRM)
    found = predictions(held, 0.0, decides_now=True, within_s=0.2)
    assert (found["a"].start_s, found["b"].start_s) == (0.0, None)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    # An alarm that stays would end the process.
    held = decided(*(job(name, gpus=4, gpu_seconds=400) for name in "ab"))
    assert predictions(held, 0.0, within_s=600.0)["b"].start_s == 100.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class Slow(Fifo):
    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        while snapshot.time_s:
            pass
        return super().decide(snapshot, rng)


@pytest.mark.parametrize(
    ("ranges", "slow", "fast"),
    [
        ({}, 0.7, 1.3),
        ({"a": (1.9, 2.2)}, 0.95, 1.1),
        ({"a": (1.8, 2.0)}, 0.9, 1.05),
        ({"a": (2.0, 2.0)}, 0.95, 1.05),
        ({"a": (0.1, 9.0)}, 0.5, 1.5),
    ],
)
def test_a_start_is_as_uncertain_as_the_speeds_behind_it(ranges, slow, fast):
    """At 40 a has 240 of its 400 samples left, at two a second."""
    held = decided(*(job(name, gpus=4, gpu_seconds=400) for name in "ab"))
    found = predictions(held, 40.0, {"a": 2.0}, ranges=ranges)
    assert found["b"].start_s == 160.0
    assert found["b"].between_s == pytest.approx((40 + 120 / fast, 40 + 120 / slow))


def test_starts_are_as_certain_as_speeds_and_rounds_are_kept() -> None:
    held = decided(
        job("a", gpus=2, gpu_seconds=400, model="known"),
        job("b", gpus=2, gpu_seconds=400, model="new"),
        job("c", gpus=4, gpu_seconds=400),
    )
    found = predictions(copy_of(held), 0.0, {"a": 2.0})
    assert [found[name].source for name in "abc"] == ["measured", "stated", "stated"]
    assert predictions(held, 0.0, {"a": 2.0, "b": 2.0})["c"].source == "measured"
    # A policy with rounds is asked in rounds.
    held = decided(job("a", work={"samples": 5}), policy="las")
    assert next_moment_s(held, 0.0) == Las.traits.default_interval_s
    assert list(held.jobs) == ["a"], "to look is not to go there"
    # Nothing is to come where no end is known.
    held = decided(job("a"))
    assert advance(held, 0.0) is None
    assert next_moment_s(held, 0.0, end_of=lambda _: 7.0) == 7.0


def test_jobs_arrive_and_end_in_turn():
    held = session(Fifo(), cluster(1))
    coming = in_order_of_arrival(
        [
            *(job("late", at=5.0, work={"samples": 4}), job("early", at=1.0, work={"samples": 10})),
            job("then", at=15.0, work={"samples": 1}),
        ]
    )
    moments, now_s = [], 0.0
    while (next_s := advance(held, now_s, coming)) is not None:
        now_s = next_s
        held.decide(now_s)
        moments.append((now_s, sorted(held.jobs)))
    assert moments == [
        *((1.0, ["early"]), (5.0, ["early", "late"]), (11.0, ["late"])),
        *((15.0, ["then"]), (16.0, [])),  # one ends at the moment at which another arrives
    ]
