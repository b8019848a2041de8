"""The live part of elastic scaling: which jobs it makes, and how it compares a run with its replay."""

from __future__ import annotations

from itertools import pairwise

import pytest

from experiments.elastic_scaling.live import LIMITS, WORDS, Compared, compare, live_jobs
from pliant.schemas.event import Event
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord
from tests.builders import cluster, job
from tests.tools.report.runs import begin, submit


def run(*ends_s: float) -> RunRecord:
    """Jobs of 10 s of one GPU's work that start at once and end at these times."""
    names = [f"j{number}" for number in range(len(ends_s))]
    events = [begin(cluster(len(ends_s)))]
    for name in names:
        events += [submit(job(name), 10.0), Event(0, "start", name, 1)]
    events += [Event(end, "finish", name, 0) for end, name in sorted(zip(ends_s, names, strict=True))]
    return fold(events)


def test_a_run_and_its_replay_by_hand() -> None:
    """Live, jobs end at 20 and 40 s, so one is done for 20 s and two never; simulated, at 10 and 40."""
    completed, sjs, jct = compare(run(20, 40), run(10, 40))
    assert (completed.live, completed.simulated) == (pytest.approx(20 / 40), pytest.approx(30 / 40))
    assert (sjs.live, sjs.simulated) == (pytest.approx(20 / 60), pytest.approx(20 / 50))
    assert (jct.live, jct.simulated) == (pytest.approx(30), pytest.approx(25))
    assert [each.difference for each in (completed, sjs, jct)] == [
        pytest.approx(x) for x in (0.5, 0.2, 1 / 6)
    ]
    assert [each.row()["holds"] for each in (completed, sjs, jct)] == [False, False, True]


def test_every_figure_has_words_and_the_papers_limit() -> None:
    found = compare(run(20), run(20))
    assert [each.name for each in found] == list(WORDS)
    assert [each.limit for each in found] == list(LIMITS.values())
    assert all(each.row()["holds"] for each in found)


def test_a_difference_is_one_of_the_live_figure() -> None:
    assert Compared("x", live=2.0, simulated=1.0, limit=0.1).difference == 0.5


def test_the_jobs_are_the_same_every_time_and_most_may_change_batch_and_size() -> None:
    jobs = list(live_jobs(20, slots=4))
    assert jobs == list(live_jobs(20, slots=4))
    assert all(first.submit_time <= second.submit_time for first, second in pairwise(jobs))
    assert {each.elastic for each in jobs} == {"none", "size+batch"}
    assert all(each.gpus.max == 4 for each in jobs if each.elastic == "size+batch")
