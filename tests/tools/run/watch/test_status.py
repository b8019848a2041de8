"""``pliant status`` on state directories as runs leave them: any terminal, programs, one job in detail."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pliant.cli import status as watching
from pliant.cli.schedule import schedule
from pliant.cli.status import Form, status
from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_schedule, write_cluster, write_schedule
from pliant.schemas.text import iso_time, width_of
from pliant.tools.run.backends.protocol import Handle, LaunchRecord, StartedUnit, write_record
from pliant.tools.run.doctor import examine
from pliant.tools.run.service import submit
from pliant.tools.run.statedir.contract.plan import Member, Plan, write_progress
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import decision_event, run_event, submit_event
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch import job_page
from pliant.tools.run.watch import status as watch_status
from pliant.tools.run.watch.job_page import history, job_fields, status_document
from pliant.tools.run.watch.job_status import STATES, in_order, statuses
from pliant.tools.run.watch.screen import status_text
from pliant.tools.run.watch.status import Status, Watcher, launched_jobs, outlook
from pliant.tools.run.watch.top import UseMeter, summary_line
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.policy import Reserved
from tests.builders import cluster, job
from tests.effort import examples
from tests.tools.run.statedir.contract.test_progress import report
from tests.tools.run.stories import Story
from tests.tools.schedule.foreign import Foreign

ROOT = Path(__file__).resolve().parents[4]


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
def test_no_line_is_wider_than_the_terminal_no_number_is_broken_and_programs_find_each_job_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int, width: int, policy: str, explain: bool
) -> None:
    told = Story(seed, policy)
    told.go_on(steps)
    seen = Watcher(told.write(tmp_path_factory.mktemp("site") / "state").path)
    found = seen.look(ahead=True)
    whole = status_text(found, told.now_s, explain=explain)
    fitted = status_text(found, told.now_s, width, explain=explain)
    assert max(map(width_of, fitted.splitlines())) <= width
    assert [line.split()[0] for line in fitted.splitlines()] == [
        line.split()[0] for line in whole.splitlines()
    ]
    for narrow, wide in zip(fitted.splitlines(), whole.splitlines(), strict=True):
        assert numbers(narrow) <= numbers(wide)
    jobs = statuses(found, told.now_s)
    for each in jobs:
        page = job_page.job_page(
            *(each, found, history(seen.dirs, each.id), ["ValueError: 12345"], told.now_s),
            state=seen.dirs.path,
            width=width,
        )
        assert max(map(width_of, page.splitlines())) <= width
    document = json.loads(status_document(found, map(job_fields, jobs), told.now_s))
    assert document["schema"] == "pliant.status/1.3"
    known = {*told.session.jobs, *told.session.ended}
    assert sorted(each["id"] for each in document["jobs"]) == sorted(known)
    assert {each["state"] for each in document["jobs"]} <= set(STATES)


def test_an_id_longer_than_the_terminal_is_cut_and_every_state_is_shown_beside_it() -> None:
    found = Status(RunLog(), submitted=((job("experiment-" + "x" * 100), NOW_S), (job("short"), NOW_S)))
    lines = status_text(found, 0.0, 40).splitlines()
    assert lines[1].startswith("experiment-xx")
    assert [line.split()[-1] for line in lines] == ["state", "submitted", "submitted"]
    assert "…  submitted" in lines[1]
    assert max(map(len, lines)) <= 40
    assert status_text(found, 0.0, 15).splitlines()[1] == "experiment-xxx…", "no room for the state"


NOW_S = 1_700_000_000.0


def running(state: Path, *more: Event) -> StateDir:
    """A directory where ``a`` runs on all GPUs of a cluster, at a fifth of the speed that is predicted."""
    nodes = cluster(4)
    jobs = [job(name, at=NOW_S, gpus=4, gpu_seconds=400.0) for name in "abc"]
    decided = decide(jobs, nodes, None, Question("fifo"), now_s=NOW_S)
    first = {"attempt": 1, "after": "start"}
    with State(state) as held:
        held.record(
            [
                run_event(decided, "hash", NOW_S),
                *(submit_event(each, NOW_S, {"samples": 400.0}) for each in jobs),
                decision_event(NOW_S, 0.0, "fifo", None),
                Event(NOW_S, "start", "a", gpus=4, placement=(("n0", 4),), global_batch=960),
                Event(NOW_S, "progress", "a", samples_done=1.0, overhead_seconds=2.0, detail=first),
                *more,
            ]
        )
    dirs = StateDir(state)
    write_cluster(nodes, dirs.cluster)
    write_schedule(decided, dirs.schedule)
    dirs.job("a").path.mkdir(parents=True)
    write_progress(dirs.job("a").progress, report(100.0, samples_per_second=0.8, gpus=4, global_batch=960))
    return dirs


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)


def test_status_and_schedule_predict_the_same_from_the_measured_speed(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = running(tmp_path / "state")
    expected = Watcher(dirs.path).look(ahead=True).outlook or {}
    assert expected["a"].end_s == NOW_S + 300 / 0.8
    assert [expected[name].start_s for name in "bc"] == [NOW_S + 375, NOW_S + 875]
    schedule(policy="fifo", state=str(dirs.path), explain=True, output=str(tmp_path / "s.json"))
    found = read_schedule(tmp_path / "s.json")
    ends = [given.predicted_end for given in found.allocations]
    starts = [verdict.predicted_start for verdict in found.waiting]
    shift_s = found.time - NOW_S  # schedule decides by the clock
    assert ends == [pytest.approx((expected["a"].end_s or 0.0) + shift_s)]
    assert starts == [pytest.approx((expected[name].start_s or 0.0) + shift_s) for name in "bc"]


def test_programs_read_what_jobs_are_to_hold_later(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under a policy that books slots ahead: when, on which nodes, in times of day."""
    late_s = NOW_S + 100.0  # the second of four slots, each for all GPUs of the cluster
    nodes = cluster(4)
    worth = {"shape": "step", "value": 10.0, "target": 1000.0}
    jobs = [job("a", at=0.0, gpus=4, gpu_seconds=1600.0, utility=worth)]
    decided = decide(
        jobs, nodes, None, Question("oasis", {"slot_seconds": 100.0, "rescale_s": 0.0}), now_s=0.0
    )
    dirs = StateDir(tmp_path / "state")
    with State(dirs.path) as held:
        submitted = [submit_event(each, NOW_S, {"samples": 1600.0}) for each in jobs]
        held.record(
            [run_event(decided, "hash", NOW_S), *submitted, decision_event(NOW_S, NOW_S, "oasis", 0.1)]
        )
    write_cluster(nodes, dirs.cluster)
    write_schedule(decided, dirs.schedule)
    status(state=dirs.path, format=Form.json)
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "pliant.status/1.3"
    spans = sorted(
        (span for each in document["jobs"] for span in each["reserved"]), key=lambda span: span["from_at"]
    )
    assert spans[0]["from_at"] == iso_time(late_s)
    assert [span["until_at"] for span in spans[:-1]] == [span["from_at"] for span in spans[1:]]
    assert spans[-1]["until_at"] == iso_time(NOW_S + 400.0)
    assert {(span["gpus"], *span["placement"].items()) for span in spans} == {(4, ("n0", 4))}
    assert all(span["servers"] == {} for span in spans)


