import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import LockedError, ServiceMissingError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.events import Reloaded, row_of
from pliant.schemas.io import read_events
from pliant.schemas.schedule import PolicyUse, Schedule
from pliant.tools.run.statedir import file_system
from pliant.tools.run.statedir.contract.liveness import whole_use_of
from pliant.tools.run.statedir.file_system import Mount, mount_of, probe
from pliant.tools.run.statedir.log.events import decision_event, run_event, submit_event
from pliant.tools.run.statedir.state import Clock, State, origin, passed_since, read_log
from pliant.tools.run.watch.status import read_status
from tests.builders import job, mixed_cluster
from tests.tools.run.stories import Story, rebuilding


def submitted(job_id: str) -> Event:
    return submit_event(job(job_id), 1.0)


def test_a_sink_gets_what_is_on_disk_and_may_fail(tmp_path: Path) -> None:
    got: list[list[str]] = []

    def fails(events: Sequence[Event]) -> None:
        raise OSError(28, os.strerror(28))

    with State(tmp_path / "new" / "state") as state:
        state.add_sink(fails)
        state.add_sink(lambda events: got.append(list(read_log(state.dirs.path).jobs)) if events else None)
        state.record([submitted("a")])
        state.record([submitted("b")])
        state.record([])
    assert got == [["a"], ["a", "b"]]
    with State(tmp_path / "new" / "state") as state:
        assert list(state.log.jobs) == ["a", "b"]


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        state.record([submitted("a"), submitted("b")])
        path = state.dirs.events
    path.write_bytes(path.read_bytes()[:-5])
    with State(tmp_path) as state:
        assert list(state.log.jobs) == ["a"]
        state.record([submitted("c")])
    assert list(read_log(tmp_path).jobs) == ["a", "c"]


def test_a_second_writer_is_refused_or_waits_for_its_turn(tmp_path: Path) -> None:
    with State(tmp_path) as first:
        with pytest.raises(LockedError, match=f"by process {os.getpid()}"):
            State(tmp_path)
        turns: list[str] = []
        second = threading.Thread(
            target=lambda: turns.append("second") if State(tmp_path, wait_s=60) else None
        )
        second.start()
        first.record([submitted("a")])
        turns.append("first")
    second.join(30)
    assert turns == ["first", "second"]
    assert LockedError.exit_code == 75


def test_a_snapshot_waits_until_the_session_is_on_the_changed_cluster(tmp_path: Path) -> None:
    """It would say that its session is on the cluster before, to which a later change may lead back."""
    cluster = mixed_cluster(a100=(4,))
    schedule = Schedule(time=0.0, policy=PolicyUse(name="fifo", parameters={}, seed=0), cluster=cluster)
    with State(tmp_path) as state:
        state.record([run_event(schedule, "0" * 64, 1.0)])
        state.rebuilding = rebuilding()
        state.record([row_of(Reloaded(2.0, error="refused"))])
        assert state.rebuilding is not None
        state.record([row_of(Reloaded(3.0, cluster=cluster.model_dump(mode="json", by_alias=True)))])
        assert state.rebuilding is None


def test_the_end_of_a_job_says_what_it_used(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        state.record([submitted("a"), Event(1.0, "start", "a", 2, (("n0", 2),))])
        attempts = [state.dirs.job("a").attempt(number) for number in (1, 2)]
        for attempt, gpu_s in zip(attempts, (10.0, 2.5), strict=True):
            attempt.path.mkdir(parents=True)
            use = {"cpus": 1.0, "memory": 1, "gpus": 1.0, "gpu_memory": 1, "whole": [20.0, 30.0, gpu_s, 5.0]}
            attempt.use(0).write_text(json.dumps(use))
        state.record([Event(9.0, "finish", "a", 0, (), detail={"attempt": 2})])
        state.record([Event(9.0, "release", "a")])
    detail = {event.event: event.detail for event in read_events(tmp_path / "events.jsonl")}["finish"]
    assert detail == {"attempt": 2, "used_gpu_seconds": 12.5, "memory_gpu_seconds": 10.0}
    attempts[0].use(0).write_text(json.dumps({**use, "whole": None}))
    assert whole_use_of(state.dirs.job("a")) == [], "one of an older version does not say it"


def test_a_full_disk_is_a_missing_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def full(number: int) -> Callable[..., int]:
        def write(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        return write

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full(errno.EFBIG))
        with pytest.raises(ServiceMissingError, match="cannot be used as state directory: file too large"):
            State(tmp_path)
    with State(tmp_path) as state:
        assert not state.log.jobs
        state.record([submitted("a")])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full(errno.ENOSPC))
            with pytest.raises(ServiceMissingError, match="no space left"):
                state.record([submitted("b")])
        assert list(state.log.jobs) == ["a"]
    assert list(read_log(tmp_path).jobs) == ["a"]


def test_a_folder_that_cannot_be_made_or_has_no_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used as state directory"):
        State(tmp_path / "file")
    with pytest.raises(UsageError, match="no state directory"):
        read_log(tmp_path)


DAY_S: Final = 86400.0
NOW_S: Final = 1_700_000_000.0


