from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_jobs, write_cluster, write_schedule
from pliant.schemas.job import Job
from pliant.tools.run.service.submit import cancel, order_jobs, submit
from pliant.tools.run.statedir import requests as spool
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import cancel_event, submit_event
from pliant.tools.run.statedir.log.fold import JobLog, RunLog, fold
from pliant.tools.run.statedir.requests import Order, Spool, requested, unheard
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import Question, decide
from tests.builders import cluster, job

NOW_S = 2e9


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state")


def runs(job_id: str, **more: object) -> Job:
    return job(job_id, command=("train.py",), **more)  # type: ignore[arg-type]


def ask(dirs: StateDir, *jobs: Job) -> list[str]:
    return submit(dirs.path, jobs, "jobs.jsonl", folder=dirs.path.parent, now_s=NOW_S, check_scripts=False)


def heard(dirs: StateDir, log: RunLog | None = None, until_s: float = NOW_S) -> list[str]:
    found = unheard(Spool(dirs).requests(), log or RunLog(), until_s)
    return [f"cancel {it}" if isinstance(it, str) else f"submit {it.id}" for it in found]


def begun(dirs: StateDir, *jobs: Job) -> None:
    """Jobs were submitted, and there was a run, so that a cancelled job is not withdrawn."""
    ask(dirs, *jobs)
    dirs.cluster.write_text("there was a run")


def short(*_: object) -> None:
    """No file can be opened for a moment."""
    raise OSError(errno.EMFILE, "Too many open files")


def test_what_is_submitted_lies_in_the_spool_as_a_job_file_with_its_folder_and_time_written_out(
    dirs: StateDir,
) -> None:
    assert ask(dirs, runs("b", at=5.0), runs("a", at=NOW_S + 60)) == ["b", "a"]
    (path,) = dirs.spool.glob("*.jobs.jsonl")
    first, second = read_jobs(path)
    assert (first.submit_time, second.submit_time) == (NOW_S + 5, NOW_S + 60)
    assert first.workdir == str(dirs.path.parent)


