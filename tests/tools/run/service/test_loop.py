from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from pliant.schemas.errors import InfeasibleError, ServiceMissingError
from pliant.schemas.event import Event
from pliant.schemas.io import read_schedule
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.commands import read_plan
from pliant.tools.run.service.run import Interrupts, in_background, run_once, run_until_done
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log import events as journal
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.session import idle_limit
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, until
from tests.tools.schedule.histories import decide_from

pytestmark = pytest.mark.usefixtures("plain_python", "retries_come_soon")


@pytest.fixture
def retries_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for fractions of a second, each longer than the one before."""
    monkeypatch.setattr(journal, "wait_s", lambda failures: 0.05 * failures)


def silent(log: RunLog, now_s: float) -> None:
    pass


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    signal.raise_signal(number)


def when(condition: Callable[[RunLog], bool], action: Callable[[], None]) -> runner.View:
    """A view that does something once, as soon as the log fulfils a condition."""
    left = [action]

    def view(log: RunLog, now_s: float) -> None:
        if left and condition(log):
            left.pop()()

    return view


def trains(job_id: str, samples: float = 20.0) -> Callable[[RunLog], bool]:
    return lambda log: job_id in log.jobs and log.jobs[job_id].samples_done >= samples


def reported_after(site: Site, change: str) -> Callable[[RunLog], bool]:
    """Whether a job has reported under a change."""
    return lambda _: any((event.detail or {}).get("after") == change for event in site.events())


def test_a_job_shrinks_for_another_and_grows_after_it(site: Site) -> None:
    """Its work goes on where it was stopped, and the first step after a change says what that cost."""
    first = site.folder / "shrunk"
    site.job("a", "--gate", site.gate, samples=1200, high=2)
    options = site.options()
    later = site.job("b", "--gate", first, samples=100, high=1)
    views = [
        when(
            reported_after(site, "start"),
            lambda: submit(site.state, [later], "test", folder=site.folder, now_s=time.time()),
        ),
        when(reported_after(site, "shrink"), first.touch),
        when(reported_after(site, "grow"), site.gate.touch),
    ]
    log, stopped_by = run_until_done(options, lambda log, now_s: [view(log, now_s) for view in views])
    assert site.story() == [
        *("submit a", "start a 2", "submit b", "shrink a 1", "start b 1"),
        *("finish b 0", "grow a 2", "finish a 0"),
    ]
    assert stopped_by is None
    assert [log.jobs[name].samples_done for name in "ab"] == [1200, 100]
    done = [
        event.samples_done or 0 for event in site.events() if (event.job, event.event) == ("a", "progress")
    ]
    assert done == sorted(done)
    assert max(after - before for before, after in pairwise(done)) <= 20
    costs = [event for event in site.events() if event.overhead_seconds is not None]
    assert sorted((e.job, (e.detail or {})["after"], (e.detail or {})["attempt"]) for e in costs) == [
        *(("a", "grow", 3), ("a", "shrink", 2), ("a", "start", 1)),
        ("b", "start", 1),
    ]
    assert all((event.overhead_seconds or 0) > 0 for event in costs)


def test_a_run_that_has_ended_is_whole_in_its_log(site: Site) -> None:
    """One whose log has but the beginning of it, as it died before its first start, begins again."""
    site.job("a", samples=50)
    site.job("b", samples=50, at=0.5)
    options = site.options("las")
    run_until_done(options, silent)
    for name in "ab":
        assert site.of(name) == [f"submit {name}", f"start {name} 1", f"finish {name} 0"]
    before = site.events()
    first, second, submitted, *_ = before
    run, job = first.detail or {}, (submitted.detail or {})["job"]
    assert (first.event, run["policy"], run["simulated"]) == ("decision", "las", False)
    assert second.event == "decision"
    assert job["submit_time"] == submitted.time > 1e9, "UTC"
    times = {event.job: event.time for event in before if event.event == "submit"}
    assert times["b"] - times["a"] == pytest.approx(0.5, abs=1e-3)
    kept = read_schedule(site.state / "schedule.json")
    assert kept.policy_state is not None
    assert (kept.policy.name, kept.policy_state.changes_seen, kept.time > 0.2) == ("las", 4, True)
    assert decide_from(before, Question("fifo"), now_s=before[-1].time).allocations == ()
    for again_options in (options, site.options(None)):
        run_until_done(again_options, silent)
    assert site.events() == before
    header, first_line, _ = (site.state / "events.jsonl").read_text().split("\n", 2)
    again = Site(site.folder / "again")
    again.state.mkdir()
    (again.state / "events.jsonl").write_text(f"{header}\n{first_line}\n")
    (again.state / "schedule.json").write_text((site.folder / "schedule.json").read_text())
    run_until_done(again.options(None), silent)
    assert [line for line in again.story() if line.startswith("finish")] == ["finish a 0", "finish b 0"]
    times = {(event.event, event.job): event.time for event in again.events()}
    assert times["submit", "b"] - times["submit", "a"] >= 0.4


def test_an_interrupted_run_saves_and_goes_on_in_the_next(site: Site) -> None:
    site.job("a", "--gate", site.gate, samples=400)
    view = when(trains("a"), lambda: interrupt(signal.SIGTERM))
    log, stopped_by = run_until_done(site.options("fifo"), view)
    assert (log.jobs["a"].phase, stopped_by) == ("preempted", signal.SIGTERM)
    assert left_running(site.folder) == []
    saved = log.jobs["a"].samples_done
    text = runner.dry_run_text(site.options(None), resume=True)
    assert text.startswith('policy "fifo" decides first')
    assert len(text.splitlines()) == 1
    site.gate.touch()
    log, stopped_by = run_until_done(site.options(None), silent)
    assert stopped_by is None
    assert site.of("a") == ["submit a", "start a 1", "requeue a 0", "resume a 1", "finish a 0"]
    resumed = [e.samples_done or 0 for e in site.events() if (e.detail or {}).get("after") == "resume"]
    assert 0 < saved <= resumed[0] <= saved + 30


@pytest.mark.parametrize("looks", [(1, 1), (2,)], ids=["one after the other", "within one look"])
def test_a_second_signal_does_not_wait_for_checkpoints(site: Site, looks: tuple[int, ...]) -> None:
    site.job("a", "--stubborn", samples=1e6, high=2)
    signals = iter(looks)

    def view(log: RunLog, now_s: float) -> None:
        for _ in range(next(signals, 0) if trains("a")(log) else 0):
            interrupt()

    run_until_done(replace(site.options(), timeouts=Timeouts(abort_s=3600, term_s=3600)), view)
    assert left_running(site.folder) == []
    assert site.of("a") == ["submit a", "start a 2", "requeue a 0"]


def fills_up(patch: pytest.MonkeyPatch, when_full: Callable[[RunLog, Sequence[Event]], bool]) -> None:
    """The disk is full for some events."""
    record = State.record

    def recorded(self: State, events: Iterable[Event]) -> None:
        batch = list(events)
        if when_full(self.log, batch):
            raise ServiceMissingError("events.jsonl: cannot be written: no space left on device")
        record(self, batch)

    patch.setattr(State, "record", recorded)


def test_on_a_full_disk_jobs_train_on_or_are_stopped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.job("a", "--gate", site.gate, samples=300)
    with monkeypatch.context() as patch:
        fills_up(patch, lambda log, events: trains("a")(log))
        with pytest.raises(ServiceMissingError, match="no space left on device; 1 jobs train on: run again"):
            run_until_done(site.options("fifo"), silent)
    fills_up(monkeypatch, lambda log, events: any(event.event == "requeue" for event in events))
    with pytest.raises(ServiceMissingError, match=r"no space left on device$"):
        run_until_done(site.options(None), when(trains("a", 30.0), interrupt))
    assert left_running(site.folder) == []
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0
    assert site.of("a") == ["submit a", "start a 1"], "the first run had ended none of it"
    done = [event.samples_done for event in site.events() if event.event == "progress"]
    assert done == sorted(set(done), key=lambda value: value or 0)


@pytest.mark.parametrize("rounds", [0, 5])
def test_a_policy_that_starts_nothing_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch, rounds: int):
    """One with rounds after as many idle rounds as in a replay."""
    site.job("a")
    monkeypatch.setattr(Fifo, "decide", lambda self, snapshot, rng: Decision())
    if rounds:
        monkeypatch.setattr(Fifo, "traits", replace(Fifo.traits, default_interval_s=0.001))
        monkeypatch.setattr(idle_limit, "IDLE_ROUNDS", rounds)
    with pytest.raises(InfeasibleError, match='job "a" is left: policy "fifo" never starts it'):
        run_until_done(site.options("fifo"), silent)
    decisions = [event.event for event in site.events()].count("decision")
    assert not rounds or decisions == 1 + 1 + rounds


def test_an_error_of_the_policy_stops_jobs_with_checkpoints(site: Site, monkeypatch: pytest.MonkeyPatch):
    site.job("a", samples=1e6)
    site.job("b", samples=50, at=0.3)
    options = site.options("fifo")
    monkeypatch.setattr(Fifo, "decide", lambda self, snapshot, rng: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_until_done(options, silent)
    assert left_running(site.folder) == []
    assert site.of("a") == ["submit a", "start a 1", "requeue a 0"]


def all_ended(site: Site) -> None:
    """Open the gate, and wait for the jobs to end."""
    site.gate.touch()
    for folder in StateDir(site.state).jobs.iterdir():
        job = JobDir(folder)
        until(job.attempt(job.newest_attempt()).exit_code(0).exists)


def test_once_starts_what_the_schedule_says(site: Site) -> None:
    """The same schedule once more changes nothing."""
    site.job("a", "--gate", site.gate, samples=600)
    log, failed = run_once(site.options("fifo"))
    assert (log.jobs["a"].phase, failed) == ("running", [])
    dirs = StateDir(site.state)
    job = dirs.job("a")
    assert [path.stat().st_mode & 0o777 for path in (job.plan, dirs.jobs, dirs.path)] == [0o600, 0o700, 0o700]
    before = job.attempt(1).launch.read_bytes()
    run_once(site.options("fifo"))
    assert job.attempt(1).launch.read_bytes() == before
    assert not job.attempt(2).path.exists()
    assert left_running(site.folder) != []
    all_ended(site)
    log, _ = run_once(site.options("fifo"))
    assert site.story() == ["submit a", "start a 1", "finish a 0"]
    assert log.jobs["a"].samples_done == 600


def test_once_resizes_as_a_dry_run_says(site: Site) -> None:
    """A dry run prints commands, too, and touches nothing; a stopped job says why it waits."""
    site.job("a", samples=1e6, high=2)
    head, plan, first, second = runner.dry_run_text(site.options(), resume=True).splitlines()
    assert head == "start a: nothing -> n0/0 n0/1 (attempt 1)"
    assert plan == "  plan: global batch 8, 1 micro-steps, learning rate x 1"
    assert "PLIANT_SLOT=n0/0" in first
    assert shlex.split(second)[-3:] == [site.script, "--samples", "1000000.0"]
    assert not site.state.exists()
    run_once(site.options())
    site.job("b", samples=1e6, high=2)
    lines = runner.dry_run_text(site.options(), resume=False).splitlines()
    assert lines[0] == "shrink a: n0/0 n0/1 -> n0/0 (attempt 2)"
    assert lines[3] == "start b: nothing -> n0/1 (attempt 1)"
    assert read_log(site.state).jobs.keys() == {"a"}
    run_once(site.options())
    assert site.story() == ["submit a", "start a 2", "submit b", "shrink a 1", "start b 1"]
    site.job("0", samples=1e6, gpus=2)
    waits = {each.job: each.reason for each in read_schedule(site.schedule("fifo")).waiting}
    run_once(site.options("fifo"))
    assert site.story()[-4:] == ["submit 0", "preempt a 0", "preempt b 0", "start 0 2"]
    stopped = {
        event.job: (event.detail or {})["reason"] for event in site.events() if event.event == "preempt"
    }
    assert stopped == waits
    assert all(waits.values())
    site.jobs.clear()
    run_once(site.options())
    assert site.story()[-1] == "preempt 0 0"
    assert left_running(site.folder) == []


def of_job(site: Site, job_id: str) -> set[int]:
    folder = str(StateDir(site.state).job(job_id).path)
    pids = set()
    for process in left_running(site.folder):
        with contextlib.suppress(psutil.Error):  # it has ended, or is starting a program
            pids |= {process.pid} if process.environ().get(ENV_JOB_DIR) == folder else set()
    return pids


def test_only_a_job_whose_files_nothing_can_replace_starts_again(tmp_path: Path) -> None:
    """A plan that is lost, or one damaged file, costs nothing."""
    site = Site(tmp_path, slots=6)
    for name in "abcdef":
        site.job(name, "--deaf", "--gate", site.gate, samples=150)
    run_once(site.options("fifo"))
    a, b, c, d, e, f = folders = [StateDir(site.state).job(name) for name in "abcdef"]
    for folder in folders:
        until(folder.attempt(1).progress.exists)
    keeper_and_worker = 2
    until(lambda: all(len(of_job(site, name)) == keeper_and_worker for name in "abcdef"))
    before = {name: of_job(site, name) for name in "abcdef"}
    for damaged in (a.attempt(1).launch, b.plan, d.plan, d.attempt(1).plan(1)):
        damaged.write_text("{")
    for lost in (c.plan, e.plan, e.attempt(1).plan(1), f.attempt(1).launch):
        lost.unlink()
    run_once(site.options("fifo"))
    assert {name: of_job(site, name) for name in "abc"} == {name: before[name] for name in "abc"}
    for name, folder, generation in (("d", d, 2), ("e", e, 1), ("f", f, 2)):
        until(folder.attempt(2).progress.exists)
        assert before[name].isdisjoint(of_job(site, name))
        plan = read_plan(folder)
        assert plan is not None
        assert (plan.attempt, plan.generation) == (2, generation)
    all_ended(site)
    run_once(site.options("fifo"))
    for name in "abc":
        assert site.of(name) == [f"submit {name}", f"start {name} 1", f"finish {name} 0"]


# Signals that a run counts, and a loop that is left in the background.


@pytest.mark.parametrize("handling", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_end_of_a_loop_that_cannot_begin_is_known(tmp_path: Path, handling: signal.Handlers) -> None:
    """A parent process may have it ignore SIGCHLD."""
    before = signal.signal(signal.SIGCHLD, handling)
    try:
        started = in_background(lambda _ready: 75, tmp_path / "run.log")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert started.failed == 75


def test_what_a_loop_in_the_background_printed_is_known(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("an older message\n")

    def explain(_ready: Callable[[], None]) -> int:
        os.write(2, b"its cluster is gone\n")
        return 1

    assert in_background(explain, log).output == "its cluster is gone\n"


def test_a_loop_in_the_background_holds_no_pipe_open(tmp_path: Path) -> None:
    """Who waits for the end of a pipe would wait for the end of the service."""

    def look(ready: Callable[[], None]) -> int:
        os.dup2(os.pipe()[0], 0)
        ready()
        ready()
        for descriptor in (0, 1):
            os.write(2, os.readlink(f"/proc/self/fd/{descriptor}").encode() + b"\n")
        os.write(2, b"a session of its own\n" if os.getsid(0) == os.getpid() else b"")
        return 0

    log = tmp_path / "run.log"
    started = in_background(look, log)
    assert started.failed is None
    os.waitpid(started.pid, 0)
    assert log.read_text().splitlines() == [os.devnull, os.devnull, "a session of its own"]


def test_signals_are_noted_and_an_ignored_one_stays_ignored() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with Interrupts() as interrupts:
        for number in numbers:
            signal.raise_signal(number)
    assert interrupts.received == [*numbers]
    assert [signal.getsignal(number) for number in numbers] == before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received == []
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[0])
