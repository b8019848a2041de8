from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.text import width_of
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.explain import table
from pliant.tools.schedule.registry import BUILT_IN, policy_class
from tests.builders import cluster, job
from tests.effort import examples
from tests.strategies import schedules

JOBS = (job("a", gpus=8, gpu_seconds=1440.0), job("b", gpus=4, gpu_seconds=400.0))


def test_the_table_says_until_when_jobs_run_and_wait() -> None:
    found = decide(JOBS, cluster(8), None, Question("fifo", explain=True))
    assert table(found).splitlines() == [
        "job  action  GPUs     when                        where  batch  why",
        "a    start   8        ends in 3 min (at 180 s)    n0:8   960    runs on 8 GPUs",
        (
            "b    wait    needs 4  starts in 3 min (at 180 s)                "
            "first in line: waits until 4 GPUs of one type are free"
        ),
    ]
    assert table(decide((), cluster(8), None, Question("fifo", explain=True))) == "no job\n"
    found = decide(JOBS, cluster(8), None, Question("fifo", explain=True))
    assert table(found, 60).splitlines()[2] == "b    wait    needs 4  starts in 3 min (at 180 s)"


GOES_BY_WORK = [
    name
    for name in BUILT_IN
    if not (policy := policy_class(name)).trusts_guesses
    and policy.knows in ("work", "profile")
    and not policy.knows_future
]


@pytest.mark.parametrize("name", GOES_BY_WORK)
def test_without_a_profile_no_reason_states_unmeasured_seconds(name: str) -> None:
    """Leases are parameters, and what was received is measured."""
    work = {"epochs": 5, "dataset_size": 4096}
    jobs = [job(each, elastic="size", low=1, high=4, gpus=2, work=work) for each in "abcd"]
    found = decide(jobs, cluster(4), None, Question(name, explain=True))
    assert all(given.predicted_end is None for given in found.allocations)
    reasons = [each.reason for each in (*found.allocations, *found.waiting)]
    known = r"leased until [^;]*|[\d.]+ (s|GPU-seconds) received"
    span = r"\d (s|min|h|GPU-s|GPU-seconds)\b"
    assert [each for each in reasons if re.search(span, re.sub(known, "", each))] == []


def test_of_jobs_that_arrive_later_the_first_are_listed() -> None:
    jobs = [job("a"), *(job(f"late{index}", at=10.0 + index) for index in range(7))]
    found = decide(jobs, cluster(8), None, Question("fifo", explain=True), now_s=0.0)
    *_, last, rest = table(found).splitlines()
    assert (last.split()[0], rest) == ("late4", "and 2 jobs that arrive later")
    assert "arrive later" not in table(decide(jobs[:6], cluster(8), None, Question("fifo"), now_s=0.0))
    found = decide([job("a", at=0.0), job("late", at=90.0)], cluster(8), None, Question("fifo"), now_s=0.0)
    assert table(found).splitlines()[2].split("  ")[0] == "late"
    assert "arrives in 2 min (at 90 s)" in table(found)


@given(schedules(), st.integers(40, 200))
@settings(deadline=None, max_examples=examples(15))
def test_no_line_is_wider_than_the_terminal(schedule: object, width: int) -> None:
    assert max(map(width_of, table(schedule, width).splitlines())) <= width  # type: ignore[arg-type]
