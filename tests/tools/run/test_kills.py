"""``kill -9`` between any two steps: what was acknowledged is done, once, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import write_cluster, write_jobs, write_schedule
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_once, run_until_done
from pliant.tools.run.service.submit import cancel, submit
from pliant.tools.run.statedir.directory import StateDir, holder_of
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.watch.job_status import statuses
from pliant.tools.run.watch.status import Watcher, decide_between_runs, run_line
from pliant.tools.schedule.decide import Question
from tests.builders import cluster
from tests.leftovers import started
from tests.tools.run.conftest import left_running
from tests.tools.run.site import PLIANT, QUICK, Site, call, environment, until
from tests.tools.run.test_follow import begin, go_on

DYING = (sys.executable, "-m", "tests.tools.run.dying_process")

pytestmark = pytest.mark.usefixtures("plain_python")


def give(site: Site) -> None:
    submit(site.state, site.jobs, "jobs", folder=site.folder, now_s=0.0)
    site.jobs.clear()


def decide(site: Site, nodes: str = "cluster.json") -> Path:
    """The first half of the cron line."""
    path = site.folder / "next.json"
    question = Question("fair-share")
    write_schedule(decide_between_runs(str(site.state), question, cluster=str(site.folder / nodes)), path)
    return path


def turn(site: Site) -> None:
    """The cron line."""
    run_once(RunOptions(site.state, str(decide(site)), timeouts=QUICK))


def phases(site: Site) -> dict[str, str]:
    return {job_id: job.phase for job_id, job in site.log().jobs.items()}


def trained(site: Site, job_id: str) -> float:
    jobs = site.log().jobs
    return jobs[job_id].samples_done if job_id in jobs else 0.0


def remove_half_written(site: Site) -> None:
    for left in site.folder.rglob(".pliant-*.tmp"):
        left.unlink()


@pytest.mark.parametrize(("step", "accepted"), [("Path.replace", False), ("sync_folder", True)])
def test_a_killed_submission_is_there_as_a_whole_or_not_at_all(site: Site, step: str, accepted: bool) -> None:
    path = site.folder / "jobs.jsonl"
    write_jobs([site.job("a"), site.job("b")], path)
    where = f"pliant.schemas.file_io.files:{step}"
    killed = call(site, *DYING, where, "before", 1, "submit", path, "--state", site.state)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, ""), "nothing was acknowledged"
    asked = [job.id for request in Spool(StateDir(site.state)).requests() for job in request.jobs]
    assert asked == (["a", "b"] if accepted else [])
    with pytest.raises(BadInputError) if accepted else nullcontext():
        give(site)
    remove_half_written(site)


@pytest.mark.parametrize(
    ("step", "count"),
    [
        ("statedir.state:State.record", 2),
        ("backends.local:LocalBackend._spawn", 1),
        ("backends.local:LocalBackend.start", 1),
    ],
)
def test_a_run_killed_after_a_step_is_carried_on_by_the_next(site: Site, step: str, count: int) -> None:
    """Two jobs are to finish and one is to be cancelled. All other steps are killed at in simulations."""
    site.job("a", samples=150, high=2)
    site.job("b", samples=50, high=1)
    site.job("c", samples=1e6, high=1)
    give(site)
    state = StateDir(site.state)
    state.cluster.write_bytes((site.folder / "cluster.json").read_bytes())  # a run was here: no withdrawal
    cancel(site.state, ["c"])
    run = ("run", "--follow", "--state", site.state, "--policy", "fair-share", "--cluster", "cluster.json")
    killed = call(site, *DYING, f"pliant.tools.run.{step}", "after", count, *run)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    begun = site.log().info is not None
    log, _ = run_until_done(go_on(site) if begun else begin(site), lambda _log, _now_s: None)
    assert phases(site) == {"a": "finished", "b": "finished", "c": "cancelled"}
    assert [log.jobs[name].samples_done for name in "ab"] == [150, 50]
    assert [line.split()[0] for line in site.of("a")].count("submit") == 1
    assert left_running(site.folder) == []
    assert Spool(state).requests() == []
    remove_half_written(site)


def test_jobs_outlive_a_killed_loop_and_the_next_one_goes_on(site: Site) -> None:
    """It says where it is and what went wrong; after ``kill -9`` another loop, then cron, goes on."""
    follow = (*PLIANT, "run", "--follow", "--state", site.state)
    first = ("--detach", "--policy", "fifo", "--cluster", "cluster.json", "--retries", 0)
    done = call(site, *follow, *first)
    assert done.returncode == 0, done.stderr
    pid, lock = int((site.state / "lock").read_text()), StateDir(site.state).lock
    assert f"process {pid} runs {site.state} and says more in {site.state}/run.log" in done.stderr
    assert os.getsid(pid) == pid
    assert run_line(Watcher(site.state).look(), site.state) == f"process {pid} runs {site.state}"
    second = call(site, *follow)
    assert second.returncode == 75
    assert f"in use by process {pid}" in second.stderr

    site.job("a", samples=1e6)
    site.job("bad", text="raise ValueError('bad shard')\n")
    give(site)
    until(lambda: phases(site).get("bad") == "failed" and trained(site, "a"))
    said = f"pliant: job bad failed: {site.log().jobs['bad'].reason}"
    until(lambda: said in (site.state / "run.log").read_text())
    workers = {process.pid for process in left_running(site.folder)}

    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    waits = [*map(str, follow), "--wait", "600"]
    with started(waits, cwd=site.folder, env=environment(), **silent) as waiting:
        until(lambda: str(lock) in {file.path for file in psutil.Process(waiting.pid).open_files()})
        os.kill(pid, signal.SIGKILL)
        until(lambda: holder_of(lock) == waiting.pid)
        before = trained(site, "a")
        until(lambda: trained(site, "a") > before)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait() == 143
    turn(site)
    assert {process.pid for process in left_running(site.folder)} == workers
    cancel(site.state, ["a"])
    turn(site)
    assert site.of("a") == ["submit a", "start a 1", "cancel a 0"]
    assert left_running(site.folder) == []


def test_cron_begins_with_submissions_alone(site: Site) -> None:
    """One of them is cancelled between the decision and the first run."""
    site.job("a", samples=20, high=1)
    site.job("large", gpus=7)
    site.job("b", samples=1e6, high=1)
    give(site)
    decided = decide(site)
    cancel(site.state, ["b"])
    run_once(RunOptions(site.state, str(decided), timeouts=QUICK))
    until(lambda: left_running(site.folder) == [])
    turn(site)
    assert phases(site) == {"a": "finished", "large": "rejected", "b": "cancelled"}
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]
    assert site.of("b") == ["submit b", "cancel b 0"]
    assert Spool(StateDir(site.state)).requests() == []


def test_cron_begins_with_nothing_and_sees_what_is_asked_for(site: Site) -> None:
    with pytest.raises(UsageError, match="holds no run: name its --cluster to begin one"):
        decide_between_runs(str(site.state), Question("fifo"))
    turn(site)
    assert phases(site) == {}
    write_cluster(cluster(3, slots="cpu"), site.folder / "other.json")
    with pytest.raises(UsageError, match=r"other\.json differs from"):
        decide(site, "other.json")
    site.job("a", samples=1e6, high=1)
    site.job("b", samples=1e6, high=1)
    give(site)
    turn(site)
    site.job("c", samples=20, high=1)
    give(site)
    cancel(site.state, ["a", "b"])
    shown = statuses(Watcher(site.state).look(), site.log().last_s)
    assert [job.state for job in shown] == ["cancelling", "cancelling", "submitted"]
    turn(site)
    until(lambda: left_running(site.folder) == [])
    turn(site)
    assert phases(site) == {"a": "cancelled", "b": "cancelled", "c": "finished"}
