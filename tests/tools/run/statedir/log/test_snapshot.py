"""The snapshot of a log, and logs that are damaged or cut behind it: all tools see one state.

Whatever a snapshot was made at, what is read from it is what all of the log says; what it knows is shown,
written back, and gone on from. Whichever lines are lost, the cluster has room for what the others say.
"""

import json
import os
import random
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parts.chaos.hazard import Death, Hazard
from pliant.schemas.errors import BadInputError, LockedError
from pliant.schemas.event import Event, EventName
from pliant.schemas.events import Reloaded, row_of
from pliant.schemas.file_io.events import LOG_HEADER, sealed_lines
from pliant.schemas.file_io.json_lines import FIRST
from pliant.schemas.io import read_events, write_schedule
from pliant.schemas.job import Job
from pliant.tools.report.read_run import read_run
from pliant.tools.run.doctor.examine import examine
from pliant.tools.run.statedir import state as state_module
from pliant.tools.run.statedir.directory import Lock, StateDir, holder_of
from pliant.tools.run.statedir.log import snapshot as log_snapshot
from pliant.tools.run.statedir.log.events import decision_event, finish_event, on_clock, submit_event
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.log.repair import fit_together, read_each, repair
from pliant.tools.run.statedir.log.snapshot import LogView, read_snapshot, renew_snapshot, restoring
from pliant.tools.run.statedir.slot_faults import UNTIL_RESUMED_S
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch.job_status import CHANGING, statuses
from pliant.tools.run.watch.status import Watcher, history, read_status
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import BUILT_IN, make_policy
from pliant.tools.schedule.session.quarantine import node_of
from pliant.tools.schedule.session.saved import Basis, LazyDict, Past, SavedSession
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.tools.run.stories import BASIS, BEGAN_S, HAPPENINGS, NODES, UPDATING, Story, rebuilding


def go_on(state: StateDir, events: Sequence[Event], *, snapshot: bool = True, basis: Basis = BASIS) -> None:
    with State(state.path) as held:
        held.record(events)
        if snapshot:
            renew_snapshot(state, held.log, rebuilding(basis))


def written(folder: Path, events: Sequence[Event], *cuts: int, basis: Basis = BASIS) -> StateDir:
    """A state directory whose snapshots were made after that many events, or after all."""
    state = StateDir(folder)
    for begin, end in pairwise((0, *(cuts or [len(events)]))):
        go_on(state, events[begin:end], basis=basis)
    if cuts:
        go_on(state, events[cuts[-1] :], snapshot=False)
    return state


_SHARED = ("policy", "speeds", "capacities", "rng", "rules", "free", "_asked", "_policy")


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
        return {name: by_value(value) for name, value in vars(thing).items() if name not in _SHARED}
    return thing


def run_of(events: Iterable[Event], saved: SavedSession | None = None) -> Session:
    return session_from_events(events, make_policy("fifo"), NODES, throughput_for(None, NODES), saved=saved)


