"""``pliant run`` as people and scripts meet it: pipes, signals and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_events
from pliant.tools.profile.torchrun.start import kill, strays
from pliant.tools.run.service.run import run_once, run_until_done
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.watch.output import job_output
from tests.builders import job
from tests.cli.calling import call
from tests.leftovers import started
from tests.tools.run.conftest import left_running
from tests.tools.run.site import PLIANT, Site, environment, until


def runs(site: Site, schedule: str, **pipes: Any) -> Any:
    """``pliant run --until-done`` as a process, within a block."""
    words = [*PLIANT, "run", schedule, "--until-done", "--state", str(site.state)]
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return started(words, cwd=site.folder, env=environment(), text=True, **{**silent, **pipes})


def training(site: Site) -> bool:
    jobs = site.log().jobs
    return "a" in jobs and jobs["a"].samples_done > 0


@pytest.mark.usefixtures("plain_python")
def test_a_schedule_comes_through_a_pipe_and_events_go_on(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(site.folder)
    site.job("a", samples=50)
    schedule = Path(site.schedule("fifo")).read_bytes()
    done = call("run", "--until-done", stdin=schedule)
    assert done.exit_code == 0, done.stderr
    piped = tmp_path / "piped.jsonl"
    piped.write_text(done.stdout)
    state = site.folder / "pliant-state"
    assert read_events(piped) == read_events(state / "events.jsonl")
    assert "state directory: pliant-state" in done.stderr
    assert "finished" in done.stderr
    output = b"".join(job_output(state, "a")).decode().splitlines()
    assert output == ["==> jobs/a/attempts/1/logs/launcher-0.log", "hello from rank"]
    again = call("run", "--until-done", "--quiet", stdin=schedule)
    assert (again.exit_code, again.stderr) == (0, "")
    assert (site.folder / "pliant-state-2" / "events.jsonl").exists()


@pytest.mark.usefixtures("plain_python")
def test_failed_jobs_are_named_once_and_the_exit_code_is_5(site: Site) -> None:
    site.job("a", "--crash-at", 10, samples=20)
    options = site.options("fifo", retries=0)
    assert run_once(options)[1] == []
    until(lambda: left_running(site.folder) == [])
    done = call("run", str(options.schedule), "--state", str(site.state), "--retries", "0")
    assert done.exit_code == 5
    assert "pliant: job a failed: rank 0 crashed: as told" in done.stderr
    assert "1 of 1 job failed; its output: pliant log a --state" in done.stderr
    assert run_once(options)[1] == []


def test_wrong_input_makes_no_state_directory(site: Site) -> None:
    site.jobs.append(job("a", work={"samples": 5}))
    with pytest.raises(BadInputError, match='job "a" has no command'):
        run_until_done(site.options("fifo"), lambda _log, _now_s: None)
    assert call("run", "--until-done", "--detach", "--state", str(site.state)).exit_code == 2
    assert not site.state.exists()


def test_a_signal_stops_jobs_and_no_other_run_is_let_in_before(site: Site) -> None:
    site.job("a", samples=1e6)
    schedule = site.schedule("fifo")
    with runs(site, schedule) as run:
        until(lambda: training(site))
        second = call("run", schedule, "--state", str(site.state))
        assert second.exit_code == 75
        assert f"in use by process {run.pid}: try again later" in second.stderr
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate()
    assert run.returncode == 130
    assert f"go on with: pliant run --until-done --state {site.state}" in errors
    assert left_running(site.folder) == []
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0


@pytest.mark.parametrize("ends", ["the reader leaves", "the disk is full"])
def test_a_run_goes_on_where_its_output_cannot_be_written(site: Site, ends: str) -> None:
    """The standard error has no reader in the second case."""
    site.job("a", samples=200)
    with ExitStack() as stack:
        if ends == "the reader leaves":
            run = stack.enter_context(runs(site, site.schedule("fifo"), stdout=subprocess.PIPE))
            assert json.loads(run.stdout.readline())["schema"] == "pliant.event/1"
            run.stdout.close()
        else:
            reader, writer = os.pipe()
            os.close(reader)
            full = stack.enter_context(Path("/dev/full").open("wb"))
            closed = stack.enter_context(os.fdopen(writer, "wb"))
            run = stack.enter_context(runs(site, site.schedule("fifo"), stdout=full, stderr=closed))
        assert run.wait() == 0
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]


REMOVES = """
import os, shutil, sys
shutil.rmtree(os.environ["PLIANT_JOB_DIR"])
sys.exit(int(sys.argv[1]))
"""


NO_OUTCOME = 'the script ended without an outcome: use the elastic library, or set "elastic" to "none"'


@pytest.mark.parametrize(
    ("code", "elastic", "phase", "reason"),
    [
        (0, "none", "finished", ""),
        (3, "none", "failed", "exit code 3; its folder was removed while it ran"),
        (0, "size", "failed", f"{NO_OUTCOME}; its folder was removed while it ran"),
    ],
)
def test_a_job_that_removes_its_own_folder_ends_as_far_as_known(
    site: Site, code: int, elastic: str, phase: str, reason: str
) -> None:
    site.job("a", code, text=REMOVES, elastic=elastic)
    log, _ = run_until_done(site.options("fifo", retries=0), lambda _log, _now_s: None)
    assert site.of("a")[:2] == ["submit a", "start a 1"]
    assert (log.jobs["a"].phase, log.jobs["a"].reason) == (phase, reason)


STAYS = """
import os, shutil, sys, time
while not os.path.exists(sys.argv[2]):  # else a start might end halfway, with its record gone
    time.sleep(0.01)
shutil.rmtree(os.environ["PLIANT_JOB_DIR"])
with open(sys.argv[1], "a") as began:
    began.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def test_a_launcher_that_finds_no_folder_ends_what_runs_first(site: Site) -> None:
    """Each call from cron is a launcher that knows of the first one by its processes alone."""
    began, may_go = site.folder / "began", site.folder / "started"
    site.job("a", began, may_go, text=STAYS, elastic="none")
    mark = ENV_JOB_DIR, str(StateDir(site.state.resolve()).job("a").path)

    def pids() -> list[int]:
        return [int(line) for line in began.read_text().split()] if began.exists() else []

    try:
        for count in (1, 2):
            may_go.unlink(missing_ok=True)
            run_once(site.options("fifo"))
            may_go.touch()
            until(lambda count=count: len(pids()) == count)
        running = {process.pid for process in strays(mark)} & {*pids()}
        assert running == {pids()[-1]}
    finally:
        kill(strays(mark))
        until(lambda: not list(strays(mark)))
