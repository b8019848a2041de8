"""Reports of live runs that had no profile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pliant.schemas.event import Event
from pliant.tools.report.metrics import Wanted
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.rendering.summary import Shown
from pliant.tools.report.report import make_report
from tests.builders import cluster, job
from tests.tools.report.runs import LINEAR, by_id, story, submit

ORIGIN_S = 1_800_000_000.0


def live(*events, gpus=2):
    """A live run without a profile; the times of its events count from its start."""
    later = (replace(event, time=ORIGIN_S + event.time) for event in events)
    return story(*later, nodes=cluster(gpus), at=ORIGIN_S, simulated=False)


def arrives(name, at=0.0, samples=None, **more):
    """What the log says of a job that it takes to train one sample per GPU-second."""
    return submit(job(name, **more), samples, at=at)


def trains(name, start_s, end_s, gpus, per_second, from_samples=0.0, step="start"):
    """The job gets its GPUs, trains from one second later on, reports at the beginning and at the end."""
    done, after = from_samples + (end_s - start_s - 1) * per_second, {"after": step}
    return [
        Event(start_s, step, name, gpus),
        Event(start_s + 1, "progress", name, samples_done=from_samples, overhead_seconds=1.0, detail=after),
        Event(end_s, "epoch", name, samples_done=done),
    ]


def one_after_the_other():
    """Two jobs of 1,000 samples at 100 a second, each on the one GPU: 11 s each."""
    return [
        arrives("a", samples=1000.0),
        arrives("b", samples=1000.0),
        *trains("a", 0, 11, 1, 100.0),
        Event(11, "finish", "a", 0, samples_done=1000.0),
        *trains("b", 11, 22, 1, 100.0),
        Event(22, "finish", "b", 0, samples_done=1000.0),
    ]


def test_fairness_rests_on_the_speeds_that_the_run_measured():
    found = make_report([live(*one_after_the_other(), gpus=1)]).runs[0]
    # Shared equally, both train 2,000 samples at 100 a second until 20 s; alone on half a GPU it is the same.
    assert by_id(found.run, found.fair["fair-share"].ftf) == {
        "a": pytest.approx(11 / 20),
        "b": pytest.approx(22 / 20),
    }
    assert by_id(found.run, found.fair["gps"].ftf) == {
        "a": pytest.approx(11 / 20),
        "b": pytest.approx(22 / 20),
    }
    # a met b all its life, b was alone for half of it: 1/2 and 2/3 of a GPU
    assert by_id(found.run, found.fair["isolated"].ftf) == {
        "a": pytest.approx(11 / 20),
        "b": pytest.approx(22 / 15),
    }
    assert found.metrics.worst_gps_delay_s == pytest.approx(2.0)
    assert found.metrics.sjs_efficiency == pytest.approx(20 / 22)
    assert any(text.startswith("no profile: FTF rests on the speeds") for text in found.caveats)


def test_time_in_checkpoints_is_not_time_in_training():
    first, _, start, report, *_ = one_after_the_other()
    run = live(
        first,
        start,
        report,
        Event(6, "checkpoint", "a", samples_done=400.0, overhead_seconds=1.0),
        Event(12, "epoch", "a", samples_done=1000.0),
        Event(12, "finish", "a", 0, samples_done=1000.0),
    )
    assert run.jobs[0].curve == ((1, pytest.approx(1000 / 10)),)


def test_a_speed_counts_from_when_training_goes_on_with_the_new_gpus():
    run = live(
        arrives("a", samples=3000.0, low=1),
        *trains("a", 0, 11, 1, 100.0),
        Event(11, "grow", "a", 2),
        Event(14, "progress", "a", samples_done=1300.0),  # still on one GPU
        Event(15, "progress", "a", samples_done=1400.0, overhead_seconds=0.5, detail={"after": "grow"}),
        Event(25, "progress", "a", samples_done=3000.0),
        Event(25, "finish", "a", 0, samples_done=3000.0),
    )
    assert run.jobs[0].curve == ((1, pytest.approx(100.0)), (2, pytest.approx(160.0)))


def test_what_a_job_never_held_comes_from_others_of_its_model_and_batch():
    run = live(
        arrives("a", samples=1000.0),
        arrives("b", samples=1500.0, gpus=2),
        arrives("other", samples=500.0, batch=32),
        *trains("a", 0, 11, 1, 100.0),
        Event(11, "finish", "a", 0, samples_done=1000.0),
        *trains("b", 11, 21, 2, 150.0),
        Event(22, "finish", "b", 0, samples_done=1350.0),
        *trains("other", 22, 32, 1, 50.0),
        Event(32, "finish", "other", 0, samples_done=450.0),
    )
    a, b, other = run.jobs
    assert a.curve == b.curve == ((1, pytest.approx(100.0)), (2, pytest.approx(150.0)))
    assert other.curve == ((1, pytest.approx(50.0)),)
    assert b.samples == 1350.0  # what it trained, whatever it stated


def test_a_job_that_reports_nothing_was_as_fast_as_its_duration_says():
    run = live(arrives("silent", gpus=2), Event(5, "start", "silent", 2), Event(65, "finish", "silent", 0))
    found = make_report([run]).runs[0]
    # 60 s on both GPUs, which are its fair share all along: it waited 5 s of its 65.
    assert by_id(found.run, found.fair["fair-share"].ftf) == {"silent": pytest.approx(65 / 60)}
    assert found.metrics.sjs_efficiency is None
    assert "SJS efficiency not known: no finished job was measured on one GPU" in found.caveats


def test_work_in_gpu_seconds_takes_as_long_as_it_did_and_not_as_the_guess_says():
    """The guess is one sample per GPU-second, so 3,600 samples; it trained 1,000 in ten seconds."""
    run = live(
        arrives("a", samples=3600.0, gpu_seconds=3600.0),
        *trains("a", 0, 11, 1, 100.0),
        Event(11, "finish", "a", 0, samples_done=1000.0),
        gpus=1,
    )
    found = make_report([run]).runs[0]
    assert (found.metrics.mean_ftf, found.metrics.sjs_efficiency) == (
        pytest.approx(1.1),
        pytest.approx(10 / 11),
    )


def test_what_cannot_be_known_is_a_dash_with_its_reason_and_null_in_json():
    """Both jobs held two GPUs, and one of them came and went twice without a report."""
    run = live(
        arrives("a", gpus=2),
        *trains("a", 0, 11, 2, 100.0),
        Event(11, "finish", "a", 0, samples_done=1000.0),
        arrives("b", at=11, gpus=2, model="silent"),
        Event(12, "start", "b", 2),
        Event(13, "preempt", "b", 0),
        Event(14, "resume", "b", 2),
        Event(20, "finish", "b", 0),
    )
    report = make_report([run], wanted=Wanted(bound=True))
    table = render(report, "table", Extras(shown=Shown(all_rows=True)))
    rows = {line.split("  ")[0].strip(): line.split()[-1] for line in table.splitlines() if line.strip()}
    assert rows["SJS efficiency"] == "–"
    assert rows["lower bound of the mean JCT"] == "–"
    found = json.loads(render(report, "json", Extras()))["runs"][0]
    assert (found["sjs_efficiency"], found["bound_jct_s"]) == (None, None)
    assert found["mean_ftf"] == pytest.approx(11 / 10)  # of a alone
    assert "1 finished job has no FTF: work or speed is unknown" in found["caveats"]
    assert "SJS efficiency not known: no finished job was measured on one GPU" in found["caveats"]
    assert "lower bounds not known: without a profile the speed at other sizes is unknown" in found["caveats"]


def test_a_run_with_a_profile_keeps_what_the_profile_says():
    run = story(*one_after_the_other(), nodes=cluster(1), simulated=False, profile_hash="cd" * 32)
    assert [each.curve for each in run.jobs] == [LINEAR] * 2