def session_of(events: Iterable[Event], saved: SavedSession | None = None) -> dict[str, Any]:
    """The session that events lead to, as policies see it."""
    session = run_of(events, saved)
    result = by_value(session)
    free = {node.name: session.cluster.free.free_on(node.name) for node in session.cluster.nodes}
    return {**result, "free": free, "by_type": dict(session.cluster.free.by_type)}


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_and_the_rest_fold_to_what_all_events_do(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    events = Story(seed, happenings=UPDATING if seed % 2 else HAPPENINGS).go_on(rng.randrange(5, 120))
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
    words = ("--policy", policy, "--state", state.path, "--now", now_s, "--no-timing", "--output", output)
    assert call("schedule", *map(str, words)).exit_code == 0
    return output.read_bytes()


def test_a_decision_is_not_made_beside_a_run_that_writes(tmp_path: Path) -> None:
    story = Story(3)
    story.go_on(20)
    state = story.write(tmp_path)
    lock = Lock(state.lock)
    lock.acquire()
    try:
        with pytest.raises(LockedError, match="in use by process"):
            read_status(tmp_path)
        timer = threading.Timer(0.5, lock.release)
        timer.start()
        assert read_status(tmp_path, wait_s=60).log == read_log(tmp_path)
        timer.join()
    finally:
        lock.release()
    with lock.shared():
        assert read_status(tmp_path).log.jobs, "two that decide do not wait for each other"
        assert holder_of(state.lock) is None


def test_a_decision_knows_nothing_written_after_its_look(tmp_path: Path) -> None:
    story = Story(3)
    events = list(story.go_on(20))
    state = story.write(tmp_path)
    result = read_status(tmp_path)
    with State(tmp_path) as held:
        held.record([decision_event(story.now_s + 1.0, 0.0, "fifo", 0.0)])
    _, rest = history(result.view, story.now_s + 5.0, (), None, "log").since(BASIS)
    assert (list(rest), result.log) == (events, fold(events))
    assert len(read_events(state.events)) == len(events) + 1


def test_a_snapshot_from_after_the_look_is_no_damage(tmp_path: Path) -> None:
    events, state = Story(3).go_on(40), StateDir(tmp_path)
    go_on(state, events[:20], snapshot=False)
    until = state.events.stat().st_size
    go_on(state, events[20:])
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


def test_a_snapshot_that_cannot_be_written_stops_nothing(tmp_path, caplog, monkeypatch) -> None:
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


NODE_GPUS = {node.name: node.gpus for node in NODES.expanded()}
N0, N1 = ("n0", 4), ("n1", 4)
HOME = shutil.ignore_patterns("version.json")
"""Not copied: a directory that is a copy of one whose jobs run is refused."""


def holds(at: float, name: EventName, job_id: str, *where: tuple[str, int], **detail: object) -> Event:
    gpus = sum(count for _, count in where)
    return Event(at, name, job_id, gpus=gpus, placement=where, detail=detail or None)


def down(at: float, node: str) -> Event:
    return Event(at, "node_down", detail={"node": node, "reason": "gone"})


def up(at: float, node: str) -> Event:
    return Event(at, "node_up", detail={"node": node})


def out(at: float, slot: str, seconds: float) -> Event:
    return Event(at, "slot_down", detail={"slot": slot, "seconds": seconds, "by": "a", "reason": "died"})


BEGAN = replace(Story(1).events[0], time=0.0)
JOBS = [submit_event(job(name, gpus=4, low=1, high=8), 0.0) for name in "abc"]


def repaired(*events: Event) -> tuple[RunLog, list[str]]:
    kept, said = fit_together([BEGAN, *JOBS, *events])
    return fold(kept), said


def gpus_of_jobs(log: RunLog) -> dict[str, int]:
    return {job_id: known.gpus for job_id, known in log.jobs.items() if known.gpus}


def subjects(said: Sequence[str]) -> list[str]:
    return [line.partition(":")[0] for line in said]


def placements(jobs: object) -> dict[str, object]:
    return {job_id: known.placement for job_id, known in jobs.items()}  # type: ignore[attr-defined]


def assert_fits_together(events: Sequence[Event]) -> None:
    kept, _ = fit_together(events)
    assert fit_together(kept) == (kept, []), "it is as it should be now"
    log, session = fold(kept), run_of(kept)
    assert placements(log.active) == placements(session.jobs), "status, the next run and its policy agree"
    assert log.out_of_service(log.last_s).keys() == session.quarantine.out_of_service.keys()
    taken = Counter[str](node_of(slot) for slot in log.out_of_service(log.last_s))
    for job_id, known in log.active.items():
        if known.beside is None or job_id < known.beside:
            taken.update(dict(known.placement))
        assert not log.down.keys() & dict(known.placement).keys()
    assert all(count <= NODE_GPUS[name] for name, count in taken.items())


DAY = [
    BEGAN,
    *JOBS,
    *(holds(1, "start", "a", N0), holds(1, "start", "b", N1)),
    *(holds(2, "preempt", "b"), holds(2, "grow", "a", N0, N1)),
    *(holds(3, "shrink", "a", N0), down(3, "n1")),
    holds(4, "resume", "b", N0, beside="a"),
    holds(5, "move", "a", N0, beside="b"),
    finish_event("a", 6, 1, 9.0),
    *(holds(7, "shrink", "b", ("n0", 3)), out(7, "n0/3", 60.0)),
    up(8, "n1"),
    holds(9, "start", "c", N1),
    *(holds(10, "shrink", "c", ("n1", 2)), out(10, "n1/2", UNTIL_RESUMED_S), out(10, "n1/3", 600.0)),
    Event(11, "slot_up", "c", detail={"slot": "n1/3"}),
    holds(12, "grow", "c", ("n1", 3)),
    *(holds(75, "shrink", "c", ("n1", 1)), holds(75, "grow", "b", N0)),
    *(holds(76, "move", "b", ("n1", 1)), holds(76, "grow", "c", N0)),
]
"""Two jobs share GPUs and part, a node goes and comes, slots fail: as a service writes it."""


def test_whichever_two_lines_are_lost_no_two_jobs_get_a_gpu() -> None:
    for events in (DAY, Story(3).go_on(80), Story(4, linked=True).go_on(80)):
        assert fit_together(events) == (events, [])
        assert_fits_together(events)
    for lost in combinations(range(1, len(DAY)), 2):
        assert_fits_together([event for at, event in enumerate(DAY) if at not in lost])


@pytest.mark.parametrize("seed", range(4))
def test_however_many_lines_are_lost_all_readers_agree(seed: int) -> None:
    rng = random.Random(seed)
    events = Story(seed, linked=seed % 2 > 0).go_on(60)
    for part in (0.02, 0.1, 0.3, 0.6):
        assert_fits_together([events[0], *(event for event in events[1:] if rng.random() > part)])


def test_a_log_fits_each_cluster_that_its_run_had() -> None:
    smaller = cluster(4).model_dump(mode="json", by_alias=True)
    began = [BEGAN, *JOBS, holds(1, "start", "a", N1), holds(2, "preempt", "a"), down(3, "n1")]
    events = [*began, row_of(Reloaded(4, cluster=smaller)), holds(5, "start", "b", N0)]
    assert fit_together(events) == (events, [])
    kept, said = fit_together([*events, up(6, "n1")])
    assert (kept, said) == (events, ["a 'node_up' event of the unknown node n1 is dropped"])


def test_jobs_in_the_way_lose_their_gpus_and_pairs_share_them() -> None:
    shared = [holds(1, "start", "a", N0), holds(2, "start", "b", N0, beside="a")]
    for more in ([], [holds(3, "move", "a", N0, beside="b")]):
        log, said = repaired(*shared, *more)
        assert (gpus_of_jobs(log), said) == ({"a": 4, "b": 4}, [])
        log, said = repaired(*shared, *more, holds(4, "start", "c", N0))
        assert (gpus_of_jobs(log), subjects(said)) == ({"c": 4}, ["job a", "job b"])
    half = ("n0", 2)
    shared = [holds(1, "start", "a", half), holds(2, "start", "b", half, beside="a")]
    apart = [*shared, holds(3, "move", "b", half)]
    assert gpus_of_jobs(repaired(*apart)[0]) == {"a": 2, "b": 2}
    assert gpus_of_jobs(repaired(*apart, holds(4, "start", "c", half))[0]) == {"b": 2, "c": 2}
    # So do those on a node that went down, and one that starts there before it came back.
    log, said = repaired(
        holds(1, "start", "a", N0, ("n1", 2)), holds(1, "start", "b", ("n1", 1)), down(2, "n1")
    )
    assert (gpus_of_jobs(log), log.jobs["a"].phase, log.jobs["b"].phase) == ({}, "preempted", "preempted")
    assert subjects(said) == ["job a", "job b"]
    log, said = repaired(holds(1, "start", "a", N0), holds(1, "start", "b", N1), down(2, "n1"))
    assert (gpus_of_jobs(log), len(said)) == ({"a": 4}, 1)
    log, said = repaired(down(1, "n1"), holds(2, "start", "a", N1))
    assert (gpus_of_jobs(log), log.jobs["a"].phase) == ({}, "preempted")
    assert said == [
        "job a: the log was repaired: a line about its GPUs is lost; it goes on from its last checkpoint"
    ]
    starts = [
        holds(1, "start", name, (node, count)) for name, node, count in (("a", "n0", 2), ("b", "n0", 2))
    ]
    log, _ = repaired(
        *(*starts, holds(1, "start", "c", ("n1", 1)), holds(2, "grow", "c", ("n0", 2), ("n1", 1)))
    )
    assert gpus_of_jobs(log) == {"b": 2, "c": 3}, "the first by id, and no more than are needed"


def test_slots_out_of_service_and_lines_that_say_nothing() -> None:
    first = [out(1, "n0/3", 100.0), out(2, "n0/3", 10.0)]
    log, said = repaired(*first, holds(50, "start", "a", N0))
    assert said == ["slot n0/3: the line that put it back into service is lost, and replaced"]
    assert (gpus_of_jobs(log), log.left_out) == ({"a": 4}, {})
    assert repaired(*first, holds(101, "start", "a", N0))[1] == [], "it is back by then"
    assert repaired(*first, holds(50, "start", "a", ("n0", 3)))[1] == []
    # Those about what does not exist, and those that are there twice.
    log, said = repaired(
        *(JOBS[0], down(1, "n9"), out(1, "n9/0", 60.0)),
        Event(1, "slot_down", "z", detail={"slot": "n0/0", "seconds": 60.0, "reason": "died"}),
        *(holds(2, "start", "y", N0), finish_event("y", 3, 1, 9.0)),
    )
    assert (log.down, log.left_out, gpus_of_jobs(log), [*log.jobs]) == ({}, {}, {}, ["a", "b", "c"])
    assert said[:3] == [
        "job a: a second submission is dropped",
        "a 'node_down' event of the unknown node n9 is dropped",
        "a 'slot_down' event of the unknown slot n9/0 is dropped",
    ]
    lost = [line for line in said[3:] if "its submission is lost" in line]
    assert subjects(lost) == ["job y", "job z"]
    assert "its other lines (2) are dropped" in lost[0]
    events = Story(7).go_on(25)
    lines = (LOG_HEADER + sealed_lines(events, FIRST)[0]).splitlines(keepends=True)
    for at in range(1, len(lines)):
        for again in {at + 1, len(lines)}:
            each = [*read_each(b"".join([*lines[:again], lines[at], *lines[again:]]), "events.jsonl")]
            assert [line.event for line in each if line.event is not None] == events
            assert [line.number for line in each if "twice" in line.wrong] == [again + 1]


def log_checks(state: StateDir) -> str:
    return " ".join(check.text for check in examine(state.path) if "its log" in check.text)


def change_lines(state: StateDir, change: Callable[[list[bytes]], list[bytes]]) -> None:
    lines = state.events.read_bytes().splitlines(keepends=True)
    state.events.write_bytes(b"".join(change(lines)))


def is_whole(state: StateDir) -> bool:
    return repair(state.path) == [f"{state.events} is whole: there is nothing to repair"]


def by_repair(state: StateDir) -> None:
    """The three tools agree: something is lost, it is written back, the log is whole."""
    seen = LogView(state)
    seen.refresh()
    assert ("its log is whole" in log_checks(state)) == (seen.misfit is None)
    said = repair(state.path)
    assert any("written back from the snapshot" in line for line in said) == (seen.misfit is not None)
    assert is_whole(state)
    assert "is whole" in log_checks(state) or "holds no run" in log_checks(state)


def by_going_on(state: StateDir) -> None:
    """A run takes the lock, and needs no repair by hand."""
    with State(state.path):
        pass


@pytest.mark.parametrize("seed", range(6))
def test_wherever_a_log_is_cut_nothing_is_lost_and_tools_agree(seed: int, tmp_path: Path) -> None:
    """Read at once, repaired, or simply gone on from: each time it is the log that was there."""
    rng = random.Random(seed)
    more = UPDATING if seed > 3 else HAPPENINGS
    events = Story(seed, linked=seed % 2 > 0, happenings=more).go_on(rng.randrange(10, 90))
    behind = rng.randrange(2, len(events) + 1)
    state = written(tmp_path / "whole", events[:behind])
    known, size = fold(events[:behind]), state.events.stat().st_size
    for number, to_bytes in enumerate((0, size - 1, rng.randrange(size))):
        one = StateDir(tmp_path / f"cut-{number}")
        shutil.copytree(state.path, one.path, ignore=HOME)
        os.truncate(one.events, to_bytes)
        assert read_log(one.path) == known == read_status(one.path).log
        view = LogView(one, keeps_events=True)
        view.refresh(to_the_end=True)
        kept, rest = view.history(BASIS)
        session = run_of(rest, kept)
        assert placements(session.jobs) == placements(known.active)
        assert session.hidden.held.keys() == {job_id for job_id, job in known.active.items() if job.held}
        for again in (by_repair, by_going_on):
            twin = StateDir(tmp_path / f"{again.__name__}-{number}")
            shutil.copytree(one.path, twin.path, ignore=HOME)
            again(twin)
            view, shown = LogView(twin), statuses(Watcher(twin.path).look(), known.last_s)
            assert (view.refresh(to_the_end=True), view.misfit) == (known, None)
            running = {each.id for each in shown if each.state in ("running", *CHANGING.values())}
            assert not any(known.jobs[job_id].ended for job_id in running)
            go_on(twin, events[behind:])
            assert read_log(twin.path) == fold(events)
            twin.snapshot.unlink(missing_ok=True)
            assert read_log(twin.path) == fold(events)
            run_of(read_events(twin.events))
            assert {job.id for job in read_run(twin.events).jobs} == set(fold(events).jobs)


def test_all_tools_name_what_is_missing_and_a_command(tmp_path, caplog) -> None:
    state = written(tmp_path, Story(6).go_on(50)[:40])
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


def test_writing_back_may_be_killed_and_is_done_again_once(tmp_path: Path) -> None:
    events = Story(9).go_on(60)
    harmed = written(tmp_path / "harmed", events[:50])
    os.truncate(harmed.events, harmed.events.stat().st_size // 3)
    calls, done = 0, False
    while not done:
        calls += 1
        state, hazard = StateDir(tmp_path / str(calls)), Hazard()
        shutil.copytree(harmed.path, state.path, ignore=HOME)
        hazard.kill_after(calls)
        with suppress(Death), hazard.endured():
            by_going_on(state)
            done = True
        assert read_log(state.path) == fold(events[:50])
        go_on(state, events[50:])
        assert read_log(state.path) == fold(events)
        state.snapshot.unlink()
        assert read_log(state.path) == fold(events)
    assert calls > 8


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("harm", ["the end of a job is unreadable", "lines are missing"])
def test_damage_to_lines_in_the_snapshot_costs_nothing(tmp_path: Path, seed: int, harm: str) -> None:
    """Others have the GPUs of the job since; or a run that lives goes on behind lines that are gone."""
    events = Story(seed, linked=seed % 2 > 0).go_on(70)
    seen = 40 if harm == "lines are missing" else len(events) - 3
    state = written(tmp_path, events[:seen])
    go_on(state, events[seen:], snapshot=False)
    if harm == "lines are missing":
        change_lines(state, lambda lines: [*lines[:21], *lines[seen + 1 :]])
    else:
        ends = [at for at, event in enumerate(events[:seen]) if event.event in ("finish", "fail", "cancel")]
        end = ends[0] + 1
        changed = (b'"time":1', b'"time":2', 1)
        change_lines(state, lambda lines: [*lines[:end], lines[end].replace(*changed), *lines[end + 1 :]])
    with pytest.raises(BadInputError, match="repair it with" if "end" in harm else harm):
        read_log(state.path)
    repair(state.path)
    assert read_log(state.path) == fold(events)
    run_of(read_events(state.events))


@pytest.mark.parametrize("place", [0, -1], ids=["the last line that it knows", "the one before"])
def test_what_was_written_after_the_snapshot_is_not_undone(place: int, tmp_path: Path) -> None:
    """A job ends as another one starts, at one time; the snapshot knows the start alone."""
    story, now_s = Story(1), Story(1).now_s
    story.events += [
        *(submit_event(job(name, gpus=4), now_s) for name in "ab"),
        *(holds(now_s, "start", "a", N0), holds(now_s, "start", "b", N1)),
    ]
    state = story.write(tmp_path)
    go_on(state, [])
    go_on(state, [finish_event("a", now_s, 1, 9.0), down(now_s, "n0")], snapshot=False)
    whole, at = read_log(state.path), len(story.events) + place
    changed = (b'"event":"start"', b'"event":"grow"')
    change_lines(state, lambda lines: [*lines[:at], lines[at].replace(*changed), *lines[at + 1 :]])
    assert repair(state.path)[0].startswith(f"line {at + 1}: dropped: the line is damaged")
    kept = read_log(state.path)
    assert {job_id: (each.phase, each.gpus) for job_id, each in kept.jobs.items()} == {
        job_id: (each.phase, each.gpus) for job_id, each in whole.jobs.items()
    }
    assert (kept.jobs["a"].phase, [*kept.down]) == ("finished", ["n0"])


def of_another_version(state: StateDir) -> bytes:
    return state.snapshot.read_bytes().replace(b'"folds_to": "', b'"folds_to": "0')


@pytest.mark.parametrize("harm", ["no snapshot", "damaged", "of another version"])
def test_without_a_usable_snapshot_the_log_is_what_is_there(tmp_path, harm, caplog) -> None:
    events = Story(6).go_on(50)
    state = written(tmp_path, events[:40])
    size = state.events.stat().st_size
    change_lines(state, lambda lines: lines[:21])
    lost = size - state.events.stat().st_size
    if harm == "no snapshot":
        state.snapshot.unlink()
    elif harm == "damaged":
        state.snapshot.write_bytes(state.snapshot.read_bytes()[:-9])
    else:
        state.snapshot.write_bytes(of_another_version(state))
    assert read_log(tmp_path) == fold(events[:20])
    noticed = harm != "no snapshot"
    assert (f"was cut by {lost:,} bytes, and its snapshot cannot be used" in caplog.text) == noticed
    assert ("cannot be used" in log_checks(state)) == noticed
    assert ("is lost" in " ".join(repair(tmp_path))) == noticed
    assert is_whole(state)
    go_on(state, events[20:])
    assert read_log(tmp_path) == fold(events)


def test_a_whole_log_lacks_nothing_beside_an_unusable_snapshot(tmp_path: Path) -> None:
    state = written(tmp_path, Story(1).events)
    state.snapshot.write_bytes(of_another_version(state))
    assert is_whole(state)


def test_the_log_of_another_run_is_kept_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events, others = Story(6).go_on(50), Story(7).go_on(50)
    state, other = written(tmp_path / "one", events[:40]), written(tmp_path / "other", others[:30])
    other.snapshot.write_bytes(state.snapshot.read_bytes())
    before = other.events.read_bytes()
    assert read_log(other.path) == fold(others[:30])
    assert "was cut or replaced" in caplog.text
    assert "is not used" in log_checks(other)
    assert repair(other.path) == [
        f"{other.events} is whole as it is; its snapshot is of another log, and is removed"
    ]
    assert other.events.read_bytes() == before
    assert not other.snapshot.exists()
    assert LogView(other).refresh() == fold(others[:30])


DIED: dict[str, object] = {"setback": True, "reason": "died"}
FELL = {"attempt": 1, "failures": 1, "retries": 3, "reason": "it fell", "wait_seconds": 120.0}
SICK_SLOTS = [
    *(DAY[0], *JOBS[:2]),
    holds(1, "start", "a", N0),
    holds(2, "shrink", "a", ("n0", 3), **DIED),
    *(out(2, "n0/3", 600.0), out(3, "n1/3", 60.0)),
    Event(4, "slot_up", "a", detail={"slot": "n0/3"}),
    *(holds(5, "grow", "a", N0), holds(6, "start", "b", ("n1", 3))),
    holds(7, "shrink", "a", ("n0", 2), **DIED),
    *(out(7, "n0/3", 90.0), out(8, "n0/2", UNTIL_RESUMED_S)),
    *(holds(9, "requeue", "b", **FELL), down(10, "n1")),
    Event(11, "undrain", detail={"node": "n0", "user": "ada", "order": 1}),
    up(70, "n1"),
    *(holds(71, "grow", "a", ("n0", 3)), out(72, "n0/3", 60.0)),
    holds(140, "resume", "b", N1),
    Event(141, "decision", detail={"origin_s": 0.0}),
]
"""Slots go out of service and come back, one until it is resumed; a job waits for its retry."""


def test_wherever_a_log_is_cut_slots_and_retries_are_as_before(tmp_path: Path) -> None:
    for behind in range(1, len(SICK_SLOTS) + 1):
        events = SICK_SLOTS[:behind]
        known, there = fold(events), run_of(events)
        for left in range(behind + 1):
            restored = [*events[:left], *restoring(events[:left], known)]
            session, where = run_of(restored), f"{behind} events, cut behind {left}"
            assert fold(restored) == known, where
            assert restoring(restored, known) == [], where
            assert session.quarantine.out_of_service == there.quarantine.out_of_service, where
            assert session.quarantine.held_until_s("b") == there.quarantine.held_until_s("b"), where
            assert [session.cluster.free.free_on(name) for name in NODE_GPUS] == [
                there.cluster.free.free_on(name) for name in NODE_GPUS
            ], where
        assert restoring(events, known) == [], "nothing is lost"
    events = SICK_SLOTS[:8]
    state = written(tmp_path, events)
    assert fold(events).out_of_service(events[-1].time)
    before = state.events.read_bytes()
    assert is_whole(state)
    assert state.events.read_bytes() == before
