"""``pliant run`` as people and scripts meet it: a process with pipes, signals and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.cli.common import run_command
from pliant.cli.run import run as run_cli
from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_events
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_once, run_until_done
from pliant.tools.run.watch.output import job_output
from tests.builders import job
from tests.tools.run.conftest import left_running
from tests.tools.run.site import PLIANT, QUICK, Site, call, environment, until

IN_THE_BACKGROUND = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Starts a command as a script starts one that it does not wait for: with SIGINT ignored."""


@pytest.fixture
def started(site: Site) -> Iterator[list[subprocess.Popen[str]]]:
    """Runs that a test started; whatever is left of them is killed."""
    runs: list[subprocess.Popen[str]] = []
    yield runs
    for run in runs:
        with run:
            run.kill()


def start(site: Site, *words: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, *PLIANT, "run", "--until-done", *map(str, words)],
        cwd=site.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def training(site: Site) -> bool:
    jobs = site.log().jobs
    return "a" in jobs and jobs["a"].samples_done > 0


def test_a_schedule_comes_through_a_pipe_and_events_go_on_through_the_next(
    site: Site, tmp_path: Path
) -> None:
    site.job("a", samples=50)
    schedule = Path(site.schedule("fifo")).read_text()
    done = call(site, *PLIANT, "run", "--until-done", stdin=schedule)
    assert done.returncode == 0, done.stderr
    piped = tmp_path / "piped.jsonl"
    piped.write_text(done.stdout)
    state = site.folder / "pliant-state"
    assert read_events(piped) == read_events(state / "events.jsonl")
    assert "state directory: pliant-state" in done.stderr
    assert "finished" in done.stderr
    said = b"".join(job_output(state, "a")).decode().splitlines()
    assert said == ["==> jobs/a/attempts/1/logs/launcher-0.log", "hello from rank"]
    again = call(site, *PLIANT, "run", "--until-done", "--quiet", stdin=schedule)
    assert (again.returncode, again.stderr) == (0, "")
    assert (site.folder / "pliant-state-2" / "events.jsonl").exists()


@pytest.mark.usefixtures("plain_python")
def test_failed_jobs_are_named_once_and_the_exit_code_is_5(site: Site) -> None:
    site.job("a", "--crash-at", 10, samples=20)
    options = site.options("fifo", retries=0)
    assert run_once(options)[1] == []
    until(lambda: left_running(site.folder) == [])
    done = call(site, *PLIANT, "run", options.schedule, "--state", site.state, "--retries", 0)
    assert done.returncode == 5
    assert "pliant: job a failed: rank 0 crashed: as told" in done.stderr
    assert "1 of 1 job failed; its output: pliant log a --state" in done.stderr
    assert run_once(options)[1] == []


def test_a_job_without_a_command_is_bad_input_and_no_state_directory_is_made(site: Site) -> None:
    site.jobs.append(job("a", work={"samples": 5}))
    with pytest.raises(BadInputError, match='job "a" has no command'):
        run_until_done(site.options("fifo"), lambda _log, _now_s: None)
    assert not site.state.exists()


def test_until_done_and_detach_contradict_each_other() -> None:
    assert run_command(lambda: run_cli(until_done=True, detach=True)) == 2


def test_a_signal_stops_jobs_with_checkpoints_and_until_then_no_other_run_is_let_in(
    site: Site, started: list[subprocess.Popen[str]]
) -> None:
    site.job("a", samples=1e6)
    schedule = site.schedule("fifo")
    run = start(site, schedule, "--state", site.state)
    started.append(run)
    until(lambda: training(site))
    second = call(site, *PLIANT, "run", schedule, "--state", site.state)
    assert second.returncode == 75
    assert f"in use by process {run.pid}: try again later" in second.stderr
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate()
    assert run.returncode == 130
    assert f"go on with: pliant run --until-done --state {site.state}" in errors
    assert left_running(site.folder) == []
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0


