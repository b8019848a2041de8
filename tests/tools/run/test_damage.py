"""A log that was damaged on its disk or by hand: every command notices, and a repair makes it good again."""

from __future__ import annotations

import random
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pliant.cli.common import run_command
from pliant.cli.job import log as log_command
from pliant.cli.orders import cancel
from pliant.cli.reference import validate
from pliant.cli.report import report
from pliant.cli.schedule import schedule
from pliant.cli.status import status
from pliant.cli.submit import submit
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import event_lines
from pliant.schemas.file_io.json_lines import header
from pliant.schemas.io import read_events, write_jobs
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.run.statedir.directory import Lock, StateDir
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.log.snapshot import LogView, renew_snapshot
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.saved import Basis
from tests.builders import job
from tests.tools.run.stories import BEGAN_S, NODES, Story, rebuilding

BAD_INPUT, LOCKED, USAGE = 3, 75, 2


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """A state directory in the middle of a run."""
    story = Story(7)
    story.go_on(60)
    return story.write(tmp_path / "state")


def decided(state: StateDir) -> None:
    ask: Callable[..., None] = schedule
    ask(policy="fifo", state=str(state.path), param=None, now=None, seed=0, explain=False,
        timing=False, output=str(state.path / "decision.json"))  # fmt: skip


def taken_up(state: StateDir) -> None:
    with State(state.path):
        pass


def submitted(state: StateDir) -> None:
    path = state.path.parent / "jobs.jsonl"
    write_jobs([job("new", command=("true",))], path)
    submit(str(path), state=state.path, no_check=True)
    for request in state.spool.glob("*.jsonl"):
        request.unlink()


COMMANDS: dict[str, Callable[[StateDir], Any]] = {
    "status": lambda state: status(state=state.path),
    "submit": submitted,
    "cancel": lambda state: cancel(["nobody"], state=state.path),
    "schedule": decided,
    "run": taken_up,
    "log": lambda state: log_command("nobody", state=state.path),
}
FINE = {name: USAGE if name in ("cancel", "log") else 0 for name in COMMANDS}
"""How they end where the log is whole: no job is called "nobody"."""


def ends(state: StateDir) -> dict[str, int]:
    return {name: run_command(lambda run=run: run(state)) for name, run in COMMANDS.items()}  # type: ignore[misc]


def lines_of(state: StateDir) -> list[bytes]:
    return state.events.read_bytes().splitlines(keepends=True)


