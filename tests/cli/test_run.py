"""``pliant run`` as people call it, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pliant.cli.common import command
from pliant.cli.run import run
from pliant.schemas.io import write_cluster
from tests.builders import cluster

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


@pytest.mark.parametrize("more", [[], ["--until-done"]])
def test_without_a_schedule_dev_null_is_not_an_empty_pipe(here: Path, more: list[str]) -> None:
    words = [sys.executable, "-m", "pliant.cli", "run", "--state", "live", *more]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no schedule: name a file, or pipe one in" in done.stderr


def test_a_folder_of_other_things_is_no_place_for_a_run(here: Path) -> None:
    (here / "project").mkdir()
    (here / "project" / "README.md").write_text("mine\n")
    write_cluster(cluster(2, slots="cpu"), "cluster.json")
    args = ["--follow", "--state", "project", "--policy", "fifo", "--cluster", "cluster.json"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2
    assert "project: holds README.md and nothing of a state directory" in done.stderr
    assert sorted(os.listdir("project")) == ["README.md"]


def test_a_loop_that_begins_says_what_speeds_it_takes_for_granted(here: Path) -> None:
    write_cluster(cluster(2, slots="cpu"), "cluster.json")
    args = ["--follow", "--state", "live", "--policy", "fifo", "--cluster", "cluster.json", "--dry-run"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0
    assert "no profile: every GPU is taken to train 1 sample per second" in done.stderr
