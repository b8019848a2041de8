"""The figure of backfilling at its smallest: what it measures, not how long that takes."""

from __future__ import annotations

from benchmarks.parts.mends_backfill import Backlog, easy_backfill_growth


def test_the_backlog_keeps_its_length_while_jobs_end_and_come():
    backlog = Backlog(40)
    ended = len(backlog.held.ended)
    assert backlog.us_per_event(20) >= 0
    assert (len(backlog.held.jobs), len(backlog.held.ended)) == (40, ended + 10)
    assert sum(job.gpus for job in backlog.held.jobs.values()) > 48


def test_the_growth_is_a_ratio():
    assert easy_backfill_growth(few=20, many=40, events=40, repeats=1) > 0
