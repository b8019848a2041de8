"""A log that was cut behind its snapshot: what that knows is shown, written back, and gone on from."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event, EventName
from pliant.schemas.io import read_events
from pliant.tools.report.read_run import read_run
from pliant.tools.run.doctor import examine
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.failures import UNTIL_RESUMED_S
from pliant.tools.run.statedir.log import repair as log_repair
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.log.repair import repair
from pliant.tools.run.statedir.log.snapshot import LogView, renew_snapshot, restoring
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch.status import look_at
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import job
from tests.tools.run.stories import BASIS, NODES, Story, rebuilding
from tests.tools.run.watch.seen import jobs_shown_running

HOME = shutil.ignore_patterns("version.json")
"""Not copied: a directory that is a copy of one whose jobs run is refused."""


def left_by(folder: Path, events: list[Event], behind: int) -> StateDir:
    """A directory whose log ends after that many of the events, with a snapshot of all of them."""
    state = StateDir(folder)
    go_on(state, events[:behind])
    return state


def log_words(state: StateDir) -> list[str]:
    """What ``doctor`` says of the log."""
    return [check.text for check in examine(state.path) if "its log" in check.text]


@pytest.mark.parametrize("seed", range(6))
def test_wherever_a_log_is_cut_nothing_that_its_snapshot_knows_is_lost_and_all_tools_say_the_same(
    seed: int, tmp_path: Path
) -> None:
    """Read at once, repaired, or simply gone on from: each time it is the log that was there."""
    rng = random.Random(seed)
    events = Story(seed, linked=seed % 2 > 0).go_on(rng.randrange(10, 90))
    behind = rng.randrange(2, len(events) + 1)
    state = left_by(tmp_path / "whole", events, behind)
    known, size = fold(events[:behind]), state.events.stat().st_size
    for number, to_bytes in enumerate((0, size - 1, *(rng.randrange(size) for _ in range(2)))):
        one = StateDir(tmp_path / f"cut-{number}")
        shutil.copytree(state.path, one.path, ignore=HOME)
        os.truncate(one.events, to_bytes)
        assert read_log(one.path) == known == look_at(one.path).log
        for again in (by_repair, by_going_on):
            twin = StateDir(tmp_path / f"{again.__name__}-{number}")
            shutil.copytree(one.path, twin.path, ignore=HOME)
            again(twin)
            assert_is(twin, known)
            go_on(twin, events[behind:])
            assert read_log(twin.path) == fold(events)
            twin.snapshot.unlink(missing_ok=True)
            assert read_log(twin.path) == fold(events)
            leads_to_a_session(twin)
            assert {job.id for job in read_run(twin.events).jobs} == set(fold(events).jobs)


def by_repair(state: StateDir) -> None:
    """The three tools agree: something is lost, it is written back, the log is whole."""
    lost = LogView(state)
    lost.refresh()
    assert ("its log is whole" in " ".join(log_words(state))) == (lost.misfit is None)
    said = repair(state.path)
    assert any("written back from the snapshot" in line for line in said) == (lost.misfit is not None)
    assert repair(state.path) == [f"{state.events} is whole: there is nothing to repair"]
    assert any("is whole" in words or "holds no run" in words for words in log_words(state))


def by_going_on(state: StateDir) -> None:
    """A run takes the lock, and needs no repair by hand."""
    with State(state.path):
        pass


def go_on(state: StateDir, events: list[Event], *, snapshot: bool = True) -> None:
    with State(state.path) as held:
        held.record(events)
        if snapshot:
            renew_snapshot(state, held.log, rebuilding())


def cut_lines(state: StateDir, begin: int, end: int | None = None) -> bytes:
    """Take lines out of the log; returns them."""
    lines = state.events.read_bytes().splitlines(keepends=True)
    state.events.write_bytes(b"".join([*lines[:begin], *([] if end is None else lines[end:])]))
    return b"".join(lines[begin:end])


def leads_to_a_session(state: StateDir) -> None:
    session_from_events(read_events(state.events), make_policy("fifo"), NODES, throughput_for(None, NODES))


def assert_is(state: StateDir, known: RunLog) -> None:
    view = LogView(state)
    assert view.refresh(to_the_end=True) == known
    assert view.misfit is None
    ended = {job_id for job_id, job in known.jobs.items() if job.ended}
    assert ended.isdisjoint(jobs_shown_running(state.path))


def test_a_finished_job_is_not_shown_running_again(tmp_path: Path) -> None:
    events = Story(6).go_on(60)
    done = next(i for i, event in enumerate(events) if event.event == "finish")
    job_id = events[done].job
    assert job_id is not None
    cut_lines(left_by(tmp_path, events, done + 5), done + 1)
    found = read_log(tmp_path).jobs[job_id]
    assert (found.phase, found.ended_s, found.gpus) == ("finished", events[done].time, 0)
    assert job_id not in jobs_shown_running(tmp_path)


def test_the_three_tools_name_what_is_missing_and_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = Story(6).go_on(50)
    state = left_by(tmp_path, events, 40)
    size = state.events.stat().st_size
    os.truncate(state.events, size // 2)
    read_log(tmp_path)
    command = f"pliant log --repair --state {tmp_path}"
    assert f"was cut by {size - size // 2:,} bytes" in caplog.text
    assert command in caplog.text
    said = [check for check in examine(tmp_path) if "was cut by" in check.text]
    assert [(check.verdict, command in check.advice) for check in said] == [("warning", True)]
    first, *_, last = repair(tmp_path)
    assert first.startswith("written back from the snapshot: ")
    assert "the damaged log is kept as" in last


class KilledError(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("blow", range(4))
@pytest.mark.parametrize("after", [False, True])
def test_killed_in_the_middle_of_writing_back_it_is_done_again_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blow: int, after: bool
) -> None:
    """Before and after each of its writes and removals."""
    events = Story(9).go_on(60)
    state = left_by(tmp_path, events, 50)
    os.truncate(state.events, state.events.stat().st_size // 3)
    left = [blow]

    def deadly(act: Callable[..., object]) -> Callable[..., object]:
        def acting(*args: object, **options: object) -> object:
            left[0] -= 1
            if left[0] == -1 and not after:
                raise KilledError
            done = act(*args, **options)
            if left[0] == -1:
                raise KilledError
            return done

        return acting

    with monkeypatch.context() as patch:
        patch.setattr(log_repair, "atomic_write", deadly(log_repair.atomic_write))
        patch.setattr(Path, "unlink", deadly(Path.unlink))
        try:
            with State(tmp_path):
                pass
        except KilledError:
            pass
    assert read_log(tmp_path) == fold(events[:50])
    go_on(state, events[50:])
    assert read_log(tmp_path) == fold(events)
    state.snapshot.unlink()
    assert read_log(tmp_path) == fold(events)


def test_a_damaged_line_that_the_snapshot_has_seen_costs_nothing(tmp_path: Path) -> None:
    """The end of a job is unreadable, others have its GPUs since: a repair knows when it ended."""
    for seed in range(1, 12):
        events = Story(seed, linked=seed % 2 > 0).go_on(70)
        done = next((i for i, event in enumerate(events[:-3]) if event.event == "finish"), None)
        if done is None:
            continue
        state = left_by(tmp_path / str(seed), events, len(events) - 3)
        go_on(state, events[-3:], snapshot=False)
        lines = state.events.read_bytes().splitlines(keepends=True)
        lines[done + 1] = lines[done + 1].replace(b'"time":1', b'"time":2', 1)
        state.events.write_bytes(b"".join(lines))
        with pytest.raises(BadInputError, match="repair it with"):
            read_log(state.path)
        repair(state.path)
        assert read_log(state.path) == fold(events)
        leads_to_a_session(state)


def test_a_log_that_was_cut_under_a_run_that_wrote_on_has_all_of_it_after_a_repair(tmp_path: Path) -> None:
    """The lines of the living run follow what is not there any more."""
    for seed in range(1, 6):
        events = Story(seed, linked=seed % 2 > 0).go_on(70)
        state = left_by(tmp_path / str(seed), events, 40)
        go_on(state, events[40:], snapshot=False)
        cut_lines(state, 21, 41)
        with pytest.raises(BadInputError, match="lines are missing"):
            read_log(state.path)
        repair(state.path)
        assert read_log(state.path) == fold(events)


@pytest.mark.parametrize("harm", ["no snapshot", "damaged", "of another version"])
def test_without_a_usable_snapshot_the_log_is_what_is_left_of_it_and_the_tools_agree(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = Story(6).go_on(50)
    state = left_by(tmp_path, events, 40)
    lost = len(cut_lines(state, 21))
    data = state.snapshot.read_bytes()
    if harm == "no snapshot":
        state.snapshot.unlink()
    elif harm == "damaged":
        state.snapshot.write_bytes(data[:-9])
    else:
        state.snapshot.write_bytes(data.replace(b'"folds_to": "', b'"folds_to": "0'))
    assert read_log(tmp_path) == fold(events[:20])
    noticed = harm != "no snapshot"
    assert (f"was cut by {lost:,} bytes, and its snapshot cannot be used" in caplog.text) == noticed
    assert any("cannot be used" in words for words in log_words(state)) == noticed
    assert ("is lost" in " ".join(repair(tmp_path))) == noticed
    assert repair(tmp_path) == [f"{state.events} is whole: there is nothing to repair"]
    go_on(state, events[20:])
    assert read_log(tmp_path) == fold(events)


def test_a_log_that_was_removed_is_written_again_by_the_next_run(tmp_path: Path) -> None:
    events = Story(6).go_on(50)
    state = left_by(tmp_path, events, 40)
    state.events.unlink()
    go_on(state, events[40:])
    assert read_log(tmp_path) == fold(events)
    assert state.events.stat().st_mode & 0o777 == 0o600


def test_the_log_of_another_run_is_left_as_it_is(tmp_path: Path) -> None:
    """It was put there on purpose, or an earlier version has gone on with what was left."""
    events, others = Story(6).go_on(50), Story(7).go_on(50)
    state = left_by(tmp_path / "one", events, 40)
    other = left_by(tmp_path / "other", others, 30)
    other.snapshot.write_bytes(state.snapshot.read_bytes())
    before = other.events.read_bytes()
    assert read_log(other.path) == fold(others[:30])
    assert "is not used" in " ".join(log_words(other))
    assert repair(other.path) == [
        f"{other.events} is whole as it is; its snapshot is of another log, and is removed"
    ]
    assert other.events.read_bytes() == before
    assert not other.snapshot.exists()
    assert LogView(other).refresh() == fold(others[:30])


def test_a_session_sees_who_holds_what_after_a_cut(tmp_path: Path) -> None:
    events = Story(4).go_on(60)
    state = left_by(tmp_path, events, len(events))
    os.truncate(state.events, state.events.stat().st_size // 2)
    view = LogView(state, keeps_events=True)
    log = view.refresh(to_the_end=True)
    kept, told = view.history(BASIS)
    session = session_from_events(told, make_policy("fifo"), NODES, throughput_for(None, NODES), saved=kept)
    assert {job.id: job.placement for job in session.jobs.values()} == {
        job_id: job.placement for job_id, job in log.active.items()
    }
    assert session.commands.held.keys() == {job_id for job_id, job in log.active.items() if job.held}


def sick_slots() -> list[Event]:
    """Slots go out of service and come back, one until it is resumed; a job waits for its retry."""
    story = Story(1)
    now_s, rest = story.now_s, ("n1", 4)

    def out(at: float, slot: str, seconds: float) -> Event:
        said = {"slot": slot, "seconds": seconds, "by": "a", "reason": "died"}
        return Event(now_s + at, "slot_down", detail=said)

    def holds(at: float, name: EventName, job_id: str, *where: tuple[str, int], **detail: object) -> Event:
        gpus = sum(count for _, count in where)
        return Event(now_s + at, name, job_id, gpus=gpus, placement=where, detail=detail)

    return [
        *story.events,
        *(submit_event(job(name, gpus=4, low=1, high=4), now_s) for name in "ab"),
        holds(1, "start", "a", ("n0", 4)),
        holds(2, "shrink", "a", ("n0", 3), setback=True, reason="died"),
        out(2, "n0/3", 600.0),
        out(3, "n1/3", 60.0),
        Event(now_s + 4, "slot_up", "a", detail={"slot": "n0/3"}),
        holds(5, "grow", "a", ("n0", 4)),
        holds(6, "start", "b", ("n1", 3)),
        holds(7, "shrink", "a", ("n0", 2), setback=True, reason="died"),
        out(7, "n0/3", 90.0),
        out(8, "n0/2", UNTIL_RESUMED_S),
        holds(9, "requeue", "b", attempt=1, failures=1, retries=3, reason="it fell", wait_seconds=120.0),
        Event(now_s + 10, "node_down", detail={"node": "n1", "reason": "gone"}),
        Event(now_s + 11, "undrain", detail={"node": "n0", "user": "ada", "order": 1}),
        Event(now_s + 70, "node_up", detail={"node": "n1"}),
        holds(71, "grow", "a", ("n0", 3)),
        out(72, "n0/3", 60.0),
        holds(140, "resume", "b", rest),
        Event(now_s + 141, "decision", detail={"origin_s": 0.0}),
    ]


def session_of(events: list[Event]) -> Session:
    return session_from_events(events, make_policy("fifo"), NODES, throughput_for(None, NODES))


def test_wherever_a_log_is_cut_no_job_gets_what_is_out_of_service_or_starts_before_its_retry() -> None:
    events = sick_slots()
    for behind in range(1, len(events) + 1):
        known, there = fold(events[:behind]), session_of(events[:behind])
        for left in range(behind + 1):
            restored = [*events[:left], *restoring(events[:left], known)]
            session, where = session_of(restored), f"{behind} events, cut behind {left}"
            assert fold(restored) == known, where
            assert restoring(restored, known) == [], where
            assert session.withheld.out_of_service == there.withheld.out_of_service, where
            assert session.withheld.held_until_s("b") == there.withheld.held_until_s("b"), where
            assert [session.free.free_on(name) for name in ("n0", "n1")] == [
                there.free.free_on(name) for name in ("n0", "n1")
            ], where
        assert restoring(events[:behind], known) == [], "nothing is lost"


def test_a_log_with_a_slot_out_of_service_is_whole(tmp_path: Path) -> None:
    state = left_by(tmp_path, events := sick_slots(), 8)
    assert fold(events[:8]).out_of_service(events[7].time)
    before = state.events.read_bytes()
    assert repair(tmp_path) == [f"{state.events} is whole: there is nothing to repair"]
    assert state.events.read_bytes() == before
