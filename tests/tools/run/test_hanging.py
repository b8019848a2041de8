"""Processes that no signal ends keep no run waiting without end: it leaves, and the next one goes on."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import chain, repeat
from pathlib import Path
from signal import Signals

import pytest

from pliant.schemas.errors import LockedError, UsageError
from pliant.schemas.io import write_schedule
from pliant.tools.run.backends.protocol import Handle, UnitStatus
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.members import Timeouts
from pliant.tools.run.service.run import Interrupts, release_nodes, run_once, run_until_done
from pliant.tools.run.statedir.contract.folders import UnreadableError
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import Question, decide
from tests.builders import cluster, job
from tests.tools.run.instant import UndyingBackend

Poll = Callable[[Iterable[Handle]], Mapping[Handle, tuple[UnitStatus, ...]]]
SHORT = Timeouts(abort_s=0.02, term_s=0.02, kill_s=0.02)


class Place:
    """A schedule with one job, and processes that hang."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        nodes = cluster(2, slots="cpu")
        self.backend = UndyingBackend(nodes)
        self.dirs = StateDir(folder / "state")
        spec = job("a", command=("train.py",), work={"samples": 1.0}, batch=8)
        schedule = folder / "schedule.json"
        write_schedule(decide([spec], nodes, None, Question("fifo")), schedule)
        self.options = RunOptions(self.dirs.path, str(schedule), timeouts=SHORT)
        patch.setattr(runner, "open_backend", lambda *_about: self.backend)
        patch.setattr(runner, "POLL_S", 0.001)
        patch.setattr(runner, "GRACE_S", 0.05)

    def cancel(self) -> None:
        spool = Spool(self.dirs)
        with spool.locked():
            spool.ask_to_cancel(["a"])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def failing(place: Place, *errors: Exception | None, last: Exception | None = None) -> Poll:
    """Looks at jobs fail so, one after the other; all later ones as the last."""
    poll, looks = place.backend.poll, chain(errors, repeat(last))

    def fail(handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        if (error := next(looks)) is not None:
            raise error
        return poll(handles)

    return fail


@pytest.mark.parametrize("can_be_looked_at", [True, False])
def test_one_reconciliation_leaves_what_does_not_end_to_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch, can_be_looked_at: bool
) -> None:
    run_once(place.options)
    place.cancel()
    unreadable = UnreadableError("launch.json: cannot be read")
    said = "job a: not as the schedule says" if can_be_looked_at else "job a"
    with monkeypatch.context() as patched:
        if not can_be_looked_at:
            poll = failing(place, None, None, ZeroDivisionError(), last=unreadable)
            patched.setattr(place.backend, "poll", poll)
        with pytest.raises(LockedError, match=said):
            run_once(place.options)
    place.backend.hangs = False
    log, _ = run_once(place.options)
    assert not can_be_looked_at or log.jobs["a"].phase == "cancelled"


def test_after_a_second_signal_a_run_leaves_and_says_what_is_left(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupts = Interrupts()
    monkeypatch.setattr(runner, "Interrupts", lambda: interrupts)

    def interrupt(_log: RunLog, _now_s: float) -> None:
        interrupts.received.append(Signals.SIGTERM)

    log, stopped_by = run_until_done(place.options, interrupt)
    assert stopped_by == Signals.SIGTERM
    assert "killed, and not gone after 0 s: a" in caplog.text
    assert log.jobs["a"].phase == "preempted"


def test_an_interrupted_run_waits_for_a_job_that_it_kills(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is being killed: until nothing of it is left, the run has not stopped all jobs."""
    run_once(place.options)
    interrupts = Interrupts()

    def let_it_die() -> None:
        place.backend.hangs = False

    deeds = iter([lambda: interrupts.received.append(Signals.SIGINT), lambda: None, let_it_die])
    monkeypatch.setattr(place.backend, "poll", failing(place, ZeroDivisionError()))
    monkeypatch.setattr(runner, "Interrupts", lambda: interrupts)
    log, stopped_by = run_until_done(
        RunOptions(place.dirs.path, timeouts=SHORT), lambda _log, _now_s: next(deeds, lambda: None)()
    )
    assert (stopped_by, place.backend.hangs) == (Signals.SIGINT, False)
    assert log.jobs["a"].reason == "cannot be taken up: internal error: ZeroDivisionError()"


def test_nodes_are_given_back_once_no_job_is_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs on would lose its node. On demand it is so, too, if no other process runs the jobs."""
    over: list[bool] = []

    def release(jobs: Container[str]) -> int:
        over.append("a" in jobs)
        return 2

    monkeypatch.setattr(place.backend, "release", release)
    with pytest.raises(UsageError, match="holds no run"):
        release_nodes(place.dirs.path)
    assert not place.dirs.path.exists()
    run_once(place.options)
    with State(place.dirs.path), pytest.raises(LockedError):
        release_nodes(place.dirs.path)
    assert over == []
    assert release_nodes(place.dirs.path) == 2
    assert over == [False], "the job runs: its node stays"
    place.cancel()
    place.backend.hangs = False
    run_once(place.options)
    assert over == [False, True]
