"""Where one command of a pipeline fails, the others say so, or nothing: the cause is said once."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.cli.profile import profile
from pliant.schemas.io import write_cluster, write_jobs
from pliant.tools.profile.measuring import run as sweep
from tests.builders import cluster, job

CAUSE = "nothing came in: the command before this one wrote nothing; what it says is the cause"
FILES = "jobs.jsonl --cluster cluster.json"


@pytest.fixture
def here(here: Path) -> Path:
    write_jobs([job("a", gpus=1, gpu_seconds=20, command=("a.py",))], "jobs.jsonl")
    (here / "a.py").touch()
    write_cluster(cluster(2, slots="cpu", gpu_type="cpu"), "cluster.json")
    return here


def shell(line: str) -> subprocess.CompletedProcess[str]:
    text = line.replace("pliant", shlex.join([sys.executable, "-m", "pliant.cli"]))
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"pliant replay {FILES} | pliant report", "pliant: --policy missing: a replay needs"),
        (f"pliant schedule {FILES} </dev/null | pliant run --state s", "pliant: --policy missing: name one"),
    ],
)
def test_the_cause_is_said_first_and_what_follows_points_to_it(here: Path, line: str, message: str) -> None:
    done = shell(line)
    assert done.returncode == 3
    assert done.stderr.index(message) < done.stderr.index(CAUSE)


def test_an_empty_pipe_is_warned_of_and_an_empty_file_refused(here: Path) -> None:
    done = shell(f"pliant profile gone.jsonl | pliant schedule --policy fifo {FILES}")
    assert done.stderr.splitlines() == [
        "pliant: gone.jsonl: no such file",
        "pliant: nothing came in through the pipe: the command before this one wrote no profile",
        "pliant: no profile: every GPU is taken to train 1 sample per second",
    ]
    # An empty file as stdin has no command before it.
    done = shell("pliant report - < /dev/null")
    assert (done.returncode, done.stderr) == (3, "pliant: <stdin>: nothing came in\n")


def test_nothing_is_measured_for_a_reader_that_left(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(*_arguments: object, progress, **_named: object) -> None:
        for point in range(3):
            measured.append(point)
            progress(point, 3)

    monkeypatch.setattr(sweep, "measure", measure)
    monkeypatch.setattr("pliant.cli.profile.reader_left", lambda _stdout: len(measured) == 2)
    with pytest.raises(BrokenPipeError):
        profile("jobs.jsonl", cluster="cluster.json")
    assert measured == [0, 1]
