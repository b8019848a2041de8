"""``kill -9`` between any two steps: what was acknowledged is done, once, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pliant.schemas.io import write_cluster, write_jobs
from pliant.schemas.job import Job
from pliant.tools.run.statedir.directory import StateDir, holder_of
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import read_log
from tests.builders import cluster
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, until

ROOT = Path(__file__).parents[3]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def pliant(site: Site, *words: object, dying: tuple[object, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A command; with ``dying`` (step, moment, count) one that is killed there."""
    module = "dying_process" if dying else "runner_process"
    return subprocess.run(
        [sys.executable, "-m", f"tests.tools.run.{module}", *map(str, (*dying, *words))],
        check=False,
        cwd=site.folder,
        env=ENV,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def jobs_file(site: Site, *jobs: Job) -> Path:
    path = site.folder / "jobs.jsonl"
    write_jobs(jobs, path)
    return path


@pytest.fixture
def serving(site: Site) -> Iterator[list[int]]:
    """Runs in the background that a test started; what is left of them ends in an orderly way."""
    yield []
    holder = holder_of(StateDir(site.state).lock)
    if holder:
        os.kill(holder, signal.SIGTERM)
        until(lambda: holder_of(StateDir(site.state).lock) is None)


def serve(site: Site, *words: object) -> int:
    """Start the live loop in the background; returns its process."""
    done = pliant(site, "run", "--follow", "--state", site.state, "--detach", *words)
    assert done.returncode == 0, done.stderr
    return int((site.state / "lock").read_text())


def phases(site: Site) -> dict[str, str]:
    return {job_id: job.phase for job_id, job in site.log().jobs.items()}


@pytest.mark.parametrize(
    ("step", "moment", "accepted"),
    [
        ("pliant.schemas.file_io.files:os.fsync", "before", False),
        ("pliant.schemas.file_io.files:Path.replace", "before", False),
        ("pliant.schemas.file_io.files:Path.replace", "after", True),
        ("pliant.schemas.file_io.files:sync_folder", "before", True),
    ],
)
def test_a_submission_that_is_killed_is_there_as_a_whole_or_not_at_all(
    site: Site, step: str, moment: str, accepted: bool
) -> None:
    path = jobs_file(site, site.job("a", samples=20), site.job("b", samples=20))
    killed = pliant(site, "submit", path, "--state", site.state, dying=(step, moment, 1))
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout == "", "nothing was acknowledged"
    asked = [job.id for request in Spool(StateDir(site.state)).requests() for job in request.jobs]
    assert asked == (["a", "b"] if accepted else [])
    again = pliant(site, "submit", path, "--state", site.state)
    assert again.returncode == (3 if accepted else 0)
    for left in site.folder.rglob(".pliant-*.tmp"):
        left.unlink()  # what a killed writer leaves behind; nobody reads it


RUN_STEPS = [
    ("pliant.tools.run.statedir.state:State.record", "before", 2),
    ("pliant.tools.run.statedir.state:State.record", "after", 1),
    ("pliant.tools.run.statedir.state:State.record", "after", 2),
    ("pliant.tools.run.statedir.state:State.record", "after", 3),
    ("pliant.tools.run.service.executor:Executor.apply", "before", 2),
    ("pliant.tools.run.service.launching:make_plan", "before", 1),
    ("pliant.tools.run.service.launching:write_plan", "after", 1),
    ("pliant.tools.run.backends.local:write_record", "after", 1),
    ("pliant.tools.run.backends.local:LocalBackend._spawn", "after", 1),
    ("pliant.tools.run.backends.local:LocalBackend.start", "after", 1),
    ("pliant.tools.run.statedir.state:write_schedule", "before", 2),
    ("pliant.tools.run.statedir.requests:Spool.settle", "before", 1),
]


@pytest.mark.parametrize(("step", "moment", "count"), RUN_STEPS)
def test_a_run_that_is_killed_at_a_step_is_carried_on_by_the_next(
    site: Site, step: str, moment: str, count: int
) -> None:
    """Two jobs to finish and one to cancel are asked for; then the loop dies, and another one goes on."""
    path = jobs_file(
        site,
        site.job("a", samples=150, high=2),
        site.job("b", samples=50, high=1),
        site.job("c", samples=1e6, high=1),
    )
    begin = ("--policy", "fair-share", "--cluster", "cluster.json")
    assert pliant(site, "submit", path, "--state", site.state).returncode == 0
    state = StateDir(site.state)
    state.cluster.write_bytes((site.folder / "cluster.json").read_bytes())  # a run was here: no withdrawal
    assert pliant(site, "cancel", "c", "--state", site.state).returncode == 0
    killed = pliant(site, "run", "--follow", "--state", site.state, *begin, dying=(step, moment, count))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    go_on = () if state.events.exists() and read_or_none(site) else begin
    serve(site, *go_on)
    until(lambda: phases(site) == {"a": "finished", "b": "finished", "c": "cancelled"})
    log = read_log(site.state)
    assert [log.jobs[name].samples_done for name in "ab"] == [150, 50]
    assert [line.split()[0] for line in site.of("a")].count("submit") == 1
    # the loop is told to end only once it has done what the log says: what it leaves running stays
    until(lambda: left_running(site.folder) == [] and Spool(state).requests() == [])
    os.kill(int((site.state / "lock").read_text()), signal.SIGTERM)
    until(lambda: holder_of(state.lock) is None)
    assert left_running(site.folder) == []
    assert Spool(state).requests() == []
    for left in site.folder.rglob(".pliant-*.tmp"):
        left.unlink()


def read_or_none(site: Site) -> bool:
    return read_log(site.state).info is not None


def test_the_loop_in_the_background_says_where_it_is_and_ends_when_told(
    site: Site, serving: list[int]
) -> None:
    done = pliant(
        *(site, "run", "--follow", "--state", site.state, "--detach"),
        *("--policy", "fair-share", "--cluster", "cluster.json"),
    )
    pid = int((site.state / "lock").read_text())
    assert f"process {pid} runs {site.state} and says more in {site.state}/run.log" in done.stderr
    assert os.getsid(pid) == pid
    shown = pliant(site, "status", "--state", site.state)
    assert f"process {pid} runs {site.state}" in shown.stderr
    os.kill(pid, signal.SIGTERM)
    until(lambda: holder_of(StateDir(site.state).lock) is None)
    assert f"no run uses {site.state}; go on with" in pliant(site, "status", "--state", site.state).stderr


def test_a_job_that_fails_says_why_in_the_words_of_the_loop_in_the_background(
    site: Site, serving: list[int]
) -> None:
    path = jobs_file(site, site.job("a", text="raise ValueError('bad shard')\n"))
    serve(site, "--policy", "fifo", "--cluster", "cluster.json", "--retries", 0)
    assert pliant(site, "submit", path, "--state", site.state).returncode == 0
    until(lambda: phases(site).get("a") == "failed")
    reason = site.log().jobs["a"].reason
    until(lambda: f"pliant: job a failed: {reason}" in (site.state / "run.log").read_text())


def test_a_loop_that_cannot_begin_in_the_background_says_why(site: Site) -> None:
    done = pliant(site, "run", "--follow", "--state", site.state, "--detach", "--policy", "fifo")
    assert done.returncode == 2
    assert "name its --cluster to begin one" in done.stderr


def test_a_second_run_is_refused_or_waits_for_its_turn(site: Site, serving: list[int]) -> None:
    pid = serve(site, "--policy", "fifo", "--cluster", "cluster.json")
    second = pliant(site, "run", "--follow", "--state", site.state)
    assert second.returncode == 75
    assert f"in use by process {pid}" in second.stderr
    waiting = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.tools.run.runner_process"),
            *("run", "--follow", "--state", str(site.state), "--wait", "60"),
        ],
        cwd=site.folder,
        env=ENV,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with waiting:
        lock = StateDir(site.state).lock
        until(lambda: str(lock) in {file.path for file in psutil.Process(waiting.pid).open_files()})
        os.kill(pid, signal.SIGKILL)
        until(lambda: holder_of(lock) == waiting.pid)
        until(
            lambda: (
                str(site.state / "events.jsonl") in {f.path for f in psutil.Process(waiting.pid).open_files()}
            )
        )
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait() == 143


