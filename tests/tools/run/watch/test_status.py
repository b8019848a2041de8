import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pliant.cli import status as watching
from pliant.cli.schedule import schedule
from pliant.cli.status import Form, status, top, with_colours
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_schedule, write_cluster, write_schedule
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.schemas.text import iso_time, width_of
from pliant.tools.run.backends.protocol import Handle, LaunchRecord, StartedUnit, write_record
from pliant.tools.run.doctor.examine import examine
from pliant.tools.run.service import submit
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.plan import Member, Plan, write_progress
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import decision_event, run_event, submit_event
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch import job_page
from pliant.tools.run.watch import status as watch_status
from pliant.tools.run.watch.job_page import history, job_fields, status_document
from pliant.tools.run.watch.job_status import STATES, JobStatus, in_order, statuses
from pliant.tools.run.watch.screen import status_text
from pliant.tools.run.watch.status import Status, Watcher, launched_jobs, outlook
from pliant.tools.run.watch.top import Use, UseMeter, sorted_uses, summary_line, top_text
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.policy import Reserved
from tests.builders import cluster, job
from tests.effort import examples
from tests.tools.run.statedir.contract.test_folders import report
from tests.tools.run.stories import Story
from tests.tools.schedule.foreign import Foreign

NOW_S = 1_700_000_000.0
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)


def record(dirs: StateDir, *events: Event) -> None:
    with State(dirs.path) as held:
        held.record(events)


def decided(dirs: StateDir, nodes: Cluster, jobs: list[Job], question: Question, samples: float) -> Schedule:
    """A run has decided about jobs, and left its inputs."""
    schedule = decide(jobs, nodes, None, question, now_s=jobs[0].submit_time)
    record(dirs, run_event(schedule, "hash", NOW_S))
    record(dirs, *(submit_event(each, NOW_S, {"samples": samples}) for each in jobs))
    write_cluster(nodes, dirs.cluster)
    write_schedule(schedule, dirs.schedule)
    return schedule


def start(job_id: str, gpus: int, time_s: float = NOW_S) -> Event:
    return Event(time_s, "start", job_id, gpus=gpus, placement=(("n0", gpus),), global_batch=960)


def reports(dirs: StateDir, name: str, at_s: float = NOW_S, **more: Any) -> None:
    path = dirs.job(name).progress
    path.parent.mkdir(parents=True, exist_ok=True)
    write_progress(path, report(job=name, **more))
    os.utime(path, (at_s, at_s))


def running(state: Path, *more: Event) -> StateDir:
    """A directory where ``a`` runs on all GPUs of a cluster, at a fifth of the speed that is predicted."""
    dirs = StateDir(state)
    jobs = [job(name, at=NOW_S, gpus=4, gpu_seconds=400.0) for name in "abc"]
    decided(dirs, cluster(4), jobs, Question("fifo"), 400.0)
    first = {"attempt": 1, "after": "start"}
    record(
        dirs,
        decision_event(NOW_S, 0.0, "fifo", None),
        start("a", 4),
        Event(NOW_S, "progress", "a", samples_done=1.0, overhead_seconds=2.0, detail=first),
        *more,
    )
    reports(dirs, "a", samples=100.0, samples_per_second=0.8, gpus=4, global_batch=960)
    return dirs


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    return running(tmp_path / "state")


@pytest.fixture
def busy(tmp_path: Path) -> StateDir:
    """On eight GPUs a holds two, b four, c waits and d has ended."""
    dirs = StateDir(tmp_path / "state")
    jobs = [job(name, at=NOW_S, user=name.upper()) for name in "abcd"]
    decided(dirs, cluster(8), jobs, Question("fifo"), 64.0)
    ended = Event(NOW_S + 1, "finish", "d", gpus=0, placement=(), detail={"attempt": 1})
    record(dirs, start("a", 2), start("b", 4), start("d", 1), ended)
    return dirs


def used(dirs: StateDir) -> dict[str, Use]:
    return {use.id: use for use in UseMeter(dirs.path).look()[1]}


@pytest.fixture
def shown(dirs: StateDir, capsys: Capture) -> Callable[..., str]:

    def shown(*words: str, **options: Any) -> str:
        status(*words, state=dirs.path, **options)
        return capsys.readouterr().out

    return shown


