import importlib
import io
import json
import os
import traceback
from pathlib import Path

import pytest

from pliant.cli.main import app
from pliant.schemas.event import Event
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.io import write_cluster, write_events, write_jobs, write_profile
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.tools.run.stories import Story
from tests.tools.schedule.foreign import Foreign
from tests.tools.schedule.test_decide import INFO, PROFILE

module = importlib.import_module("pliant.cli.schedule")


@pytest.fixture
def here(here: Path) -> Path:
    write_jobs([job("a", gpus=2, model="m"), job("b", gpus=3, model="m")], "jobs.jsonl")
    write_cluster(cluster(4), "cluster.json")
    write_profile(PROFILE, "profile.parquet")
    return here


FILES = ["jobs.jsonl", "--cluster", "cluster.json"]


def test_a_schedule_in_files_tables_and_with_a_time_budget(here: Path) -> None:
    done = call("schedule", *FILES, "--policy", "fifo", "--no-timing")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert [given["job"] for given in result["allocations"]] == ["a"]
    assert "decision_seconds" not in result
    assert "pliant: no profile: every GPU is taken to train 1 sample per second\n" in done.stderr
    filed = call("schedule", *FILES, "--policy", "fifo", "--no-timing", "-o", "s.json")
    assert (filed.stdout, (here / "s.json").read_text()) == ("", done.stdout)
    # Profile and schedule can be files.
    done = call("schedule", *FILES, "--profile", "profile.parquet", "--policy", "ares", "-o", "out.json")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == (
        'pliant: job "b" is rejected: model "m" at batch 960 does not run on 3 GPUs of any type\n'
    )
    assert json.loads((here / "out.json").read_text())["profile"]["model"] == ["m"] * 4
    # A time budget is a parameter of the policy.
    given = ["schedule", *FILES, "--policy", "ones", "--explain", "--time-budget", "0.05"]
    result = json.loads(call(*given).stdout)
    assert result["policy"]["parameters"]["time_budget_s"] == 0.05
    assert "best after " in result["allocations"][0]["reason"]
    assert result["policy_state"]["state"]["generations"] > 1
    # Explaining prints a table for people.
    done = call("schedule", *FILES, "--policy", "fifo", "--explain")
    assert "first in line" in done.stderr
    assert json.loads(done.stdout)["waiting"][0]["needs_gpus"] == 3


def test_jobs_that_do_not_fit_are_named_and_nothing_is_written(here: Path) -> None:
    write_jobs([job("a", gpus=9), job("b"), job("c", at=50, gpus=7)], "jobs.jsonl")
    done = call("schedule", *FILES, "--policy", "fifo")
    assert done.exit_code == 0
    assert 'job "a" is rejected: needs 9 GPUs, the cluster has 4' in done.stderr
    assert 'job "c" is rejected: needs 7 GPUs, the cluster has 4' in done.stderr
    assert [given["job"] for given in json.loads(done.stdout)["allocations"]] == ["b"]
    write_jobs([job("a"), *(job(f"large-{i}", gpus=9) for i in range(30))], "jobs.jsonl")
    done = call("schedule", *FILES, "--policy", "fifo")
    assert done.stderr.count(" is rejected: ") == 20
    assert "… and 10 more are rejected: the schedule says why" in done.stderr
    # Where no job fits nothing is written.
    write_jobs([job("a", gpus=9), job("b", gpus=8)], "jobs.jsonl")
    done = call("schedule", *FILES, "--policy", "fifo", "-o", "out.json")
    assert done.exit_code == 4
    assert 'jobs.jsonl: job "a" needs 9 GPUs, the cluster has 4; of 2 jobs none fits' in done.stderr
    assert not (here / "out.json").exists()


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch):
    streams = []

    def connect(descriptor: int) -> None:
        streams.append(io.TextIOWrapper(io.BufferedReader(io.FileIO(descriptor))))
        monkeypatch.setattr("sys.stdin", streams[-1])

    yield connect
    for stream in streams:
        stream.close()


def piped(data: bytes) -> int:
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader


def run_here(*args: str, out: str = "out.json") -> dict[str, object]:
    app([*args, "-o", out], standalone_mode=False)
    result: dict[str, object] = json.loads(Path(out).read_text())
    return result


@pytest.mark.parametrize(
    ("source", "has_profile"),
    [
        (lambda: piped(Path("profile.parquet").read_bytes()), True),
        (lambda: os.open("profile.parquet", os.O_RDONLY), True),
        (lambda: piped(b""), False),
        (lambda: os.open(os.devnull, os.O_RDONLY), False),
    ],
    ids=["pipe", "file", "empty pipe", "nothing"],
)
def test_a_profile_may_come_through_stdin(here: Path, stdin, source, has_profile: bool):
    stdin(source())
    assert ("profile" in run_here("schedule", *FILES, "--policy", "fifo")) is has_profile


def test_a_file_that_is_no_profile_is_left_to_whom_it_belongs(here: Path, stdin):
    (here / "list.txt").write_text("jobs.jsonl\nother.jsonl\n")
    descriptor = os.open("list.txt", os.O_RDONLY)
    os.read(descriptor, len("jobs.jsonl\n"))
    stdin(descriptor)
    assert "profile" not in run_here("schedule", *FILES, "--policy", "fifo")
    assert os.read(descriptor, 100) == b"other.jsonl\n"


