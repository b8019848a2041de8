"""The command line as people use it: pipes, early ends, full disks, signals."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import started
from tests.pipeline.conftest import Shell

FILES = "jobs.jsonl --cluster cluster.json"


def test_a_replay_flows_into_a_report_or_ends_quietly(sh: Shell) -> None:
    done = sh(f"pliant replay {FILES} --policy ares | pliant report --format json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["policy"], run["jobs_finished"], run["simulated"]) == ("ares", 3, True)
    # A reader that has enough ends it quietly.
    done = sh(f"pliant replay {FILES} --policy ares | head -c 20")
    assert len(done.stdout) == 20
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr
    # Debug shows the traceback.
    assert "Traceback" in sh("pliant report missing.parquet --debug").stderr
    # A full disk is exit 69 and one line.
    done = sh(f"pliant schedule {FILES} --policy fifo > /dev/full")
    assert done.returncode == 69
    assert [line for line in done.stderr.splitlines() if "no space left" in line]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "code"), [("pliant validate nothing", 3), (f"pliant replay {FILES} --policy fifo -o x/", 0)]
)
def test_words_that_find_no_room_on_the_disk_change_no_exit_code(sh: Shell, line: str, code: int) -> None:
    done = sh(f"{line} 2>/dev/full")
    assert (done.returncode, done.stderr) == (code, "")


def test_ctrl_c_ends_a_replay_with_130_and_leaves_no_half_file(sh: Shell, inputs: Path) -> None:
    many = "pliant trace synth poisson --jobs 20000 --seed 1 -o many.jsonl"
    assert sh(many).returncode == 0
    words = ["many.jsonl", "--cluster", "cluster.json", "--policy", "las", "-o", "big.parquet"]
    line = [sys.executable, "-m", "pliant.cli", "replay", *words]
    with started(line, cwd=inputs, stderr=subprocess.PIPE, text=True) as replay:
        assert replay.stderr is not None
        assert any("no profile" in message for message in replay.stderr), "it has begun"
        replay.send_signal(signal.SIGINT)
        _, errors = replay.communicate()
    assert replay.returncode == 130
    assert errors.splitlines()[-1] == "pliant: interrupted"
    assert "Traceback" not in errors
    assert {path.name for path in inputs.iterdir()} == {"many.jsonl", "jobs.jsonl", "cluster.json"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("pliant report <&-", "no events"),
        ("pliant report - <&-", "stdin is closed"),
        (f"pliant schedule {FILES} --policy fifo >&-", "stdout is closed"),
    ],
)
def test_a_closed_stream_is_a_usage_error(sh: Shell, command: str, message: str) -> None:
    done = sh(command)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_what_needs_no_stream_runs_with_all_of_them_closed(sh: Shell, inputs: Path) -> None:
    done = sh(f"pliant replay {FILES} --policy fifo -o events.jsonl <&- >&- 2>&-")
    assert done.returncode == 0
    assert "pliant:" not in (inputs / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("pliant replay --help", 141),
        (f"pliant schedule {FILES} --policy fifo --explain -o s.json 2>&1", 0),
        ("pliant report missing.parquet 2>&1", 3),
        ("pliant schedule --wrong 2>&1", 2),
    ],
)
def test_a_reader_that_never_read(sh: Shell, command: str, code: int) -> None:
    """The pipe's other end is closed before the command writes: it says so, or what it would have said."""
    done = sh(f"exec 3> >(:); wait $!; {command} >&3 3>&-; echo $? >&2")
    assert done.stderr.splitlines()[-1] == str(code)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
