"""What is expected of a job from those that ended before: by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.schedule.policies.lucid import Durations
from tests.builders import job


def learned(*ended: tuple[dict[str, object], float]) -> Durations:
    found = Durations()
    for number, (spec, seconds) in enumerate(ended):
        found.learn(job(f"e{number}", **spec), seconds)
    return found


def test_before_any_job_has_ended_all_are_alike() -> None:
    expected = learned().expect(job())
    assert (expected.seconds, expected.jobs) == (1.0, 0)
    assert str(expected) == "no job has ended yet, so all are taken to be as long"


def test_a_model_that_is_new_takes_as_long_as_all_jobs_do() -> None:
    past = learned(({"model": "x"}, 10.0), ({"model": "y"}, 1000.0))
    assert past.expect(job(model="z")).seconds == pytest.approx(100.0), "the geometric mean"
    assert str(past.expect(job(model="z"))) == "100 s expected, from 2 ended jobs"


def test_few_jobs_lean_on_the_group_around_them_as_on_two_jobs() -> None:
    past = learned(({"model": "x"}, 10.0), ({"model": "y"}, 1000.0))
    # x: one job of 10 s against two of 100 s; its unnamed user, and one GPU, each against two of the group.
    of_model = math.exp((math.log(10) + 2 * math.log(100)) / 3)
    of_user = math.exp((math.log(10) + 2 * math.log(of_model)) / 3)
    of_size = math.exp((math.log(10) + 2 * math.log(of_user)) / 3)
    assert past.expect(job(model="x", gpus=2)).seconds == pytest.approx(of_user)
    found = past.expect(job(model="x"))
    assert (found.seconds, found.jobs) == (pytest.approx(of_size), 1)
    assert str(found).endswith("from 1 ended job of its model, user and size")


def test_many_jobs_of_one_user_say_all() -> None:
    ended = [({"model": "x", "user": "ann"}, 60.0)] * 500 + [({"model": "x", "user": "bob"}, 6000.0)] * 500
    past = learned(*ended)
    assert past.expect(job(model="x", user="ann")).seconds == pytest.approx(60, rel=0.03)
    assert past.expect(job(model="x", user="bob")).seconds == pytest.approx(6000, rel=0.03)


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=30), st.data())
def test_the_order_in_which_jobs_end_does_not_matter(seconds: list[float], data: st.DataObject) -> None:
    ended = [({"model": f"m{index % 3}"}, each) for index, each in enumerate(seconds)]
    other = data.draw(st.permutations(ended))
    one, two = (learned(*each).expect(job(model="m0")).seconds for each in (ended, other))
    assert one == pytest.approx(two)
    assert min(seconds) * 0.999 <= one <= max(seconds) * 1.001
