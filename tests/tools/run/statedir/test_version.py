"""State directories without a version, of later ones, and copies of directories."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant import __version__
from pliant.cli.common import run_command
from pliant.cli.status import status
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.tools.run.service.submit import order_jobs, submit
from pliant.tools.run.statedir.directory import FORMAT, Home, StateDir
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch.output import job_output, last_events
from pliant.tools.run.watch.status import Watcher, look_at
from tests.builders import job
from tests.tools.run.stories import Story


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    story = Story(5)
    story.go_on(40)
    return story.write(tmp_path / "state")


def test_a_writer_notes_its_format_for_the_owner_alone(dirs: StateDir) -> None:
    said = json.loads(dirs.version.read_bytes())
    home = said.pop("home")
    assert said == {"schema": "pliant.state/1", "format": FORMAT, "pliant": __version__}
    assert (home["host"], home["path"]) == (os.uname().nodename, str(dirs.path))
    assert dirs.version.stat().st_mode & 0o777 == 0o600


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_first_writer_gives_a_directory_its_version(dirs: StateDir) -> None:
    dirs.version.unlink()
    before = contents(dirs.path)
    log = Watcher(dirs.path).look().log
    assert contents(dirs.path) == before
    with State(dirs.path) as state:
        assert list(state.log.jobs) == list(log.jobs)
    assert dirs.version.exists()
    assert dirs.events.read_bytes() == before[dirs.events]


USES: dict[str, Callable[[Path], object]] = {
    "status": Watcher,
    "run": State,
    "schedule": look_at,
    "events": lambda path: list(last_events(path, 1)),
    "log": lambda path: list(job_output(path, "j0")),
    "hold": lambda path: order_jobs(path, "hold", ["j0"]),
    "submit": lambda path: submit(
        path, [job("z", command=("x",))], "jobs", folder=path, now_s=0, check_scripts=False
    ),
}


def test_nothing_is_done_with_a_directory_of_a_later_version(
    dirs: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    later = {"schema": "pliant.state/2", "format": FORMAT + 1, "pliant": "9.9", "also": [1]}
    dirs.version.write_text(json.dumps(later))
    before = contents(dirs.path)
    refusal = f"pliant 9.9 wrote it in format {FORMAT + 1}, .*: use pliant 9"
    for use in USES.values():
        with pytest.raises(BadInputError, match=refusal):
            use(dirs.path)
    assert contents(dirs.path) == before
    assert run_command(lambda: status(state=dirs.path)) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "two", "pliant": "1"}', "[" * 100_000, "\xff"])
def test_a_file_that_cannot_be_understood_is_named(dirs: StateDir, text: str) -> None:
    dirs.version.write_text(text, encoding="latin-1")
    with pytest.raises(BadInputError, match=r"version\.json: does not say the format of a state directory"):
        State(dirs.path)


def test_a_format_that_cannot_be_written_for_the_moment_stops_nothing(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs.version.unlink()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pliant.tools.run.statedir.directory.atomic_write", full)
        State(dirs.path).close()
    assert read_log(dirs.path).jobs
    State(dirs.path).close()
    assert dirs.version.exists()


def directory(path: Path, *, running: bool) -> Path:
    """A state directory with one job that holds a GPU, or has ended."""
    with State(path) as state:
        state.record([submit_event(job("a"), 1.0), Event(2.0, "start", "a", gpus=1, placement=(("n0", 1),))])
        if not running:
            state.record([Event(3.0, "finish", "a", gpus=0, placement=())])
    return path


def copied(path: Path, to: Path) -> Path:
    return shutil.copytree(path, to)


def opens(path: Path, *, restored: bool = False) -> bool:
    with State(path, restored=restored):
        return True


def test_a_copy_whose_job_runs_is_refused_until_the_original_is_gone(tmp_path: Path) -> None:
    copy = copied(directory(tmp_path / "state", running=True), tmp_path / "copy")
    before = contents(copy)
    with pytest.raises(UsageError) as caught:
        opens(copy)
    assert str(caught.value) == (
        f'{copy}: is a copy of {tmp_path}/state on host {os.uname().nodename}, where job "a" may still run: '
        "one that is started here trains twice. Where nothing of it runs any more: pliant run --restored"
    )
    lock = {copy / "lock": b""}
    assert contents(copy) | lock == before | lock
    assert opens(tmp_path / "state")
    assert opens(copy, restored=True)
    assert opens(copy), "it is said once"


def test_one_that_was_moved_while_a_job_ran_is_refused(tmp_path: Path) -> None:
    directory(tmp_path / "state", running=True).rename(tmp_path / "moved")
    with pytest.raises(UsageError, match=f"moved: was moved from {tmp_path}/state, where job"):
        opens(tmp_path / "moved")
    (tmp_path / "moved").rename(tmp_path / "state")
    assert opens(tmp_path / "state")


def test_a_snapshot_with_the_same_inodes_is_a_copy(tmp_path: Path) -> None:
    """One of the whole file system."""
    copy = StateDir(copied(directory(tmp_path / "state", running=True), tmp_path / "snapshot"))
    claimed = json.loads(copy.version.read_bytes())
    claimed["home"]["inodes"] = Home.of(copy).inodes
    copy.version.write_text(json.dumps(claimed))
    with pytest.raises(UsageError, match=f"snapshot: is a copy of {tmp_path}/state on host"):
        opens(copy.path)
    assert opens(copy.path, restored=True)


def test_a_directory_that_is_no_copy_or_runs_nothing_is_opened(tmp_path: Path) -> None:
    ended = directory(tmp_path / "ended", running=False)
    assert opens(copied(ended, tmp_path / "copy"))
    assert opens(ended.rename(tmp_path / "moved"))
    state = directory(tmp_path / "state", running=True)
    (tmp_path / "link").symlink_to("state")
    assert opens(tmp_path / "link")
    assert opens(state)
    copied(state, tmp_path / "backup")
    state.rename(tmp_path / "broken")
    copied(tmp_path / "backup", state)
    assert opens(state), "it was restored in its place"
    version = StateDir(state).version
    claimed = json.loads(version.read_bytes())
    del claimed["home"]
    version.write_text(json.dumps(claimed))
    assert opens(state), "it does not say where it was"
    assert "home" in json.loads(version.read_bytes())


def test_a_directory_that_another_host_mounts_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server's folder, or one that a container has under another name."""
    directory(tmp_path / "state", running=True).rename(tmp_path / "mounted")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="elsewhere"))
    assert opens(tmp_path / "mounted")
    copy = copied(tmp_path / "mounted", tmp_path / "copy")
    with pytest.raises(UsageError, match=r"is a copy of .*/mounted on host elsewhere, where job"):
        opens(copy)