def status_of(dirs: StateDir, job_id: str = "a", after_s: float = 9.0) -> JobStatus:
    (result,) = [each for each in statuses(Watcher(dirs.path).look(), NOW_S + after_s) if each.id == job_id]
    return result


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,:/]\d+)*", text))


@given(
    st.integers(0, 1000),
    st.integers(5, 80),
    st.integers(40, 200),
    st.sampled_from(["fifo", "fair-share", "srtf"]),
    st.booleans(),
)
@settings(
    deadline=None, max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_lines_fit_and_each_job_is_there_once(tmp_path_factory, seed, steps, width, policy, explain) -> None:
    story = Story(seed, policy)
    story.go_on(steps)
    seen = Watcher(story.write(tmp_path_factory.mktemp("site") / "state").path)
    result = seen.look(ahead=True)
    whole = status_text(result, story.now_s, explain=explain).splitlines()
    fitted = status_text(result, story.now_s, width, explain=explain).splitlines()
    assert max(map(width_of, fitted)) <= width
    assert [line.split()[0] for line in fitted if line[0] != " "] == [line.split()[0] for line in whole]
    assert numbers(" ".join(fitted)) <= numbers(" ".join(whole))
    jobs = statuses(result, story.now_s)
    for each in jobs:
        page = job_page.job_page(
            *(each, result, history(seen.dirs, each.id), ["ValueError: 12345"], story.now_s),
            state=seen.dirs.path,
            width=width,
        )
        assert max(map(width_of, page.splitlines())) <= width
    document = json.loads(status_document(result, (job_fields(each, Path()) for each in jobs), story.now_s))
    assert document["schema"] == "pliant.status/1.6"
    known = {*story.session.jobs, *story.session.book.ended}
    assert sorted(each["id"] for each in document["jobs"]) == sorted(known)
    assert {each["state"] for each in document["jobs"]} <= set(STATES)


def test_an_id_longer_than_the_terminal_is_cut_beside_its_state() -> None:
    result = Status(RunLog(), submitted=((job("experiment-" + "x" * 100), NOW_S), (job("short"), NOW_S)))
    lines = status_text(result, 0.0, 40).splitlines()
    assert lines[1].startswith("experiment-xx")
    assert [line.split()[-1] for line in lines] == ["state", "submitted", "submitted"]
    assert "…  submitted" in lines[1]
    assert max(map(len, lines)) <= 40
    assert status_text(result, 0.0, 15).splitlines()[1] == "experiment-xxx…", "no room for the state"


def test_status_and_schedule_predict_the_same(dirs: StateDir, tmp_path: Path) -> None:
    expected = Watcher(dirs.path).look(ahead=True).outlook or {}
    assert expected["a"].end_s == NOW_S + 300 / 0.8
    assert [expected[name].start_s for name in "bc"] == [NOW_S + 375, NOW_S + 875]
    schedule(policy="fifo", state=str(dirs.path), explain=True, output=str(tmp_path / "s.json"))
    result = read_schedule(tmp_path / "s.json")
    shift_s = result.time - NOW_S  # schedule decides by the clock
    ends = [given.predicted_end for given in result.allocations]
    assert ends == [pytest.approx((expected["a"].end_s or 0.0) + shift_s)]
    starts = [verdict.predicted_start for verdict in result.waiting]
    assert starts == [pytest.approx((expected[name].start_s or 0.0) + shift_s) for name in "bc"]


def test_programs_read_what_jobs_are_to_hold_later(tmp_path: Path, capsys: Capture) -> None:
    late_s = NOW_S + 100.0  # the second of four slots, each for all GPUs of the cluster
    worth = {"shape": "step", "value": 10.0, "target": 1000.0}
    jobs = [job("a", at=0.0, gpus=4, gpu_seconds=1600.0, utility=worth)]
    dirs = StateDir(tmp_path / "state")
    decided(dirs, cluster(4), jobs, Question("oasis", {"slot_seconds": 100.0, "rescale_s": 0.0}), 1600.0)
    record(dirs, decision_event(NOW_S, NOW_S, "oasis", 0.1))
    status(state=dirs.path, format=Form.json)
    (shown,) = json.loads(capsys.readouterr().out)["jobs"]
    spans = sorted(shown["reserved"], key=lambda span: span["from_at"])
    assert spans[0]["from_at"] == iso_time(late_s)
    assert [span["until_at"] for span in spans[:-1]] == [span["from_at"] for span in spans[1:]]
    assert spans[-1]["until_at"] == iso_time(NOW_S + 400.0)
    assert {(span["gpus"], *span["placement"].items()) for span in spans} == {(4, ("n0", 4))}
    assert all(span["servers"] == {} for span in spans)


def test_what_was_reserved_until_now_is_not_to_come(dirs: StateDir) -> None:
    spans = (Reserved(NOW_S - 20, NOW_S - 10, (("n0", 4),)), Reserved(NOW_S - 10, NOW_S + 10, (("n0", 2),)))
    result = statuses(replace(Watcher(dirs.path).look(), reserved={"b": spans}), NOW_S)
    assert [each.reserved for each in result] == [(), spans[1:], ()]


def test_a_job_is_shown_with_history_and_last_words(dirs: StateDir, shown: Callable[..., str]) -> None:
    detail = {"attempt": 1, "reason": "exit code 7", "failures": 1, "retries": 3, "wait_seconds": 1.0}
    record(dirs, Event(NOW_S + 60, "requeue", "a", gpus=0, placement=(), detail=detail))
    errors = dirs.job("a").attempt(1).logs / "0" / "x" / "attempt_0" / "0"
    errors.mkdir(parents=True)
    (errors / "stderr.log").write_text("Traceback\n  line 12\nValueError: \x1b[2J no data\n")
    text = shown("a")
    assert re.search(r"^state +retrying$", text, re.MULTILINE)
    assert re.search(r"^why +retry 1 of 3 in \d+ s: exit code 7$", text, re.MULTILINE)
    happened = text[text.index("history") : text.index("last error lines")].splitlines()
    ends = ["submitted", "started on 4 GPUs (n0:4), batch 960", "stopped: exit code 7"]
    assert [line.endswith(words) for line, words in zip(happened[1:4], ends, strict=True)] == [True] * 3
    assert text.endswith("  ValueError: \\x1b[2J no data\n")


def test_what_is_not_there_is_an_error_that_says_what_is(dirs: StateDir, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no job z; it has 3 jobs: pliant status lists them"):
        status("z", state=dirs.path)
    with pytest.raises(UsageError, match=r'has no job A; did you mean "a"\?'):
        status("A", state=dirs.path)
    with pytest.raises(UsageError, match=r"no state directory .*: name the folder that pliant run or"):
        Watcher(tmp_path)


def test_programs_get_every_field_that_is_documented(busy: StateDir, capsys: Capture) -> None:
    reports(busy, "a", NOW_S + 5, samples_per_second=120.0)
    top(state=busy.path, format=Form.json, sort="job")
    first, second = json.loads(capsys.readouterr().out)["jobs"]
    assert first.keys() == second.keys()
    assert (first["id"], first["share"], first["samples_per_second"]) == ("a", 0.25, 120.0)
    assert (second["samples_per_second"], second["heard_at"]) == (None, None)
    result = Watcher(busy.path).look(ahead=True)
    document = json.loads(status_document(result, (), NOW_S))
    named = {
        *job_fields(statuses(result, NOW_S)[0], Path()),
        *document,
        "history",
        "error_lines",
        "code",
        "code_differences",
        *STATES,
        *first,
    }
    text = (Path(__file__).resolve().parents[4] / "docs" / "running-json.md").read_text()
    assert [name for name in sorted(named) if f"`{name}`" not in text] == []


def test_a_policy_is_asked_where_it_can_add_something(dirs: StateDir, monkeypatch) -> None:
    asked: list[int] = []

    def counted(*given: Any) -> Any:
        asked.append(1)
        return outlook(*given)

    monkeypatch.setattr(watch_status, "outlook", counted)
    monkeypatch.setattr(watch_status, "PREDICTION_INTERVAL_S", float("inf"))
    seen = Watcher(dirs.path)
    assert seen.look(ahead=True).outlook == seen.look(ahead=True).outlook
    assert len(asked) == 1
    assert in_order(read_log(dirs.path))[0].job.id == "a"
    record(dirs, *(Event(NOW_S + 1, "cancel", name, gpus=0, placement=()) for name in "bc"))
    monkeypatch.setattr(watch_status, "session_from_history", lambda *_, **__: pytest.fail("it is asked"))
    (ends,) = (Watcher(dirs.path).look(ahead=True).outlook or {}).values()
    assert ends.end_s == pytest.approx(NOW_S + 1 + 300 / 0.8)


def test_a_pipe_that_watches_gets_a_table_for_each_change(dirs: StateDir, monkeypatch, capsys) -> None:
    def happens() -> Iterator[bool]:
        yield from (False, False)
        record(dirs, Event(NOW_S + 9, "finish", "a", gpus=0, placement=()))
        yield from (False, False, True)

    left = happens()
    monkeypatch.setattr(watching, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(watching, "reader_left", lambda _: next(left))
    with pytest.raises(BrokenPipeError):
        status(state=dirs.path, watch=True)
    tables = capsys.readouterr().out.split("\n\n")
    assert [table.splitlines()[1].split()[:2] for table in tables] == [["a", "running"], ["a", "finished"]]


def test_a_job_waits_for_as_many_gpus_as_the_policy_says(tmp_path: Path) -> None:
    dirs = StateDir(tmp_path / "state")
    small = job("m1", at=NOW_S, work={"samples": 1e6})
    large = job("m2", at=NOW_S + 1, gpus=2, low=1, work={"samples": 1e6})
    decided(dirs, cluster(2), [small, large], Question("fifo"), 1e6)
    record(dirs, start("m1", 1))
    result = Watcher(dirs.path).look(ahead=True)
    (waiting,) = [each for each in statuses(result, NOW_S + 2) if each.id == "m2"]
    assert (waiting.brief, waiting.why) == ("for 2 GPUs, next", "waits for 2 GPUs; it is next")
    assert job_fields(waiting, Path())["needs_gpus"] == 2
    unasked = Watcher(dirs.path).look()
    assert "for at least 1 GPU" in status_text(unasked, NOW_S + 2)


def test_a_waiting_job_names_free_gpus_that_are_drained_or_down(dirs: StateDir) -> None:
    for number, node in enumerate(("n1", "n0"), 1):
        record(dirs, Event(NOW_S + 1, "drain", detail={"number": number, "node": node, "user": "ada"}))
    write_cluster(cluster(4, 4, 4, 4), dirs.cluster)
    waiting = status_of(dirs, "b")
    assert waiting.why == "waits for 4 GPUs; 1 other job waits; 4 GPUs free on n1, which is drained"
    assert waiting.brief == "for 4 GPUs; n1 is drained"
    record(dirs, Event(NOW_S + 2, "node_down", detail={"node": "n2", "reason": "dead"}))
    waiting = status_of(dirs, "b")
    assert waiting.why.endswith("n1, which is drained; n2 with 4 GPUs is down")
    assert waiting.brief == "for 4 GPUs; 2 nodes are drained or down"
    write_cluster(cluster(4), dirs.cluster)
    assert status_of(dirs, "b").why.endswith("; node n0 is drained"), "none is in service"


def test_a_policy_that_fails_is_named_with_its_place(
    dirs: StateDir, shown: Callable[..., str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    error = "policy \"mine\" (mine.py:3): KeyError: 'x'"
    record(dirs, decision_event(NOW_S + 1, 0.0, "mine", None, error=error))
    status(state=dirs.path)
    said = capsys.readouterr()
    assert said.out.count("for 4 GPUs; the policy fails") == 2
    assert f"the policy fails: {error}; what runs goes on as it is" in said.err
    assert error in shown("b")
    assert json.loads(shown(format=Form.json))["policy_error"] == error
    record(dirs, decision_event(NOW_S + 2, 0.0, "mine", 0.1))
    status(state=dirs.path)
    assert "policy fails" not in "".join(capsys.readouterr())


def under(monkeypatch: pytest.MonkeyPatch, body: str, dirs: StateDir) -> None:
    """A policy of another package decides from now on."""
    mine = Foreign(dirs.path.parent, monkeypatch)
    mine.is_written(f"def decide(self, snapshot, rng):\n    {body}", "")
    before = read_schedule(dirs.schedule)
    use = before.policy.model_copy(update={"name": "mine", "parameters": {}})
    write_schedule(before.model_copy(update={"policy": use, "policy_state": None}), dirs.schedule)


def test_what_a_policy_prints_spoils_no_document(dirs: StateDir, capsys, monkeypatch) -> None:
    under(monkeypatch, "print('thinking')\n    return Decision()", dirs)
    status(state=dirs.path, format=Form.json)
    said = capsys.readouterr()
    assert [each["id"] for each in json.loads(said.out)["jobs"]] == ["a", "b", "c"]
    assert "thinking" in said.err


@pytest.mark.parametrize(
    "body", ["raise RuntimeError('not now')", "raise SystemExit(7)", "while True:\n        pass"]
)
def test_a_policy_that_fails_or_never_answers_hides_no_job(dirs: StateDir, monkeypatch, body) -> None:
    monkeypatch.setattr(watch_status, "TIME_LIMIT_S", 0.2)
    under(monkeypatch, body, dirs)
    lines = status_text(Watcher(dirs.path).look(ahead=True), NOW_S).splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [["a", "running"], ["b", "waiting"], ["c", "waiting"]]
    assert "in 6 min" in lines[0], "the end of a follows from its own speed"
    assert ["for 4 GPUs" in line for line in lines[1:]] == [True, True]


def started(tmp_path: Path, *, elastic: str) -> StateDir:
    """A directory where ``a`` was given its GPUs and its launcher is not there yet."""
    dirs = StateDir(tmp_path / "state")
    record(dirs, submit_event(job("a", at=NOW_S, elastic=elastic), NOW_S), start("a", 1))
    return dirs


def launched(dirs: StateDir, processes: int) -> AttemptDir:
    attempt = dirs.job("a").attempt(1)
    attempt.path.mkdir(parents=True)
    units = (StartedUnit(node="n0", argv=(), cwd="", env={}),) * processes
    write_record(Handle("a", 1, attempt.path), LaunchRecord(job="a", attempt=1, backend="local", units=units))
    return attempt


@pytest.mark.parametrize(("elastic", "then"), [("none", "running"), ("size", "starting")])
def test_a_job_that_need_not_report_runs_once_launched(tmp_path: Path, elastic: str, then: str) -> None:
    dirs = started(tmp_path, elastic=elastic)
    assert status_of(dirs).state == "starting"
    attempt = launched(dirs, 2)
    assert status_of(dirs).state == then
    assert launched_jobs(dirs, Watcher(dirs.path).look().log) == ({"a"} if then == "running" else set())
    attempt.exit_code(0).write_text("1")
    assert status_of(dirs).state == then, "one of its two processes is there"
    attempt.exit_code(1).write_text("1")
    ending = status_of(dirs)
    assert (ending.state, ending.until_s) == ("ending", None)
    assert ending.why == "its processes have ended; the next call of pliant run records how"
    with State(dirs.path):
        assert status_of(dirs).state == then, "the run that holds the directory records it at once"


@pytest.mark.parametrize("state", ["ending", "cancelling"])
def test_a_job_that_has_ended_is_shown_so_whatever_was_ordered(tmp_path, monkeypatch, state) -> None:
    monkeypatch.setattr(submit, "user_name", lambda: "ada")
    dirs, held = started(tmp_path, elastic="none"), state == "ending"
    launched(dirs, 1).exit_code(0).write_text("0")
    submit.order_jobs(dirs.path, "hold", ["a"]) if held else submit.cancel(dirs.path, ["a"])
    ended = status_of(dirs)
    assert (ended.state, ended.brief) == (state, "ended, to be recorded")
    assert ended.why.startswith("its processes have ended; the next call of pliant run records how")
    assert ended.why.endswith("; ada has ordered to hold it") == held
    log, uses = UseMeter(dirs.path).look()
    assert uses == []
    assert summary_line(log, uses) == "0 jobs on 0 of 0 GPUs, 0 without, 1 ended, to be recorded"


@pytest.mark.parametrize(
    ("of", "state"),
    [
        pytest.param({}, "running", id="of what it holds, between two turns of cron"),
        pytest.param({"generation": 2}, "starting", id="of the GPUs that it had before"),
        pytest.param({"attempt": 2}, "starting", id="of the attempt before"),
        pytest.param({"abort": True}, "starting", id="of workers that are to leave"),
        pytest.param({"global_batch": 480}, "starting", id="of another batch"),
    ],
)
def test_a_job_runs_once_it_reports_after_a_change(tmp_path: Path, of: dict[str, Any], state: str) -> None:
    dirs = started(tmp_path, elastic="size")
    assert status_of(dirs).state == "starting"
    reports(dirs, "a", gpus=1, global_batch=960, samples_per_second=2.0)
    members = (Member(slot="n0/0", node="n0", address="127.0.0.1"),)
    known = {"job": "a", "generation": 1, "attempt": 1, "global_batch": 960, "members": members, **of}
    dirs.job("a").plan.write_text(Plan.model_validate(known).model_dump_json())
    result = status_of(dirs)
    assert result.state == state
    assert state != "running" or (result.why, result.samples_per_second) == ("", 2.0)


def test_a_job_resized_before_its_first_step_is_starting(tmp_path: Path) -> None:
    dirs = started(tmp_path, elastic="size")
    shrink = Event(NOW_S + 5, "shrink", "a", gpus=1, placement=(("n0", 1),), global_batch=480)
    record(dirs, shrink)
    assert (status_of(dirs).state, status_of(dirs).why) == ("starting", "for 9 s")
    first = {"attempt": 1, "after": "shrink"}
    record(dirs, Event(NOW_S + 9, "progress", "a", samples_done=1.0, detail=first))
    record(dirs, replace(shrink, time=NOW_S + 10, global_batch=240))
    assert (status_of(dirs, after_s=12).state, status_of(dirs, after_s=12).why) == ("shrinking", "for 2 s")


def test_status_names_the_next_command_and_a_clock_set_back(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    status(state=dirs.path)
    assert f"go on with: pliant run --follow --state {dirs.path}" in capsys.readouterr().err
    record(dirs, decision_event(NOW_S, 0.0, "fifo", None, once=True))
    status(state=dirs.path)
    status("a", state=dirs.path)
    said = capsys.readouterr()
    assert "--follow" not in said.out + said.err
    assert "the next call of pliant run goes on (the last wrote at" in said.err
    (check,) = [check for check in examine(dirs.path) if check.area == "service"]
    assert (check.verdict, "--follow" in check.text + check.advice) == ("ok", False)
    record(StateDir(tmp_path / "new"))
    status(state=tmp_path / "new")
    assert "begin one with pliant run --state" in capsys.readouterr().err
    monkeypatch.setattr("time.time", lambda: NOW_S - 86400.0)
    status(state=dirs.path)
    assert "the log is 1 d ahead of this machine's clock, which was set back" in capsys.readouterr().err
    status(state=dirs.path, format=Form.json)
    assert json.loads(capsys.readouterr().out)["log_ahead_seconds"] == 86400.0


def test_a_predicted_interval_holds_at_changing_speeds(dirs: StateDir) -> None:
    """By the time of a step it is 1 sample/s; over the last second it is more, less, or next to none."""
    likely, spans = [], []
    for speed in (0.5, 1.5, 0.8, 1.2, 0.001):
        measured = {"samples_per_second": speed, "step_seconds": 960.0, "gpus": 4, "global_batch": 960}
        reports(dirs, "a", samples=100.0, **measured)
        result = (Watcher(dirs.path).look(ahead=True).outlook or {})["b"]
        assert result.start_s is not None
        assert result.between_s is not None
        assert result.source == "measured"
        likely.append(result.start_s - NOW_S)
        spans.append([at_s - NOW_S for at_s in result.between_s])
    *usual, stalled = likely
    alone = [300 / speed for speed in (0.5, 1.5, 0.8, 1.2)]
    assert max(usual) / min(usual) < 0.6 * max(alone) / min(alone), "it jumps less than the speed does"
    assert all(first <= 300.0 <= last for first, last in spans[:-1]), "at the speed that it has on average"
    first_s, last_s = spans[-1]
    assert first_s <= stalled <= last_s <= 2 * stalled, "it evaluates, or its disk is busy"


def test_a_start_is_shown_with_source_and_interval(dirs: StateDir, shown: Callable[..., str]) -> None:
    result = (Watcher(dirs.path).look(ahead=True).outlook or {})["b"]
    assert (result.start_s, result.source) == (NOW_S + 375, "measured")
    assert result.between_s == (pytest.approx(NOW_S + 375 / 1.3), pytest.approx(NOW_S + 375 / 0.7))
    assert re.search(r"(?m)^starts +in 5 to 9 min \(\d\d:\d\d\), at measured speeds$", shown("b"))
    (fields,) = json.loads(shown("b", format=Form.json))["jobs"]
    assert (fields["id"], fields["state"], fields["jobs_ahead"]) == ("b", "waiting", 0)
    assert fields["predicted_start_at"] == "2023-11-14T22:19:35.000Z"
    assert [each["event"] for each in fields["history"]] == ["submit"]
    assert fields["predicted_from"] == "measured"
    assert fields["predicted_start_between"] == [iso_time(at_s) for at_s in result.between_s]


def test_jobs_are_chosen_and_sorted(dirs: StateDir, shown: Callable[..., str]) -> None:
    for name, team, worth in (("sweep-1", "vision", 1.0), ("sweep-2", "nlp", 3.0), ("x", "", 2.0)):
        new = job(name, at=NOW_S, user="ada", team=team, priority=worth)
        record(dirs, submit_event(new, NOW_S))

    def table(**chosen: Any) -> list[list[str]]:
        return [line.split() for line in shown(**chosen).splitlines()]

    assert table(pattern=["x"], columns="job,user,state,gpus") == [
        ["job", "user", "state", "GPUs/batch"],
        ["x", "ada", "waiting", "-"],
    ]
    assert table()[0][:4] == ["job", "user", "team", "state"]
    assert table(pattern=["sweep-*"])[0][:3] == ["job", "team", "state"], "all are ada's"
    assert table(pattern=["b,c"])[0][:2] == ["job", "state"]
    ordered = table(user=["ada,bob"], sort="-priority", columns="job,priority")[1:]
    assert ordered == [["sweep-2", "3"], ["x", "2"], ["sweep-1", "1"]]
    assert [line[0] for line in table(sort="team", columns="job")[1:3]] == ["sweep-2", "sweep-1"]
    assert [line[0] for line in table(team=["nlp,vision"], columns="job")[1:]] == ["sweep-1", "sweep-2"]
    text = shown(format=Form.json, columns="job,gpus,until,team,submitted", sort="-gpus")
    expected = {"job": "a", "gpus": 4, "until": iso_time(NOW_S + 375), "team": None}
    assert json.loads(text)["jobs"][0] == {**expected, "submitted": iso_time(NOW_S)}
    assert [each["id"] for each in json.loads(shown(only=["running"], format=Form.json))["jobs"]] == ["a"]


def test_a_choice_that_makes_no_sense_is_refused(shown: Callable[..., str]) -> None:
    for chosen, refusal in (
        ({"only": ["runing"]}, 'did you mean "running"'),
        ({"columns": "usr"}, 'mean "user"'),
        ({"sort": "prio"}, "--sort prio: "),
    ):
        with pytest.raises(UsageError, match=refusal):
            shown(**chosen)
    with pytest.raises(UsageError, match="leave the job out"):
        shown("a", sort="job")


def test_a_pipe_gets_whole_lines_a_terminal_coloured_ones(dirs: StateDir, shown: Callable[..., str]) -> None:
    record(dirs, Event(NOW_S + 1, "requeue", "a", gpus=0, detail={"reason": "x y " * 40}))
    assert all("x y " * 39 in text for text in (shown(), shown("a"), shown(columns="job,why")))
    lines = status_text(Watcher(dirs.path).look(), NOW_S, 60).splitlines()
    assert max(map(width_of, lines)) <= 60
    assert " ".join(lines).count("x y") == 40
    coloured = with_colours("\n".join(lines))
    assert "\x1b[33mpreempted\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == "\n".join(lines)
    assert with_colours(shown("c")).count("\x1b[33mwaiting\x1b[0m") == 1


def test_a_job_page_counts_the_workers_lost_and_replaced(dirs: StateDir, shown: Callable[..., str]) -> None:
    lost = {"attempt": 1, "lost_workers": ["n0/1", "n0/2"], "reason": "exit code 9"}
    in_place = {"attempt": 1, "mechanism": "in place"}
    record(
        dirs,
        Event(NOW_S + 1, "progress", "a", detail=lost),
        Event(NOW_S + 2, "progress", "a", samples_done=2.0, detail={**in_place, "lost": True}),
    )
    assert re.search("(?m)^workers +2 lost, 0 replaced$", shown("a"))
    record(dirs, Event(NOW_S + 9, "progress", "a", samples_done=3.0, detail=in_place))
    page = shown("a")
    assert re.search("(?m)^workers +2 lost, 2 replaced$", page)
    assert "replaced the workers on n0/1, n0/2" in page


def test_a_job_that_was_overtaken_says_why_that_may_be(
    dirs: StateDir, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "\norder" not in shown("b"), "those that hold GPUs came first"
    record(
        dirs,
        Event(NOW_S + 1, "preempt", "a", gpus=0, placement=()),
        submit_event(job("z", at=NOW_S + 1), NOW_S + 1),
        start("z", 4, NOW_S + 2),
    )
    words = (
        "job z, submitted later, holds GPUs: policy fifo does not go by submission alone; without a profile"
    )
    assert re.search(f"(?m)^order +{words}", shown("b"))


def test_jobs_that_hold_gpus_are_shown_with_their_reports(busy: StateDir) -> None:
    measured = {"samples_per_second": 120.0, "step_seconds": 0.25, "loss": 1.5, "memory": 3 << 29}
    reports(busy, "a", NOW_S + 5, generation=3, **measured)
    log, uses = UseMeter(busy.path).look()
    table = top_text(sorted_uses(uses, "gpus"), NOW_S + 8).splitlines()
    assert [" ".join(line.split()) for line in table] == [
        "job user GPUs share samples/s per GPU step batch busy memory loss plan heard",
        "b B 4 50 % - - - 960 - - - - -",
        "a A 2 25 % 120 60 0.25 s 960 - 1.5 GiB 1.5 1.3 3 s ago",
    ]
    assert summary_line(log, uses) == "2 jobs on 6 of 8 GPUs, 1 without"
    reports(busy, "b", NOW_S + 9, samples_per_second=10.0)
    uses = [*used(busy).values()]
    orders = {by: [use.id for use in sorted_uses(uses, by)] for by in ("gpus", "speed", "job", "heard")}
    assert orders == {"gpus": ["b", "a"], "speed": ["a", "b"], "job": ["a", "b"], "heard": ["a", "b"]}


def test_a_report_of_an_earlier_attempt_or_a_torn_one_is_ignored(busy: StateDir) -> None:
    reports(busy, "a", attempt=1, samples_per_second=120.0)
    record(busy, Event(NOW_S + 2, "progress", "a", samples_done=1.0, detail={"attempt": 2}))
    reports(busy, "b")
    busy.job("b").progress.write_bytes(b'{"schema": "pliant.prog')
    assert [(use.progress, use.reported_s) for use in used(busy).values()] == [(None, None), (None, None)]


@given(st.integers(8, 120), st.floats(0, 1e300), st.text(max_size=40))
@settings(
    deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_line_is_wider_than_the_terminal(busy: StateDir, width: int, speed: float, user: str) -> None:
    reports(busy, "a", samples_per_second=speed, loss=-speed, step_seconds=1e-9)
    uses = [*used(busy).values()]
    uses[0].job.job = uses[0].job.job.model_copy(update={"user": user})
    assert max(map(width_of, top_text(uses, NOW_S + 1e6, width).splitlines())) <= width


def test_shared_gpus_count_once_in_all_and_one_half_for_each_job(busy: StateDir) -> None:
    record(busy, replace(start("c", 2, NOW_S + 2), detail={"beside": "a"}))
    uses = used(busy)
    assert (uses["a"].share, uses["c"].share, uses["a"].job.beside) == (1 / 8, 1 / 8, "c")
    assert summary_line(read_log(busy.path), [*uses.values()]) == "3 jobs on 6 of 8 GPUs, 0 without"