def test_requests_keep_their_order_when_the_clock_is_set_back(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([500, 500, 300, 300, 100, 100])
    monkeypatch.setattr(spool.time, "time_ns", lambda: next(times))
    for name in ("c", "b", "a"):
        ask(dirs, runs(name))
    assert heard(dirs) == ["submit c", "submit b", "submit a"]


@pytest.mark.parametrize("where", ["spool", "log", "schedule"])
def test_an_id_that_is_in_use_is_refused_wherever_it_is(dirs: StateDir, where: str) -> None:
    if where == "spool":
        ask(dirs, runs("a"))
    elif where == "log":
        with State(dirs.path) as state:
            state.record([submit_event(runs("a"), 1.0)])
    else:
        dirs.path.mkdir()
        found = decide([runs("a", at=9.0)], cluster(2), None, Question("fifo"), now_s=0)
        write_schedule(found, dirs.schedule)
    with pytest.raises(BadInputError, match=r'jobs.jsonl: job "a" was submitted to .* before'):
        ask(dirs, runs("b"), runs("a"))
    assert "submit b" not in heard(dirs)


def test_a_job_that_the_cluster_cannot_run_is_refused_if_the_cluster_is_known(dirs: StateDir) -> None:
    dirs.path.mkdir()
    write_cluster(cluster(2), dirs.cluster)
    with pytest.raises(BadInputError, match='job "a" needs 3 GPUs, the cluster has 2'):
        ask(dirs, runs("a", gpus=3))


def test_a_job_without_a_command_or_folder_is_refused_and_no_state_directory_is_made(dirs: StateDir) -> None:
    with pytest.raises(BadInputError) as error:
        ask(dirs, job("a"), runs("b", workdir="nowhere"))
    assert [line.split(": ", 2)[1] for line in str(error.value).splitlines()] == ["/command", "/workdir"]
    assert not dirs.path.exists()


def test_a_job_that_is_cancelled_before_its_time_arrives_first(dirs: StateDir) -> None:
    begun(dirs, runs("soon"), runs("later", at=100.0), runs("never", at=200.0))
    cancel(dirs.path, ["later"])
    assert heard(dirs) == ["submit soon", "submit later", "cancel later"]


def test_what_the_log_holds_is_not_heard_again_and_settles_the_request(dirs: StateDir) -> None:
    begun(dirs, runs("a"), runs("b", at=100.0))
    cancel(dirs.path, ["a"])
    events: list[Event] = [submit_event(runs("a"), 1.0), cancel_event("a", 2.0)]
    spool, log = Spool(dirs), fold(events)
    assert heard(dirs, log) == []
    spool.settle(log)
    assert [path.suffixes[-2:] for path in dirs.spool.glob("*.j*")] == [[".jobs", ".jsonl"]]
    spool.settle(fold([*events, submit_event(runs("b"), 3.0)]))
    assert list(dirs.spool.glob("*.j*")) == []


class Past(dict[str, JobLog]):
    """Jobs of years: to go through them all at every look would take a core."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all jobs that ever were are gone through")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_while_a_request_waits_no_one_goes_through_the_jobs_of_the_past(dirs: StateDir) -> None:
    log = fold([submit_event(runs("old"), 1.0), Event(2.0, "finish", "old", gpus=0)])
    log.jobs = Past(log.jobs)
    begun(dirs, runs("a"), runs("later", at=1000.0))
    cancel(dirs.path, ["a"])
    assert heard(dirs, log) == ["submit a", "cancel a"]
    Spool(dirs).settle(log)


def test_cancelling_twice_or_what_has_ended_is_harmless(dirs: StateDir) -> None:
    begun(dirs, runs("a"))
    for _ in range(2):
        cancel(dirs.path, ["a"])
    log = fold([submit_event(runs("a"), 1.0), Event(2.0, "finish", "a", gpus=0)])
    assert heard(dirs, log) == []
    assert len(list(dirs.spool.glob("*.cancel.json"))) == 1


def test_an_unknown_job_cancels_nothing(dirs: StateDir) -> None:
    ask(dirs, runs("a"))
    with pytest.raises(UsageError, match=r"has no job x, y: nothing was cancelled"):
        cancel(dirs.path, ["a", "x", "y"])
    with pytest.raises(UsageError, match="no state directory"):
        cancel(dirs.path / "nowhere", ["a"])
    assert heard(dirs) == ["submit a"]


def test_before_the_first_run_a_cancelled_job_is_withdrawn_and_its_id_free_again(dirs: StateDir) -> None:
    """No run has to be able to take it up, however wrong it is; a later job of that id is not cancelled."""
    ask(dirs, runs("a"), runs("b"))
    cancel(dirs.path, ["a"])
    cancel(dirs.path, ["a"])
    assert heard(dirs) == ["submit b"]
    cancel(dirs.path, ["b"])
    assert ask(dirs, runs("a", seed=2)) == ["a"]
    assert heard(dirs) == ["submit a"]
    log = fold([submit_event(runs("a", seed=2), 1.0)])
    Spool(dirs).settle(log)
    assert heard(dirs, log) == []
    assert list(dirs.spool.glob("*.j*")) == []
    ask(dirs, runs("c"))
    cancel(dirs.path, ["c"])
    ask(dirs, runs("c"))
    cancel(dirs.path, ["c"])
    assert heard(dirs) == [], "a cancellation after the new submission counts"


def asked(path: Path, time_s: float) -> None:
    """Make it a submission of that time by the clock of who made it; the file system's may be another."""
    number = path.name.partition(".")[0]
    path.rename(path.with_name(f"{number}.{time_s * 1e9:.0f}.jobs.jsonl"))


def test_a_job_that_was_to_run_at_once_does_so_though_the_clock_was_set_back_since(dirs: StateDir) -> None:
    ask(dirs, runs("now"), runs("later", at=100.0))
    (path,) = dirs.spool.glob("*.jobs.jsonl")
    asked(path, NOW_S)
    assert heard(dirs, until_s=NOW_S - 3600) == ["submit now"]


def test_a_submission_bears_the_time_of_the_clock_that_it_was_made_by(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system of another machine writes times of its own."""
    monkeypatch.setattr(spool.time, "time_ns", lambda: 10**18)
    ask(dirs, runs("a"))
    (path,) = dirs.spool.glob("*.jobs.jsonl")
    os.utime(path, (NOW_S, NOW_S))
    (request,) = Spool(dirs).requests()
    assert request.asked_s == 1e9


def test_a_job_waits_no_longer_than_it_was_to_wait_when_it_was_submitted(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(dirs, runs("a", at=100.0))
    (path,) = dirs.spool.glob("*.jobs.jsonl")
    asked(path, NOW_S)
    steady_s = [1000.0]
    monkeypatch.setattr(spool.time, "monotonic", lambda: steady_s[0])
    (request,) = Spool(dirs).requests()
    waiting = replace(request, seen_s=1000.0)
    assert not waiting.is_due(request.jobs[0], NOW_S - 3600)
    steady_s[0] += 101.0
    assert waiting.is_due(request.jobs[0], NOW_S - 3600)
    assert replace(request, seen_s=steady_s[0]).is_due(request.jobs[0], NOW_S + 100)


def test_the_next_run_adds_what_was_asked_for_until_now(dirs: StateDir) -> None:
    ask(dirs, runs("a"), runs("later", at=100.0))
    own = Spool(dirs)
    with own.locked():
        own.ask_to_cancel(["old"])
    found = requested(own.requests(), fold([submit_event(runs("old"), 1.0)]), NOW_S)
    assert [(event.event, event.job) for event in found] == [("submit", "a"), ("cancel", "old")]


def test_a_file_that_is_no_request_is_left_aside(dirs: StateDir, caplog: pytest.LogCaptureFixture) -> None:
    ask(dirs, runs("a"))
    (dirs.spool / "00000000000000000001.jobs.jsonl").write_text("no job")
    (dirs.spool / "00000000000000000002.cancel.json").write_text("{")
    (dirs.spool / "00000000000000000003.cancel.json").write_text("[[1]]")
    (dirs.spool / "by-hand.cancel.json").write_text('["b"]')
    spool = Spool(dirs)
    for _ in range(2):
        assert [request.jobs[0].id for request in spool.requests()] == ["a"]
    assert caplog.text.count("it is not a request") == 4
    ask(dirs, runs("b"))
    assert [request.jobs[0].id for request in spool.requests()] == ["a", "b"]


def rivals(folder: str, name: str, turn: object) -> None:
    turn.wait()  # type: ignore[attr-defined]
    for number in range(10):
        try:
            path = Path(folder)
            submit(path, [runs(f"j{number}")], name, folder=path.parent, now_s=NOW_S, check_scripts=False)
            (path.parent / f"{name}-{number}").touch()
        except BadInputError:
            continue


def test_a_request_that_cannot_be_read_for_a_moment_is_heard_at_the_next_look(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was acknowledged; a loop that runs for months must not leave it aside for a shortage of a second."""
    ask(dirs, runs("a"))
    one = Spool(dirs)
    with monkeypatch.context() as patch:
        patch.setattr(spool, "read_own", short)
        assert one.requests() == []
    assert [found.id for request in one.requests() for found in request.jobs] == ["a"]


def test_orders_are_numbered_in_their_order_and_the_folder_is_not_listed_for_each(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"j{number}" for number in range(20)]
    ask(dirs, *(runs(name) for name in names))
    looks, real = [0], os.listdir

    def listdir(path: Path) -> list[str]:
        looks[0] += 1
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(spool.os, "listdir", listdir)
        order_jobs(dirs.path, "hold", names)
    assert looks[0] < len(names)
    orders = [request.order for request in Spool(dirs).requests() if request.order is not None]
    assert [order.job for order in orders] == names


def test_an_order_about_a_job_whose_submission_cannot_be_read_for_a_moment_is_kept(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(dirs, runs("a"))
    order_jobs(dirs.path, "hold", ["a"])
    one, real = Spool(dirs), spool.read_own
    with monkeypatch.context() as patch:
        patch.setattr(
            spool, "read_own", lambda path: (short if path.name.endswith(".jobs.jsonl") else real)(path)
        )
        one.settle(RunLog())
    assert [request.order is not None for request in one.requests()] == [False, True]
    one.requests()[0].path.unlink()
    one.settle(RunLog())
    assert one.requests() == [], "there is no such job any more"


def test_a_cancellation_of_a_job_whose_submission_cannot_be_read_for_a_moment_is_kept(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(dirs, runs("a"))
    cancel(dirs.path, ["a"])
    one, real = Spool(dirs), spool.read_own
    with monkeypatch.context() as patch:
        patch.setattr(
            spool, "read_own", lambda path: (short if path.name.endswith(".jobs.jsonl") else real)(path)
        )
        one.settle(RunLog())
    assert heard(dirs) == ["submit a", "cancel a"]
    one.requests()[0].path.unlink()
    one.settle(RunLog())
    assert one.requests() == [], "there is no such job any more"


def test_a_folder_that_cannot_be_listed_for_a_moment_ends_no_loop(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(dirs, runs("a"))
    seen, fresh = Spool(dirs), Spool(dirs)
    before = seen.requests()
    with monkeypatch.context() as patch:
        patch.setattr(spool.os, "listdir", short)
        assert seen.requests() == before
        with pytest.raises(OSError, match="Too many open files"):
            fresh.requests()
    ask(dirs, runs("b"))
    assert len(seen.requests()) == 2


def test_of_several_processes_one_gets_each_id(dirs: StateDir) -> None:
    context = multiprocessing.get_context("spawn")
    turn = context.Barrier(3)
    racing = [context.Process(target=rivals, args=(str(dirs.path), name, turn)) for name in "pqr"]
    for process in racing:
        process.start()
    for process in racing:
        process.join(60)
    winners = [path.name for path in dirs.path.parent.glob("?-*")]
    assert sorted(name[2:] for name in winners) == sorted(map(str, range(10)))
    assert sorted(heard(dirs)) == sorted(f"submit j{number}" for number in range(10))


def order(action: Literal["hold", "release", "priority", "drain"], about: str, **more: Any) -> Order:
    whom = {"node": about} if action == "drain" else {"job": about}
    return Order(action=action, user="ada", asked_s=NOW_S, **whom, **more)


def give(dirs: StateDir, *orders: Order) -> None:
    own = Spool(dirs)
    with own.locked():
        own.give(orders)


def files(dirs: StateDir) -> list[str]:
    """The requests that are there, in their order, by their kinds."""
    return [".".join(path.name.split(".")[-2:]) for path in sorted(dirs.spool.glob("*.j*"))]


def test_orders_are_executed_once_in_their_order_and_not_before_their_job_has_arrived(dirs: StateDir) -> None:
    """And none of a job that was cancelled before; each file is there until the log has all of it."""
    begun(dirs, runs("a"), runs("b"), runs("later", at=100.0))
    give(
        dirs,
        order("drain", "n0", within_s=60.0),
        order("priority", "later", priority=2.0),
        order("hold", "a"),
    )
    cancel(dirs.path, ["b"])
    give(dirs, order("hold", "b"), order("release", "a"))
    own, events = Spool(dirs), list[Event]()

    def turn(time_s: float) -> list[tuple[str, str | None]]:
        """What a loop does."""
        more = requested(own.requests(), fold(events), time_s)
        events.extend(more)
        own.settle(fold(events))
        return [(event.event, event.job) for event in more]

    assert turn(NOW_S) == [
        *(("submit", "a"), ("submit", "b"), ("drain", None)),
        *(("hold", "a"), ("cancel", "b"), ("unhold", "a")),
    ]
    log = fold(events)
    assert (log.drained["n0"].until_s, log.jobs["a"].held, log.jobs["b"].phase) == (
        NOW_S + 60.0,
        None,
        "cancelled",
    )
    assert files(dirs) == ["jobs.jsonl", "order.json"]
    assert turn(NOW_S + 1) == []
    assert turn(NOW_S + 100) == [("submit", "later"), ("priority", "later")]
    assert fold(events).jobs["later"].job.priority == 2.0
    assert (files(dirs), turn(NOW_S + 101)) == ([], [])


def test_a_request_whose_file_outlives_a_crash_is_not_executed_again(dirs: StateDir) -> None:
    """The log had it, and the process died before it removed the file."""
    begun(dirs, runs("a"))
    give(dirs, order("hold", "a"), order("drain", "n0"))
    first = requested(Spool(dirs).requests(), RunLog(), NOW_S)
    assert [event.event for event in first] == ["submit", "hold", "drain"]
    log = fold([*first, Event(NOW_S + 1, "unhold", "a", detail={"user": "ada"})])
    assert requested(Spool(dirs).requests(), log, NOW_S + 2) == []
    Spool(dirs).settle(log)
    assert files(dirs) == []


def test_a_submission_is_logged_at_its_own_time_and_never_in_the_future(dirs: StateDir) -> None:
    ask(dirs, runs("a"), runs("b", at=50.0))
    requests = [replace(each, asked_s=NOW_S, seen_s=each.seen_s - 1000.0) for each in Spool(dirs).requests()]
    found = {event.job: event.time for event in requested(requests, RunLog(), NOW_S + 20)}
    assert found == {"a": NOW_S, "b": NOW_S + 20}, "it has waited long enough, though the clock was set back"


def test_an_id_that_is_used_again_is_cancelled_no_more_and_the_others_still_are(dirs: StateDir) -> None:
    own = Spool(dirs)
    with own.locked():
        own.ask_to_cancel(["a", "b"])
        own.ask_to_cancel(["c"])
        own.take_back(["a", "c", "d"])
    assert [request.cancelled for request in own.requests()] == [("b",)]
    with own.locked():
        own.take_back(["d"])
    assert [request.cancelled for request in Spool(dirs).requests()] == [("b",)]


def test_a_job_that_is_withdrawn_takes_along_those_that_need_it_and_orders_about_them(dirs: StateDir) -> None:
    ask(dirs, runs("a"), runs("b"), runs("any", after={"a": "any"}))
    ask(dirs, runs("ok", after={"a": "ok"}))
    ask(dirs, runs("chain", after={"ok": "ok"}))
    give(dirs, *(order("hold", name) for name in ("a", "b", "chain")))
    cancel(dirs.path, ["a"])
    requests = Spool(dirs).requests()
    assert {job.id: job.after for request in requests for job in request.jobs} == {"b": {}, "any": {}}
    assert [request.order.job for request in requests if request.order is not None] == ["b"]


def test_the_requests_of_an_account_are_counted_and_no_others(dirs: StateDir) -> None:
    own = Spool(dirs)
    with own.locked():
        own.ask_to_run([runs("a", workdir="/")], uid=7)
        own.ask_to_cancel(["a"], uid=77)
        own.give(
            [
                order("hold", "a", uid=7),
                order("hold", "a"),
            ]
        )
    sizes = [path.stat().st_size for path in sorted(dirs.spool.glob("*.j*"))]
    assert (own.bytes_of(7), own.bytes_of(77), own.bytes_of(8)) == (sizes[0] + sizes[2], sizes[1], 0)
    assert [request.uid for request in Spool(dirs).requests()] == [7, 77, 7, None]