def test_killed_and_started_again_in_each_manner_it_takes_up_what_runs(
    site: Site, serving: list[int]
) -> None:
    site.job("a", samples=1e6)
    submitted = jobs_file(site, site.jobs[0])
    pid = serve(site, "--policy", "fifo", "--cluster", "cluster.json")
    assert pliant(site, "submit", submitted, "--state", site.state).stdout == "a\n"

    def trains() -> float:
        return read_log(site.state).jobs["a"].samples_done if "a" in phases(site) else 0.0

    until(trains)
    workers = {process.pid for process in left_running(site.folder)}
    os.kill(pid, signal.SIGKILL)
    until(lambda: holder_of(StateDir(site.state).lock) is None)
    decide = pliant(site, "schedule", "--state", site.state, "--policy", "fifo", "-o", "next.json")
    assert decide.returncode == 0, decide.stderr
    assert pliant(site, "run", "next.json", "--state", site.state).returncode == 0
    before = trains()
    serve(site)
    until(lambda: trains() > before)
    assert {process.pid for process in left_running(site.folder)} == workers
    assert pliant(site, "cancel", "a", "--state", site.state).returncode == 0
    until(lambda: left_running(site.folder) == [])
    assert site.of("a") == ["submit a", "start a 1", "cancel a 0"]


