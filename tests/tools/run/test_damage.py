"""A log that was damaged on its disk or by hand: every command notices, and a repair makes it good again."""

import random
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
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
from pliant.tools.run.statedir.log.fold import fold
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


CONTEXT: Any = SimpleNamespace(meta={})
"""What the command line gives a command."""


def submitted(state: StateDir) -> None:
    path = state.path.parent / "jobs.jsonl"
    write_jobs([job("new", command=("true",))], path)
    submit(CONTEXT, str(path), state=state.path, no_check=True)
    for request in state.spool.glob("*.jsonl"):
        request.unlink()


COMMANDS: dict[str, Callable[[StateDir], object]] = {
    "status": lambda state: status(state=state.path),
    "submit": submitted,
    "cancel": lambda state: cancel(["unknown"], state=state.path),
    "schedule": decided,
    "run": taken_up,
    "log": lambda state: log_command("unknown", state=state.path),
}
Repaired = Callable[[StateDir], str]
FINE = {name: USAGE if name in ("cancel", "log") else 0 for name in COMMANDS}
"""How they end where the log is whole: no job is called "unknown"."""


def ends(state: StateDir) -> dict[str, int]:
    return {name: run_command(partial(run, state)) for name, run in COMMANDS.items()}


def repair(state: StateDir) -> int:
    return run_command(lambda: log_command(state=state.path, repair=True))


def lines_of(state: StateDir) -> list[bytes]:
    return state.events.read_bytes().splitlines(keepends=True)


