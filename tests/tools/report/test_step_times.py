"""Steps of live runs, measured beside predicted."""

from __future__ import annotations

import json

import pytest

from pliant.schemas.event import Event
from pliant.schemas.io import read_metrics
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.rendering.summary import Shown
from pliant.tools.report.report import make_report
from tests.builders import cluster, job
from tests.tools.report.runs import story, submit

PROFILED = {"simulated": False, "profile_hash": "ab" * 32}


def reports(time, seconds, *gpus, local=240, accum=1, of="a"):
    """Workers on so many GPUs of each node report how long their steps took."""
    observed = {"placement": gpus, "local_batch": local, "accum": accum, "step_seconds": seconds}
    return Event(time, "progress", of, samples_done=time, detail={"observed": observed})


def resized(**info):
    """A job of batch 480 on two GPUs, predicted to take 240 s a step, then with twice the batch on four."""
    return story(
        submit(job("a", gpus=2, batch=480), 9600.0),
        Event(0, "start", "a", 2, global_batch=480),
        reports(1, 290.0, 2),
        reports(2, 310.0, 2),
        Event(100, "grow", "a", 4, global_batch=960),
        reports(110, 120.0, 2, 2, local=120, accum=2),
        Event(120, "finish", "a", 0),
        nodes=cluster(2, 2),
        **info,
    )


def test_each_configuration_has_its_median_and_the_prediction_at_the_jobs_own_batch():
    own, larger = make_report([resized(**PROFILED)]).runs[0].step_times
    assert (own.model, own.placement, own.global_batch, own.reports) == ("linear", "2", 480, 2)
    assert (own.measured_s, own.predicted_s) == (300.0, 240.0)
    assert own.error == pytest.approx(-0.2)
    assert (larger.placement, larger.global_batch, larger.accum_steps) == ("2+2", 960, 2)
    assert (larger.measured_s, larger.predicted_s, larger.error) == (120.0, None, None)


def test_what_the_log_never_predicted_is_no_error_of_the_profile():
    run = story(
        submit(job("a", gpus=2, batch=480), 9600.0),
        submit(job("b", gpus=2, batch=960), 9600.0),
        submit(job("c", gpus=2, batch=480), 9600.0),
        Event(0, "start", "a", 2, global_batch=480),
        Event(0, "start", "b", 2, global_batch=480),
        reports(1, 240.0, 2),
        reports(1, 480.0, 2, of="b"),
        Event(2, "start", "c", 2, global_batch=480, detail={"beside": "a"}),
        reports(3, 500.0, 2),
        Event(4, "finish", "c", 0),
        reports(5, 400.0, 2),
        reports(6, 240.0, 2),
        Event(7, "move", "a", 2),
        reports(8, 900.0, 1, 1),
        nodes=cluster(4),
        **PROFILED,
    )
    [made] = make_report([run]).runs
    found = {(row.placement, row.unpredicted): (row.reports, row.error) for row in made.step_times}
    assert found == {
        ("2", None): (2, 0.0),
        ("2", "batch"): (1, None),
        ("2", "shared"): (2, None),
        ("1+1", "spread"): (1, None),
    }
    assert not any("predicted times" in each for each in made.caveats)


def test_the_table_comes_with_all_and_a_large_error_is_said_at_once():
    made = make_report([resized(**PROFILED)])
    short, full = (render(made, "table", Extras(shown=Shown(all_rows=each))) for each in (False, True))
    assert "predicted times of steps are 20 % off the measured ones" in " ".join(short.split())
    assert "predicted and measured" not in short
    rows = [line.split() for line in full.splitlines()]
    assert ["linear", "2", "480", "240", "2", "240", "300", "-20.0"] in rows
    assert ["linear", "2+2", "960", "120", "×", "2", "1", "–", "120", "–", "batch"] in rows
    assert "batch: not the job's own batch" in " ".join(full.split())
    assert max(map(len, full.splitlines())) <= 80
    assert "Steps of fifo: predicted and measured" in render(made, "html", Extras())


def test_the_document_has_them_in_a_newer_minor_version(tmp_path):
    text = render(make_report([resized(**PROFILED)]), "json", Extras())
    assert json.loads(text)["schema"] == "pliant.metrics/1.1"
    (tmp_path / "m.json").write_text(text)
    [run] = read_metrics(tmp_path / "m.json").runs
    assert [row.measured_s for row in run.step_times] == [300.0, 120.0]


@pytest.mark.parametrize("info", [{"simulated": True}, {"simulated": False}])
def test_a_replay_and_a_run_without_a_profile_have_none(info):
    text = render(make_report([resized(**info)]), "json", Extras())
    assert "step_times" not in text
    assert json.loads(text)["schema"] == "pliant.metrics/1"


ODD = [
    *({}, "fast", {"placement": 2}, {"placement": [0]}, {"placement": [10**400]}, {"accum": True}),
    *({"local_batch": 10**30}, {"step_seconds": -1}, {"step_seconds": True}, {"step_seconds": 5e-324}),
]


@pytest.mark.parametrize("odd", ODD)
def test_reports_of_another_form_are_skipped(odd):
    whole = {"placement": [2], "local_batch": 240, "accum": 1, "step_seconds": 1.0}
    told = {**whole, **odd} if odd and isinstance(odd, dict) else odd
    run = story(
        submit(job("a", gpus=2, batch=480), 9600.0),
        Event(0, "start", "a", 2, global_batch=480),
        Event(1, "progress", "a", samples_done=1, detail={"observed": told}),
        **PROFILED,
    )
    assert make_report([run]).runs[0].step_times == ()
