"""The snapshot of a log: whatever it was cut at, what is read from it is what all of the log says."""

from __future__ import annotations

import json
import random
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pliant.cli.common import run_command
from pliant.cli.schedule import schedule
from pliant.schemas.errors import BadInputError, LockedError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events, write_schedule
from pliant.schemas.job import Job
from pliant.tools.run.statedir import state as state_module
from pliant.tools.run.statedir.directory import Lock, StateDir, holder_of
from pliant.tools.run.statedir.log import snapshot as log_snapshot
from pliant.tools.run.statedir.log.events import decision_event, on_clock
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.log.snapshot import LogView, read_snapshot, renew_snapshot
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch.status import history, look_at
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import BUILT_IN, make_policy
from pliant.tools.schedule.session.saved import Basis, LazyDict, Past, SavedSession
from tests.tools.run.stories import BASIS, BEGAN_S, NODES, Story, rebuilding


def written(folder: Path, events: list[Event], *cuts: int, basis: Basis = BASIS) -> StateDir:
    """A state directory whose last snapshot was made after that many events."""
    begin = 0
    for cut in (*cuts, len(events)):
        with State(folder) as state:
            state.record(events[begin:cut])
            begin = cut
            if cut < len(events):
                renew_snapshot(state.dirs, state.log, rebuilding(basis))
    return StateDir(folder)


