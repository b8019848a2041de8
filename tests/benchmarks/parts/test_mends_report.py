"""The reports of runs of which nothing was stated, a few of them."""

from __future__ import annotations

from benchmarks.parts import mends_report
from pliant.tools.report import read_run
from pliant.tools.report.metrics import run_metrics


def test_no_figure_of_a_few_runs_is_senseless():
    assert mends_report.senseless_figures(runs=6) == 0.0


def test_figures_that_rest_on_a_guess_are_found(monkeypatch):
    """Workers train ten times as fast as the log says of a run without a profile."""
    monkeypatch.setattr(read_run, "guesses_speeds", lambda _info: False)
    assert mends_report.senseless(mends_report.lived(6)) > 0


def test_the_reports_know_what_the_runs_measured():
    """Its ten samples a second and GPU are what a run reports by, so no job beats its fair share tenfold."""
    found = run_metrics(mends_report.lived(6))
    assert found.jobs_finished == 6
    assert found.mean_ftf is not None
    assert found.mean_ftf > 1
    assert found.sjs_efficiency is not None
    assert 0 < found.sjs_efficiency < 1
