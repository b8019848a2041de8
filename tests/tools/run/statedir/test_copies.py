"""A copy of a state directory does not start a second time what the original runs."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.tools.run.service.run import run_once
from pliant.tools.run.statedir import directory as version
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.state import State
from tests.builders import job
from tests.tools.run.site import Site, until


def directory(path: Path, *, running: bool) -> Path:
    """A state directory with one job that holds a GPU, or has ended."""
    with State(path) as state:
        state.record([submit_event(job("a"), 1.0), Event(2.0, "start", "a", gpus=1, placement=(("n0", 1),))])
        if not running:
            state.record([Event(3.0, "finish", "a", gpus=0, placement=())])
    return path


def copied(path: Path, to: Path) -> Path:
    shutil.copytree(path, to)
    return to


def opens(path: Path, *, restored: bool = False) -> bool:
    with State(path, restored=restored):
        return True


def test_a_copy_of_a_directory_whose_job_runs_is_refused_until_it_is_said_that_the_original_is_gone(
    tmp_path: Path,
) -> None:
    copy = copied(directory(tmp_path / "state", running=True), tmp_path / "copy")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(UsageError) as caught:
        opens(copy)
    assert str(caught.value) == (
        f'{copy}: is a copy of {tmp_path}/state on host {os.uname().nodename}, where job "a" may still run: '
        "one that is started here trains twice. Where nothing of it runs any more: pliant run --restored"
    )
    assert {path: path.read_bytes() for path in before} | {copy / "lock": b""} == before | {
        copy / "lock": b""
    }
    assert opens(tmp_path / "state")
    assert opens(copy, restored=True)
    assert opens(copy), "it is said once"


def test_nothing_is_asked_where_no_job_runs(tmp_path: Path) -> None:
    state = directory(tmp_path / "state", running=False)
    assert opens(copied(state, tmp_path / "copy"))
    state.rename(tmp_path / "moved")
    assert opens(tmp_path / "moved")


def test_one_that_was_moved_while_a_job_ran_is_refused(tmp_path: Path) -> None:
    directory(tmp_path / "state", running=True).rename(tmp_path / "moved")
    with pytest.raises(UsageError, match=f"moved: was moved from {tmp_path}/state, where job"):
        opens(tmp_path / "moved")
    (tmp_path / "moved").rename(tmp_path / "state")
    assert opens(tmp_path / "state")


def test_a_snapshot_of_the_file_system_is_a_copy_though_its_folders_have_the_same_numbers(
    tmp_path: Path,
) -> None:
    copy = StateDir(copied(directory(tmp_path / "state", running=True), tmp_path / "snapshot"))
    found = json.loads(copy.version.read_bytes())
    found["home"]["inodes"] = version.Home.of(copy).inodes
    copy.version.write_text(json.dumps(found))
    with pytest.raises(UsageError, match=f"snapshot: is a copy of {tmp_path}/state on host"):
        opens(copy.path)
    assert opens(copy.path, restored=True)


def test_a_directory_that_is_named_by_a_link_is_the_same(tmp_path: Path) -> None:
    directory(tmp_path / "state", running=True)
    (tmp_path / "link").symlink_to("state")
    assert opens(tmp_path / "link")
    assert opens(tmp_path / "state")


def test_one_that_was_restored_in_its_place_goes_on(tmp_path: Path) -> None:
    state = directory(tmp_path / "state", running=True)
    copied(state, tmp_path / "backup")
    state.rename(tmp_path / "broken")
    copied(tmp_path / "backup", state)
    assert opens(state)


def test_a_directory_that_is_seen_from_another_host_by_another_path_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server's folder, or one that a container has under another name."""
    directory(tmp_path / "state", running=True).rename(tmp_path / "mounted")
    monkeypatch.setattr(version.os, "uname", lambda: SimpleNamespace(nodename="elsewhere"))
    assert opens(tmp_path / "mounted")
    copy = copied(tmp_path / "mounted", tmp_path / "copy")
    with pytest.raises(UsageError, match=r"is a copy of .*/mounted on host elsewhere, where job"):
        opens(copy)


@pytest.mark.torch
def test_the_copy_of_a_run_starts_no_second_attempt_and_the_original_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.job("a", "--gate", site.gate, elastic="size")
    run_once(site.options("fifo"))
    copy = copied(site.state, tmp_path / "copy")
    with pytest.raises(UsageError, match="is a copy of"):
        run_once(replace(site.options("fifo"), state=copy))
    assert not StateDir(copy).job("a").attempt(2).path.exists()
    site.gate.touch()

    def finished() -> bool:
        run_once(site.options("fifo"))
        return site.log().jobs["a"].phase == "finished"

    until(finished)
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]
