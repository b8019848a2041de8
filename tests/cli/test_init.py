"""``pliant init``: its files and the command that it says next, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.cli import init
from pliant.schemas.io import read_cluster, read_jobs
from tests.builders import cluster
from tests.cli.calling import call

INIT = ("init", "--backend", "local", "--slots", "cpu")
FILES = ["cluster.json", "pliant.toml", "train.py", "jobs.jsonl"]


def run_next(message: str, folder: Path) -> str:
    """Run what ``init`` says next, as a user would. Returns the state of its job."""
    (line,) = [line for line in message.splitlines() if line.startswith("pliant: next: ")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = {"cwd": folder, "env": {**os.environ, "PATH": path}, "stdin": subprocess.DEVNULL}
    command = line.removeprefix("pliant: next: ")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} >&2 && pliant status -f json"],
        **shell,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    return str(job["state"])


@pytest.mark.torch
def test_the_next_command_trains_the_first_job_to_its_end(here: Path) -> None:
    done = call(*INIT)
    assert (done.exit_code, done.stdout.split()) == (0, FILES)
    assert read_jobs("jobs.jsonl")[0].elastic == "size"
    assert run_next(done.stderr, here) == "finished"


def test_without_torch_the_first_job_is_the_smallest(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "find_spec", lambda _name: None)
    done = call(*INIT, "a project")
    assert json.loads((here / "a project" / "jobs.jsonl").read_text()) == {
        "id": "first",
        "command": ["train.py"],
    }
    assert run_next(done.stderr, here) == "finished"
    again = [sys.executable, "-m", "pliant.cli", "run", "--until-done"]
    reported = subprocess.run(
        again, cwd="a project", input="", capture_output=True, text=True, check=True
    ).stderr
    assert "no schedule is read from the pipe" in reported


def test_files_that_are_there_stay_as_they_are(here: Path) -> None:
    call(*INIT)
    before = {name: (here / name).read_bytes() for name in FILES}
    (here / "train.py").write_text("print('mine')\n")
    (here / "pliant.toml").unlink()
    done = call(*INIT)
    assert done.stdout == "pliant.toml\n"
    assert "train.py is there already and stays as it is" in done.stderr
    after = {name: (here / name).read_bytes() for name in FILES}
    assert after == {**before, "train.py": b"print('mine')\n"}


def test_the_cluster_is_what_discovery_finds(here: Path) -> None:
    call(*INIT)
    call("cluster", "discover", "--slots", "cpu", "-o", "found.json")
    assert read_cluster("cluster.json") == read_cluster("found.json")


def test_a_missing_slurm_is_an_error_and_writes_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    done = call("init", "--backend", "slurm")
    assert done.exit_code == 69
    assert "without Slurm: --backend local" in " ".join(done.stderr.replace("pliant:", "").split())
    assert list(here.iterdir()) == []
    assert call("init", "--slots", "cpu").exit_code == 0


def test_with_slurm_the_cluster_is_its_default_partition(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Path(__file__).parents[1] / "tools/run/backends/slurm/recorded"
    scontrol = here / "scontrol"
    scontrol.write_text(f"#!/bin/sh\nfor last; do :; done\ncat '{recorded}/22.05-'\"$last\"*.txt\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")
    done = call("init")
    assert done.exit_code == 0, done.stderr
    assert read_cluster("cluster.json").backend == "slurm"
    assert "with --backend local on this machine alone" in " ".join(
        done.stderr.replace("pliant:", "").split()
    )


def test_the_first_job_asks_for_no_more_workers_than_a_node_has() -> None:
    for gpus, most in ((1, 1), (2, 2), (64, 4)):
        _, line = init.first_job(cluster(gpus), elastic=True)
        assert json.loads(line)["gpus"]["max"] == most
