"""Runs of jobs that state no work: what they report is learned from, and what is predicted is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.io import read_schedule
from pliant.tools.profile.predictor import ended_jobs
from pliant.tools.report.read_run import read_run
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.statedir.log.fold import RunLog
from tests.tools.run.site import QUICK, Site

pytestmark = pytest.mark.usefixtures("plain_python")


def silent(log: RunLog, now_s: float) -> None:
    pass


def test_a_run_learns_from_reported_epochs_and_keeps_it(tmp_path: Path) -> None:
    """Jobs of two to four epochs of 50 samples on one slot state no work; the last one comes later."""
    site = Site(tmp_path, slots=1)
    for number in range(6):
        site.job(f"j{number}", "--epoch", 50, samples=100.0 + 50 * (number % 3), work=None)
    site.job("late", samples=50.0, at=0.3, priority=1.0)
    schedule = site.schedule("srtf", demand="predicted")
    run_until_done(RunOptions(site.state, schedule, timeouts=QUICK), silent)
    assert len(ended_jobs(site.events())) == 6
    kept = read_schedule(site.state / "schedule.json")
    assert kept.demand == "predicted"
    assert kept.forecast is not None
    assert kept.forecast.predictor.jobs == 6
    rows = kept.forecast.predictor.rows
    assert {row[4] for row in rows} == {0.5}, "the metric that the scripts report"
    assert all(row[3] is not None and 0 < row[3] < 1 for row in rows), "their losses, against the first one"
    run = read_run(site.state / "events.jsonl")
    assert run.info.demand == "predicted"
    noted = [detail["forecasts"] for event in site.events() if "forecasts" in (detail := event.detail or {})]
    for band in (band for bands in noted for band in bands.values()):
        assert 0 <= band["low"] <= band["mean"] <= band["high"] <= 1
    assert sum(len(job.forecasts) for job in run.jobs) == sum(map(len, noted))
    run_until_done(RunOptions(site.state, timeouts=QUICK), silent)
    assert read_schedule(site.state / "schedule.json").forecast == kept.forecast