def flip(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_a_damaged_line_stops_every_command_with_one_line_that_says_where_and_what_to_do(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(state)
    lines[4] = flip(lines[4], 20, 1)
    state.events.write_bytes(b"".join(lines))
    where, hint = f"{state.events}:5", f"pliant log --repair --state {state.path}"
    said = f"pliant: {where}: the line is damaged: its checksum is wrong; repair it with: {hint}\n"
    for name, run in COMMANDS.items():
        assert run_command(lambda run=run: run(state)) == BAD_INPUT, name  # type: ignore[misc]
        assert capsys.readouterr() == ("", said), name


def test_a_file_with_a_damaged_line_is_neither_valid_nor_reported(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    ask: Callable[..., None] = report
    assert run_command(lambda: validate([str(state.events)])) == 0
    lines = lines_of(state)
    state.events.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    assert run_command(lambda: validate([str(state.events)])) == BAD_INPUT
    assert (
        f"{state.events}:4: does not follow the line before it: lines are missing" in capsys.readouterr().err
    )
    assert run_command(lambda: ask([str(state.events)])) == BAD_INPUT


def mutations(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    match rng.choice(["flip", "flip", "flip", "cut", "lose", "double", "swap", "zeros"]):
        case "flip":
            return flip(data, rng.randrange(len(data)), rng.randrange(8))
        case "cut":
            return data[: rng.randrange(1, len(data))]
        case "lose":
            return b"".join([*lines[:at], *lines[at + 1 :]])
        case "double":
            return b"".join([*lines[: at + 1], *lines[at:]])
        case "swap":
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
            return b"".join(lines)
        case _:
            begin = rng.randrange(len(data))
            return data[:begin] + bytes(min(64, len(data) - begin)) + data[begin + 64 :]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_the_log_no_command_breaks_and_no_change_goes_unseen(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    story, rng = Story(seed), random.Random(seed)
    events = story.go_on(30)
    state = story.write(tmp_path / "state")
    whole, before = state.events.read_bytes(), fold(events)
    assert ends(state) == FINE
    for _ in range(10):
        state.events.write_bytes(mutated := mutations(whole, rng))
        found = ends(state)
        if whole.startswith(mutated):  # the end was cut off: no line can tell
            assert set(found.values()) <= {0, USAGE, BAD_INPUT}
            continue
        assert found in (FINE, dict.fromkeys(COMMANDS, BAD_INPUT)), mutated
        if found == FINE:
            assert same(fold(read_events(state.events)), before)
            continue
        assert run_command(lambda: log_command(state=state.path, repair=True)) == 0
        assert ends(state) == FINE
        repaired = state.events.read_bytes()
        assert run_command(lambda: log_command(state=state.path, repair=True)) == 0
        assert state.events.read_bytes() == repaired


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[StateDir], str]:
    def repaired(state: StateDir) -> str:
        capsys.readouterr()
        assert run_command(lambda: log_command(state=state.path, repair=True)) == 0
        return capsys.readouterr().out

    return repaired


Told = Callable[[StateDir], str]


def without(state: StateDir, lost: Callable[[Event], bool]) -> list[int]:
    """Damage the lines of some events; returns their numbers."""
    lines = lines_of(state)
    numbers = [number for number, event in enumerate(read_events(state.events), 1) if lost(event)]
    for number in numbers:
        lines[number] = flip(lines[number], 3, 0)
    state.events.write_bytes(b"".join(lines))
    return [number + 1 for number in numbers]


def test_a_repair_drops_the_damaged_line_keeps_the_rest_and_a_copy(state: StateDir, told: Told) -> None:
    events = read_events(state.events)
    at = next(
        at for at, each in enumerate(events) if at and each.event == "decision" and events.count(each) == 1
    )
    (number,) = without(state, lambda event: event == events[at])
    damaged = state.events.read_bytes()
    said = told(state).splitlines()
    copy = state.path / "events.jsonl.damaged-1"
    assert said[0].startswith(
        f"line {number}: dropped: the line is damaged: its checksum is wrong; it looks like a"
    )
    assert said[-1].endswith(f"the damaged log is kept as {copy}")
    assert (copy.read_bytes(), stat.S_IMODE(copy.stat().st_mode)) == (damaged, 0o600)
    assert read_events(state.events) == (*events[:at], *events[at + 1 :])
    assert told(state) == f"{state.events} is whole: there is nothing to repair\n"
    assert [path.name for path in state.path.glob("*.damaged-*")] == [copy.name]


def test_after_a_repair_nothing_speaks_of_another_log(
    state: StateDir, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    with State(state.path) as written:
        renew_snapshot(state, written.log, rebuilding())
    without(state, lambda event: event.event == "progress")
    told(state)
    caplog.clear()
    read_log(state.path)
    assert caplog.text == ""


def test_a_job_whose_submission_is_lost_is_named_and_its_id_is_not_given_away(
    state: StateDir, told: Told, tmp_path: Path
) -> None:
    lost = next(event.job for event in read_events(state.events) if event.event == "start")
    assert lost is not None
    without(state, lambda event: event.event == "submit" and event.job == lost)
    (state.jobs / lost).mkdir()
    said = told(state)
    assert f"it looks like a 'submit' event of job {lost}" in said
    assert f"job {lost}: its submission is lost, so it cannot be taken up" in said
    assert lost not in read_log(state.path).jobs
    assert ends(state) == FINE
    write_jobs([job(lost, command=("true",))], tmp_path / "again.jsonl")
    assert (
        run_command(lambda: submit(str(tmp_path / "again.jsonl"), state=state.path, no_check=True))
        == BAD_INPUT
    )


def test_lines_that_became_one_are_not_reported_as_a_single_event(state: StateDir, told: Told) -> None:
    lines = lines_of(state)
    lines[4] = lines[4].rstrip(b"\n")
    state.events.write_bytes(b"".join(lines))
    first = re.findall(rb'"event":"(\w+)"', lines[4])[0].decode()
    assert f"it looks like a {first!r} event" in (said := told(state))
    assert "and at least one more event" in said
    assert ends(state) == FINE


def test_a_lost_first_event_is_replaced_from_the_schedule_or_else_nothing_is_changed(
    state: StateDir, told: Told
) -> None:
    info = read_log(state.path).info
    without(state, lambda event: event.detail is not None and "pliant_version" in event.detail)
    damaged, kept = state.events.read_bytes(), state.schedule.read_bytes()
    state.schedule.unlink()
    assert run_command(lambda: log_command(state=state.path, repair=True)) == BAD_INPUT
    assert state.events.read_bytes() == damaged
    state.schedule.write_bytes(kept)
    assert "the first event, which names the run, is replaced from" in told(state)
    again = read_log(state.path).info
    assert info is not None
    assert again is not None
    assert (again.policy, again.cluster) == (info.policy, info.cluster)
    assert ends(state) == FINE


def test_a_job_that_another_one_took_the_gpus_of_waits_again(tmp_path: Path, told: Told) -> None:
    story = Story(1)
    a, b = (submit_event(job(name, gpus=8), story.now_s) for name in "ab")
    place = {"gpus": 8, "placement": (("n0", 4), ("n1", 4))}
    story.events += [
        a,
        b,
        Event(story.now_s + 1, "start", "a", **place),
        Event(story.now_s + 2, "finish", "a", gpus=0, placement=()),
        Event(story.now_s + 3, "start", "b", **place),
    ]
    state = story.write(tmp_path / "state")
    without(state, lambda event: event.event == "finish")
    assert "job a: the log was repaired: a line about its GPUs is lost; it goes on from its" in told(state)
    jobs = read_log(state.path).jobs
    assert (jobs["a"].phase, jobs["a"].gpus, jobs["b"].gpus) == ("preempted", 0, 8)
    assert ends(state) == FINE


def with_a_slot_left_out(folder: Path) -> StateDir:
    """A job loses a slot that is then out of service, gets it back, and another job gets the rest."""
    story = Story(1)
    now_s, on = story.now_s, ("n0", 4)
    less, slot = ("n0", 3), {"slot": "n0/3"}
    story.events += [
        *(submit_event(job(name, gpus=4, low=1, high=4), now_s) for name in "ab"),
        Event(now_s + 1, "start", "a", gpus=4, placement=(on,)),
        Event(now_s + 2, "shrink", "a", gpus=3, placement=(less,)),
        Event(now_s + 2, "slot_down", detail={**slot, "seconds": 600.0, "by": "a", "reason": "died"}),
        Event(now_s + 3, "slot_up", "a", detail=slot),
        Event(now_s + 4, "grow", "a", gpus=4, placement=(on,)),
        Event(now_s + 5, "start", "b", gpus=4, placement=(("n1", 4),)),
    ]
    return story.write(folder / "state")


@pytest.mark.parametrize(
    ("lost", "said", "is_told"),
    [
        ("shrink", "the line that freed it is lost; it stays in service", False),
        ("slot_up", "the line that put it back into service is lost, and replaced", True),
    ],
)
def test_a_slot_that_a_job_got_back_is_in_service_whichever_line_is_lost(
    tmp_path: Path, told: Told, lost: str, said: str, is_told: bool
) -> None:
    state = with_a_slot_left_out(tmp_path)
    without(state, lambda event: event.event == lost)
    assert f"slot n0/3: {said}" in told(state)
    log = read_log(state.path)
    assert {job_id: found.gpus for job_id, found in log.jobs.items()} == {"a": 4, "b": 4}
    assert log.suspects.slots == {}
    assert is_told == ("slot_down" in {event.event for event in read_events(state.events)})
    assert ends(state) == FINE


def test_slots_that_are_out_of_service_at_the_end_are_so_after_a_repair(tmp_path: Path, told: Told) -> None:
    state = with_a_slot_left_out(tmp_path)
    without(state, lambda event: event.event in ("slot_up", "grow"))
    told(state)
    assert read_log(state.path).suspects.slots == {"n0/3": {"a": 1}}
    found = LogView(state).history(Basis.of(NODES, None))
    session = session_from_events(found[1], make_policy("fifo"), NODES, CurveThroughput())
    assert dict(session.withheld.out_of_service) == {"n0/3": BEGAN_S + 602}
    assert session.free.free_on("n0") == 0
    assert ends(state) == FINE


def test_a_log_that_a_run_holds_is_not_repaired(state: StateDir) -> None:
    without(state, lambda event: event.event == "finish")
    lock = Lock(state.lock)
    lock.acquire()
    try:
        assert run_command(lambda: log_command(state=state.path, repair=True)) == LOCKED
    finally:
        lock.release()


def test_a_log_of_the_version_before_is_read_and_gets_checksums_from_then_on(
    state: StateDir, told: Told
) -> None:
    events = read_events(state.events)
    state.events.write_bytes(header("event") + event_lines(events))
    assert ends(state) == FINE
    with State(state.path) as held:
        held.record([Event(events[-1].time + 1, "decision", detail={"origin_s": 0.0})])
    assert read_events(state.events)[:-1] == events
    assert b'{"schema":"pliant.event/1.1"}' in state.events.read_bytes()
    assert ends(state) == FINE
    *lines, last = lines_of(state)
    state.events.write_bytes(b"".join([*lines, flip(last, 10, 0)]))
    assert set(ends(state).values()) == {BAD_INPUT}
    told(state)
    assert read_events(state.events) == events


def test_an_event_that_makes_no_sense_is_bad_input_and_no_bug(state: StateDir, told: Told) -> None:
    """As a log without checksums may hold them."""
    events = read_events(state.events)
    at = next(number for number, event in enumerate(events) if event.event == "start")
    broken = [replace(events[at], detail={"accum": [1]}), replace(events[0], detail={})]
    for number, event in zip((at, 0), broken, strict=True):
        state.events.write_bytes(
            header("event") + event_lines([*events[:number], event, *events[number + 1 :]])
        )
        assert set(ends(state).values()) <= {BAD_INPUT, 0}
        assert BAD_INPUT in ends(state).values()
        told(state)
        assert ends(state) == FINE


def same(one: RunLog, other: RunLog) -> bool:
    return one.jobs == other.jobs and one.info == other.info
