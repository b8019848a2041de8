"""State directories without a version, and of later ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from pliant.cli.common import run_command
from pliant.cli.status import status
from pliant.schemas.errors import BadInputError
from pliant.tools.run.service.submit import order_jobs, submit
from pliant.tools.run.statedir.directory import FORMAT, StateDir
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


def later(dirs: StateDir) -> None:
    found = {"schema": "pliant.state/2", "format": FORMAT + 1, "pliant": "9.9", "also": [1]}
    dirs.version.write_text(json.dumps(found))


def test_a_writer_says_in_which_format_it_writes_for_the_owner_alone(dirs: StateDir) -> None:
    found = json.loads(dirs.version.read_bytes())
    home = found.pop("home")
    assert found == {"schema": "pliant.state/1", "format": FORMAT, "pliant": version("pliant")}
    assert (home["host"], home["path"]) == (os.uname().nodename, str(dirs.path))
    assert dirs.version.stat().st_mode & 0o777 == 0o600


def test_a_directory_without_a_version_is_read_as_it_is_and_gets_one_by_its_first_writer(
    dirs: StateDir,
) -> None:
    dirs.version.unlink()
    before = {path.name: path.read_bytes() for path in dirs.path.iterdir() if path.is_file()}
    log = Watcher(dirs.path).look().log
    assert {path.name: path.read_bytes() for path in dirs.path.iterdir() if path.is_file()} == before
    with State(dirs.path) as state:
        assert list(state.log.jobs) == list(log.jobs)
    assert dirs.version.exists()
    assert dirs.events.read_bytes() == before["events.jsonl"]


def submits(path: Path) -> None:
    submit(path, [job("z", command=("x",))], "jobs", folder=path, now_s=0, check_scripts=False)


USES: dict[str, Callable[[Path], object]] = {
    "status": Watcher,
    "run": State,
    "schedule": look_at,
    "events": lambda path: list(last_events(path, 1)),
    "log": lambda path: list(job_output(path, "j0")),
    "hold": lambda path: order_jobs(path, "hold", ["j0"]),
    "submit": submits,
}


@pytest.mark.parametrize("use", USES)
def test_nothing_is_done_with_a_directory_of_a_later_version(dirs: StateDir, use: str) -> None:
    later(dirs)
    before = sorted(os.listdir(dirs.path)), dirs.events.read_bytes(), sorted(os.listdir(dirs.spool))
    with pytest.raises(BadInputError, match=f"pliant 9.9 wrote it in format {FORMAT + 1}, .*: use pliant 9"):
        USES[use](dirs.path)
    assert (sorted(os.listdir(dirs.path)), dirs.events.read_bytes(), sorted(os.listdir(dirs.spool))) == before


def test_it_takes_one_line_and_exit_code_3(dirs: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    later(dirs)
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
