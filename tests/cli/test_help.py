"""What every command says of itself."""

from __future__ import annotations

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