def test_waiting_for_a_silent_pipe_is_said(here: Path, stdin, monkeypatch: pytest.MonkeyPatch):
    reader, writer = os.pipe()
    message = []

    def note(text: str) -> None:
        message.append(text)
        if len(message) == 1:
            os.close(writer)  # only now the pipe ends: without the word this test would hang

    monkeypatch.setattr(module, "SILENCE_S", 0.0)
    monkeypatch.setattr(module, "note", note)
    stdin(reader)
    assert "profile" not in run_here("schedule", *FILES, "--policy", "fifo")
    assert message[0] == "waiting for a profile on stdin; give < /dev/null for none"


def test_a_state_directory_brings_everything(here: Path):
    spec = job("a", gpus=2)
    events = [Event(0, "decision", detail=INFO), Event(5, "submit", "a", detail={"job": job_fields(spec)})]
    write_events(events, "events.jsonl")
    (here / "cluster.json").unlink()
    (here / "profile.parquet").unlink()
    done = call("schedule", "--state", ".", "--policy", "fifo", "--now", "10", "--no-timing")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert (result["time"], result["allocations"][0]["job"]) == (10, "a")


def test_without_a_time_the_whole_log_counts(here: Path):
    ahead, place = 1e11, (("n0", 4),)
    events = [
        Event(0, "decision", detail=INFO),
        Event(5, "submit", "a", detail={"job": job_fields(job("a", gpus=4))}),
        Event(6, "submit", "b", detail={"job": job_fields(job("b", gpus=4))}),
        Event(ahead, "start", "b", 4, place),
    ]
    write_events(events, "events.jsonl")
    (here / "profile.parquet").unlink()
    result = json.loads(call("schedule", "--state", ".", "--policy", "fifo").stdout)
    assert [(given["job"], given["action"]) for given in result["allocations"]] == [("b", "keep")]


def test_a_log_of_nothing_but_its_header_is_bad_input(here: Path):
    write_events([], "events.jsonl")
    done = call("schedule", "--state", ".", "--policy", "fifo")
    assert done.exit_code == 3
    assert "events.jsonl: has no events, expected a run" in done.stderr


def test_scripts_are_looked_at_as_by_submit(here: Path):
    write_jobs([job("a", gpus=2, model="m", command=("trian.py",))], "jobs.jsonl")
    refused = call("schedule", *FILES, "--policy", "fifo")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert 'jobs.jsonl: /command: job "a": no such script: trian.py (--no-check skips' in refused.stderr
    assert call("schedule", *FILES, "--policy", "fifo", "--no-check").exit_code == 0


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    write_jobs([job("a", gpu_seconds=5.0)], "jobs.jsonl")
    write_cluster(cluster(4), "cluster.json")
    return Foreign(here, monkeypatch)


BROKEN = "def decide(self, snapshot, rng):\n    return snapshot.jobs['x']"


def broken(mine: Foreign) -> int:
    return mine.is_written(BROKEN, "snapshot.jobs")


@pytest.mark.parametrize("args", [["schedule", *FILES], ["replay", *FILES, "-o", "out.parquet"]])
@pytest.mark.parametrize(
    ("body", "error"),
    [(BROKEN, "KeyError: 'x'"), (BROKEN.replace("return", "raise SystemExit(7)  #"), "SystemExit: 7")],
)
def test_an_error_in_a_policy_is_one_line_with_its_place(mine: Foreign, args, body, error):
    line = mine.is_written(body, "snapshot.jobs")
    done = call(*args, "--policy", "mine")
    assert done.exit_code == 1
    assert f'policy "mine" (mine.py:{line}): {error}' in done.stderr
    assert "bug in pliant" not in done.stderr
    assert "Traceback" not in done.stderr
    shown = call(*args, "--policy", "mine", "--debug")
    assert "snapshot.jobs['x']" in "".join(traceback.format_exception(shown.exception))


def test_a_policy_without_description_hides_no_others(mine: Foreign):
    mine.is_written("def __init__(self, floor: 'Nothing' = 1):\n    self.floor = floor", "")
    done = call("policies")
    assert "First come, first served" in done.stdout
    assert "NameError" in done.stderr


def test_a_failing_policy_is_no_signal_and_changes_no_run(mine: Foreign, tmp_path: Path) -> None:
    line = broken(mine)
    story = Story(1)
    story.go_on(50)
    dirs = story.write(tmp_path / "state")
    before = dirs.events.read_bytes()
    done = call("schedule", "--state", str(dirs.path), "--policy", "mine")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"(mine.py:{line}): KeyError: 'x'" in done.stderr
    onward = call("run", "--state", str(dirs.path), stdin=b"")
    assert onward.exit_code == 3, "a schedule that is empty is not one that takes all GPUs away"
    assert dirs.events.read_bytes() == before
    # A signal while a policy decides is not its failure.
    body = "from pliant.cli.common import _terminate\n    _terminate(15, None)"
    mine.is_written(f"def decide(self, snapshot, rng):\n    {body}", "")
    assert call("schedule", *FILES, "--policy", "mine").exit_code == 143