def test_times_of_a_log_never_go_back() -> None:
    for schedule_s, known_s, origin_s in (
        (100.0, None, NOW_S - 100.0),  # a trace starts when it is run
        (130.0, NOW_S - 100.0, NOW_S - 100.0),  # its later schedules are on the clock of the first
        (NOW_S - 5.0, None, 0.0),  # a schedule in UTC
        (NOW_S - 5.0, 7.0, 0.0),
    ):
        assert origin(schedule_s, NOW_S, known_s) == origin_s

    # It follows the system's after a suspend, and waits for one that was set back.
    machine = Machine()
    clock = machine.clock()
    machine.passes(10.0)
    assert clock() == 2e9 + 10
    machine.wall_s += 3600.0
    assert clock() == 2e9 + 3610
    machine.wall_s -= 60.0
    shown = [clock()]
    for _ in range(13):
        machine.passes(10.0)
        shown.append(clock())
    assert shown[0] == 2e9 + 3610
    assert all(later > sooner for sooner, later in pairwise(shown))
    assert shown[-1] == machine.wall_s

    # Calls of the cron form after the clock was set back: each goes on from the last, at half speed.
    machine = Machine()
    first = machine.clock(machine.wall_s + 600.0)()
    assert first == 2e9 + 600
    machine.passes(60.0)
    assert machine.clock(first, 60.0)() == first + 30.0
    machine.passes(2000.0)
    assert machine.clock(first + 30.0, 2000.0)() == machine.wall_s


class Machine:
    """Two clocks: one that is set, and one that is not."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 2e9, 50.0

    def clock(self, last_s: float = 0.0, passed_s: float = 0.0) -> Clock:
        """Of a process that goes on from the last time of a log, and what has passed since then."""
        clock = Clock(lambda: self.wall_s, lambda: self.steady_s)
        clock.not_before(last_s, passed_s)
        return clock

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


@given(
    st.floats(-2 * DAY_S, 2 * DAY_S),
    st.lists(st.tuples(st.floats(0.0, 600.0), st.sampled_from([0.0, 0.0, 0.0, -DAY_S, 3600.0])), max_size=20),
)
def test_no_clock_of_a_file_server_makes_turns_of_cron_run_ahead(server_ahead_s, turns) -> None:
    """Each turn is a process of its own: it goes on from the log's last time and the time of the log's file.

    :param turns: seconds between turns, and by how much somebody sets this host's clock before one.
    """
    machine, log_s = Machine(), 0.0
    most_ahead_s = steady_to_wall_s = machine.wall_s - machine.steady_s
    written_s = machine.wall_s + server_ahead_s
    for between_s, set_by_s in turns:
        machine.passes(between_s)
        machine.wall_s += set_by_s
        server_s = machine.steady_s + steady_to_wall_s + server_ahead_s
        most_ahead_s = max(most_ahead_s, machine.wall_s - machine.steady_s)
        shown_s = machine.clock(log_s, server_s - written_s)()
        assert shown_s >= log_s
        assert machine.wall_s <= shown_s <= machine.steady_s + most_ahead_s + 1e-3
        log_s, written_s = shown_s, server_s


def test_the_age_of_a_log_goes_by_the_clock_that_dates_it(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.touch()
    assert 0.0 <= passed_since(log) < 60.0
    dated_s = log.stat().st_mtime
    os.utime(log, (dated_s - 300.0, dated_s - 300.0))
    assert passed_since(log) >= 300.0
    assert passed_since(tmp_path / "none") == 0.0


def test_turns_on_a_server_a_day_behind_keep_this_hosts_time(tmp_path: Path) -> None:
    """As in the cron form: schedule looks, run opens, writes and leaves. The log once ran ahead by a day."""

    def wall_s() -> float:
        return time.time() + DAY_S  # that of the file server is a day behind

    with State(tmp_path) as state:
        state.record(Story(6).go_on(30))
    for _ in range(4):
        clock, seen = Clock(wall_s), read_status(tmp_path)
        clock.not_before(seen.log.last_s, seen.quiet_s)
        decided_s = clock()
        with State(tmp_path) as state:
            clock = Clock(wall_s)
            clock.not_before(state.log.last_s, state.quiet_s)
            state.record([decision_event(clock(), 0.0, "fifo", 0.0)])
            assert decided_s <= state.log.last_s <= wall_s()


MOUNTS = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 21 0:25 / /home rw,noatime - nfs4 server:/home rw,vers=4.2,local_lock=none
31 30 0:26 / /home/old\040disk rw - nfs server:/old rw,vers=3,nolock
32 21 0:27 / /home rw,noatime - lustre mds@tcp:/home rw
not a line of a mount
"""


def test_a_folder_is_on_the_mount_nearest_above_it(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert mount_of(Path("/var/lib"), mounts).kind == "ext4"
    old = mount_of(Path("/home/old disk/live"), mounts)
    assert (old.kind, "nolock" in old.options, "rw" in old.options) == ("nfs", True, True)
    assert mount_of(Path("/home/me"), mounts).kind == "lustre", "the later mount hides the earlier"
    assert mount_of(Path("/homework"), mounts).kind == "ext4"
    assert mount_of(Path("/"), tmp_path / "none") == Mount("")


def test_a_folder_is_probed_and_nothing_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = probe(tmp_path)
    assert (result.locks, result.skew_s) == (True, 0.0)
    assert result.sync_s > 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(fcntl, "flock", lambda _descriptor, _kind: None)
    assert probe(tmp_path).locks is False
    real = file_system._dated_s
    for ahead_s in (12.0, -12.0):
        with monkeypatch.context() as patch:
            patch.setattr(file_system, "_dated_s", lambda descriptor, by_s=ahead_s: real(descriptor) + by_s)
            assert probe(tmp_path).skew_s == pytest.approx(ahead_s, abs=10.0)
