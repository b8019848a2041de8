import json
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

import pytest

from pliant import __version__
from pliant.cli.common import run_command
from pliant.cli.status import status
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import write_cluster
from pliant.schemas.job import Job
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.service.submit import cancel, order_jobs, submit
from pliant.tools.run.statedir import directory as private
from pliant.tools.run.statedir.directory import FORMAT, Home, StateDir
from pliant.tools.run.statedir.log.events import cancel_event, finish_event, release_event, submit_event
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State
from pliant.tools.run.watch.output import job_output, last_events
from pliant.tools.run.watch.status import Watcher, read_status
from pliant.tools.schedule.decide import Question
from tests.builders import cluster, job
from tests.tools.run.instant import opens
from tests.tools.run.stories import Story

STARTED = Event(2.0, "start", "a", gpus=1, placement=(("n0", 1),))


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path.resolve() / "state")


def runs(job_id: str) -> Job:
    return job(job_id, command=("train.py",), env={"TOKEN": "secret"}, work={"samples": 1.0})


def ask(dirs: StateDir, job_id: str = "a") -> None:
    submit(dirs.path, [runs(job_id)], "jobs.jsonl", folder=dirs.path.parent, now_s=0.0, check_scripts=False)


def run(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dirs.path.parent / "cluster.json"
    write_cluster(cluster(1, slots="cpu"), path)
    monkeypatch.setattr(runner, "open_backend", opens({}))
    monkeypatch.setattr(runner, "POLL_S", 0.0)
    options = RunOptions(dirs.path, question=Question("fifo"), cluster=str(path), retries=0)
    run_until_done(options, lambda log, now_s: None)


STRANGER = os.geteuid() + 4711

USES: dict[str, Callable[[StateDir], object]] = {
    "submit": lambda dirs: ask(dirs, "b"),
    "cancel": lambda dirs: cancel(dirs.path, ["a"]),
    "hold": lambda dirs: order_jobs(dirs.path, "hold", ["a"]),
    "run": lambda dirs: State(dirs.path).close(),
    "read the inputs of a run": lambda dirs: runner.dry_run_text(RunOptions(dirs.path, "none"), resume=True),
}
LOOKS: dict[str, Callable[[StateDir], object]] = {
    "status": lambda dirs: Watcher(dirs.path).look(),
    "schedule": lambda dirs: read_status(dirs.path),
    "events": lambda dirs: list(last_events(dirs.path, 1)),
    "log": lambda dirs: list(job_output(dirs.path, "a")),
}


def open_to_all(path: Path) -> list[Path]:
    """What others could read or write of a folder and all in it, were they let in."""
    return [each for each in (path, *path.rglob("*")) if each.lstat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]


def test_what_a_run_leaves_is_for_its_owner_alone(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(dirs)
    before = os.umask(0)
    try:
        run(dirs, monkeypatch)
    finally:
        os.umask(before)
    known = {dirs.events, dirs.schedule, dirs.cluster, dirs.lock, dirs.jobs, dirs.spool, dirs.path}
    assert known & set(open_to_all(dirs.path)) == set()
    assert open_to_all(dirs.spool) == []


def test_a_folder_that_others_can_read_is_closed_to_them(dirs: StateDir, monkeypatch, caplog) -> None:
    run(dirs, monkeypatch)
    for path in (dirs.run_log, notes := dirs.path / "notes"):
        path.touch()
        path.chmod(0o644)
    dirs.path.chmod(0o755)
    runner.dry_run_text(RunOptions(dirs.path), resume=True)
    assert stat.S_IMODE(dirs.path.stat().st_mode) == 0o755
    assert "was open to other users" not in caplog.text
    ask(dirs)
    assert open_to_all(dirs.path) == [notes]
    assert "was open to other users: from now on it is yours alone" in caplog.text
    caplog.clear()
    ask(dirs, "b")
    assert caplog.text == ""


def test_a_foreign_folder_is_refused_and_unchanged(dirs: StateDir) -> None:
    dirs.path.mkdir()
    dirs.path.chmod(0o755)
    (dirs.path / "notes").touch()
    with pytest.raises(UsageError, match="holds notes and nothing of a state directory"):
        ask(dirs)
    assert stat.S_IMODE(dirs.path.stat().st_mode) == 0o755
    assert [path.name for path in dirs.path.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("part", "mode"), [("", 0o775), ("spool", 0o777), ("jobs", 0o775), ("jobs", 0o757), ("notes", 0o777)]
)
def test_a_folder_that_others_may_write_in_is_refused_each_time(dirs: StateDir, part: str, mode: int) -> None:
    ask(dirs)
    (dirs.path / "notes").mkdir(mode=0o700)
    dirs.path.chmod(0o755)
    (dirs.path / part).chmod(mode)
    before = {path: path.lstat().st_mode for path in [dirs.path, *dirs.path.rglob("*")]}
    line = f"^[^\n]*others may write in it[^\n]*chmod go-w {dirs.path / part}$"
    for use in (*USES.values(), *USES.values()):
        with pytest.raises(UsageError, match=line):
            use(dirs)
    assert {path: path.lstat().st_mode for path in [dirs.path, *dirs.path.rglob("*")]} == before


def test_a_folder_of_another_user_is_refused(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_job(dirs.path, running=True)
    monkeypatch.setattr(private.os, "geteuid", lambda: STRANGER)
    for use in (USES | LOOKS).values():
        with pytest.raises(UsageError, match="belongs to"):
            use(dirs)


def test_root_only_looks_at_another_users_folder(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(dirs)
    lstat = os.lstat
    monkeypatch.setattr(private, "_parts", lambda dirs: [(dirs.path, of_a_stranger(lstat(dirs.path)))])
    monkeypatch.setattr(private.os, "lstat", lambda path: of_a_stranger(lstat(path)))
    monkeypatch.setattr(private.os, "geteuid", lambda: 0)
    private.check_seen(dirs)
    with pytest.raises(UsageError, match=f"belongs to user {STRANGER}, and you are root"):
        private.check_own(dirs)


def of_a_stranger(status: os.stat_result) -> os.stat_result:
    """No test can count on being root, or on there being another user."""
    fields = list(status)
    fields[stat.ST_UID] = STRANGER
    return os.stat_result(fields)


@pytest.mark.parametrize("name", ["events.jsonl", "schedule.json", "lock", "spool", "jobs"])
def test_a_link_in_a_state_directory_is_refused(dirs: StateDir, name: str) -> None:
    ask(dirs)
    target = dirs.path.parent / "elsewhere"
    target.mkdir()
    path = dirs.path / name
    if path.is_dir():
        path.rename(dirs.path.parent / "moved")
    path.symlink_to(target if name in ("spool", "jobs") else target / "file")
    for use in ("run", "status"):
        with pytest.raises(UsageError, match="is a symbolic link"):
            (USES | LOOKS)[use](dirs)
    assert list(target.iterdir()) == []


def link_for(dirs: StateDir, job_id: str) -> Path:
    """Instead of the job's folder a link to one outside, which is returned."""
    outside = dirs.path.parent / "outside"
    (outside / "attempts" / "1").mkdir(parents=True)
    (outside / "left.tmp").touch()
    dirs.job(job_id).path.symlink_to(outside)
    return outside


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_link_in_place_of_a_jobs_folder_is_refused(dirs: StateDir) -> None:
    """Of a job that runs; or of any job, where others can enter the folder."""
    with State(dirs.path) as state:
        state.record([submit_event(runs("a"), 1.0), STARTED])
    outside = link_for(dirs, "a")
    before = contents(outside)
    for use in (USES["run"], LOOKS["status"], LOOKS["log"]):
        with pytest.raises(UsageError, match="a: is a symbolic link"):
            use(dirs)
    dirs.path.chmod(0o755)
    for use in (USES | LOOKS).values():
        with pytest.raises(UsageError, match="is a symbolic link"):
            use(dirs)
    assert contents(outside) == before


def test_no_job_is_started_in_a_link(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(dirs)
    outside = link_for(dirs, "a")
    before = contents(outside)
    run(dirs, monkeypatch)
    end = Watcher(dirs.path).look().log.jobs["a"]
    assert (end.phase, "is a symbolic link" in end.reason) == ("failed", True)
    assert contents(outside) == before


def test_a_start_looks_at_no_folders_of_jobs_that_are_over(dirs: StateDir) -> None:
    with State(dirs.path) as state:
        state.record([submit_event(runs("a"), 1.0), STARTED, finish_event("a", 3.0, 1, 1.0)])
        state.record([submit_event(runs("b"), 1.0), replace(STARTED, job="b"), cancel_event("b", 3.0)])
        state.record([release_event("b", 4.0)])
    for job_id in "ab":
        dirs.job(job_id).path.symlink_to(dirs.path.parent / "nowhere")
    State(dirs.path).close()
    Watcher(dirs.path).look()


def test_a_link_to_a_state_directory_may_be_named(dirs: StateDir) -> None:
    ask(dirs)
    link = dirs.path.parent / "link"
    link.symlink_to(dirs.path)
    ask(StateDir(link), "b")
    assert {job.id for job, _ in Watcher(link).look().submitted} == {"a", "b"}


def test_what_is_no_file_in_the_spool_keeps_no_one_waiting(dirs: StateDir, caplog, monkeypatch) -> None:
    ask(dirs)
    (good,) = dirs.spool.glob("*.jobs.jsonl")
    outside = dirs.path.parent / "outside.jsonl"
    outside.write_bytes(good.read_bytes())
    fifo, folder, link, bound = (dirs.spool / f"{number:020}.jobs.jsonl" for number in range(1, 5))
    os.mkfifo(fifo)
    folder.mkdir()
    link.symlink_to(outside)
    monkeypatch.chdir(dirs.spool)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(bound.name)
    spool = Spool(dirs)
    for _ in range(2):
        assert [each.id for request in spool.requests() for each in request.jobs] == ["a"]
    assert caplog.text.count("it is not a request") == 4
    assert [each.id for each, _ in Watcher(dirs.path).look().submitted] == ["a"]
    ask(dirs, "b")


def test_a_request_that_another_user_put_there_is_ignored(dirs: StateDir, caplog, monkeypatch) -> None:
    ask(dirs)
    fstat = os.fstat
    monkeypatch.setattr(private.os, "fstat", lambda descriptor: of_a_stranger(fstat(descriptor)))
    assert Spool(dirs).requests() == []
    assert "belongs to" in caplog.text


def test_a_new_directory_is_on_disk_before_its_jobs(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(private, "sync_folder", synced.append)
    above = dirs.path.parent
    submit(above / "x/y/state", [runs("a")], "jobs", folder=above, now_s=0.0, check_scripts=False)
    assert {above, above / "x", above / "x" / "y"} <= set(synced)


@pytest.fixture
def written(tmp_path: Path) -> StateDir:
    story = Story(5)
    story.go_on(40)
    return story.write(tmp_path / "state")


def test_a_writer_notes_its_format_for_the_owner_alone(written: StateDir) -> None:
    said = json.loads(written.version.read_bytes())
    home = said.pop("home")
    assert said == {"schema": "pliant.state/1", "format": FORMAT, "pliant": __version__}
    assert (home["host"], home["path"]) == (os.uname().nodename, str(written.path))
    assert written.version.stat().st_mode & 0o777 == 0o600


def bytes_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_first_writer_gives_a_directory_its_version(written: StateDir, monkeypatch) -> None:
    written.version.unlink()
    before = bytes_in(written.path)
    log = Watcher(written.path).look().log
    assert bytes_in(written.path) == before

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(private, "atomic_write", full)
        State(written.path).close()
    assert not written.version.exists()
    with State(written.path) as state:
        assert list(state.log.jobs) == list(log.jobs) != []
    assert written.version.exists()
    assert written.events.read_bytes() == before[written.events]


def test_nothing_is_done_in_a_later_version(written: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    later = {"schema": "pliant.state/2", "format": FORMAT + 1, "pliant": "9.9", "also": [1]}
    written.version.write_text(json.dumps(later))
    before = bytes_in(written.path)
    refusal = f"pliant 9.9 wrote it in format {FORMAT + 1}, .*: use pliant 9"
    for use in (USES | LOOKS).values():
        with pytest.raises(BadInputError, match=refusal):
            use(written)
    assert bytes_in(written.path) == before
    assert run_command(lambda: status(state=written.path)) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "two", "pliant": "1"}', "[" * 100_000, "\xff"])
def test_a_file_that_cannot_be_understood_is_named(written: StateDir, text: str) -> None:
    written.version.write_text(text, encoding="latin-1")
    with pytest.raises(BadInputError, match=r"version\.json: does not say the format of a state directory"):
        State(written.path)


def with_a_job(path: Path, *, running: bool) -> Path:
    with State(path) as state:
        ended = [] if running else [finish_event("a", 3.0, 1, 1.0)]
        state.record([submit_event(job("a"), 1.0), STARTED, *ended])
    return path


def reopens(path: Path, *, restored: bool = False) -> bool:
    with State(path, restored=restored):
        return True


def test_one_that_was_copied_or_moved_while_a_job_ran_is_refused(tmp_path: Path) -> None:
    home, moved = with_a_job(tmp_path / "state", running=True), tmp_path / "moved"
    copy = copytree(home, tmp_path / "copy")
    before = bytes_in(copy)
    with pytest.raises(UsageError) as caught:
        reopens(copy)
    assert str(caught.value) == (
        f'{copy}: is a copy of {home} on host {os.uname().nodename}, where job "a" may still run: '
        "one that is started here trains twice. Where nothing of it runs any more: pliant run --restored"
    )
    lock = {copy / "lock": b""}
    assert bytes_in(copy) | lock == before | lock
    assert reopens(home)
    assert reopens(copy, restored=True)
    assert reopens(copy), "it is said once"
    home.rename(moved)
    with pytest.raises(UsageError, match=f"moved: was moved from {home}, where job"):
        reopens(moved)
    assert reopens(moved.rename(home))


def test_a_snapshot_with_the_same_inodes_is_a_copy(tmp_path: Path) -> None:
    copy = StateDir(copytree(with_a_job(tmp_path / "state", running=True), tmp_path / "snapshot"))
    claimed = json.loads(copy.version.read_bytes())
    claimed["home"]["inodes"] = Home.of(copy).inodes
    copy.version.write_text(json.dumps(claimed))
    with pytest.raises(UsageError, match=f"snapshot: is a copy of {tmp_path}/state on host"):
        reopens(copy.path)
    assert reopens(copy.path, restored=True)


def test_a_directory_that_is_no_copy_or_runs_nothing_is_opened(tmp_path: Path) -> None:
    ended = with_a_job(tmp_path / "ended", running=False)
    assert reopens(copytree(ended, tmp_path / "copy"))
    assert reopens(ended.rename(tmp_path / "moved"))
    state = with_a_job(tmp_path / "state", running=True)
    (tmp_path / "link").symlink_to("state")
    assert reopens(tmp_path / "link")
    assert reopens(state)
    copytree(state, tmp_path / "backup")
    state.rename(tmp_path / "broken")
    copytree(tmp_path / "backup", state)
    assert reopens(state), "it was restored in its place"
    version = StateDir(state).version
    claimed = json.loads(version.read_bytes())
    del claimed["home"]
    version.write_text(json.dumps(claimed))
    assert reopens(state), "it does not say where it was"
    assert "home" in json.loads(version.read_bytes())


def test_a_directory_is_the_same_on_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_job(tmp_path / "state", running=True).rename(tmp_path / "mounted")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="elsewhere"))
    assert reopens(tmp_path / "mounted")
    copy = copytree(tmp_path / "mounted", tmp_path / "copy")
    with pytest.raises(UsageError, match=r"is a copy of .*/mounted on host elsewhere, where job"):
        reopens(copy)