def by_value(thing: object) -> Any:
    """All that a session holds, by value: whatever an attribute is called."""
    if isinstance(thing, JobState):
        kept = [name for name in JobState.__slots__ if name != "kind"]  # which follows from the others
        return {name: by_value(getattr(thing, name)) for name in kept}
    if isinstance(thing, Job):
        return thing.model_dump()
    if isinstance(thing, Mapping):
        return [(by_value(key), by_value(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | Past):
        return [by_value(each) for each in thing]
    if hasattr(thing, "__slots__") and not isinstance(thing, LazyDict):
        return {name: by_value(getattr(thing, name)) for name in thing.__slots__}
    if type(thing).__module__.startswith("pliant.tools.schedule") and hasattr(thing, "__dict__"):
        return {name: by_value(value) for name, value in vars(thing).items()}
    return thing


def session_of(events: Iterable[Event], saved: SavedSession | None = None) -> dict[str, Any]:
    """The session that events lead to, as policies see it."""
    session = session_from_events(
        events, make_policy("fifo"), NODES, throughput_for(None, NODES), saved=saved
    )
    shared = ("policy", "cluster", "speeds", "capacities", "_rng", "_rules", "free")
    result = {name: by_value(value) for name, value in vars(session).items() if name not in shared}
    free = {node.name: session.free.free_on(node.name) for node in session.nodes}
    return {**result, "free": free, "by_type": dict(session.free.by_type)}


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_and_the_rest_fold_to_what_all_events_do(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    events = Story(seed).go_on(rng.randrange(5, 120))
    cuts = sorted(rng.randrange(1, len(events)) for _ in range(rng.choice([1, 1, 2, 3])))
    state = written(tmp_path, events, *cuts)
    view, log = LogView(state), read_log(tmp_path)
    assert read_snapshot(state) is not None
    assert log == fold(events)
    assert list(log.jobs) == list(fold(events).jobs)
    view.refresh()
    kept, rest = view.history(BASIS)
    assert kept is not None
    assert session_of(rest, kept) == session_of(events)


@pytest.mark.parametrize(("seed", "name"), [*enumerate(sorted(BUILT_IN))])
def test_every_policy_decides_alike_with_a_snapshot_and_without(name: str, seed: int, tmp_path: Path) -> None:
    """Whether its state was carried or it sees the whole history."""
    rng, story = random.Random(seed), Story(seed, name)
    count = len(story.go_on(rng.randrange(10, 40)))
    carried = story.schedule
    events = story.go_on(10)
    state = written(tmp_path, events, rng.randrange(1, count), rng.randrange(count, len(events)))
    story.write_inputs(state)
    now_s, kept = story.now_s + 3.0, state.snapshot.read_bytes()
    for previous in (carried, None):
        state.schedule.unlink(missing_ok=True)
        if previous is not None:
            write_schedule(previous, state.schedule)
        state.snapshot.write_bytes(kept)
        assert read_snapshot(state) is not None
        with_it = decision(state, name, now_s)
        state.snapshot.unlink()
        assert decision(state, name, now_s) == with_it


def decision(state: StateDir, policy: str, now_s: float) -> bytes:
    output = state.path / "decision.json"
    ask: Callable[..., None] = schedule
    assert run_command(
        lambda: ask(policy=policy, state=str(state.path), param=None, now=now_s, wait=0.0, seed=0,
                    explain=False, timing=False, output=str(output))
    ) == 0  # fmt: skip
    return output.read_bytes()


def test_a_decision_is_not_made_beside_a_run_that_writes(tmp_path: Path) -> None:
    """It would be made of a log, a schedule and requests of different moments."""
    story = Story(3)
    story.go_on(20)
    state = story.write(tmp_path)
    lock = Lock(state.lock)
    lock.acquire()
    try:
        with pytest.raises(LockedError, match="in use by process"):
            look_at(tmp_path)
        threading.Timer(0.5, lock.release).start()
        assert look_at(tmp_path, wait_s=60).log == read_log(tmp_path)
    finally:
        lock.release()
    with lock.shared():
        assert look_at(tmp_path).log.jobs, "two that decide do not wait for each other"
        assert holder_of(state.lock) is None


def test_a_decision_knows_nothing_written_after_its_look(tmp_path: Path) -> None:
    story = Story(3)
    events = list(story.go_on(20))
    state = story.write(tmp_path)
    result = look_at(tmp_path)
    with State(tmp_path) as held:
        held.record([decision_event(story.now_s + 1.0, 0.0, "fifo", 0.0)])
    _, rest = history(result.view, story.now_s + 5.0, (), None, "log").since(BASIS)
    assert (list(rest), result.log) == (events, fold(events))
    assert len(read_events(state.events)) == len(events) + 1


def test_a_snapshot_from_after_the_look_is_no_damage(tmp_path: Path) -> None:
    """A run that begins meanwhile writes on."""
    events = Story(3).go_on(40)
    state = written(tmp_path, events[:20])
    until = state.events.stat().st_size
    with State(tmp_path) as held:
        held.record(events[20:])
        renew_snapshot(state, held.log, rebuilding())
    view = LogView(state, keeps_events=True)
    assert view.refresh(to_the_end=True, until=until) == fold(events[:20])
    kept, rest = view.history(BASIS)
    assert (kept, list(rest)) == (None, list(events[:20]))


def test_a_session_on_a_clock_of_its_own_is_kept_on_that_clock(tmp_path: Path) -> None:
    events = Story(5).go_on(50)
    basis = Basis.of(NODES, None, BEGAN_S - 12.3)
    view = LogView(written(tmp_path, events, len(events) // 2, basis=basis))
    view.refresh()
    kept, rest = view.history(basis)
    assert kept is not None
    assert session_of(rest, kept) == session_of(on_clock(events, basis.origin_s))
    assert view.history(BASIS)[0] is None
    kept, rest = view.history(basis, 13.3)
    assert (kept, list(rest)) == (None, on_clock(events, basis.origin_s)), "it is of a later time"


def test_a_damaged_snapshot_is_not_used(tmp_path: Path) -> None:
    events = Story(6).go_on(50)
    state = written(tmp_path, events, 30)
    assert stat.S_IMODE(state.snapshot.stat().st_mode) == 0o600
    data = state.snapshot.read_bytes()
    assert json.loads(data.splitlines()[0])["schema"] == "pliant.snapshot/1"
    for harmed in (
        b"",
        data[:-1],
        data[: len(data) // 2],
        data[:200] + b"x" + data[201:],
        data[:-40] + b"x" + data[-39:],
        data.replace(b"pliant.snapshot/1", b"pliant.snapshot/2"),
        b"\xff\n" + data,
    ):
        state.snapshot.write_bytes(harmed)
        assert read_snapshot(state) is None
        assert read_log(tmp_path) == fold(events)


def test_a_snapshot_of_a_version_with_other_fields_is_not_used(monkeypatch: Any) -> None:
    before = log_snapshot.folds_to()

    @dataclass(slots=True)
    class More(RunLog):
        further: dict[str, tuple[float, ...]] = field(default_factory=dict)

    monkeypatch.setattr(log_snapshot, "RunLog", More)
    assert log_snapshot.folds_to() != before
    monkeypatch.setattr(JobState, "__slots__", (*JobState.__slots__, "further"))
    monkeypatch.setattr(log_snapshot, "RunLog", RunLog)
    assert log_snapshot.folds_to() != before


def test_a_run_writes_a_snapshot_when_the_log_has_grown(tmp_path: Path) -> None:
    events = Story(9).go_on(400)
    with State(tmp_path) as state:
        state.rebuilding = rebuilding()
        for event in events:
            state.record([event])
        assert state.dirs.snapshot.exists()
        place = read_snapshot(state.dirs)
        assert place is not None
        assert state.dirs.events.stat().st_size - place.place.bytes <= 1 << 16
    assert read_log(tmp_path) == fold(events)
    assert read_events(StateDir(tmp_path).events) == tuple(events)


def test_a_log_without_a_session_is_seldom_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_about: object) -> None:
        raise BadInputError.one("events.jsonl", "an event that no session takes")

    sizes: list[int] = []

    def renew(dirs: StateDir, *about: Any) -> int:
        sizes.append(dirs.events.stat().st_size)
        return log_snapshot.renew_snapshot(dirs, *about)

    monkeypatch.setattr(log_snapshot.SessionFold, "add", refuse)
    monkeypatch.setattr(state_module, "renew_snapshot", renew)
    monkeypatch.setattr(state_module, "TAIL_BYTES", 1000)
    with State(tmp_path) as state:
        state.rebuilding = rebuilding()
        for event in Story(9).go_on(100):
            state.record([event])
    assert len(sizes) > 2
    assert all(later >= 2 * sooner for sooner, later in pairwise(sizes))


def test_a_snapshot_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Story(9).go_on(100)
    monkeypatch.setattr(state_module, "TAIL_BYTES", 1000)
    with State(tmp_path) as state:
        state.dirs.snapshot.mkdir()
        state.rebuilding = rebuilding()
        state.record(events)
    assert "snapshot.jsonl is not written" in caplog.text
    assert read_log(tmp_path) == fold(events)


def test_jobs_that_ended_are_parsed_only_where_asked_for(tmp_path: Path) -> None:
    events = Story(9).go_on(150)
    state = written(tmp_path, events, len(events) - 1)
    log = read_log(tmp_path)
    assert isinstance(log.jobs, LazyDict)
    untouched = [job_id for job_id in log.jobs if log.jobs.raw(job_id) is not None]
    assert len(untouched) > 10
    assert not set(untouched) & log.active.keys()
    assert state.snapshot.exists()
