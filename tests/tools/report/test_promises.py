"""What policies promise, by job: equal shares dealt out in whole GPUs, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.schemas.runinfo import EqualDeals, RunInfo
from pliant.tools.report import equal_shares
from pliant.tools.report.equal_shares import DealtJob, came_in_s, dealt_jobs, equal_deal_finishes
from pliant.tools.report.fairness import allowed_ends_s
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.rendering.sections import guarantee_section
from pliant.tools.report.report import make_report
from tests.builders import job
from tests.tools.report.runs import one_by_one, ran, story, submit

TERMS = EqualDeals(grace=0.0, grace_s=0.0, deal_s=100.0, lost_s=20.0)


def linear(
    name: str, samples: float, *, at: float = 0.0, least: int = 1, most: int = 4, **more: Any
) -> DealtJob:
    """One sample a GPU-second; it enters at a time."""
    return DealtJob(name, at, samples, tuple((size, float(size)) for size in range(least, most + 1)), **more)


def test_equal_deals_share_what_is_left_of_each_deal() -> None:
    # Two GPUs each for 80 of 100 s: 160 samples a deal; b then has all four, 320.
    found = equal_deal_finishes([linear("a", 160), linear("b", 480)], [(0.0, 4)], TERMS)
    assert found == {"a": 100.0, "b": 200.0}
    # Three jobs of at least two GPUs on four: two have a deal, then the third comes first.
    jobs = [linear(name, 160, least=2, most=2) for name in "abc"]
    assert equal_deal_finishes(jobs, [(0.0, 4)], TERMS) == {"a": 100.0, "b": 100.0, "c": 200.0}
    # At 50 s all are gone, after 30 s of training on four: 40 of 160 samples are left for 200 s on.
    found = equal_deal_finishes([linear("a", 160)], [(0.0, 4), (50.0, 0), (200.0, 4)], TERMS)
    assert found == {"a": 300.0}
    jobs = [linear("a", 320), linear("stopped", 1e6, stopped_s=90.0)]
    assert equal_deal_finishes(jobs, [(0.0, 4)], TERMS)["a"] == 200.0
    assert equal_deal_finishes([jobs[0]], [(0.0, 0)], TERMS) == {}
    # From 100 s on one GPU is there: too few for the job that needs two, while the other goes on alone.
    jobs = [linear("wide", 1000, least=2), linear("later", 80, at=250.0)]
    assert equal_deal_finishes(jobs, [(0.0, 4), (100.0, 1)], TERMS) == {"later": 400.0}


def test_a_job_enters_at_the_deal_after_its_grace() -> None:
    # 50 s and twice the 10 s that it takes alone: at 70 s, when the cluster is empty.
    only = story(submit(job("a", gpus=1, low=1, high=4), 10.0))
    terms = TERMS.model_copy(update={"grace": 2.0, "grace_s": 50.0})
    assert equal_deal_finishes(dealt_jobs(only, terms), [(0.0, 4)], terms) == {"a": 170.0}
    jobs = [linear("first", 500), linear("a", 10, at=20.0)]
    assert equal_deal_finishes(jobs, [(0.0, 4)], TERMS)["a"] == 200.0
    assert terms.grace_of(10.0) == 70.0
    assert terms.grace_of(0.0) == 50.0, "as in files that do not say it"
    own = terms.model_copy(update={"unstated_grace_s": 30.0})
    assert (own.grace_of(0.0), own.grace_of(10.0)) == (30.0, 70.0)


def test_jobs_without_time_to_train_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may state deals without time; the policy refuses it. A later job changes nothing."""
    jobs = [linear("a", 10), linear("later", 10, at=950.0)]
    for lost_s in (100.0, 250.0):
        assert equal_deal_finishes(jobs, [(0.0, 4)], TERMS.model_copy(update={"lost_s": lost_s})) == {}
    monkeypatch.setattr(equal_shares, "_MOST_DEALS", 10)
    endless = [linear("a", 160), linear("endless", 1e18)]
    assert equal_deal_finishes(endless, [(0.0, 4)], TERMS) == {"a": 100.0}


def late(end_s: float) -> RunRecord:
    """A job of 80 s alone that the reference ends at 100 s, and GPS at 20 s."""
    only: Job = job("only", gpus=1, low=1, high=4)
    bounds = {"equal_deals": TERMS.model_dump()}
    return story(submit(only, 80.0), *ran("only", 0.0, end_s, 4), policy="mine", bounds=bounds)


def test_each_job_is_held_against_its_own_bound() -> None:
    for end_s, past in ((90.0, 0), (100.0, 0), (110.0, 1)):
        found = run_metrics(late(end_s))
        assert (found.gps_bound_s, found.worst_bound_used) == pytest.approx((80.0, end_s / 100.0))
        assert found.jobs_past_gps_bound == past
    section = guarantee_section(make_report([late(110.0)]))
    assert section.rows == (("mine", "1.333 min", "1.5 min", "110.0", "1", "1", "only 1.5 min"),)


