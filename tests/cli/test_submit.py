"""``pliant submit`` as people call it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pliant.cli.common import command
from pliant.cli.submit import submit
from pliant.schemas.io import write_jobs
from tests.builders import job

app = typer.Typer()
app.command("submit")(command(submit))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*args: str):
    return CliRunner().invoke(app, [*args])


def test_a_script_that_is_not_there_is_refused_unless_no_check_says_otherwise(here: Path):
    write_jobs([job("a", command=("train.py",))], "jobs.jsonl")
    refused = call("jobs.jsonl", "--state", "live")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert f'job "a": no such script: {here}/train.py (--no-check skips this check)' in refused.stderr
    assert not (here / "live" / "submit").exists()
    assert call("jobs.jsonl", "--state", "live", "--no-check").stdout == "a\n"


def test_a_script_that_is_there_is_taken_without_a_word_about_it(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    write_jobs([job("a", command=("train.py",))], "jobs.jsonl")
    done = call("jobs.jsonl", "--state", "live")
    assert (done.exit_code, done.stdout) == (0, "a\n")
    assert "train.py" not in done.stderr
