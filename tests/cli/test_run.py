"""``pliant run`` as people call it, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pliant.cli.common import command
from pliant.cli.run import run

app = typer.Typer()
app.command("run")(command(run))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_live_loop_without_a_policy_names_what_is_missing(here: Path) -> None:
    done = CliRunner().invoke(app, ["--follow", "--state", "live"])
    assert done.exit_code == 2
    assert "live holds no run: name --policy and --cluster to begin one" in done.stderr
    assert not (here / "live").exists()
