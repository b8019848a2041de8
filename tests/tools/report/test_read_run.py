from dataclasses import replace
from math import isnan, nan

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.io import write_events
from pliant.schemas.job import trace_hash
from pliant.tools.report.groups import groups
from pliant.tools.report.job_arrays import smallest_type
from pliant.tools.report.read_run import fold, read_run
from pliant.tools.report.records import gpu_usage
from pliant.tools.report.report import compare_jcts, make_report, paired_jcts_s
from tests.builders import cluster, job
from tests.tools.report.runs import begin, ran, shared, story, submit


def only_job(*events, **info):
    return story(*events, **info).jobs[0]


def problems(*events):
    with pytest.raises(BadInputError) as caught:
        fold(events, "log")
    return str(caught.value).splitlines()


def test_a_job_from_submission_to_completion():
    run = story(
        submit(job("a", at=2, gpus=2, low=1)),
        Event(5, "start", "a", 2, overhead_seconds=1.0),
        Event(8, "grow", "a", 4),
        Event(9, "preempt", "a", 0),
        Event(11, "resume", "a", 1),
        Event(15, "finish", "a", 0, samples_done=20.0),
    )
    told = run.jobs[0]
    assert (told.submit_s, told.end_s, told.outcome, told.jct_s) == (0.0, 13.0, "finished", 13.0)
    assert (*run.jobs.first_start_s, *run.jobs.queueing_delay_s) == (3.0, 3.0)
    held = [(start, end, step.gpus) for start, end, step in told.held(99)]
    assert held == [(3, 6, 2), (6, 7, 4), (9, 13, 1)]
    assert run.jobs.gpu_seconds(99).tolist() == [3 * 2 + 1 * 4 + 4 * 1]
    assert (told.preemptions, told.samples_done) == (1, 20.0)
    assert [int(run.jobs.rescales_until(time_s)[0]) for time_s in (5, 6)] == [0, 1]
    assert told.steps[0].overhead_s == 1.0


def test_shared_gpus_count_half_and_live_times_never_back() -> None:
    starts = Event(0, "start", "a", 2), Event(10, "start", "b", 2, detail={"beside": "a"})
    arrivals = [submit(job(name, gpus=2)) for name in "ab"]
    run = story(*arrivals, *starts, Event(16, "finish", "a", 0), Event(20, "finish", "b", 0))
    assert run.jobs.gpu_seconds(99).tolist() == [10 * 2 + 6, 6 + 4 * 2]
    assert gpu_usage(run).held.tolist() == [2, 2, 2, 0]
    assert run.jobs.rescales_until(99).tolist() == [0, 0]
    assert run.jobs.first_start_s.tolist() == [0, 10]
    for pairs in ("ab", "ba"), ("ba", "ab"):  # each is named beside the other
        starts = [Event(0, "start", name, 2, detail={"beside": other}) for name, other in pairs]
        run = story(*arrivals, *starts, Event(9, "requeue", "a", 0))
        assert run.jobs.gpu_seconds(10).tolist() == [9, 9 + 2]
    # Live times count from the first submission never back.
    start = 1_800_000_000.0
    arrivals = submit(job("b"), at=start + 30), submit(job("a"), at=start + 10)
    run = story(*arrivals, Event(start + 12.5, "start", "a", 1), at=start, simulated=False)
    assert run.origin_s == start + 10
    assert [(each.id, each.submit_s) for each in run.jobs] == [("a", 0.0), ("b", 20.0)]
    assert run.jobs.first_start_s.tolist() == pytest.approx([2.5, nan], nan_ok=True)
    assert run.last_event_s == 20.0
    jobs = story(submit(job("a"), at=5.0), Event(4.9, "start", "a", 1), Event(4.8, "finish", "a", 0)).jobs
    assert (*jobs.queueing_delay_s, *jobs.jct_s) == (0.0, 0.0)


def live(*jobs, at=1.8e9, began_with=()):
    arrivals = [submit(each, at=at + 10 * number) for number, each in enumerate(jobs)]
    ends = [event for each in jobs for event in ran(each.id, at + 20, at + 30)]
    return story(*arrivals, *ends, at=at, simulated=False, trace_hash=trace_hash(began_with))


