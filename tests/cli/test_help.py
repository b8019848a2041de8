"""What every command says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pliant.cli.main import app

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_marks_of_its_own_making(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert "\\b" not in done.stdout
    assert "\b" not in done.stdout


def test_examples_stand_on_lines_of_their_own() -> None:
    lines = [line.strip() for line in CliRunner().invoke(app, ["profile", "--help"]).stdout.splitlines()]
    assert "pliant profile jobs.jsonl --cluster cluster.json -o profile.parquet" in lines


def test_a_command_does_not_wait_for_the_others() -> None:
    code = "import sys; from pliant.cli.main import app; app(['schema'], standalone_mode=False)"
    loaded = (
        "print(sorted(name for name in sys.modules if name in ('pliant.cli.schema', 'pliant.cli.replay')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {loaded}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "['pliant.cli.schema']"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]])
def test_help_that_finds_no_room_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pliant.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (69, "pliant: stdout: the disk is full\n")
