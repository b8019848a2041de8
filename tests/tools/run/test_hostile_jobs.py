import errno
from collections.abc import Container, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from itertools import chain, repeat
from pathlib import Path
from signal import Signals
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.parts.chaos.hostile import HOSTILE, written
from pliant.schemas import io
from pliant.schemas.errors import BadInputError, LockedError, ServiceMissingError, UsageError
from pliant.schemas.file_io import files
from pliant.tools.run.backends.protocol import Handle, UnitStatus
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import Interrupts, release_nodes, run_once, run_until_done
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.service.submit import cancel, submit
from pliant.tools.run.statedir import slot_faults
from pliant.tools.run.statedir import state as state_module
from pliant.tools.run.statedir.contract.folders import UnreadableError
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.schedule.decide import Question, decide
from tests.builders import cluster, job
from tests.effort import examples
from tests.tools.run.instant import Trap, UndyingBackend, opens

WAYS = ["", "remove the folder", "a file in the way", "start", "poll", "stop"]
ERRORS = [
    ValueError("embedded null byte"),
    KeyError("n0/0"),
    OSError(errno.E2BIG, "Argument list too long"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    ZeroDivisionError(),
]


class Place:
    """A state directory that jobs are submitted to and run in, by a loop that has no processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.dirs = StateDir(folder / "state")
        self.traps: dict[tuple[str, str], Trap] = {}
        io.write_cluster(cluster(2, slots="cpu"), folder / "cluster.json")

    def submit(self, job_id: str, **fields: Any) -> None:
        own = self.folder / job_id
        own.mkdir()
        fields = {"workdir": str(own), "work": {"samples": 1.0}, **fields}
        path = written(self.folder, job_id, "train.py", **fields)
        submit(
            self.dirs.path, io.read_jobs(path), str(path), folder=self.folder, now_s=0.0, check_scripts=False
        )

    def spoil(self, job_id: str, way: str, error: Exception) -> None:
        if way == "remove the folder":
            (self.folder / job_id).rmdir()
        elif way == "a file in the way":
            self.dirs.jobs.mkdir(parents=True, exist_ok=True)
            self.dirs.job(job_id).path.touch()
        elif way:
            self.traps[way, job_id] = mock.Mock(side_effect=error)

    def run(self, policy: str = "fair-share") -> RunLog:
        """Run until all jobs have ended; at once, for no process is waited for."""
        nodes = None if self.dirs.cluster.exists() else str(self.folder / "cluster.json")
        options = RunOptions(self.dirs.path, question=Question(policy), cluster=nodes, retries=0)
        with self._opened(), mock.patch.object(runner, "POLL_S", 0.0):
            return run_until_done(options, lambda log, now_s: None)[0]

    def reconcile(self) -> RunLog:
        """One turn of the cron form, with a decision about all that was submitted."""
        jobs = [job for request in Spool(self.dirs).requests() for job in request.jobs]
        nodes, path = io.read_cluster(self.folder / "cluster.json"), self.folder / "schedule.json"
        io.write_schedule(decide(jobs, nodes, None, Question("fair-share"), now_s=2e9), path)
        with self._opened():
            return run_once(RunOptions(self.dirs.path, str(path), retries=0))[0]

    def _opened(self) -> AbstractContextManager[object]:
        return mock.patch.object(runner, "open_backend", opens(self.traps))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@settings(max_examples=examples(8))
@given(data=st.data())
def test_every_accepted_job_ends(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Before the first run nothing can be checked against the cluster; after it everything is."""
    place = Place(tmp_path_factory.mktemp("place"))
    accepted: set[str] = set()
    for stage in ("before", "after"):
        for number, fields in enumerate(data.draw(st.lists(st.sampled_from(HOSTILE), max_size=5))):
            job_id = f"{stage}-{number}"
            wrong = {**fields, **data.draw(st.sampled_from([{}, *HOSTILE])), "submit_time": 0}
            with suppress(BadInputError):
                place.submit(job_id, **wrong)
                place.spoil(job_id, data.draw(st.sampled_from(WAYS)), data.draw(st.sampled_from(ERRORS)))
                accepted.add(job_id)
        good = f"good-{stage}"
        place.submit(good)
        accepted.add(good)
        log = place.run(data.draw(st.sampled_from(["fair-share", "fifo", "srtf", "ares"])))
        assert log.jobs.keys() == accepted
        assert log.jobs[good].phase == "finished"
        assert all(found.ended for found in log.jobs.values())
        assert all(found.reason for found in log.jobs.values() if found.phase != "finished")


@pytest.mark.parametrize("form", ["until done", "once"])
def test_a_job_that_cannot_start_says_why(place: Place, caplog: pytest.LogCaptureFixture, form: str) -> None:
    caplog.set_level("DEBUG", "pliant")
    for job_id in ("bug", "good"):
        place.submit(job_id)
    place.spoil("bug", "start", KeyError("n0/0"))
    log = place.run() if form == "until done" else place.reconcile()
    assert log.jobs["bug"].reason == "cannot be started: internal error: KeyError: 'n0/0'"
    assert "in _spring" in caplog.text, "the traceback"
    good = "finished" if form == "until done" else "running"
    assert (log.jobs["bug"].phase, log.jobs["good"].phase) == ("failed", good)


def test_a_removed_folder_ends_its_job_and_others_run_later(place: Place) -> None:
    place.submit("gone")
    place.spoil("gone", "remove the folder", ERRORS[0])
    assert place.run().jobs["gone"].reason.startswith("cannot be started: no such folder: ")
    place.submit("good")
    assert place.run().jobs["good"].phase == "finished"
    with pytest.raises(BadInputError, match="work is stated in GPU-seconds at 2 GPUs, but with a batch of 1"):
        place.submit("a", work={"gpu_seconds": 5.0}, batch={"size": 1}, gpus={"requested": 2})


@pytest.mark.parametrize(
    ("event", "detail", "ends"),
    [
        ("progress", '{"x": NaN}', False),  # no log can hold it
        *(("epoch", f'{{"epoch": {n}}}', True) for n in ('"x"', "null", "-1", "[1]", "1.5", "1" + 400 * "0")),
    ],
)
def test_odd_reports_end_at_most_their_own_job(place: Place, event: str, detail: str, ends: bool) -> None:
    size = {"elastic": "size", "gpus": {"requested": 1, "min": 1, "max": 1}}
    place.submit("a", **size, **({"work": None} if ends else {}))
    place.submit("good")
    text = f'{{"time": 2e9, "job": "a", "samples_done": 1.0, "event": "{event}", "detail": {detail}}}\n'
    progress = place.dirs.job("a").attempt(1).progress

    def report() -> None:
        progress.write_text('{"schema": "pliant.event/1"}\n' + text)

    place.traps["start", "a"] = report
    log = place.run("ones" if ends else "fair-share")
    assert log.jobs["good"].phase == "finished"
    assert log.jobs["a"].phase == "finished" if ends else log.jobs["a"].ended
    assert not ends or any(each.event == "epoch" for each in io.read_events(place.dirs.events))
    place.run()


@pytest.mark.parametrize("name", ["schedule.json", "snapshot.jsonl"])
@pytest.mark.parametrize("form", ["until done", "once"])
def test_a_shortage_of_open_files_does_not_end_a_run(place: Place, monkeypatch, caplog, form, name) -> None:
    left, replaced = [3], files._replace

    def replace(target: Path, *about: Any) -> None:
        if target.name == name and place.dirs.cluster.exists() and left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        replaced(target, *about)

    monkeypatch.setattr(files, "_replace", replace)
    monkeypatch.setattr(state_module, "TAIL_BYTES", 1)
    place.submit("a")
    log = place.run() if form == "until done" else place.reconcile()
    assert log.jobs["a"].phase == "finished" or form == "once"
    assert left[0] < 3
    assert left[0] == 0 or name != "schedule.json"
    assert form == "once" or io.read_schedule(place.dirs.schedule).allocations == ()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_full_disk_is_no_fault_of_a_job(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    full = ServiceMissingError("cannot be written: no space left on device")
    place.submit("a")
    place.spoil("a", "start", OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patched:
        patched.setattr(slot_faults, "probe_room", mock.Mock(side_effect=full))
        with pytest.raises(ServiceMissingError, match="no space left on device"):
            place.run()
    assert not read_log(place.dirs.path).jobs["a"].ended
    assert "No space left" in place.run().jobs["a"].reason


SHORT = Timeouts(abort_s=0.02, term_s=0.02, kill_s=0.02)


class Undying:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        nodes = cluster(2, slots="cpu")
        self.backend = UndyingBackend(nodes)
        self.dirs = StateDir(folder / "state")
        spec = job("a", command=("train.py",), work={"samples": 1.0}, batch=8)
        schedule = folder / "schedule.json"
        io.write_schedule(decide([spec], nodes, None, Question("fifo")), schedule)
        self.options = RunOptions(self.dirs.path, str(schedule), timeouts=SHORT)
        self.patch = patch
        patch.setattr(runner, "open_backend", lambda *_about: self.backend)
        patch.setattr(runner, "POLL_S", 0.001)
        patch.setattr(runner, "GRACE_S", 0.05)

    def looks_fail(self, *errors: Exception | None, last: Exception | None = None) -> None:
        """Looks at jobs fail so, one after the other; all later ones as the last."""
        poll, looks = self.backend.poll, chain(errors, repeat(last))

        def fail(handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
            if (error := next(looks)) is not None:
                raise error
            return poll(handles)

        self.patch.setattr(self.backend, "poll", fail)


@pytest.fixture
def undying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Undying:
    return Undying(tmp_path, monkeypatch)


@pytest.mark.parametrize("can_be_looked_at", [True, False])
def test_one_reconciliation_leaves_what_does_not_end_to_the_next(undying: Undying, can_be_looked_at) -> None:
    run_once(undying.options)
    cancel(undying.dirs.path, ["a"])
    poll = undying.backend.poll
    if not can_be_looked_at:
        unreadable = UnreadableError("launch.json: cannot be read")
        undying.looks_fail(None, None, ZeroDivisionError(), last=unreadable)
    with pytest.raises(LockedError, match="job a: not as the schedule says" if can_be_looked_at else "job a"):
        run_once(undying.options)
    undying.patch.setattr(undying.backend, "poll", poll)
    undying.backend.hangs = False
    log, _ = run_once(undying.options)
    assert not can_be_looked_at or log.jobs["a"].phase == "cancelled"


def test_after_a_second_signal_a_run_names_what_runs_on(undying: Undying, monkeypatch, caplog) -> None:
    interrupts = Interrupts()
    monkeypatch.setattr(runner, "Interrupts", lambda **_: interrupts)

    def interrupt(_log: RunLog, _now_s: float) -> None:
        interrupts.received.append(Signals.SIGTERM)

    log, stopped_by = run_until_done(undying.options, interrupt)
    assert stopped_by == Signals.SIGTERM
    assert "killed, and not gone after 0 s: a" in caplog.text
    assert log.jobs["a"].phase == "preempted"


def test_a_run_waits_for_a_job_that_it_kills(undying: Undying, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is being killed: until nothing of it is left, the run has not stopped all jobs."""
    run_once(undying.options)
    interrupts = Interrupts()

    stop, die = (
        lambda: interrupts.received.append(Signals.SIGINT),
        lambda: setattr(undying.backend, "hangs", False),
    )
    deeds = iter([stop, lambda: None, die])
    undying.looks_fail(ZeroDivisionError())
    monkeypatch.setattr(runner, "Interrupts", lambda **_: interrupts)
    log, stopped_by = run_until_done(
        RunOptions(undying.dirs.path, timeouts=SHORT), lambda _log, _now_s: next(deeds, lambda: None)()
    )
    assert (stopped_by, undying.backend.hangs) == (Signals.SIGINT, False)
    assert log.jobs["a"].reason == "cannot be taken up: internal error: ZeroDivisionError()"


def test_nodes_are_given_back_once_no_job_is_there(undying: Undying, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs on would lose its node. On demand it is so, too, if no other process runs the jobs."""
    over: list[bool] = []

    def release(jobs: Container[str]) -> int:
        over.append("a" in jobs)
        return 2

    monkeypatch.setattr(undying.backend, "release", release)
    with pytest.raises(UsageError, match="holds no run"):
        release_nodes(undying.dirs.path)
    assert not undying.dirs.path.exists()
    run_once(undying.options)
    with State(undying.dirs.path), pytest.raises(LockedError):
        release_nodes(undying.dirs.path)
    assert over == []
    assert release_nodes(undying.dirs.path) == 2
    assert over == [False], "the job runs: its node stays"
    cancel(undying.dirs.path, ["a"])
    undying.backend.hangs = False
    run_once(undying.options)
    assert over == [False, True]