@pytest.mark.parametrize("began_with", [(), (job("a"),)])
def test_live_runs_of_the_same_jobs_are_paired(began_with):
    first, again = (
        live(job("a", at=at), job("b", at=at), at=at, began_with=began_with) for at in (1.8e9, 1.9e9)
    )
    other = live(job("a", at=1.8e9), job("b", at=1.8e9, model="vgg"), began_with=began_with)
    assert len(paired_jcts_s(first, again)) == 2
    assert paired_jcts_s(first, other) == []
    with pytest.raises(UsageError, match="runs of different jobs"):
        compare_jcts(first, other)


def test_two_runs_are_two_columns_and_changes_have_a_cost() -> None:
    monday = replace(live(job("a", at=1.8e9)), source="monday.jsonl")
    tuesday = replace(live(job("b", at=1.9e9), job("c", at=1.9e9), at=1.9e9), source="tuesday.jsonl")
    columns = groups(make_report([monday, tuesday]))
    assert [each.label for each in columns] == ["fifo [monday]", "fifo [tuesday]"]
    with pytest.raises(UsageError, match=r"the policy of several runs; .*\[monday\].*\[tuesday\]"):
        make_report([monday, tuesday], baseline="fifo")
    # What a change cost is known once training goes on.
    told = only_job(
        submit(job("a", low=1)),
        Event(0, "start", "a", 1),
        Event(4, "progress", "a", overhead_seconds=3.0, loss=2.5, samples_done=1.0),
        Event(5, "checkpoint", "a", overhead_seconds=0.5),
        Event(6, "grow", "a", 2),
        Event(8, "progress", "a", overhead_seconds=1.0, loss=0.5, samples_done=9.0),
    )
    steps = [(step.event, step.overhead_s, step.checkpoint_s) for step in told.steps]
    assert steps == [("start", 3.0, 0.5), ("grow", 1.0, 0.0)]
    assert (told.first_loss, told.last_loss, told.samples_done) == (2.5, 0.5, 9.0)


@pytest.mark.parametrize("odd", [10**400, None, "x", [1]])
def test_a_prediction_that_is_none_is_left_out(odd):
    right = {"samples_done": 5.0, "mean": 0.5, "low": 0.1, "high": 0.9}
    said = [{"progress": found} for found in ({**right, "mean": odd}, right, odd)]
    told = only_job(submit(job("a")), *(Event(at, "progress", "a", detail=d) for at, d in enumerate(said, 1)))
    assert [tuple(each) for each in told.forecasts] == [(5.0, 0.5, 0.1, 0.9)]


def test_predictions_waits_and_shared_gpus_of_a_log() -> None:
    # Of a job that turns out to have 40 samples: at 10 a quarter, at 20 a half, at 30 three quarters.
    ranges = ((10.0, 0.1, 0.3), (20.0, 0.6, 0.9), (30.0, 0.75, 0.9))
    found = [{"samples_done": done, "mean": 0.2, "low": low, "high": high} for done, low, high in ranges]
    told = only_job(
        submit(job("a")),
        Event(1, "start", "a", 1),
        Event(2, "progress", "a", detail={"progress": found[0]}),
        Event(3, "decision", detail={"forecasts": {"a": found[1], "gone": found[1]}}),
        Event(4, "progress", "a", detail={"progress": found[2]}),
        Event(9, "finish", "a", 0, samples_done=40.0),
    )
    assert [each.samples_done for each in told.forecasts] == [10.0, 20.0, 30.0]
    assert told.forecasts_held == (2, 3)
    # A job waits again or holds its GPUs as the log says.
    begun = submit(job("a")), Event(0, "start", "a", 1)
    lost = story(*begun, Event(2, "node_down", detail={"node": "n0"}), Event(2, "requeue", "a", 0)).jobs
    assert (lost[0].outcome, *lost.gpu_seconds(10)) == ("unfinished", 2.0)
    failed = Event(2, "fail", "a", 0), Event(2, "requeue", "a", 0)
    again = story(*begun, *failed, Event(3, "resume", "a", 1), Event(5, "finish", "a", 0)).jobs
    assert (again[0].outcome, again[0].restarts, again[0].jct_s) == ("finished", 1, 5.0)
    assert again.gpu_seconds(99).tolist() == [4.0]
    run = story(submit(job("a", gpus=2)), Event(1, "start", "a", 2), Event(4, "progress", "a"))
    assert run.jobs.gpu_seconds(run.last_event_s).tolist() == [6.0]
    assert run.jobs[0].jct_s is None


