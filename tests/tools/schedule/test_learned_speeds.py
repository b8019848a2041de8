from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.jobs import JobKind, Observation
from pliant.tools.schedule.learned_speeds import Configuration, LearnedSpeeds, LearnedState
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job

LINEAR = CurveThroughput()


def seen(seconds: float, *placement: int, local: int = 8, accum: int = 1, kind: str = "gpu") -> Observation:
    return Observation(placement, local, accum, seconds, None, kind)


def learned(*observations: Observation, source="learned", guesses=True, profiled=LINEAR) -> LearnedSpeeds:
    made = LearnedSpeeds(profiled, {"gpu": 1.0, "fast": 2.0}, source, guesses=guesses)
    for each in observations:
        made.observe("m", each)
    return made


def rate(speeds: LearnedSpeeds, batch: int, *placement: int, kind: str = "gpu") -> float | None:
    seconds = speeds.step_seconds("m", kind, placement, batch, None)
    return None if seconds is None else batch / seconds


def test_what_was_measured_answers_and_other_types_by_relative_speed() -> None:
    speeds = learned(seen(0.5, 2))
    assert rate(speeds, 16, 2) == 32.0
    assert rate(speeds, 16, 2, kind="fast") == 64.0
    assert (speeds.is_guess("m"), speeds.is_guess("other")) == (False, True)


def test_no_model_is_expected_to_scale_for_ever() -> None:
    """Nor one that nobody has measured, nor one that was measured on one GPU alone."""
    for speeds in (learned(), learned(seen(1.0, 1, local=64))):
        speeds.request("m", 32)
        rates = [rate(speeds, 64, gpus) or 0.0 for gpus in (1, 2, 8, 32)]
        assert rates == sorted(rates)
        assert rates[2] / rates[1] < 4
        assert rates[3] / rates[2] < 3


def test_two_measured_sizes_say_what_a_third_loses() -> None:
    """Computing takes 0.1 s and 0.01 s a sample, synchronising 0.2 s."""
    times = {(gpus, local): 0.1 + 0.01 * local + (0.2 if gpus > 1 else 0.0) for gpus, local in
             ((1, 8), (1, 32), (2, 8), (2, 32))}  # fmt: skip
    speeds = learned(*(seen(seconds, gpus, local=local) for (gpus, local), seconds in times.items()))
    seconds = speeds.step_seconds("m", "gpu", (4,), 64, None)
    assert seconds == pytest.approx(0.1 + 0.16 + 0.2, rel=0.1)


def test_a_size_opens_at_twice_the_largest_that_was_tried_or_requested() -> None:
    speeds = learned(seen(1.0, 2))
    assert [rate(speeds, 64, gpus) is None for gpus in (4, 5)] == [False, True]
    speeds.request("m", 6)
    assert [rate(speeds, 64, gpus) is None for gpus in (6, 7)] == [False, True]


@given(st.lists(st.floats(0.95, 1.05), min_size=1, max_size=60))
def test_noise_of_a_twentieth_changes_no_speed(factors: list[float]) -> None:
    speeds = learned(seen(1.0, 1))
    assert [speeds.observe("m", seen(factor, 1)) for factor in factors] == [()] * len(factors)
    assert rate(speeds, 8, 1) == 8.0


def test_a_slow_hour_passes_and_a_speed_that_stays_counts() -> None:
    speeds = learned(seen(1.0, 1))
    changed = [speeds.observe("m", seen(seconds, 1)) for seconds in (9.0, 1.0, 1.0, 2.0, 2.0, 2.0)]
    assert changed == [(), (), (), (), ("m",), ()]
    assert rate(speeds, 8, 1) == 4.0


PROFILE = Profile(
    tuple(
        ProfileRow(
            "train", "m", "gpu", 1, gpus, str(gpus), 8, step_seconds=1.0, samples_per_second=8.0 * gpus
        )
        for gpus in (1, 4)
    )
)


def best(*observations: Observation) -> LearnedSpeeds:
    return learned(*observations, source="best", guesses=False, profiled=ThroughputBySize(PROFILE))


def test_the_profile_wins_where_it_measured_and_learns_the_rest() -> None:
    assert rate(best(), 16, 2) == 16.0, "between its sizes"
    assert rate(best(seen(1.25, 2)), 16, 2) == 12.8
    assert rate(best(seen(9.0, 4)), 32, 4) == 32.0


def test_a_row_that_jobs_contradict_for_long_gives_way() -> None:
    often = [seen(1.5, 4)] * 20
    assert (rate(best(*often[1:]), 32, 4), rate(best(*often), 32, 4)) == (32.0, 32 / 1.5)
    (contradiction,) = best(*often).contradictions()
    assert contradiction == ("m", Configuration("gpu", (4,), 8, 1), 1.0, 1.5)
    assert not best(*[seen(1.1, 4)] * 40).contradictions()


def test_what_is_kept_is_bounded_and_survives_a_restart() -> None:
    speeds = learned(*(seen(1.0, 1, local=local) for local in range(1, 200)))
    for number in range(1200):
        speeds.observe(f"m{number}", seen(1.0, 1))
    assert len(speeds.state.steps) == 1000
    assert "m" not in speeds.state.steps
    again = learned()
    again.restore(LearnedState(**asdict(speeds.state)))
    assert again.state.steps.keys() == speeds.state.steps.keys()
    assert len(learned(*(seen(1.0, 1, local=n) for n in range(1, 99))).state.steps["m"]) == 64


def test_jobs_of_the_model_are_of_another_kind_once_it_is_measured() -> None:
    """So everything that was derived from its speeds is derived again, and the policy is asked."""
    speeds = learned()
    session = Session(make_policy("fifo"), cluster(4), speeds)
    a, b = (session.submit(job(each, model="m", gpus=1, batch=8), 0.0) for each in "ab")
    other = session.submit(job("c", model="n", gpus=1, batch=8), 0.0)
    kinds = [JobKind.of(each) for each in (a, b, other)]
    session.decide(0.0)
    session.observe(a, seen(2.0, 1), 5.0)
    same = [JobKind.of(each) is kind for each, kind in zip((a, b, other), kinds, strict=True)]
    assert same == [False, False, True]
    assert session.cluster.speeds.rate(b, 1) == 4.0
    assert {change.job.id for change in session.changes.entries if change.job} == {"a", "b"}
    assert [each.is_speed_guessed for each in (a, b, other)] == [False, False, True]


def test_a_replay_trains_by_the_profile_and_decides_by_what_jobs_measured() -> None:
    physics = CurveThroughput({"m": {1: 30.0, 4: 60.0}})
    session = Session(make_policy("fifo"), cluster(4), LearnedSpeeds(physics, {}, "learned"), physics=physics)
    state = session.submit(job("a", model="m", gpus=4, batch=8, work={"gpu_seconds": 40.0}), 0.0)
    assert session.cluster.speeds.rate(state, 4) < 4.0, "as of a model that nobody knows"
    session.decide(0.0)
    assert (state.samples_per_second, state.total_samples) == (60.0, 600.0)
    session.observe(state, seen(8 / 60, 4, local=2), 1.0)
    assert session.cluster.speeds.rate(state, 4) == pytest.approx(60.0)
