"""``pliant run`` before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.cli.run import run
from pliant.schemas.errors import UsageError
from pliant.schemas.io import write_cluster
from tests.builders import cluster
from tests.cli.calling import call

BEGIN = ("--policy", "fifo", "--cluster", "cluster.json")


def test_a_live_loop_without_a_policy_names_what_is_missing(here: Path) -> None:
    done = call("run", "--follow", "--state", "live")
    assert done.exit_code == 2
    assert "live holds no run: name --policy and --cluster to begin one" in done.stderr
    assert not (here / "live").exists()


@pytest.mark.parametrize("until_done", [False, True])
def test_without_a_schedule_dev_null_is_not_an_empty_pipe(
    here: Path, until_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(
            UsageError,
            match="pipe one in from pliant schedule; pliant run --follow decides",
        ):
            run(state=Path("live"), until_done=until_done)


def test_a_folder_of_other_things_is_no_place_for_a_run(here: Path) -> None:
    (here / "project").mkdir()
    (here / "project" / "README.md").write_text("mine\n")
    write_cluster(cluster(2, slots="cpu"), "cluster.json")
    done = call("run", "--follow", "--state", "project", *BEGIN)
    assert done.exit_code == 2
    assert "project: holds README.md and nothing of a state directory" in done.stderr
    assert os.listdir("project") == ["README.md"]


def test_a_new_loop_warns_of_assumed_speeds(here: Path) -> None:
    write_cluster(cluster(2, slots="cpu"), "cluster.json")
    done = call("run", "--follow", "--state", "live", *BEGIN, "--dry-run")
    assert done.exit_code == 0
    assert "no profile: every GPU is taken to train 1 sample per second" in done.stderr