@pytest.mark.parametrize(
    ("event", "outcome"), [("fail", "failed"), ("cancel", "cancelled"), ("reject", "rejected")]
)
def test_other_ends_have_no_jct(event, outcome):
    jobs = story(submit(job("a")), Event(3, event, "a", 0)).jobs
    assert (jobs[0].outcome, jobs[0].end_s, jobs[0].jct_s) == (outcome, 3.0, None)
    assert isnan(jobs.queueing_delay_s[0])


@pytest.mark.parametrize("until_s", [99.0, 214.0, 300.0])
def test_a_job_says_of_what_it_held_what_the_columns_say(until_s):
    jobs = fold(shared()).jobs
    of_columns = [*zip(*(column.tolist() for column in jobs.held(until_s)[1:]), strict=True)]
    assert of_columns == [
        (row, start_s, end_s, step.counted_gpus)
        for row, told in enumerate(jobs)
        for start_s, end_s, step in told.held(until_s)
    ]


def test_lost_nodes_and_timed_decisions_are_counted():
    changes = (Event(at, name, detail={"node": "n0"}) for at, name in ((3, "node_down"), (5, "node_up")))
    run = story(submit(job("a")), *changes, nodes=cluster(4, 2))
    assert run.capacity == ((0.0, 6), (3.0, 2), (5.0, 6))
    timed = {"fifo": 0.25, "srtf": 0.5}
    details = ({"policy": name, "decision_seconds": seconds} for name, seconds in timed.items())
    run = story(*(Event(at, "decision", detail=each) for at, each in enumerate(details, 1)))
    assert (run.decisions, run.decision_seconds, run.policies) == (2, 0.75, ("fifo", "srtf"))


def test_both_forms_of_file_and_their_events_fold_alike(tmp_path):
    for name in ("events.parquet", "events.jsonl"):
        write_events(shared(), tmp_path / name)
        assert replace(read_run(tmp_path / name), source="events") == fold(shared())


@pytest.mark.parametrize("key", ["progress", "admission", "observed", "beside"])
def test_files_fold_alike_where_a_key_has_an_escape(key, tmp_path):
    said = {
        "progress": {"samples_done": 5.0, "mean": 0.5, "low": 0.1, "high": 0.9},
        "admission": {"admitted": True},
        "observed": {"placement": [2], "local_batch": 4, "accum": 1, "step_seconds": 0.5},
        "beside": "a",
    }
    told = Event(1, "start" if key == "beside" else "progress", "b", 2, detail={key: said[key]})
    arrivals = submit(job("a", gpus=2)), submit(job("b", gpus=2))
    log = [begin(), *arrivals, Event(0, "start", "a", 2), told]
    plain, escaped = f'"{key}":', f'"\\u{ord(key[0]):04x}{key[1:]}":'
    lines, columns = tmp_path / "events.jsonl", tmp_path / "events.parquet"
    for path in (lines, columns):
        write_events(log, path)
    lines.write_text(lines.read_text().replace(plain, escaped))
    table = pq.read_table(columns)
    texts = [text and text.replace(plain, escaped) for text in table["detail"].to_pylist()]
    at = table.column_names.index("detail")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(texts, pa.string())), columns)
    assert any(text and escaped in text for text in texts)
    for path in (lines, columns):
        assert replace(read_run(path), source="events") == fold(log)