def flip(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def damage(state: StateDir, lost: Callable[[Event], bool]) -> list[int]:
    """Damage the lines of some events; returns their numbers."""
    lines = lines_of(state)
    numbers = [number for number, event in enumerate(read_events(state.events), 1) if lost(event)]
    for number in numbers:
        lines[number] = flip(lines[number], 3, 0)
    state.events.write_bytes(b"".join(lines))
    return [number + 1 for number in numbers]


@pytest.fixture
def repaired(capsys: pytest.CaptureFixture[str]) -> Repaired:
    """Repairs a log, after which every command works; returns what that prints."""

    def said_of(state: StateDir) -> str:
        capsys.readouterr()
        assert repair(state) == 0
        said = capsys.readouterr().out
        assert ends(state) == FINE
        return said

    return said_of


def test_damaged_and_lost_lines_are_noticed(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    ask: Callable[..., None] = report
    assert run_command(lambda: validate([str(state.events)])) == 0
    lines = lines_of(state)
    state.events.write_bytes(b"".join([*lines[:4], flip(lines[4], 20, 1), *lines[5:]]))
    capsys.readouterr()
    where, hint = f"{state.events}:5", f"pliant log --repair --state {state.path}"
    said = f"pliant: {where}: the line is damaged: its checksum is wrong; repair it with: {hint}\n"
    for name, run in COMMANDS.items():
        assert run_command(partial(run, state)) == BAD_INPUT, name
        shown = capsys.readouterr()
        assert (shown.out, shown.err.endswith(said)) == ("", True), name
    state.events.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    assert run_command(lambda: validate([str(state.events)])) == BAD_INPUT
    said = f"{state.events}:4: does not follow the line before it: lines are missing"
    assert said in capsys.readouterr().err
    assert run_command(lambda: ask([str(state.events)])) == BAD_INPUT


def mutations(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    other, begin = rng.randrange(len(lines)), rng.randrange(1, len(data))
    swapped = [*lines]
    swapped[at], swapped[other] = lines[other], lines[at]
    flipped = flip(data, rng.randrange(len(data)), rng.randrange(8))
    zeros = bytes(min(64, len(data) - begin))
    return rng.choice(
        [
            *[flipped] * 3,
            data[:begin],
            data[:begin] + zeros + data[begin + 64 :],
            b"".join([*lines[:at], *lines[at + 1 :]]),
            b"".join([*lines[: at + 1], *lines[at:]]),
            b"".join(swapped),
        ]
    )


@pytest.mark.parametrize("seed", range(2))
def test_no_change_of_a_log_goes_unseen(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    story, rng = Story(seed), random.Random(seed)
    events = story.go_on(30)
    state = story.write(tmp_path / "state")
    whole, before = state.events.read_bytes(), fold(events)
    assert ends(state) == FINE
    for _ in range(16):
        state.events.write_bytes(mutated := mutations(whole, rng))
        codes = ends(state)
        if whole.startswith(mutated):  # the end was cut off: no line can tell
            assert set(codes.values()) <= {0, USAGE, BAD_INPUT}
            continue
        assert codes in (FINE, dict.fromkeys(COMMANDS, BAD_INPUT)), mutated
        if codes == FINE:
            after = fold(read_events(state.events))
            assert (after.jobs, after.info) == (before.jobs, before.info)
            continue
        assert repair(state) == 0
        assert ends(state) == FINE
        once = state.events.read_bytes()
        assert repair(state) == 0
        assert state.events.read_bytes() == once


def test_a_repair_drops_the_damaged_line_and_keeps_a_copy(state: StateDir, repaired: Repaired) -> None:
    events = read_events(state.events)
    at = next(
        at for at, each in enumerate(events) if at and each.event == "decision" and events.count(each) == 1
    )
    (number,) = damage(state, lambda event: event == events[at])
    damaged = state.events.read_bytes()
    (lock := Lock(state.lock)).acquire()
    assert repair(state) == LOCKED, "a run may hold it"
    lock.release()
    first, *_, last = repaired(state).splitlines()
    copy = state.path / "events.jsonl.damaged-1"
    assert first.startswith(
        f"line {number}: dropped: the line is damaged: its checksum is wrong; it looks like a"
    )
    assert last.endswith(f"the damaged log is kept as {copy}")
    assert (copy.read_bytes(), stat.S_IMODE(copy.stat().st_mode)) == (damaged, 0o600)
    assert read_events(state.events) == (*events[:at], *events[at + 1 :])
    assert repaired(state) == f"{state.events} is whole: there is nothing to repair\n"
    assert [path.name for path in state.path.glob("*.damaged-*")] == [copy.name]


def test_the_id_of_a_lost_submission_stays_taken(state: StateDir, repaired: Repaired, tmp_path: Path) -> None:
    lost = next(event.job for event in read_events(state.events) if event.event == "start")
    assert lost is not None
    damage(state, lambda event: event.event == "submit" and event.job == lost)
    (state.jobs / lost).mkdir()
    said = repaired(state)
    assert f"it looks like a 'submit' event of job {lost}" in said
    assert f"job {lost}: its submission is lost, so it cannot be taken up" in said
    assert lost not in read_log(state.path).jobs
    again = str(tmp_path / "again.jsonl")
    write_jobs([job(lost, command=("true",))], again)
    assert run_command(lambda: submit(CONTEXT, again, state=state.path, no_check=True)) == BAD_INPUT


def test_lines_that_became_one_are_repaired_beside_a_snapshot(
    state: StateDir, repaired: Repaired, caplog: pytest.LogCaptureFixture
) -> None:
    with State(state.path) as written:
        renew_snapshot(state, written.log, rebuilding())
    lines = lines_of(state)
    lines[4] = lines[4].rstrip(b"\n")
    state.events.write_bytes(b"".join(lines))
    first = re.findall(rb'"event":"(\w+)"', lines[4])[0].decode()
    assert f"it looks like a {first!r} event" in (said := repaired(state))
    assert "and at least one more event" in said
    caplog.clear()
    read_log(state.path)
    assert caplog.text == "", "the snapshot fits"


def test_a_lost_first_event_is_replaced_from_the_schedule(state: StateDir, repaired: Repaired) -> None:
    info = read_log(state.path).info
    damage(state, lambda event: event.detail is not None and "pliant_version" in event.detail)
    damaged, kept = state.events.read_bytes(), state.schedule.read_bytes()
    state.schedule.unlink()
    assert repair(state) == BAD_INPUT
    assert state.events.read_bytes() == damaged, "without the schedule nothing is changed"
    state.schedule.write_bytes(kept)
    assert "the first event, which names the run, is replaced from" in repaired(state)
    again = read_log(state.path).info
    assert info is not None
    assert again is not None
    assert (again.policy, again.cluster) == (info.policy, info.cluster)


def test_slots_after_a_repair_are_as_the_other_lines_say(tmp_path: Path, repaired: Repaired) -> None:
    story = Story(1)
    now_s, on, slot = story.now_s, ("n0", 4), {"slot": "n0/3"}
    story.events += [
        *(submit_event(job(name, gpus=4, low=1, high=4), now_s) for name in "ab"),
        Event(now_s + 1, "start", "a", gpus=4, placement=(on,)),
        Event(now_s + 2, "shrink", "a", gpus=3, placement=(("n0", 3),)),
        Event(now_s + 2, "slot_down", detail={**slot, "seconds": 600.0, "by": "a", "reason": "died"}),
        Event(now_s + 3, "slot_up", "a", detail=slot),
        Event(now_s + 4, "grow", "a", gpus=4, placement=(on,)),
        Event(now_s + 5, "start", "b", gpus=4, placement=(("n1", 4),)),
    ]
    back = story.write(tmp_path / "back")
    damage(back, lambda event: event.event == "shrink")
    assert "slot n0/3: the line that freed it is lost; it stays in service" in repaired(back)
    log = read_log(back.path)
    assert {job_id: each.gpus for job_id, each in log.jobs.items()} == {"a": 4, "b": 4}
    assert log.slot_faults.slots == {}
    out = story.write(tmp_path / "out")
    damage(out, lambda event: event.event in ("slot_up", "grow"))
    repaired(out)
    assert read_log(out.path).slot_faults.slots == {"n0/3": {"a": 1}}
    _, events = LogView(out).history(Basis.of(NODES, None))[:2]
    session = session_from_events(events, make_policy("fifo"), NODES, CurveThroughput())
    assert dict(session.quarantine.out_of_service) == {"n0/3": BEGAN_S + 602}
    assert session.cluster.free.free_on("n0") == 0


def test_a_log_of_the_version_before_gets_checksums_from_then_on(state: StateDir, repaired: Repaired) -> None:
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
    repaired(state)
    assert read_events(state.events) == events


@pytest.mark.parametrize("wrong", ["start", "run"])
def test_an_event_that_makes_no_sense_is_bad_input(state: StateDir, repaired: Repaired, wrong: str) -> None:
    events = [*read_events(state.events)]
    at = 0 if wrong == "run" else next(at for at, event in enumerate(events) if event.event == "start")
    events[at] = replace(events[at], detail={} if wrong == "run" else {"accum": [1]})
    state.events.write_bytes(header("event") + event_lines(events))
    codes = set(ends(state).values())
    assert {BAD_INPUT} <= codes <= {BAD_INPUT, 0}
    repaired(state)
