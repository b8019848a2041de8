"""Jobs that ended long ago are in archives: the log leads to the same state, and nothing is lost or twice."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pliant.schemas.cluster import Cluster, Notify, Retention, Shares, Team
from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io.archives import all_events, archives_of
from pliant.schemas.io import read_events
from pliant.schemas.job import Job
from pliant.tools.report.read_run import read_run
from pliant.tools.run.service import retention
from pliant.tools.run.service.notices import passed_by_all, place_file
from pliant.tools.run.service.retention import DAY_S, Retained
from pliant.tools.run.service.submit import cancel, order_jobs, submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.archive import (
    ended_before,
    shorter_log,
    with_archived,
    without_living_arrays,
)
from pliant.tools.run.statedir.log.snapshot import LogView, Rebuilding, renew_snapshot
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch.job_page import history
from pliant.tools.run.watch.output import events_to_come, job_events, last_events
from pliant.tools.schedule.from_log import session_for_run, session_from_events
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.saved import Basis
from pliant.tools.schedule.session.session import Session
from tests.builders import job
from tests.tools.run.statedir.log.test_snapshot import by_value
from tests.tools.run.stories import HAPPENINGS, NODES, Story

HAPPENING = (*HAPPENINGS, "update", "update")
SHARED = NODES.model_copy(update={"shares": Shares(teams={"a": Team()}, half_life_hours=0.01)})


def rebuilding(nodes: Cluster) -> Rebuilding:
    new = lambda: session_for_run(make_policy("fifo"), nodes, throughput_for(None, nodes))  # noqa: E731
    return Rebuilding(Basis.of(nodes, None), new)


def shorten(dirs: StateDir, nodes: Cluster = NODES, *, restored: bool = False) -> set[str]:
    with State(dirs.path, restored=restored) as state:
        gone = without_living_arrays(state.log, ended_before(state.log, state.log.last_s - 200.0))
        if gone:
            state.shorten(shorter_log(dirs, state.log, rebuilding(nodes), gone, state.log.last_s - 300.0))
    return gone


def session_of(dirs: StateDir, nodes: Cluster) -> Session:
    view = LogView(dirs)
    view.refresh()
    kept, events = view.history(Basis.of(nodes, None))
    return session_from_events(events, make_policy("fifo"), nodes, throughput_for(None, nodes), saved=kept)


def rows(events: object) -> list[object]:
    return [(each.time, each.event, each.job, each.gpus, each.placement, each.detail) for each in events]  # type: ignore[attr-defined]


def everything(dirs: StateDir) -> list[Event]:
    return [event for block in all_events(dirs.events) for event in block]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_shorter_log_leads_to_the_same_state(tmp_path: Path, seed: int, *, linked: bool) -> None:
    nodes = SHARED if seed % 2 else NODES
    story = Story(seed, ("fifo", "las")[seed // 2], nodes=nodes, linked=linked, happenings=HAPPENING)
    dirs, seen, archived = StateDir(tmp_path / "state"), 0, set[str]()
    for _ in range(3):
        story.go_on(100)
        with State(dirs.path) as state:
            state.record(story.events[seen:])
        seen = len(story.events)
        log, session = read_log(dirs.path), session_of(dirs, nodes)
        gone = shorten(dirs, nodes)
        archived |= gone
        after = read_log(dirs.path)
        assert {name: each for name, each in log.jobs.items() if name not in gone} == dict(after.jobs.items())
        assert (after.counts, after.ends, after.down) == (log.counts, log.ends, log.down)
        for _ in ("with its snapshot", "without"):
            again = session_of(dirs, nodes)
            assert by_value(again.jobs) == by_value(session.jobs)
            assert by_value(again.usage) == by_value(session.usage)
            assert again.changes.state.before + len(again.changes.entries) == (
                session.changes.state.before + len(session.changes.entries)
            )
            dirs.snapshot.unlink(missing_ok=True)
        whole = with_archived(after, dirs, None)
        assert whole.jobs.keys() == after.jobs.keys() | archived
        for name in gone:
            assert whole.jobs[name].reason.endswith(f"archived in archive/{[*after.archives][-1]}")
            assert with_archived(after, dirs, [name]).jobs[name] == whole.jobs[name]
    assert archived
    assert rows(everything(dirs)) == rows(read_events(dirs.events)) == rows(story.events)


class Death(BaseException):
    """The process is killed."""


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def dying(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise Death
            return real(*given, **named)

        return call

    for name in ("fsync", "replace", "rename"):
        monkeypatch.setattr(os, name, dying(name))


@pytest.mark.parametrize("number", range(1, 12))
def test_killed_at_any_point_nothing_is_lost_or_twice(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(3, "fair-share", linked=True)
    story.go_on(120)
    dirs = StateDir(tmp_path / "state")
    with State(dirs.path) as state:
        state.record(story.events)
        renew_snapshot(dirs, state.log, rebuilding(NODES))
    log = read_log(dirs.path)
    with monkeypatch.context() as patch:
        killed_at(number, patch)
        with pytest.raises(Death):
            shorten(dirs)
    for _ in ("as it was left", "after the next start"):
        view = LogView(dirs)
        now = view.refresh()
        assert (view.misfit, now.counts) == (None, log.counts)
        assert with_archived(now, dirs, None).jobs.keys() == log.jobs.keys()
        assert rows(everything(dirs)) == rows(story.events)
        shorten(dirs)
    assert len(archives_of(dirs.events)) == 1


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    """A state directory whose job "old" is archived."""
    story = Story(1, name=lambda name: "old" if name == "j0" else name)
    story.go_on(120)
    made = story.write(tmp_path / "state")
    assert "old" in shorten(made)
    return made


def test_archived_jobs_are_found_by_those_who_name_them(dirs: StateDir, tmp_path: Path) -> None:
    assert next(each.event for each in history(dirs, "old")) == "submit"
    assert b'"old"' in b"".join(job_events(dirs.path, "old"))
    assert b"".join(last_events(dirs.path, 10_000)).count(b'"submit"') == len(read_run(dirs.events).jobs)
    spec = job("old", command=("train.py",), workdir=str(tmp_path))
    (tmp_path / "train.py").touch()
    given = {"folder": tmp_path, "now_s": 1.0}
    with pytest.raises(BadInputError, match='of job "new": old ended long ago: leave it out'):
        submit(dirs.path, [Job(**{**dict(spec), "id": "new", "after": {"old": "ok"}})], "jobs", **given)  # type: ignore[arg-type]
    assert submit(dirs.path, [spec], "jobs", **given) == ["old-2"]  # type: ignore[arg-type]
    cancel(dirs.path, ["old"])
    with pytest.raises(UsageError, match="job old ended long ago and is archived: submit it again"):
        order_jobs(dirs.path, "requeue", ["old"])
    shutil.rmtree(dirs.archive)
    with pytest.raises(BadInputError, match="this archive of the log cannot be read"):
        history(dirs, "old")


def test_who_follows_the_log_goes_on_where_it_was(tmp_path: Path) -> None:
    story = Story(2)
    story.go_on(120)
    dirs = story.write(tmp_path / "state")
    coming = events_to_come(dirs.path)
    first = [next(coming), next(coming)]
    assert shorten(dirs)
    with State(dirs.path) as state:
        state.record([Event(story.now_s, "node_down", detail={"node": "n0"})])
    fresh = b"".join(next(coming) for _ in range(2))
    assert (b"".join(first).count(b"\n"), fresh.count(b"\n")) == (1, 1)
    assert b"node_down" in fresh


def test_outputs_and_checkpoints_go_after_their_days(tmp_path: Path) -> None:
    story = Story(1)
    story.go_on(120)
    dirs = story.write(tmp_path / "state")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    with State(dirs.path) as state:
        state.rebuilding = rebuilding(NODES)
        ended, living = sorted(ended_before(state.log, story.now_s)), sorted(state.log.active)
        for name in (*ended, *living):
            for number in (1, 2):
                dirs.job(name).attempt(number).logs.mkdir(parents=True)
                (dirs.job(name).attempt(number).logs / "out").touch()
            dirs.job(name).checkpoints.mkdir()
            (dirs.job(name).checkpoints / "a.pt").touch()
            (dirs.job(name).checkpoints / "link").symlink_to(outside)
        shutil.rmtree(dirs.job(ended[0]).checkpoints)
        dirs.job(ended[0]).checkpoints.symlink_to(outside)
        with mock.patch.object(retention, "empty", side_effect=RecursionError):  # folders nested too deep
            Retained(state, Retention(outputs=1.0)).tidy(state.log, story.now_s + 2 * DAY_S)
        Retained(state, Retention(outputs=1.0)).tidy(state.log, story.now_s + 2 * DAY_S)
        left = dirs.job(ended[0])
        assert ([*left.path.glob("attempts/*")], left.newest_attempt()) == ([left.path / "attempts/2"], 2)
        assert not any(left.path.glob("attempts/2/*"))
        assert (dirs.job(ended[1]).checkpoints / "a.pt").exists()
        spool = Spool(dirs)
        with spool.locked():
            spool.request_cancel(ended[:1])
        everything_goes = Retention(jobs=3.0, outputs=1.0, checkpoints=1.0)
        Retained(state, everything_goes).tidy(state.log, story.now_s + 4 * DAY_S)
        assert [dirs.job(name).path.exists() for name in ended] == [True] + [False] * (len(ended) - 1)
        assert all((dirs.job(name).attempt(1).logs / "out").exists() for name in living)
        assert state.log.jobs.keys() == {*state.log.active, ended[0]}
    assert (outside / "kept").exists()
    assert rows(everything(dirs)) == rows(story.events)


def opening_fails(folder: Path) -> Callable[..., int]:
    real = os.open

    def call(path: Any, *given: Any, **named: Any) -> int:
        if Path(path) == folder:
            raise OSError(errno.EMFILE, "too many open files")
        return real(path, *given, **named)

    return call


def test_what_follows_a_half_failed_swap_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(1)
    story.go_on(120)
    dirs = story.write(tmp_path / "state")
    with State(dirs.path) as state:
        gone = ended_before(state.log, state.log.last_s - 200.0)
        shorter = shorter_log(dirs, state.log, rebuilding(NODES), gone, 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", opening_fails(dirs.path))
            state.shorten(shorter)
        state.record([Event(story.now_s, "node_down", detail={"node": "n0"})])
    assert b"node_down" in dirs.events.read_bytes().splitlines()[-1]
    assert archives_of(dirs.events)


def test_the_log_stays_where_no_shorter_one_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(1)
    story.go_on(120)
    dirs = story.write(tmp_path / "state")
    with State(dirs.path) as state:
        gone = ended_before(state.log, state.log.last_s - 200.0)
        shorter = shorter_log(dirs, state.log, rebuilding(NODES), gone, 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", opening_fails(shorter.draft.path))
            with pytest.raises(PliantError, match="too many open files"):
                state.shorten(shorter)
        state.record([Event(story.now_s, "node_down", detail={"node": "n0"})])
    assert b"node_down" in dirs.events.read_bytes().splitlines()[-1]
    assert not archives_of(dirs.events)
    assert not [*dirs.path.glob(".pliant-*")]


def test_what_a_killed_writer_left_in_the_archive_is_removed(dirs: StateDir) -> None:
    (dirs.archive / ".pliant-0.tmp").touch()
    with State(dirs.path):
        assert [path.name for path in dirs.archive.iterdir()] == ["000001.parquet"]


def test_what_a_target_has_not_heard_of_stays_in_the_log(tmp_path: Path) -> None:
    story, target = Story(1), Notify(command=("true",))
    story.go_on(120)
    dirs = story.write(tmp_path / "state")
    lines = dirs.events.read_bytes().splitlines(keepends=True)
    place = sum(map(len, lines[: len(lines) // 2]))
    place_file(dirs, target).parent.mkdir()
    place_file(dirs, target).write_text(json.dumps({"bytes": place, "waited": []}))
    with State(dirs.path) as state:
        state.rebuilding = rebuilding(NODES)
        Retained(state, Retention(jobs=1.0), notify=[target]).tidy(state.log, story.now_s + 2 * DAY_S)
    left, heard = passed_by_all(dirs, [target]), len(lines) // 2
    assert left is not None
    assert left < place
    later = dirs.events.read_bytes()[left:].splitlines()
    assert [line.partition(b',"')[0] for line in later[:-1]] == [
        line.partition(b',"')[0] for line in lines[heard:]
    ]