def test_jobs_that_differ_in_few_values_are_read_alike(tmp_path):
    labels = [{"runs": "1-2"}, {"runs": "3-4"}, {"runs": ""}, {"curve": "x"}, {"runs": '"},"curve":[[1,2]]'}]
    labels += [{"day": "2020-01-01"}, {"day": "2020-01-01T00:00:00"}, {"vc": "null"}, {"vc": "ü"}]
    said = [{"labels": each} for each in labels] + [{"seed": 2**60 + seed} for seed in (1, 2, 2**63)]
    specs = [
        job(f"{number}-{copy}", at=number + copy / 7, gpu_seconds=1.0 + number, **more)
        for copy in range(3)
        for number, more in enumerate(said)
    ]
    events = [begin(), *(submit(each, 2.0) for each in sorted(specs, key=lambda each: each.submit_time))]
    write_events(events, tmp_path / "events.parquet")
    found = read_run(tmp_path / "events.parquet")
    assert [each.job for each in found.jobs] == sorted(specs, key=lambda each: (each.submit_time, each.id))
    assert found.jobs == fold(events).jobs
    assert len(found.jobs[0].specs.table.forms) < len(specs)


@pytest.mark.parametrize("more", [{"samples": 100.0}, {"demand_gpu_s": 3.5, "rates": [[1, 2.0]]}])
def test_a_submission_may_say_more_before_its_curve(more, tmp_path):
    events = [begin()]
    for spec in (job(str(number), at=float(number), gpu_seconds=9.0) for number in range(3)):
        detail = {"job": job_fields(spec)} | more | {"curve": [[1, 2.0]]}
        events.append(Event(spec.submit_time, "submit", spec.id, detail=detail))
    write_events(events, tmp_path / "events.parquet")
    assert read_run(tmp_path / "events.parquet").jobs == fold(events).jobs


def test_wrong_logs_are_named_event_by_event(tmp_path):
    found = problems(
        begin(),
        submit(job("a")),
        submit(job("a")),
        Event(1, "submit", "b", detail={"job": job_fields(job("b")) | {"submit_time": -1.0}}),
        Event(1, "submit", "c", detail=submit(job("d")).detail),
        Event(2, "start", "z", 1),
        Event(3, "node_down", detail={"node": "n9"}),
    )
    assert found == [
        'log: event 3: job "a" is submitted twice',
        "log: event 4: /detail/job/submit_time: -1.0 is below 0, expected 0 or more",
        'log: event 5: /detail/job/id: submit of "c" describes job "d"',
        'log: event 6: start of job "z", which was never submitted',
        "log: event 7: /detail/node: node_down of 'n9', which is not in the cluster",
    ]
    assert problems() == ["log: has no events, expected a run"]
    unnamed = "log: event 1: does not name the run, expected a decision that says policy and cluster"
    assert problems(Event(0, "submit", "a"), Event(1, "start", "a", 1))[0] == unnamed
    assert problems(Event(0, "decision", detail={"policy": "fifo"}))[0].startswith("log: event 1: /detail/")
    path = tmp_path / "events.parquet"
    write_events([begin(), Event(0, "submit", "a", detail={"job": {"id": "a"}})], path)
    with pytest.raises(BadInputError, match="event 2: /detail/job/model: is missing"):
        read_run(path)
    unsaid = Event(0, "submit", "b", detail={"job": job_fields(job("b")) | {"user": None}})
    write_events([begin(), submit(job("a")), unsaid], path)
    with pytest.raises(BadInputError, match="event 3: /detail/job/user: null has the wrong type"):
        read_run(path)


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ([-1, 127], np.int8),
        ([0, 128], np.int16),
        ([-129, 0], np.int16),
        ([-1, 2**15], np.int32),
        ([-1, 2**31], np.int64),
        ([-1, 64, 2**32], np.int64),
        ([-1, 2**53 + 1, 2**63 - 1], np.int64),
        ([-(2**63), 0], np.int64),
    ],
)
def test_whole_numbers_stay_whole_in_the_smallest_type(numbers, kind):
    found = smallest_type(np.array(numbers, np.int64))
    assert (found.tolist(), found.dtype) == (numbers, kind)
    assert smallest_type(np.array([0.5, 2.0])).tolist() == [0.5, 2.0]
    assert len(smallest_type(np.zeros(0, np.int64))) == 0
