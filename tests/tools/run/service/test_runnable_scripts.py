"""What a job's command starts is looked for before the job is accepted."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError
from pliant.tools.run.service.launching import script_obstacle
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from tests.builders import job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a job starts, with a script, a package, a folder and things that are not Python."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__main__.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "marked").write_text("#!/usr/bin/env python3\nprint('hello')\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\npython train.py\n")
    (tmp_path / "program").write_bytes(b"\x7fELF\x02\x01\x01\0\0")
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "print('hello')")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["train.py", "--lr", "1"],
        ["./train.py"],
        ["own"],
        ["marked"],
        ["app.pyz"],
        ["-m", "own"],
        ["-m", "json.tool", "x"],
        ["-X", "dev", "gone.py"],
    ],
)
def test_what_python_finds_and_what_cannot_be_known_is_taken(folder: Path, command: list[str]):
    assert script_obstacle(command, folder) is None


def test_an_absolute_path_is_taken_as_it_is(folder: Path, tmp_path: Path):
    assert script_obstacle([str(folder / "train.py")], tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["gone.py"], "no such script: {folder}/gone.py"),
        (["../up/gone.py"], "no such script: {folder}/../up/gone.py"),
        (["data"], "{folder}/data is a folder without __main__.py"),
        (["./train.sh"], '{folder}/train.sh is a script for "/bin/sh", but torchrun starts Python scripts'),
        (["program"], "{folder}/program is a compiled program, but torchrun starts Python scripts"),
        (["-m"], "-m names no module"),
        (["-m", "nowhere.main"], 'no module "nowhere.main" in {folder} or among the installed packages'),
        (["/usr/bin/python3.12-none", "train.py"], "no such script: /usr/bin/python3.12-none"),
    ],
)
def test_what_python_would_not_find_says_which_path_was_looked_at(
    folder: Path, command: list[str], complaint: str
):
    assert script_obstacle(command, folder) == complaint.format(folder=folder)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "train.py", "--lr", "1"], '["train.py", "--lr", "1"]'),
        (["torchrun", "--nproc-per-node=2", "train.py"], '["train.py"]'),
        (["python3", "-m", "own"], '["-m", "own"]'),
        (["bash", "-c", "x"], '["train.py"]'),
    ],
)
def test_a_command_that_begins_with_a_program_says_what_it_should_be(
    folder: Path, command: list[str], expected: str
):
    complaint = (
        f'starts with "{command[0]}", but torchrun itself starts Python: expected "command": {expected}'
    )
    assert script_obstacle(command, folder) == complaint


def test_a_script_that_may_not_be_read_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert (
        script_obstacle(["train.py"], folder) == f"script {folder}/train.py cannot be read: Permission denied"
    )


def test_a_name_that_no_file_system_takes_is_no_error_of_ours(folder: Path):
    assert "cannot be read" in str(script_obstacle(["x" * 5000], folder))


def test_submit_refuses_all_jobs_where_one_script_is_missing(folder: Path):
    dirs = StateDir(folder / "state")
    (folder / "sub").mkdir()
    jobs = [job("good", command=("train.py",)), job("lost", command=("train.py",), workdir="sub")]
    with pytest.raises(BadInputError) as caught:
        submit(dirs.path, jobs, "jobs.jsonl", folder=folder, now_s=0.0)
    assert str(caught.value) == (
        f'jobs.jsonl: /command: job "lost": no such script: {folder}/sub/train.py '
        "(--no-check skips this check)"
    )
    assert not dirs.spool.exists()
    assert submit(dirs.path, jobs, "jobs.jsonl", folder=folder, now_s=0.0, check_scripts=False) == [
        "good",
        "lost",
    ]