def test_cron_sees_submissions_and_cancellations(site: Site) -> None:
    first = site.job("a", samples=1e6, high=1)
    site.job("b", samples=1e6, high=1)
    assert pliant(site, "run", site.schedule(), "--state", site.state).returncode == 0
    site.jobs.clear()
    assert first.id in phases(site)
    more = jobs_file(site, site.job("c", samples=20, high=1))
    assert pliant(site, "submit", more, "--state", site.state).returncode == 0
    assert pliant(site, "cancel", "a", "b", "--state", site.state).returncode == 0
    assert "cancelling" in pliant(site, "status", "--state", site.state).stdout

    def turn() -> None:
        words = ("--state", site.state, "--policy", "fair-share", "-o", "next.json")
        assert pliant(site, "schedule", *words).returncode == 0
        assert pliant(site, "run", "next.json", "--state", site.state).returncode == 0

    turn()
    until(lambda: left_running(site.folder) == [])
    turn()
    assert phases(site) == {"a": "cancelled", "b": "cancelled", "c": "finished"}


def cron(site: Site) -> None:
    """One turn of the documented line."""
    words = ("--state", site.state, "--cluster", "cluster.json", "--policy", "fair-share", "-o", "next.json")
    decided = pliant(site, "schedule", *words)
    assert decided.returncode == 0, decided.stderr
    done = pliant(site, "run", "next.json", "--state", site.state)
    assert done.returncode == 0, done.stderr


def test_cron_begins_with_submissions_alone(site: Site) -> None:
    path = jobs_file(site, site.job("a", samples=20, high=1), site.job("large", gpus=7))
    assert pliant(site, "submit", path, "--state", site.state).returncode == 0
    cron(site)
    until(lambda: left_running(site.folder) == [])
    cron(site)
    assert phases(site) == {"a": "finished", "large": "rejected"}
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]
    assert Spool(StateDir(site.state)).requests() == []


def test_cron_begins_with_nothing_at_all(site: Site) -> None:
    cron(site)
    assert phases(site) == {}
    path = jobs_file(site, site.job("a", samples=20, high=1))
    assert pliant(site, "submit", path, "--state", site.state).returncode == 0
    cron(site)
    until(lambda: left_running(site.folder) == [])
    cron(site)
    assert phases(site) == {"a": "finished"}


def test_a_job_that_is_cancelled_between_the_decision_and_the_first_run_does_not_start(site: Site) -> None:
    path = jobs_file(site, site.job("a", samples=1e6, high=1))
    assert pliant(site, "submit", path, "--state", site.state).returncode == 0
    words = ("--state", site.state, "--cluster", "cluster.json", "--policy", "fair-share", "-o", "next.json")
    assert pliant(site, "schedule", *words).returncode == 0
    assert pliant(site, "cancel", "a", "--state", site.state).returncode == 0
    assert pliant(site, "run", "next.json", "--state", site.state).returncode == 0
    assert site.of("a") == ["submit a", "cancel a 0"]
    assert left_running(site.folder) == []


def test_before_the_first_run_the_cluster_has_to_be_named_and_after_it_no_other_one(site: Site) -> None:
    nothing = pliant(site, "schedule", "--state", site.state, "--policy", "fifo")
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)
    assert "holds no run: name its --cluster to begin one" in nothing.stderr
    cron(site)
    write_cluster(cluster(3, slots="cpu"), site.folder / "other.json")
    other = pliant(site, "schedule", "--state", site.state, "--policy", "fifo", "--cluster", "other.json")
    assert other.returncode == 2
    assert "other.json differs from" in other.stderr


def test_an_unknown_job_or_a_broken_file_is_one_line(site: Site) -> None:
    path = jobs_file(site, site.job("a"))
    assert pliant(site, "submit", path, "--state", site.state).returncode == 0
    unknown = pliant(site, "cancel", "zz", "--state", site.state)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "has no job zz" in unknown.stderr
    twice = pliant(site, "submit", path, "--state", site.state)
    assert (twice.returncode, twice.stderr.count("\n"), twice.stdout) == (3, 1, "")