def test_in_the_background_of_a_script_it_ignores_sigint_and_sigterm_stops_it(
    site: Site, started: list[subprocess.Popen[str]]
) -> None:
    site.job("a", samples=1e6)
    run = start(site, site.schedule("fifo"), "--state", site.state, before=IN_THE_BACKGROUND)
    started.append(run)
    until(lambda: training(site))
    run.send_signal(signal.SIGINT)
    seen = site.log().jobs["a"].samples_done
    until(lambda: site.log().jobs["a"].samples_done > seen)
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run.returncode == 143
    stops = [event.detail for event in site.events() if event.event == "requeue"]
    assert [(detail or {}).get("reason") for detail in stops] == ["interrupted by SIGTERM"]
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0


@pytest.mark.usefixtures("plain_python")
def test_workers_outlive_a_killed_runner_and_the_next_one_takes_them_over(
    site: Site, started: list[subprocess.Popen[str]]
) -> None:
    """One of them trains on, another one has ended by then, and a third job was still to come."""
    site.job("a", "--gate", site.gate, samples=1500, high=1)
    site.job("b", samples=50, high=1, at=1.0)
    site.job("c", samples=300, high=1)
    run = start(site, site.schedule(), "--state", site.state)
    started.append(run)
    until(lambda: training(site) and site.log().jobs["c"].samples_done)
    run.kill()
    run.communicate()
    until((site.state / "jobs/c/attempts/1/exit-0").exists)
    site.gate.touch()
    log, _ = run_until_done(RunOptions(site.state, timeouts=QUICK), lambda _log, _now_s: None)
    assert {name: job.samples_done for name, job in log.jobs.items()} == {"a": 1500, "b": 50, "c": 300}
    for name in "abc":
        assert site.of(name) == [f"submit {name}", f"start {name} 1", f"finish {name} 0"]
    progress = [event for event in site.events() if (event.event, event.job) == ("progress", "a")]
    told = [event.samples_done for event in progress]
    assert told == [10.0 * count for count in range(1, len(told) + 1)]


@pytest.mark.usefixtures("plain_python")
def test_cron_decides_from_the_state_directory_and_runs_the_decision(site: Site) -> None:
    site.job("a", samples=1e6, high=2)
    site.job("b", samples=20, high=1)
    options = site.options()
    run_once(options)
    until(lambda: run_once(options) and "finish b 0" in site.of("b"))  # as cron does: again and again
    words = ("schedule", "--state", str(site.state), "--policy", "fair-share")
    decide = [sys.executable, "-m", "pliant.cli", *words]
    schedule = subprocess.run(decide, check=True, capture_output=True, text=True).stdout
    done = call(site, *PLIANT, "run", "--state", site.state, stdin=schedule)
    assert done.returncode == 0, done.stderr
    assert site.of("a") == ["submit a", "start a 1", "grow a 2"]
    assert site.of("b") == ["submit b", "start b 1", "finish b 0"]
    site.jobs.clear()
    run_once(site.options())
    assert left_running(site.folder) == []


def test_a_reader_that_has_had_enough_does_not_end_the_run(site: Site) -> None:
    site.job("a", samples=300)
    run = subprocess.Popen(
        [*PLIANT, "run", site.schedule("fifo"), "--until-done", "--state", str(site.state)],
        cwd=site.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with run:
        assert run.stdout is not None
        assert json.loads(run.stdout.readline())["schema"] == "pliant.event/1"
        run.stdout.close()
        assert run.wait() == 0
    assert site.of("a")[-1] == "finish a 0"


def test_a_full_disk_behind_the_events_or_a_closed_stderr_stops_no_job(site: Site) -> None:
    site.job("a", samples=200)
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("wb") as full, os.fdopen(writer, "wb") as closed:
        run = subprocess.Popen(
            [*PLIANT, "run", site.schedule("fifo"), "--until-done", "--state", str(site.state)],
            cwd=site.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=closed,
        )
    run.wait()
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]
    assert run.returncode == 0
