"""``pliant run`` as a process: ``kill -9`` between two steps, cron, pipes, signals and exit codes.

What was acknowledged is done, once, and nothing else is.
"""

import json
import os
import signal
import subprocess
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_events, write_jobs
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.service.submit import cancel, submit
from pliant.tools.run.statedir.directory import StateDir, holder_of
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.watch.output import job_output
from pliant.tools.run.watch.status import Watcher, run_line
from tests.cli.calling import call as in_process
from tests.leftovers import started
from tests.tools.run.conftest import left_running
from tests.tools.run.site import PLIANT, Site, call, environment, until
from tests.tools.run.test_follow import ask, begin, go_on
from tests.tools.run.test_orders import cron

pytestmark = pytest.mark.usefixtures("plain_python")


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
    killed = call(site, *PLIANT, "--dies", where, "before", 1, "submit", path, "--state", site.state)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, ""), "nothing was acknowledged"
    asked = [job.id for request in Spool(StateDir(site.state)).requests() for job in request.jobs]
    assert asked == (["a", "b"] if accepted else [])
    with pytest.raises(BadInputError) if accepted else nullcontext():
        submit(site.state, site.jobs, "jobs", folder=site.folder, now_s=0.0)
    remove_half_written(site)


@pytest.mark.parametrize(
    ("step", "count"),
    [
        ("statedir.state:State.record", 2),
        ("service.launching:write_plan", 1),
        ("backends.local:LocalBackend._spawn", 1),
        ("backends.local:LocalBackend.start", 1),
    ],
)
def test_a_run_killed_after_a_step_is_carried_on_by_the_next(site: Site, step: str, count: int) -> None:
    """Two jobs are to finish and one is to be cancelled. All other steps are killed at in simulations."""
    ask(site, "a", samples=150, high=2)
    ask(site, "b", samples=50, high=1)
    ask(site, "c", samples=1e6, high=1)
    state = StateDir(site.state)
    state.cluster.write_bytes((site.folder / "cluster.json").read_bytes())  # a run was here: no withdrawal
    cancel(site.state, ["c"])
    run = ("run", "--follow", "--state", site.state, "--policy", "fair-share", "--cluster", "cluster.json")
    killed = call(site, *PLIANT, "--dies", f"pliant.tools.run.{step}", "after", count, *run)
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

    ask(site, "a", samples=1e6)
    ask(site, "bad", text="raise ValueError('bad shard')\n")
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
    cron(site)
    assert {process.pid for process in left_running(site.folder)} == workers
    cancel(site.state, ["a"])
    cron(site)
    assert site.of("a") == ["submit a", "start a 1", "cancel a 0"]
    assert left_running(site.folder) == []


def runs(site: Site, schedule: str, **pipes: Any) -> Any:
    """``pliant run --until-done`` as a process, within a block."""
    words = [*PLIANT, "run", schedule, "--until-done", "--state", str(site.state)]
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return started(words, cwd=site.folder, env=environment(), text=True, **{**silent, **pipes})


def test_a_schedule_comes_through_a_pipe_and_events_go_on(site: Site, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(site.folder)
    site.job("a", samples=50)
    schedule = Path(site.schedule("fifo")).read_bytes()
    done = in_process("run", "--until-done", stdin=schedule)
    assert done.exit_code == 0, done.stderr
    piped = tmp_path / "piped.jsonl"
    piped.write_text(done.stdout)
    state = site.folder / "pliant-state"
    assert read_events(piped) == read_events(state / "events.jsonl")
    assert "state directory: pliant-state" in done.stderr
    assert "finished" in done.stderr
    output = b"".join(job_output(state, "a")).decode().splitlines()
    assert output == ["==> jobs/a/attempts/1/logs/launcher-0.log", "hello from rank"]
    again = in_process("run", "--until-done", "--quiet", stdin=schedule)
    assert (again.exit_code, again.stderr) == (0, "")
    assert (site.folder / "pliant-state-2" / "events.jsonl").exists()


def test_a_signal_stops_jobs_which_save(site: Site) -> None:
    site.job("a", samples=1e6)
    schedule = site.schedule("fifo")
    with runs(site, schedule) as run:
        until(lambda: trained(site, "a"))
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate()
    assert run.returncode == 130
    assert f"go on with: pliant run --until-done --state {site.state}" in errors
    assert left_running(site.folder) == []
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0


@pytest.mark.parametrize("ends", ["the reader leaves", "the disk is full"])
def test_a_run_goes_on_where_its_output_cannot_be_written(site: Site, ends: str) -> None:
    site.job("a", samples=200)
    with ExitStack() as stack:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE}
        if ends == "the disk is full":
            reader, writer = os.pipe()
            os.close(reader)
            stack.callback(os.close, writer)
            pipes = {"stdout": stack.enter_context(Path("/dev/full").open("wb")), "stderr": writer}
        run = stack.enter_context(runs(site, site.schedule("fifo"), **pipes))
        if ends == "the reader leaves":
            assert json.loads(run.stdout.readline())["schema"] == "pliant.event/1"
            run.stdout.close()
        assert run.wait() == 0
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]