SLOW = {"equal_deals": TERMS.model_copy(update={"rescale_s": 5.0}).model_dump()}
COOL = {"nodes": ({"name": "n0", "gpus": 4},), "cooldown_seconds": 60}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"interval_s": 15.0}, "a change and the wait for it take 25 s, and lost_s is 20"),
        ({"cluster": COOL}, "keeps jobs where they are"),
        ({"bounds": {"equal_deals": TERMS.model_dump(), "void": "it is Monday"}}, "it is Monday"),
        ({"bounds": SLOW}, "a change takes 10 s, and rescale_s is 5"),
        ({"bounds": SLOW, "start_cost_s": 1.0}, "a change takes 10 s, and rescale_s is 5"),
    ],
)
def test_void_promises_are_explained_and_no_job_is_late(more: dict[str, Any], why: str):
    run = late(110.0)
    stated = RunInfo.model_validate(run.info.model_dump(by_alias=True) | {"rescale_cost_s": 10.0} | more)
    found = replace(run, info=stated)
    metrics = run_metrics(found)
    assert (metrics.jobs_past_gps_bound, metrics.worst_bound_used) == (None, None)
    (row,) = guarantee_section(make_report([found])).rows
    assert why in row[-1]


def test_jobs_enter_as_limits_arrays_and_other_jobs_allow() -> None:
    nodes = {"nodes": ({"name": "n0", "gpus": 4},), "user_limits": {"ann": {"jobs": 1}}}
    jobs = [
        job("a", user="ann"),
        job("b", at=1.0, user="ann"),
        job("c", at=2.0, user="ann", priority=1),
        job("d", at=1.0, after={"a": "ok"}),
        job("e", at=3.0, array={"name": "x", "index": 0, "limit": 1}),
        job("f", at=4.0, array={"name": "x", "index": 1, "limit": 1}),
    ]
    events = [submit(each, 40.0) for each in jobs]
    ends = {"a": 50.0, "c": 70.0, "e": 60.0}
    for name, end_s in ends.items():
        events += ran(name, end_s - 10, end_s, 4)
    run = story(*sorted(events, key=lambda event: event.time))
    run = replace(run, info=run.info.model_copy(update={"cluster": Cluster.model_validate(nodes)}))
    assert came_in_s(run) == {"a": 0.0, "c": 50.0, "b": 70.0, "d": 50.0, "e": 3.0, "f": 60.0}
    # a finishes at 40; b fails at 20, and with it the job that needs it to finish.
    waits = {"x": {"a": "ok"}, "y": {"b": "ok"}, "z": {"b": "any"}, "both": {"a": "any", "b": "any"}}
    run = story(
        *(submit(job(name), 40.0) for name in "ab"),
        *(submit(job(name, after=after), 40.0) for name, after in waits.items()),
        *(Event(0.0, "start", name, 1) for name in "ab"),
        Event(20.0, "fail", "b", 0),
        Event(20.0, "cancel", "y", 0),
        Event(40.0, "finish", "a", 0),
    )
    assert came_in_s(run) == {"a": 0.0, "b": 0.0, "x": 40.0, "z": 20.0, "both": 40.0}


def test_the_bound_of_a_run_is_that_of_its_latest_job() -> None:
    """On two GPUs each a ends in the first deal, of which 80 s train, and b has 480 samples left: two more
    deals on four. In GPS they end at 40 and 180: 60 and 120 s before."""
    jobs = {"a": 80.0, "b": 640.0}
    arrivals = [submit(job(name, gpus=1, low=1, high=4), samples) for name, samples in jobs.items()]
    bounds = {"equal_deals": TERMS.model_dump()}
    run = story(*arrivals, *ran("a", 0, 40, 2), *ran("b", 0, 180, 2), policy="mine", bounds=bounds)
    assert allowed_ends_s(run) == {"a": 100.0, "b": 300.0}
    assert run_metrics(run).gps_bound_s == pytest.approx(300 - 180)


def longest_first(work: Sequence[float] = (16.0, 8.0, 8.0), gps_delay: float = 0.125) -> RunRecord:
    return one_by_one(work, policy="mine", bounds={"gps_delay": gps_delay})


def test_the_guarantee_names_bound_delay_and_latest_jobs():
    # In GPS b and c end at 6 s, here at 6 and 8; an eighth of the 8 s in which all GPUs are held is allowed
    section = guarantee_section(make_report([longest_first()]))
    assert section.rows == (("mine", "1 s", "2 s", "114.3", "1", "3", "c 2 s"),)
    falling = tuple(40.0 * left for left in range(12, 0, -1))
    section = guarantee_section(make_report([longest_first(falling, gps_delay=0.0)]))
    *_, past, of, named = section.rows[0]
    assert (past, of) == ("6", "12")
    assert named.split(", ")[0].startswith("l ")
    assert named.split(", ")[5:] == ["1 more"]
    report = make_report([one_by_one((16.0, 8.0, 8.0), policy="mine"), longest_first()])
    assert [row[0] for row in guarantee_section(report).rows] == [report.runs[1].label]

    for reference in ("gps", "fair-share"):
        text = render(make_report([longest_first()], reference=reference), "md", Extras())
        assert ("What the policy promises against GPS" in text) is (reference == "gps")