def test_what_was_reserved_until_now_is_not_to_come(tmp_path: Path) -> None:
    spans = (Reserved(NOW_S - 20, NOW_S - 10, (("n0", 4),)), Reserved(NOW_S - 10, NOW_S + 10, (("n0", 2),)))
    known = Watcher(running(tmp_path / "state").path).look()
    found = statuses(replace(known, reserved={"b": spans}), NOW_S)
    assert [each.reserved for each in found] == [(), spans[1:], ()]


def test_one_job_is_described_with_what_happened_to_it_and_its_last_words(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = {"attempt": 1, "reason": "exit code 7", "failures": 1, "retries": 3, "wait_seconds": 1.0}
    requeue = Event(NOW_S + 60, "requeue", "a", gpus=0, placement=(), detail=detail)
    dirs = running(tmp_path / "state", requeue)
    errors = dirs.job("a").attempt(1).logs / "0" / "x" / "attempt_0" / "0"
    errors.mkdir(parents=True)
    (errors / "stderr.log").write_text("Traceback\n  line 12\nValueError: \x1b[2J no data\n")
    status("a", state=dirs.path)
    text = capsys.readouterr().out
    assert re.search(r"^state +retrying$", text, re.MULTILINE)
    assert re.search(r"^why +retry 1 of 3 in \d+ s: exit code 7$", text, re.MULTILINE)
    happened = text[text.index("history") : text.index("last error lines")].splitlines()
    told = ["submitted", "started on 4 GPUs (n0:4), batch 960", "stopped: exit code 7"]
    assert [line.endswith(words) for line, words in zip(happened[1:4], told, strict=True)] == [True] * 3
    assert text.endswith("  ValueError: \\x1b[2J no data\n")


def test_what_is_not_there_is_an_error_that_says_what_is(tmp_path: Path) -> None:
    dirs = running(tmp_path / "state")
    with pytest.raises(UsageError, match="has no job z; it has 3 jobs: pliant status lists them"):
        status("z", state=dirs.path)
    with pytest.raises(UsageError, match=r'has no job A; did you mean "a"\?'):
        status("A", state=dirs.path)
    with pytest.raises(UsageError, match=r"no state directory .*: name the folder that pliant run or"):
        Watcher(tmp_path)


def test_every_field_is_in_the_documentation(tmp_path: Path, at_once: None) -> None:
    dirs = running(tmp_path / "state")
    found = Watcher(dirs.path).look(ahead=True)
    text = (ROOT / "docs" / "running-json.md").read_text()
    fields: dict[str, Any] = job_fields(statuses(found, NOW_S)[0])
    document = json.loads(status_document(found, (), NOW_S))
    named = {*fields, *document, "history", "error_lines", *STATES}
    assert [name for name in sorted(named) if f"`{name}`" not in text] == []


def test_a_look_that_finds_nothing_new_asks_no_policy(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(*given: Any) -> Any:
        asked.append(1)
        return outlook(*given)

    monkeypatch.setattr(watch_status, "outlook", counted)
    monkeypatch.setattr(watch_status, "AHEAD_S", float("inf"))
    seen = Watcher(running(tmp_path / "state").path)
    assert seen.look(ahead=True).outlook == seen.look(ahead=True).outlook
    assert len(asked) == 1
    assert in_order(read_log(seen.dirs.path))[0].job.id == "a"


def test_a_pipe_that_watches_gets_a_table_for_each_change(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = running(tmp_path / "state")
    done = Event(NOW_S + 9, "finish", "a", gpus=0, placement=())

    def happens() -> Iterator[bool]:
        yield from (False, False)
        with State(dirs.path) as held:
            held.record([done])
        yield from (False, False, True)

    left = happens()
    monkeypatch.setattr(watching, "LOOK_S", 0.0)
    monkeypatch.setattr(watching, "reader_left", lambda _: next(left))
    with pytest.raises(BrokenPipeError):
        status(state=dirs.path, watch=True)
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.splitlines()[1].split()[:2] == ["a", "running"]
    assert second.splitlines()[1].split()[:2] == ["a", "finished"]


def under(mine: Foreign, body: str, state: Path) -> StateDir:
    """As :func:`running`, where a policy of another package decides from now on."""
    mine.is_written(body, "")
    dirs = running(state)
    found = read_schedule(dirs.schedule)
    use = found.policy.model_copy(update={"name": "mine", "parameters": {}})
    write_schedule(found.model_copy(update={"policy": use, "policy_state": None}), dirs.schedule)
    return dirs


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    return Foreign(tmp_path, monkeypatch)


def test_a_job_waits_for_as_many_gpus_as_the_policy_says(tmp_path: Path, at_once: None) -> None:
    with State(tmp_path / "state") as held:
        nodes, small = cluster(2), job("m1", at=NOW_S, work={"samples": 1e6})
        large = job("m2", at=NOW_S + 1, gpus=2, low=1, work={"samples": 1e6})
        decided = decide([small, large], nodes, None, Question("fifo"), now_s=NOW_S)
        held.record(
            [
                run_event(decided, "hash", NOW_S),
                *(submit_event(each, NOW_S, {"samples": 1e6}) for each in (small, large)),
                Event(NOW_S, "start", "m1", gpus=1, placement=(("n0", 1),), global_batch=960),
            ]
        )
    write_cluster(nodes, StateDir(tmp_path / "state").cluster)
    write_schedule(decided, StateDir(tmp_path / "state").schedule)
    found = Watcher(tmp_path / "state").look(ahead=True)
    (waiting,) = [each for each in statuses(found, NOW_S + 2) if each.id == "m2"]
    assert (waiting.brief, waiting.why) == ("for 2 GPUs, next", "waits for 2 GPUs; it is next")
    assert job_fields(waiting)["needs_gpus"] == 2
    unasked = Watcher(tmp_path / "state").look()
    assert "for at least 1 GPU" in status_text(unasked, NOW_S + 2)


def test_a_waiting_job_names_the_free_gpus_of_nodes_that_are_drained_or_down(tmp_path: Path) -> None:
    dirs = running(
        tmp_path / "state",
        Event(NOW_S + 1, "drain", detail={"number": 1, "node": "n1", "user": "ada"}),
        Event(NOW_S + 1, "drain", detail={"number": 2, "node": "n0", "user": "ada"}),
    )
    write_cluster(cluster(4, 4, 4, 4), dirs.cluster)
    (waiting,) = [each for each in statuses(Watcher(dirs.path).look(), NOW_S + 2) if each.id == "b"]
    assert waiting.why == "waits for 4 GPUs; 1 other job waits; 4 GPUs free on n1, which is drained"
    assert waiting.brief == "for 4 GPUs; n1 is drained"
    with State(dirs.path) as held:
        held.record([Event(NOW_S + 2, "node_down", detail={"node": "n2", "reason": "dead"})])
    (waiting,) = [each for each in statuses(Watcher(dirs.path).look(), NOW_S + 2) if each.id == "b"]
    assert waiting.why.endswith("n1, which is drained; n2 with 4 GPUs is down")
    assert waiting.brief == "for 4 GPUs; 2 nodes are drained or down"
    write_cluster(cluster(4), dirs.cluster)
    (waiting,) = [each for each in statuses(Watcher(dirs.path).look(), NOW_S + 2) if each.id == "b"]
    assert waiting.why.endswith("; node n0 is drained"), "none is in service"


def test_a_policy_that_fails_is_named_with_its_place(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    error = "policy \"mine\" (mine.py:3): KeyError: 'x'"
    dirs = running(tmp_path / "state", decision_event(NOW_S + 1, 0.0, "mine", None, error=error))
    status(state=dirs.path)
    said = capsys.readouterr()
    assert said.out.count("for 4 GPUs; the policy fails") == 2
    assert f"the policy fails: {error}; what runs goes on as it is" in said.err
    status("b", state=dirs.path)
    assert error in capsys.readouterr().out
    status(state=dirs.path, format=Form.json)
    assert json.loads(capsys.readouterr().out)["policy_error"] == error
    with State(dirs.path) as held:
        held.record([decision_event(NOW_S + 2, 0.0, "mine", 0.1)])
    status(state=dirs.path)
    assert "policy fails" not in "".join(capsys.readouterr())


def test_what_a_policy_prints_spoils_no_document(
    mine: Foreign, tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "def decide(self, snapshot, rng):\n    print('thinking')\n    return Decision()"
    status(state=under(mine, body, tmp_path / "state").path, format=Form.json)
    said = capsys.readouterr()
    assert [each["id"] for each in json.loads(said.out)["jobs"]] == ["a", "b", "c"]
    assert "thinking" in said.err


@pytest.mark.parametrize(
    "body", ["raise RuntimeError('not now')", "raise SystemExit(7)", "while True:\n        pass"]
)
def test_a_policy_that_fails_ends_the_process_or_never_answers_hides_no_job(
    mine: Foreign, tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(watch_status, "WITHIN_S", 0.2)
    dirs = under(mine, f"def decide(self, snapshot, rng):\n    {body}", tmp_path / "state")
    shown = status_text(Watcher(dirs.path).look(ahead=True), NOW_S)
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
        ["a", "running"],
        ["b", "waiting"],
        ["c", "waiting"],
    ]
    assert "in 6 min" in shown, "the end of a follows from its own speed"
    assert shown.count("for 4 GPUs") == 2


def started(state: Path, *, elastic: str) -> StateDir:
    """A directory where ``a`` was given its GPUs and its launcher is not there yet."""
    with State(state) as held:
        each = job("a", at=NOW_S, elastic=elastic)
        start = Event(NOW_S, "start", "a", gpus=1, placement=(("n0", 1),), global_batch=960)
        held.record([submit_event(each, NOW_S), start])
    return StateDir(state)


def state_of(dirs: StateDir) -> str:
    (found,) = statuses(Watcher(dirs.path).look(), NOW_S + 9)
    return found.state


@pytest.mark.parametrize(("elastic", "then"), [("none", "running"), ("size", "starting")])
def test_a_job_whose_script_need_not_report_runs_once_its_launcher_lives(
    tmp_path: Path, elastic: str, then: str
) -> None:
    dirs = started(tmp_path / "state", elastic=elastic)
    assert state_of(dirs) == "starting"
    attempt = dirs.job("a").attempt(1)
    attempt.path.mkdir(parents=True)
    units = (StartedUnit(node="n0", argv=(), cwd="", env={}),) * 2
    write_record(Handle("a", 1, attempt.path), LaunchRecord(job="a", attempt=1, backend="local", units=units))
    assert state_of(dirs) == then
    assert launched_jobs(dirs, Watcher(dirs.path).look().log) == ({"a"} if then == "running" else set())
    attempt.exit_code(0).write_text("1")
    assert state_of(dirs) == then, "one of its two processes is left"
    attempt.exit_code(1).write_text("1")
    (found,) = statuses(Watcher(dirs.path).look(), NOW_S + 9)
    assert (found.state, found.until_s) == ("ending", None)
    assert found.why == "its processes have ended; the next call of pliant run records how"
    with State(dirs.path):
        assert state_of(dirs) == then, "the run that holds the directory records it at once"


@pytest.mark.parametrize(("state", "asked"), [("ending", "hold"), ("cancelling", "cancel")])
def test_of_a_job_that_has_ended_table_and_program_say_so_whatever_was_ordered_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, asked: str
) -> None:
    monkeypatch.setattr(submit, "user_name", lambda: "ada")
    dirs = started(tmp_path / "state", elastic="none")
    attempt = dirs.job("a").attempt(1)
    attempt.path.mkdir(parents=True)
    units = (StartedUnit(node="n0", argv=(), cwd="", env={}),)
    write_record(Handle("a", 1, attempt.path), LaunchRecord(job="a", attempt=1, backend="local", units=units))
    attempt.exit_code(0).write_text("0")
    if asked == "cancel":
        submit.cancel(dirs.path, ["a"])
    else:
        submit.order_jobs(dirs.path, "hold", ["a"])
    (found,) = statuses(Watcher(dirs.path).look(), NOW_S + 9)
    assert (found.state, found.brief) == (state, "ended, to be recorded")
    assert found.why.startswith("its processes have ended; the next call of pliant run records how")
    assert found.why.endswith("; ada has ordered to hold it") == (asked == "hold")
    log, uses = UseMeter(dirs.path).look()
    assert (uses, summary_line(log, uses)) == (
        [],
        "0 jobs on 0 of 0 GPUs, 0 without, 1 ended, to be recorded",
    )


def under_way(dirs: StateDir, **more: Any) -> None:
    known: dict[str, Any] = {"job": "a", "generation": 1, "attempt": 1, "global_batch": 960}
    member = Member(slot="n0/0", node="n0", address="127.0.0.1")
    plan = Plan(**{**known, "members": (member,), **more})
    dirs.job("a").path.mkdir(parents=True, exist_ok=True)
    dirs.job("a").plan.write_text(plan.model_dump_json())
    write_progress(dirs.job("a").progress, report(100.0, gpus=1, global_batch=960, samples_per_second=2.0))


def test_a_job_runs_as_soon_as_its_workers_report_though_no_call_has_written_that_down(
    tmp_path: Path,
) -> None:
    """Between two turns of cron the log does not know of its first step."""
    dirs = started(tmp_path / "state", elastic="size")
    assert state_of(dirs) == "starting"
    under_way(dirs)
    (found,) = statuses(Watcher(dirs.path).look(), NOW_S + 9)
    assert (found.state, found.why, found.samples_per_second) == ("running", "", 2.0)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"generation": 2}, id="of the GPUs that it had before"),
        pytest.param({"attempt": 2}, id="of the attempt before"),
        pytest.param({"abort": True}, id="of workers that are to leave"),
        pytest.param({"global_batch": 480}, id="of another batch"),
    ],
)
def test_a_report_from_before_the_last_change_does_not_make_a_job_run(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    dirs = started(tmp_path / "state", elastic="size")
    under_way(dirs, **other)
    assert state_of(dirs) == "starting"


def test_a_job_that_is_resized_before_its_first_step_is_still_starting(tmp_path: Path) -> None:
    dirs = started(tmp_path / "state", elastic="size")
    shrink = Event(NOW_S + 5, "shrink", "a", gpus=1, placement=(("n0", 1),), global_batch=480)
    with State(dirs.path) as held:
        held.record([shrink])
    (found,) = statuses(Watcher(dirs.path).look(), NOW_S + 9)
    assert (found.state, found.why) == ("starting", "for 9 s")
    with State(dirs.path) as held:
        first = {"attempt": 1, "after": "shrink"}
        held.record([Event(NOW_S + 9, "progress", "a", samples_done=1.0, detail=first)])
        held.record([replace(shrink, time=NOW_S + 10, global_batch=240)])
    (found,) = statuses(Watcher(dirs.path).look(), NOW_S + 12)
    assert (found.state, found.why) == ("shrinking", "for 2 s")


def test_after_a_turn_of_cron_no_loop_is_advised(tmp_path: Path, at_once: None, capsys: Any) -> None:
    dirs = running(tmp_path / "state")
    status(state=dirs.path)
    assert f"go on with: pliant run --follow --state {dirs.path}" in capsys.readouterr().err
    with State(dirs.path) as held:
        held.record([decision_event(NOW_S, 0.0, "fifo", None, once=True)])
    status(state=dirs.path)
    status("a", state=dirs.path)
    said = capsys.readouterr()
    assert "--follow" not in said.out + said.err
    assert "the next call of pliant run goes on (the last wrote at" in said.err
    (check,) = [check for check in examine(dirs.path) if check.area == "service"]
    assert (check.verdict, "--follow" in check.text + check.advice) == ("ok", False)


def test_a_clock_that_was_set_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = running(tmp_path / "state")
    monkeypatch.setattr("time.time", lambda: NOW_S - 86400.0)
    status(state=dirs.path)
    assert "the log is 1 d ahead of this machine's clock, which was set back" in capsys.readouterr().err
    status(state=dirs.path, format=Form.json)
    assert json.loads(capsys.readouterr().out)["log_ahead_seconds"] == 86400.0


def test_a_predicted_start_is_an_interval_that_holds_while_the_speed_goes_up_and_down(
    tmp_path: Path, at_once: None
) -> None:
    """By the time of a step it is 1 sample/s; over the last second it is more, less, or next to none."""
    dirs = running(tmp_path / "state")
    likely, spans = [], []
    for speed in (0.5, 1.5, 0.8, 1.2, 0.001):
        measured = report(*(100.0,), samples_per_second=speed, step_seconds=960.0, gpus=4, global_batch=960)
        write_progress(dirs.job("a").progress, measured)
        found = (Watcher(dirs.path).look(ahead=True).outlook or {})["b"]
        assert found.start_s is not None
        assert found.between_s is not None
        assert found.source == "measured"
        likely.append(found.start_s - NOW_S)
        spans.append([at_s - NOW_S for at_s in found.between_s])
    *usual, stalled = likely
    alone = [300 / speed for speed in (0.5, 1.5, 0.8, 1.2)]
    assert max(usual) / min(usual) < 0.6 * max(alone) / min(alone), "it jumps less than the speed does"
    assert all(first <= 300.0 <= last for first, last in spans[:-1]), "at the speed that it has on average"
    first_s, last_s = spans[-1]
    assert first_s <= stalled <= last_s <= 2 * stalled, "it evaluates, or its disk is busy"


def test_the_source_and_the_interval_of_a_predicted_start_are_shown(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = running(tmp_path / "state")
    found = (Watcher(dirs.path).look(ahead=True).outlook or {})["b"]
    assert (found.start_s, found.source) == (NOW_S + 375, "measured")
    assert found.between_s == (pytest.approx(NOW_S + 375 / 1.3), pytest.approx(NOW_S + 375 / 0.7))
    status("b", state=dirs.path)
    shown = re.search("(?m)^starts +(.*)$", capsys.readouterr().out)
    assert shown is not None
    assert re.fullmatch(r"in 5 to 9 min \(\d\d:\d\d\), at measured speeds", shown[1])
    status("b", state=dirs.path, format=Form.json)
    (fields,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (fields["id"], fields["state"], fields["jobs_ahead"]) == ("b", "waiting", 0)
    assert fields["predicted_start_at"] == "2023-11-14T22:19:35.000Z"
    assert [each["event"] for each in fields["history"]] == ["submit"]
    assert fields["predicted_from"] == "measured"
    assert fields["predicted_start_between"] == [iso_time(at_s) for at_s in found.between_s]


def test_where_all_jobs_run_at_a_measured_speed_no_policy_is_asked(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = (Event(NOW_S + 1, "cancel", name, gpus=0, placement=()) for name in "bc")
    dirs = running(tmp_path / "state", *gone)

    def asked(*_: object, **__: object) -> None:
        pytest.fail("it has nothing to add")

    monkeypatch.setattr("pliant.tools.run.watch.status.session_from_history", asked)
    (ends,) = (Watcher(dirs.path).look(ahead=True).outlook or {}).values()
    assert ends.end_s == pytest.approx(NOW_S + 1 + 300 / 0.8)


def test_jobs_are_chosen_by_user_and_state_and_columns_by_name(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = running(tmp_path / "state")
    with State(dirs.path) as held:
        held.record([submit_event(job("d", at=NOW_S, user="ada"), NOW_S), submit_event(job("e"), NOW_S)])
    status(state=dirs.path, user=["ada,bob"], columns="job,user,state,gpus")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["job", "user", "state", "GPUs/batch"],
        ["d", "ada", "waiting", "-"],
    ]
    status(state=dirs.path, only=["running"], output=Form.json)
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["jobs"]] == ["a"]
    for wrong, words in (
        ({"only": ["runing"]}, 'did you mean "running"'),
        ({"columns": "usr"}, 'mean "user"'),
    ):
        with pytest.raises(UsageError, match=words):
            status(state=dirs.path, **wrong)  # type: ignore[arg-type]


def test_users_and_teams_are_shown_where_there_are_several_and_jobs_are_chosen_and_sorted_by_any_column(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    dirs = running(tmp_path / "state")
    told = [("sweep-1", "ada", "vision", 1.0), ("sweep-2", "ada", "nlp", 3.0), ("x", "ada", "", 2.0)]
    with State(dirs.path) as held:
        for name, user, team, worth in told:
            new = job(name, at=NOW_S, user=user, team=team, priority=worth)
            held.record([submit_event(new, NOW_S)])

    def shown(**chosen: Any) -> list[list[str]]:
        status(state=dirs.path, **chosen)
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    assert shown()[0][:4] == ["job", "user", "team", "state"]
    assert shown(pattern=["sweep-*"])[0][:3] == ["job", "team", "state"], "all are ada's"
    assert shown(pattern=["b,c"])[0][:2] == ["job", "state"]
    ordered = shown(user=["ada"], sort="-priority", columns="job,priority")[1:]
    assert ordered == [["sweep-2", "3"], ["x", "2"], ["sweep-1", "1"]]
    assert [line[0] for line in shown(sort="team", columns="job")[1:3]] == ["sweep-2", "sweep-1"]
    assert [line[0] for line in shown(team=["nlp,vision"], columns="job")[1:]] == ["sweep-1", "sweep-2"]
    status(state=dirs.path, format=Form.json, columns="job,gpus,until,team,submitted", sort="-gpus")
    first, *_ = json.loads(capsys.readouterr().out)["jobs"]
    expected = {"job": "a", "gpus": 4, "until": iso_time(NOW_S + 375), "team": None}
    assert first == {**expected, "submitted": iso_time(NOW_S)}
    with pytest.raises(UsageError, match="--sort prio: "):
        status(state=dirs.path, sort="prio")
    with pytest.raises(UsageError, match="leave the job out"):
        status("a", state=dirs.path, sort="job")


def test_a_pipe_gets_lines_of_80_columns_and_columns_by_name_whole(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    dirs = running(
        tmp_path / "state", Event(NOW_S + 1, "requeue", "a", gpus=0, detail={"reason": "x y " * 40})
    )
    status(state=dirs.path)
    status("a", state=dirs.path)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(width_of, lines)) <= 80
    assert lines[1].endswith("…")
    status(state=dirs.path, columns="job,why")
    assert "x y " * 39 in capsys.readouterr().out


def test_a_job_page_tells_of_workers_lost_and_replaced(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {"attempt": 1, "lost_workers": ["n0/1", "n0/2"], "reason": "exit code 9"}
    in_place = {"attempt": 1, "mechanism": "in place"}
    dirs = running(
        tmp_path / "state",
        Event(NOW_S + 1, "progress", "a", detail=lost),
        Event(NOW_S + 2, "progress", "a", samples_done=2.0, detail={**in_place, "lost": True}),
    )
    status("a", state=dirs.path)
    assert re.search("(?m)^workers +2 lost, 0 replaced$", capsys.readouterr().out)
    with State(dirs.path) as held:
        held.record([Event(NOW_S + 9, "progress", "a", samples_done=3.0, detail=in_place)])
    status("a", state=dirs.path)
    shown = capsys.readouterr().out
    assert re.search("(?m)^workers +2 lost, 2 replaced$", shown)
    assert "replaced the workers on n0/1, n0/2" in shown


def test_before_the_first_run_cron_is_as_good_as_a_loop(tmp_path: Path, capsys: Any) -> None:
    with State(tmp_path / "state"):
        pass
    status(state=tmp_path / "state")
    assert "begin one with pliant run --state" in capsys.readouterr().err


def test_a_job_that_later_ones_have_overtaken_says_why_that_may_be(
    tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    dirs = running(tmp_path / "state")
    status("b", state=dirs.path)
    assert "\norder" not in capsys.readouterr().out, "those that hold GPUs came first"
    with State(dirs.path) as held:
        held.record(
            [
                Event(NOW_S + 1, "preempt", "a", gpus=0, placement=()),
                submit_event(job("z", at=NOW_S + 1), NOW_S + 1),
                Event(NOW_S + 2, "start", "z", gpus=4, placement=(("n0", 4),), global_batch=960),
            ]
        )
    status("b", state=dirs.path)
    words = (
        "job z, submitted later, holds GPUs: policy fifo does not go by submission alone; without a profile"
    )
    assert re.search(f"(?m)^order +{words}", capsys.readouterr().out)
