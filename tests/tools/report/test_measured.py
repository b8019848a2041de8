"""Reports of live runs that had no profile."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_metrics
from pliant.tools.report.comparisons import compare_runs, comparison_rows, mean_ratio, relative_speed
from pliant.tools.report.job_cost import JobCost, job_cost
from pliant.tools.report.metrics import MetricOptions
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.rendering.summary import Shown
from pliant.tools.report.report import make_report
from tests.builders import cluster, job
from tests.tools.report.runs import LINEAR, begin, by_id, story, submit

ORIGIN_S = 1_800_000_000.0


def live(*events, gpus=2, **info):
    """A live run without a profile; the times of its events count from its start."""
    later = (replace(event, time=ORIGIN_S + event.time) for event in events)
    return story(*later, nodes=cluster(gpus), at=ORIGIN_S, simulated=False, **info)


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
    # a met b all its life, b was alone for half of it: 1/2 and 2/3 of a GPU.
    for name, shared_s in (("fair-share", 20), ("gps", 20), ("isolated", 15)):
        ftf = by_id(found.run, found.fair[name].ftf)
        assert ftf == pytest.approx({"a": 11 / 20, "b": 22 / shared_s})
    assert found.metrics.worst_gps_delay_s == pytest.approx(2.0)
    assert found.metrics.sjs_efficiency == pytest.approx(20 / 22)
    assert any(text.startswith("no profile: FTF rests on the speeds") for text in found.caveats)
    # A run with a profile keeps what the profile says.
    run = story(*one_after_the_other(), nodes=cluster(1), simulated=False, profile_hash="cd" * 32)
    assert [each.curve for each in run.jobs] == [LINEAR] * 2


def test_speeds_count_training_alone_on_the_gpus_of_the_time():
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


def test_sizes_never_held_and_durations_not_reported() -> None:
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
    # Durations replace what is not reported or guessed.
    run = live(arrives("silent", gpus=2), Event(5, "start", "silent", 2), Event(65, "finish", "silent", 0))
    found = make_report([run]).runs[0]
    # 60 s on both GPUs, which are its fair share all along: it waited 5 s of its 65.
    assert by_id(found.run, found.fair["fair-share"].ftf) == {"silent": pytest.approx(65 / 60)}
    assert found.metrics.sjs_efficiency is None
    assert "SJS efficiency not known: no finished job was measured on one GPU" in found.caveats
    # The guess is one sample per GPU-second, so 3,600 samples; it trained 1,000 in ten seconds.
    ended = Event(11, "finish", "a", 0, samples_done=1000.0)
    run = live(arrives("a", samples=3600.0, gpu_seconds=3600.0), *trains("a", 0, 11, 1, 100.0), ended, gpus=1)
    found = make_report([run]).runs[0]
    assert (found.metrics.mean_ftf, found.metrics.sjs_efficiency) == pytest.approx((1.1, 10 / 11))


def test_unknown_figures_are_a_dash_with_a_reason_and_null():
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
    report = make_report([run], wanted=MetricOptions(bound=True))
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


def simulated():
    first = Event(0, "start", "a", 1, overhead_seconds=1.0), Event(9, "finish", "a", 0)
    return story(submit(job("a", low=1), 8.0), submit(job("b"), 4.0), *first, Event(9, "start", "b", 1))


def measured():
    """a runs at 4/5 of the predicted speed: 8 samples in 5 s on one GPU and 2.5 s on two."""
    return live(
        submit(job("a", low=1), 8.0),
        submit(job("b"), 4.0),
        Event(1, "start", "a", 1),
        Event(3, "progress", "a", overhead_seconds=2.0, samples_done=0.0),
        Event(5, "checkpoint", "a", overhead_seconds=0.5),
        Event(8.5, "grow", "a", 2),
        Event(9, "progress", "a", overhead_seconds=0.5),
        Event(11.5, "finish", "a", 0, samples_done=8.0),
        profile_hash="cd" * 32,
    )


def test_differences_speeds_and_configurations_of_runs() -> None:
    found = compare_runs(measured(), simulated())
    assert mean_ratio(found) == pytest.approx(9 / 11.5)
    first, second = comparison_rows(found)
    own = {"job": "a", "simulated_jct_s": 9.0, "measured_jct_s": 11.5, "ratio": 9 / 11.5}
    # On one GPU a has 7.5 s, less 2 for its start and 0.5 for a checkpoint; on two it has 3 s, less 0.5.
    own |= {"startup_s": 2.0, "rescale_s": 0.5, "speed": 8 / (5 + 2 * 2.5), "extra_waiting_s": 1.0}
    own |= {"extra_startup_s": 1.0, "extra_rescale_s": 0.5, "extra_checkpoint_s": 0.5}
    assert first == pytest.approx(own | {"extra_training_s": 7.5 - 8.0})
    names = ("simulated_jct_s", "measured_jct_s", "ratio", "speed")
    assert {second[name] for name in (*names, *(name for name in own if name.startswith("extra")))} == {None}
    assert mean_ratio(compare_runs(measured(), story(submit(job("a"), 8.0)))) is None
    with pytest.raises(UsageError, match="no job in common"):
        compare_runs(measured(), story(submit(job("x"), 1.0)))
    # Speed is training over what the profile predicts.
    # 12 samples in 4 s on two GPUs, of which one was the start: 6 are predicted. b has not ended.
    events = [Event(0, "start", name, 2, overhead_seconds=1.0) for name in "ab"]
    arrivals = [submit(job(name, gpus=2), 12.0) for name in "ab"]
    ended = story(*arrivals, *events, Event(4, "finish", "a", 0), Event(5, "preempt", "b", 0))
    assert [relative_speed(each, ended.last_event_s) for each in ended.jobs[:2]] == [2.0, None]
    # Each configuration has its median and prediction.
    own, larger = make_report([resized(**PROFILED)]).runs[0].step_times
    assert (own.model, own.placement, own.global_batch, own.reports) == ("linear", "2", 480, 2)
    assert (own.measured_s, own.predicted_s) == (300.0, 240.0)
    assert own.error == pytest.approx(-0.2)
    assert (larger.placement, larger.global_batch, larger.accum_steps) == ("2+2", 960, 2)
    assert (larger.measured_s, larger.predicted_s, larger.error) == (120.0, None, None)


PROFILED: Mapping[str, Any] = {"simulated": False, "profile_hash": "ab" * 32}


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


def test_errors_of_predictions_are_none_or_named_at_once() -> None:
    run = story(
        *(submit(job(name, gpus=2, batch=960 if name == "b" else 480), 9600.0) for name in "abc"),
        *(Event(0, "start", name, 2, global_batch=480) for name in "ab"),
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
    unpredicted = {("2", "batch"): (1, None), ("2", "shared"): (2, None), ("1+1", "spread"): (1, None)}
    assert found == {("2", None): (2, 0.0), **unpredicted}
    assert not any("predicted times" in each for each in made.caveats)
    # A large error of predicted steps is named at once.
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


def test_documents_with_steps_have_a_newer_minor_version(tmp_path):
    text = render(make_report([resized(**PROFILED)]), "json", Extras())
    assert json.loads(text)["schema"] == "pliant.metrics/1.1"
    (tmp_path / "m.json").write_text(text)
    [run] = read_metrics(tmp_path / "m.json").runs
    assert [row.measured_s for row in run.step_times] == [300.0, 120.0]
    for simulated in (True, False):  # without a profile
        text = render(make_report([resized(simulated=simulated)]), "json", Extras())
        assert "step_times" not in text
        assert json.loads(text)["schema"] == "pliant.metrics/1"


@pytest.mark.parametrize(
    "odd",
    [
        *({}, "fast", {"placement": 2}, {"placement": [0]}, {"placement": [10**400]}, {"accum": True}),
        *({"local_batch": 10**30}, {"step_seconds": -1}, {"step_seconds": True}, {"step_seconds": 5e-324}),
    ],
)
def test_reports_of_another_form_are_skipped(odd):
    told = reports(1, 1.0, 2)
    if odd and isinstance(odd, dict):
        odd = told.detail["observed"] | odd
    start, told = Event(0, "start", "a", 2, global_batch=480), replace(told, detail={"observed": odd})
    run = story(submit(job("a", gpus=2, batch=480), 9600.0), start, told, **PROFILED)
    assert make_report([run]).runs[0].step_times == ()


CURVE = ((1, 10.0), (2, 19.0), (4, 30.0))
ELASTIC = job("a", gpus=2, low=1, high=4)


def held(at_s: float, name: Any, gpus: int, **more: Any) -> Event:
    return Event(at_s, name, "a", gpus=gpus, placement=(("n0", gpus),) if gpus else (), **more)


def stepped(at_s: float, samples: float, after: str = "", cost_s: float | None = None) -> Event:
    detail = {"after": after} if after else {}
    return Event(at_s, "progress", "a", samples_done=samples, overhead_seconds=cost_s, detail=detail)


def cost(*events: Event, until_s: float, spec: Any = ELASTIC, **info: Any) -> JobCost:
    first = begin(cluster(4), **(PROFILED | info))
    return job_cost([first, submit(spec, 4000.0, CURVE), *events], "a", until_s)


def test_each_second_is_trained_or_lost_live_and_in_replays() -> None:
    found = cost(
        held(10.0, "start", 2),
        stepped(15.0, 1.0, "start", 5.0),  # 2 GPUs for 5 s
        Event(100.0, "checkpoint", "a", samples_done=1000.0, overhead_seconds=2.0),  # 4 GPU seconds
        held(110.0, "grow", 4),
        stepped(111.0, 1200.0, "grow", 0.5),  # 4 GPUs for half a second
        held(210.0, "preempt", 0, samples_done=4000.0),
        held(300.0, "resume", 2),
        stepped(306.0, 4001.0, "resume", 6.0),  # what a preemption costs is a change
        held(310.0, "finish", 0, samples_done=4100.0),
        until_s=1000.0,
    )
    assert found.held_gpu_s == 2 * 100 + 4 * 100 + 2 * 10
    assert found.lost_gpu_s == {"starts": 10.0, "changes": 2.0 + 12.0, "checkpoints": 4.0, "failures": 0.0}
    assert found.trained_gpu_s == 620 - 28
    assert (found.preemptions, found.rescales, found.restarts) == (1, 1, 0)
    assert (found.cheapest_gpus, found.cheapest_gpu_s) == (1, 0.1)
    predicted = 19 * (100 - 7) + 30 * 99.5 + 19 * 4
    assert found.speed == pytest.approx(4100 / predicted)
    assert found.gpu_s_per_sample == 620 / 4100
    # Changes of replays cost time on the new GPUs.
    found = cost(
        held(0.0, "start", 2, overhead_seconds=5.0),
        held(10.0, "grow", 4, samples_done=95.0, overhead_seconds=1.0),
        held(20.0, "finish", 0, samples_done=365.0),
        until_s=20.0,
        simulated=True,
    )
    assert found.lost_gpu_s == {"starts": 10.0, "changes": 4.0, "checkpoints": 0.0, "failures": 0.0}
    assert (found.held_gpu_s, found.trained_gpu_s) == (60.0, 46.0)


def test_time_is_lost_once_where_a_job_falls_back_twice() -> None:
    """To 100 samples, of 1,000 s, and then to 50, of 505 s: the newer checkpoint was damaged."""
    found = cost(
        held(0.0, "start", 1),
        stepped(10.0, 0.0, "start"),
        stepped(1000.0, 100.0),
        held(2000.0, "requeue", 0, samples_done=200.0),
        held(3000.0, "resume", 1),
        stepped(3010.0, 100.0, "resume"),
        held(4010.0, "requeue", 0, samples_done=200.0),
        held(5000.0, "resume", 1),
        stepped(5010.0, 50.0, "resume"),
        held(6000.0, "finish", 0, samples_done=1000.0),
        until_s=6000.0,
    )
    assert found.lost_gpu_s["failures"] == (2000 - 505) + (4010 - 3000)
    assert (found.trained_gpu_s, found.repeated_samples) == (505 + 1000, 100 + 150)


def test_failures_cost_steps_and_silence_leaves_figures_open() -> None:
    found = cost(
        held(0.0, "start", 2),
        stepped(10.0, 0.0, "start", 10.0),
        Event(60.0, "checkpoint", "a", samples_done=500.0),
        held(110.0, "requeue", 0, samples_done=1000.0),
        held(120.0, "resume", 2),
        held(125.0, "requeue", 0),  # 10 GPU seconds, and no step
        held(140.0, "resume", 2),
        stepped(148.0, 500.0, "resume", 8.0),  # from the checkpoint: the last 50 s are trained again
        held(200.0, "finish", 0, samples_done=1500.0),
        until_s=200.0,
    )
    assert found.lost_gpu_s == {"starts": 20.0, "changes": 0.0, "checkpoints": 0.0, "failures": 100 + 10 + 16}
    assert found.repeated_samples == 500.0
    assert found.samples == 1500.0
    assert found.trained_gpu_s == 2 * (110 + 5 + 60) - 146
    # A start or a silent script leaves figures open.
    found = cost(held(10.0, "start", 4), until_s=30.0)
    assert (found.held_gpu_s, found.lost_gpu_s["starts"], found.trained_gpu_s) == (80.0, 80.0, 0.0)
    assert (found.speed, found.no_speed) == (None, "it has not trained yet")
    silent = cost(held(0.0, "start", 2), until_s=50.0, spec=job("a", gpus=2))
    assert (silent.held_gpu_s, silent.lost_gpu_s, silent.trained_gpu_s) == (100.0, None, None)
    assert silent.no_speed == "its script has reported no steps"
    blind = cost(held(0.0, "start", 2), stepped(5.0, 1.0, "start", 5.0), until_s=50.0, profile_hash=None)
    assert (blind.speed, blind.no_speed) == (None, "there is no profile")
    assert (blind.cheapest_gpus, blind.no_cheapest) == (None, "there is no profile")
    linear = ((1, 10.0), (2, 20.0), (4, 40.0), (8, 80.0))
    events = [begin(cluster(8), **PROFILED), submit(ELASTIC, 4000.0, linear), held(0.0, "start", 2)]
    assert job_cost(events, "a", 10.0).cheapest_gpus == 4
