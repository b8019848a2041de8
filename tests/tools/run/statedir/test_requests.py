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
from pliant.tools.run.service.submit import Names, cancel, known_names, order_jobs, submit
from pliant.tools.run.statedir import requests as spool
from pliant.tools.run.statedir.directory import Account, StateDir
from pliant.tools.run.statedir.log.events import cancel_event, submit_event
from pliant.tools.run.statedir.log.fold import JobLog, RunLog, fold
from pliant.tools.run.statedir.requests import Order, Spool, requested, unrecorded
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import Question, decide
from tests.builders import cluster, job

NOW_S = 2e9


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state")


def runs(job_id: str, **more: object) -> Job:
    return job(job_id, command=("train.py",), **more)  # type: ignore[arg-type]


def ask(dirs: StateDir, *jobs: Job, **more: Any) -> list[str]:
    where = {"folder": dirs.path.parent, "now_s": NOW_S, "check_scripts": False}
    return submit(dirs.path, jobs, "jobs.jsonl", **where, **more)


class Past(dict[str, JobLog]):
    """Jobs of years: to go through them all at every look would take a core."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all jobs that ever were are gone through")

    keys = values = items = __iter__  # type: ignore[assignment]


def waiting(dirs: StateDir, log: RunLog | None = None, until_s: float = NOW_S) -> list[str]:
    log = log or RunLog()
    log.jobs = Past(log.jobs)
    asked = unrecorded(Spool(dirs).requests(), log, until_s)
    return [f"cancel {it}" if isinstance(it, str) else f"submit {it.id}" for it in asked]


def begun(dirs: StateDir, *jobs: Job) -> None:
    """Jobs were submitted, and there was a run, so that a cancelled job is not withdrawn."""
    ask(dirs, *jobs)
    dirs.cluster.write_text("there was a run")


def order(action: Literal["hold", "release", "priority", "drain"], about: str, **more: Any) -> Order:
    whom = {"node": about} if action == "drain" else {"job": about}
    return Order(action=action, user="ada", asked_s=NOW_S, **whom, **more)


def give(dirs: StateDir, *orders: Order) -> None:
    own = Spool(dirs)
    with own.locked():
        own.give(orders)


def files(dirs: StateDir) -> list[str]:
    return [".".join(path.name.split(".")[-2:]) for path in sorted(dirs.spool.glob("*.j*"))]


def short(*_: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_submission_is_a_job_file_with_folder_and_time(dirs: StateDir) -> None:
    assert ask(dirs, runs("b", at=5.0), runs("a", at=NOW_S + 60)) == ["b", "a"]
    (path,) = dirs.spool.glob("*.jobs.jsonl")
    first, second = read_jobs(path)
    assert (first.submit_time, second.submit_time) == (NOW_S + 5, NOW_S + 60)
    assert first.workdir == str(dirs.path.parent)


def test_no_clock_changes_the_order_of_requests(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([500, 500, 300, 300, 100, 100])
    monkeypatch.setattr(spool.time, "time_ns", lambda: next(times))
    for name in ("c", "b", "a"):
        ask(dirs, runs(name))
    assert waiting(dirs) == ["submit c", "submit b", "submit a"]


@pytest.mark.parametrize("where", ["spool", "log", "schedule"])
def test_an_id_that_is_in_use_is_refused_wherever_it_is(dirs: StateDir, where: str) -> None:
    if where == "spool":
        ask(dirs, runs("a"))
    else:
        with State(dirs.path) as state:
            state.record([submit_event(runs("a"), 1.0)] if where == "log" else [])
    if where == "schedule":
        write_schedule(
            decide([runs("a", at=9.0)], cluster(2), None, Question("fifo"), now_s=0), dirs.schedule
        )
    with pytest.raises(BadInputError, match=r'jobs.jsonl: job "a" was submitted to .* before'):
        ask(dirs, runs("b"), runs("a"))
    assert "submit b" not in waiting(dirs)


def test_a_name_is_used_again_once_its_newest_job_has_ended(dirs: StateDir) -> None:
    sweep = [runs(f"s-{at}", array={"name": "s", "index": at}) for at in (0, 1)]
    both = [runs("a"), runs("b", after={"a": "ok"})]
    with State(dirs.path) as state:
        state.record(submit_event(each, 1.0) for each in (*both, *sweep))
        state.record(cancel_event(each, 2.0) for each in ("a", "b", "s-0"))
        with pytest.raises(BadInputError, match=r'job "s-0" was submitted to .* has not ended'):
            ask(dirs, *sweep)
        state.record([cancel_event("s-1", 3.0)])
    assert ask(dirs, *both, *sweep, runs("c")) == ["a-2", "b-2", "s-2-0", "s-2-1", "c"]
    (asked,) = Spool(dirs).requests()
    assert [job.name for job in asked.jobs] == ["a", "b", "s-0", "s-1", None]
    assert asked.jobs[1].after == {"a-2": "ok"}
    with pytest.raises(BadInputError, match=r'job "a" was submitted to .* has not ended'):
        ask(dirs, runs("a"))
    known = known_names(dirs, Spool(dirs))
    assert (known.newest["a"], known.newest["a-1"], known.arrays["s"]) == ("a-2", "a", ["s-2-0", "s-2-1"])
    with State(dirs.path) as state:
        state.record([*(submit_event(each, 4.0) for each in asked.jobs), cancel_event("a-2", 5.0)])
    assert ask(dirs, runs("a")) == ["a-3"]


def test_a_name_means_own_jobs_and_never_takes_a_living_id(dirs: StateDir) -> None:
    with pytest.raises(BadInputError, match=r'/name: of job "zz" is given by pliant where an id is used'):
        ask(dirs, runs("zz", name="victim"))
    ann, bob = (Account(61_501 + at, name) for at, name in enumerate(("ann", "bob")))
    array = {"name": "s", "index": 0}
    with State(dirs.path) as state:
        olds = (runs("prod", user="ann"), runs("train", user="ann"), runs("s-0", user="ann", array=array))
        state.record(submit_event(each, 1.0) for each in olds)
        state.record(cancel_event(each.id, 2.0) for each in olds)
        again = [each.model_copy(update={"user": "bob"}) for each in olds]
        assert ask(dirs, *again, by=bob) == ["prod-2", "train-2", "s-2-0"]
        (asked,) = Spool(dirs).requests()
        state.record(submit_event(each, 3.0) for each in asked.jobs)
        state.record([cancel_event("prod-2", 4.0), submit_event(olds[0], 5.0)])  # prod waits again
        of_bob = {"train": "train-2", "s-0": "s-2-0"} | {f"{each.id}-1": each.id for each in olds}
        own = (ann, "train", ["s-0"], dict[str, str]()), (bob, "train-2", ["s-2-0"], of_bob)
        for who, train, array_ids, newest in own:
            ask(dirs, runs(f"f-{who.name}", user=who.name, after={"prod": "ok", "train": "any"}), by=who)
            assert Spool(dirs).requests()[-1].jobs[0].after == {"prod": "ok", train: "any"}
            known = Names.of([*state.log.jobs], state.log, (), who.name)
            assert (known.arrays["s"], known.newest) == (array_ids, newest)


def test_a_job_that_cannot_run_is_refused_and_nothing_is_made(dirs: StateDir) -> None:
    with pytest.raises(BadInputError) as error:
        ask(dirs, job("a"), runs("b", workdir="nowhere"))
    assert [line.split(": ", 2)[1] for line in str(error.value).splitlines()] == ["/command", "/workdir"]
    assert not dirs.path.exists()
    dirs.path.mkdir()
    write_cluster(cluster(2), dirs.cluster)
    with pytest.raises(BadInputError, match='job "a" needs 3 GPUs, the cluster has 2'):
        ask(dirs, runs("a", gpus=3))


def test_a_job_cancelled_before_its_time_arrives_first(dirs: StateDir) -> None:
    """To cancel it twice, or once it has ended, is harmless. What the log holds settles its request."""
    begun(dirs, runs("soon"), runs("later", at=100.0), runs("never", at=200.0))
    for _ in range(2):
        cancel(dirs.path, ["later"])
    assert waiting(dirs) == ["submit soon", "submit later", "cancel later"]
    assert files(dirs).count("cancel.json") == 1
    old = [submit_event(runs("old"), 1.0), Event(2.0, "finish", "old", gpus=0)]
    assert waiting(dirs, fold(old)) == ["submit soon", "submit later", "cancel later"]
    ended = fold([submit_event(runs("later"), 1.0), Event(2.0, "finish", "later", gpus=0)])
    assert waiting(dirs, ended) == ["submit soon"]
    own = Spool(dirs)
    events = [submit_event(runs(name), 1.0) for name in ("soon", "later")]
    log = fold([*old, *events, cancel_event("later", 2.0)])
    assert waiting(dirs, log) == []
    own.settle(log)
    assert files(dirs) == ["jobs.jsonl"]
    log.add(submit_event(runs("never"), 3.0))
    own.settle(log)
    assert files(dirs) == []


def test_an_unknown_job_cancels_nothing(dirs: StateDir) -> None:
    ask(dirs, runs("a"))
    with pytest.raises(UsageError, match=r"has no job x, y: nothing was cancelled"):
        cancel(dirs.path, ["a", "x", "y"])
    with pytest.raises(UsageError, match="no state directory"):
        cancel(dirs.path / "nowhere", ["a"])
    assert waiting(dirs) == ["submit a"]


def test_before_the_first_run_a_cancelled_id_is_free_again(dirs: StateDir) -> None:
    """No run has to be able to take it up, however wrong it is; a later job of that id is not cancelled."""
    ask(dirs, runs("a"), runs("b"))
    cancel(dirs.path, ["a"])
    cancel(dirs.path, ["a"])
    assert waiting(dirs) == ["submit b"]
    cancel(dirs.path, ["b"])
    assert ask(dirs, runs("a", seed=2)) == ["a"]
    assert waiting(dirs) == ["submit a"]
    log = fold([submit_event(runs("a", seed=2), 1.0)])
    Spool(dirs).settle(log)
    assert (waiting(dirs, log), files(dirs)) == ([], [])
    for _ in range(2):
        ask(dirs, runs("c"))
        cancel(dirs.path, ["c"])
    assert waiting(dirs) == [], "a cancellation after the new submission counts"


def test_a_wait_goes_by_the_clock_of_the_submission(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool.time, "time_ns", lambda: int(NOW_S * 1e9))
    steady, gone_s = spool.time.monotonic, [0.0]
    monkeypatch.setattr(spool.time, "monotonic", lambda: steady() + gone_s[0])
    ask(dirs, runs("now"), runs("later", at=100.0))
    (path,) = dirs.spool.glob("*.jobs.jsonl")
    os.utime(path, (1e9, 1e9))
    assert waiting(dirs, until_s=NOW_S - 3600) == ["submit now"]
    (request,) = Spool(dirs).requests()
    assert request.asked_s == NOW_S
    _, later = request.jobs
    assert not request.is_due(later, NOW_S - 3600)
    gone_s[0] += 101.0
    assert request.is_due(later, NOW_S - 3600)
    assert replace(request, seen_s=spool.time.monotonic()).is_due(later, NOW_S + 100)
    logged = {event.job: event.time for event in requested([request], RunLog(), NOW_S + 20)}
    assert logged == {"now": NOW_S, "later": NOW_S + 20}, "at its own time, and never in the future"


def test_a_file_that_is_no_request_is_named_once(dirs: StateDir, caplog: pytest.LogCaptureFixture) -> None:
    ask(dirs, runs("a"))
    (dirs.spool / "00000000000000000001.jobs.jsonl").write_text("no job")
    (dirs.spool / "00000000000000000002.cancel.json").write_text("{")
    (dirs.spool / "00000000000000000003.cancel.json").write_text("[[1]]")
    (dirs.spool / "by-hand.cancel.json").write_text('["b"]')
    own = Spool(dirs)
    for _ in range(2):
        assert [request.jobs[0].id for request in own.requests()] == ["a"]
    assert caplog.text.count("it is not a request") == 4
    ask(dirs, runs("b"))
    assert [request.jobs[0].id for request in own.requests()] == ["a", "b"]


@pytest.mark.parametrize("what", ["order", "cancellation"])
def test_a_request_waits_for_a_submission_that_cannot_be_read(dirs: StateDir, monkeypatch, caplog, what):
    """The submission was acknowledged: a shortage of a second drops neither it nor what follows it."""
    begun(dirs, runs("a"))
    order_jobs(dirs.path, "hold", ["a"]) if what == "order" else cancel(dirs.path, ["a"])
    own, real = Spool(dirs), spool.read_own
    with monkeypatch.context() as patch:
        patch.setattr(spool, "read_own", lambda path: (short if ".jobs." in path.name else real)(path))
        assert len(own.requests()) == 1
        own.settle(RunLog())
    first, second = own.requests()
    assert [each.id for each in first.jobs] == ["a"]
    assert second.has_content
    first.path.unlink()
    own.settle(RunLog())
    assert own.requests() == []
    assert ("there is no job a any more" in caplog.text) == (what == "order")


def test_an_unlisted_folder_ends_no_loop(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_orders_are_numbered_after_one_listing(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"j{number}" for number in range(20)]
    ask(dirs, *(runs(name) for name in names))
    looks, real = list[Path](), os.listdir
    with monkeypatch.context() as patch:
        patch.setattr(spool.os, "listdir", lambda path: (looks.append(path), real(path))[1])
        order_jobs(dirs.path, "hold", names)
    assert len(looks) < len(names)
    orders = [request.order for request in Spool(dirs).requests() if request.order is not None]
    assert [order.job for order in orders] == names


def rivals(folder: Path, name: str, turn: Any) -> None:
    turn.wait()
    for number in range(10):
        try:
            ask(StateDir(folder), runs(f"j{number}"))
            (folder.parent / f"{name}-{number}").touch()
        except BadInputError:
            continue


def test_of_several_processes_one_gets_each_id(dirs: StateDir) -> None:
    turn = multiprocessing.Barrier(3)
    racing = [multiprocessing.Process(target=rivals, args=(dirs.path, name, turn)) for name in "pqr"]
    for process in racing:
        process.start()
    for process in racing:
        process.join(60)
    winners = [path.name for path in dirs.path.parent.glob("?-*")]
    assert sorted(name[2:] for name in winners) == sorted(map(str, range(10)))
    assert sorted(waiting(dirs)) == sorted(f"submit j{number}" for number in range(10))


def test_orders_are_executed_once_after_their_job_has_arrived(dirs: StateDir) -> None:
    """In their order, and none of a job that was cancelled; each file stays until the log has all of it."""
    begun(dirs, runs("a"), runs("b"), runs("later", at=100.0))
    first = order("drain", "n0", within_s=60.0), order("priority", "later", priority=2.0), order("hold", "a")
    give(dirs, *first)
    cancel(dirs.path, ["b"])
    give(dirs, order("hold", "b"), order("release", "a"))
    own, log = Spool(dirs), RunLog()

    def turn(time_s: float) -> list[tuple[str, str | None]]:
        more = requested(own.requests(), log, time_s)
        for event in more:
            log.add(event)
        own.settle(log)
        return [(event.event, event.job) for event in more]

    assert turn(NOW_S) == [
        *(("submit", "a"), ("submit", "b"), ("drain", None)),
        *(("hold", "a"), ("cancel", "b"), ("unhold", "a")),
    ]
    assert log.drained["n0"].until_s == NOW_S + 60.0
    assert (log.jobs["a"].held, log.jobs["b"].phase) == (None, "cancelled")
    assert files(dirs) == ["jobs.jsonl", "order.json"]
    assert turn(NOW_S + 1) == []
    assert turn(NOW_S + 100) == [("submit", "later"), ("priority", "later")]
    assert log.jobs["later"].job.priority == 2.0
    assert (files(dirs), turn(NOW_S + 101)) == ([], [])


def test_requests_are_not_repeated_and_ids_are_free_again(dirs: StateDir) -> None:
    # The log had it, and the process died before it removed the file.
    begun(dirs, runs("a"))
    give(dirs, order("hold", "a"), order("drain", "n0"))
    first = requested(Spool(dirs).requests(), RunLog(), NOW_S)
    assert [event.event for event in first] == ["submit", "hold", "drain"]
    log = fold([*first, Event(NOW_S + 1, "unhold", "a", detail={"user": "ada"})])
    assert requested(Spool(dirs).requests(), log, NOW_S + 2) == []
    Spool(dirs).settle(log)
    assert files(dirs) == []
    # An id that is used again is not cancelled any more.
    own = Spool(dirs)
    with own.locked():
        own.request_cancel(["a", "b"])
        own.request_cancel(["c"])
        own.take_back(["a", "c", "d"])
    for left in (own, Spool(dirs)):
        assert [request.cancelled for request in left.requests()] == [("b",)]
        with own.locked():
            own.take_back(["d"])


def test_a_withdrawn_job_takes_its_dependants_and_orders_along(dirs: StateDir) -> None:
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
        own.request_run([runs("a", workdir="/")], uid=7)
        own.request_cancel(["a"], uid=77)
        own.give([order("hold", "a", uid=7), order("hold", "a")])
    sizes = [path.stat().st_size for path in sorted(dirs.spool.glob("*.j*"))]
    assert (own.bytes_of(7), own.bytes_of(77), own.bytes_of(8)) == (sizes[0] + sizes[2], sizes[1], 0)
    assert [request.uid for request in Spool(dirs).requests()] == [7, 77, 7, None]
