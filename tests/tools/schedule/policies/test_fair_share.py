import pytest

from pliant.tools.schedule.policies.fair_share import FairShare
from tests.builders import TimedSteps, cluster, decided, job, mixed_cluster, opened
from tests.tools.schedule.policies.started import started


def test_equal_parts_and_the_remainder_to_the_first():
    held = opened(FairShare(), cluster(8), *(job(name, low=1, high=8) for name in "abc"))
    assert decided(held, 0) == {"a": 3, "b": 3, "c": 2}
    held.end("b", 1)
    assert decided(held, 1) == {"a": 4, "c": 4}

    held = opened(FairShare(), cluster(2), *(job(name, at=i, low=1, high=2) for i, name in enumerate("zyx")))
    assert decided(held, 2) == {"z": 1, "y": 1}

    at_most_two = TimedSteps(lambda model, kind, place, batch: 1.0 if sum(place) <= 2 else None)
    held = opened(FairShare(), cluster(4), job("a", low=1, high=4), throughput=at_most_two)
    assert decided(held, 0) == {"a": 2}


ELASTIC = job("b", low=1, high=8), job("c", low=1, high=8)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param((job("a", low=1, high=1), *ELASTIC), [1, 4, 3], id="what one cannot use goes on"),
        pytest.param((job("a", gpus=5, low=5, high=8), *ELASTIC), [5, 2, 1], id="a minimum is whole"),
        pytest.param((job("a", low=1, high=8, batch=3), ELASTIC[0]), [3, 5], id="no GPU without a sample"),
    ],
)
def test_parts_are_equal_within_limits(jobs, expected):
    assert list(decided(opened(FairShare(), cluster(8), *jobs), 0).values()) == expected


def test_a_rigid_job_gets_what_it_requested_or_waits():
    jobs = (job("a", gpus=3), job("b", low=1, high=4), job("c", gpus=3), job("d"))
    held = opened(FairShare(), cluster(4), *jobs)
    assert decided(held, 0) == {"a": 3, "b": 1}  # c waits, and d waits behind it
    held.end("a", 1)
    assert decided(held, 1) == {"b": 1, "c": 3}


@pytest.mark.parametrize(("names", "expected"), [("abcd", [4, 4]), ("abcdef", [2, 2, 2, 2])])
def test_on_two_types_jobs_spread_and_even_out(names: str, expected: list[int]):
    jobs = [job(name, low=1, high=8) for name in names]
    held = started(FairShare(), mixed_cluster(x=(4,), y=(4,)), *jobs)
    on_x = [state.id for state in held.jobs.values() if state.gpu_type == "x"]
    assert len(on_x) == len(names) / 2
    for name in on_x[:2]:
        held.end(name, 1)
    assert sorted(decided(held, 1).values()) == expected
