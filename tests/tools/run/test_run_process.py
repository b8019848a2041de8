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

from pliant.schemas.errors import PliantError
from pliant.schemas.io import read_events
from pliant.tools.run.statedir.state import read_log
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, in_order, until

ROOT = Path(__file__).parents[3]
IN_THE_BACKGROUND = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Starts a command as a script starts one that it does not wait for: with SIGINT ignored."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "tests.tools.run.runner_process", *map(str, words)]


def pliant(site: Site, *words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(*words),
        check=False,
        cwd=site.folder,
        env=env,
        input=stdin or "",
        capture_output=True,
        text=True,
    )


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
        [*before, *command("run", "--until-done", *words)],
        cwd=site.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def training(site: Site, job_id: str = "a") -> bool:
    try:
        return read_log(site.state).jobs[job_id].samples_done > 0
    except (PliantError, KeyError):
        return False


def test_a_schedule_comes_through_a_pipe_and_events_go_on_through_the_next(
    site: Site, tmp_path: Path
) -> None:
    site.job("a", samples=50)
    schedule = Path(site.schedule("fifo")).read_text()
    done = pliant(site, "run", "--until-done", stdin=schedule)
    assert done.returncode == 0, done.stderr
    piped = tmp_path / "piped.jsonl"
    piped.write_text(done.stdout)
    assert read_events(piped) == read_events(site.folder / "pliant-state" / "events.jsonl")
    assert "state directory: pliant-state" in done.stderr
    assert "finished" in done.stderr


def test_each_run_without_a_name_gets_a_state_directory_of_its_own(site: Site) -> None:
    site.job("a", samples=20)
    schedule = site.schedule("fifo")
    for _ in range(2):
        assert pliant(site, "run", schedule, "--until-done").returncode == 0
    assert (site.folder / "pliant-state-2" / "events.jsonl").exists()


def test_quiet_says_nothing(site: Site) -> None:
    site.job("a", samples=20)
    done = pliant(site, "run", site.schedule("fifo"), "--until-done", "--quiet", "--state", site.state)
    assert (done.returncode, done.stderr) == (0, "")


def test_failed_jobs_are_named_and_the_exit_code_is_5(site: Site) -> None:
    site.job("a", "--crash-at", 10, samples=20)
    done = pliant(site, "run", site.schedule("fifo"), "--until-done", "--state", site.state, "--retries", 0)
    assert done.returncode == 5
    assert "pliant: job a failed: rank 0 crashed: as told" in done.stderr
    assert "1 of 1 job failed; its output: pliant log a --state" in done.stderr


def test_a_job_without_a_command_is_bad_input_and_no_state_directory_is_made(site: Site) -> None:
    from tests.builders import job

    site.jobs.append(job("a", work={"samples": 5}))
    done = pliant(site, "run", site.schedule("fifo"), "--until-done", "--state", site.state)
    assert done.returncode == 3
    assert 'job "a" has no command' in done.stderr
    assert not site.state.exists()


def test_what_is_no_schedule_is_bad_input(site: Site) -> None:
    done = pliant(site, "run", "-", "--until-done", stdin='{"schema": "pliant.cluster/1", "nodes": []}')
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1


def test_until_done_and_detach_contradict_each_other(site: Site) -> None:
    assert pliant(site, "run", "--until-done", "--detach").returncode == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_stop_jobs_with_checkpoints(
    site: Site, started: list[subprocess.Popen[str]], number: signal.Signals, code: int
) -> None:
    site.job("a", samples=1e6)
    run = start(site, site.schedule("fifo"), "--state", site.state)
    started.append(run)
    until(lambda: training(site))
    run.send_signal(number)
    _, errors = run.communicate()
    assert run.returncode == code
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
    seen = read_log(site.state).jobs["a"].samples_done
    until(lambda: read_log(site.state).jobs["a"].samples_done > seen)
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run.returncode == 143
    stops = [event.detail for event in site.events() if event.event == "requeue"]
    assert [(detail or {}).get("reason") for detail in stops] == ["interrupted by SIGTERM"]
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0


def test_a_second_writer_is_told_to_try_again(site: Site, started: list[subprocess.Popen[str]]) -> None:
    site.job("a", samples=1e6)
    schedule = site.schedule("fifo")
    run = start(site, schedule, "--state", site.state)
    started.append(run)
    until(lambda: training(site))
    second = pliant(site, "run", schedule, "--state", site.state)
    assert second.returncode == 75
    assert f"in use by process {run.pid}: try again later" in second.stderr
    shown = pliant(site, "status", "--state", site.state)
    assert shown.stdout.splitlines()[1].split()[:3] == ["a", "running", "1/8"]
    run.send_signal(signal.SIGINT)
    run.communicate()


def test_workers_outlive_a_killed_runner_and_the_next_one_takes_them_over(
    site: Site, started: list[subprocess.Popen[str]]
) -> None:
    site.job("a", "--gate", site.gate, samples=1500, high=2)
    site.job("b", samples=50, high=1, at=1.0)
    run = start(site, site.schedule(), "--state", site.state)
    started.append(run)
    until(lambda: training(site))
    run.kill()
    run.communicate()
    workers = {process.pid for process in left_running(site.folder)}
    assert workers
    site.gate.touch()
    done = pliant(site, "run", "--until-done", "--state", site.state)
    assert done.returncode == 0, done.stderr
    assert in_order(["submit a", "start a 2", "finish a 0"], site.of("a"))
    assert site.of("b") == ["submit b", "start b 1", "finish b 0"]
    assert [line for line in site.story() if line.startswith(("requeue", "resume"))] == []
    progress = [event for event in site.events() if (event.event, event.job) == ("progress", "a")]
    of_first = [event.samples_done for event in progress if (event.detail or {})["attempt"] == 1]
    assert len(set(of_first)) == len(of_first)
    assert of_first == [10.0 * count for count in range(1, len(of_first) + 1)]


def test_a_job_that_ended_while_no_runner_was_there_is_finished(
    site: Site, started: list[subprocess.Popen[str]]
) -> None:
    site.job("a", samples=300)
    run = start(site, site.schedule("fifo"), "--state", site.state)
    started.append(run)
    until(lambda: training(site))
    run.kill()
    run.communicate()
    until(lambda: left_running(site.folder) == [])
    assert pliant(site, "run", "--until-done", "--state", site.state).returncode == 0
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]
    assert read_log(site.state).jobs["a"].samples_done == 300


def test_cron_decides_from_the_state_directory_and_runs_the_decision(site: Site) -> None:
    site.job("a", samples=1e6, high=2)
    site.job("b", samples=20, high=1)
    assert pliant(site, "run", site.schedule(), "--state", site.state).returncode == 0
    until(lambda: len(list(site.state.rglob("jobs/b/attempts/1/exit-0"))) == 1)
    for turn in range(2):
        words = ("schedule", "--state", str(site.state), "--policy", "fair-share")
        decide = [sys.executable, "-m", "pliant.cli", *words]
        schedule = subprocess.run(decide, check=True, capture_output=True, text=True).stdout
        done = pliant(site, "run", "--state", site.state, stdin=schedule)
        assert done.returncode == 0, (turn, done.stderr)
    assert site.of("a") == ["submit a", "start a 1", "grow a 2"]
    assert site.of("b") == ["submit b", "start b 1", "finish b 0"]
    site.jobs.clear()
    assert pliant(site, "run", site.schedule(), "--state", site.state).returncode == 0
    assert left_running(site.folder) == []


def test_a_reader_that_has_had_enough_does_not_end_the_run(site: Site) -> None:
    site.job("a", samples=300)
    run = subprocess.Popen(
        command("run", site.schedule("fifo"), "--until-done", "--state", site.state),
        cwd=site.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
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
            command("run", site.schedule("fifo"), "--until-done", "--state", site.state),
            cwd=site.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=closed,
        )
    run.wait()
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]
    assert run.returncode == 0


def test_the_output_of_a_job_can_be_read(site: Site) -> None:
    site.job("a", samples=30)
    assert pliant(site, "run", site.schedule("fifo"), "--until-done", "--state", site.state).returncode == 0
    shown = pliant(site, "log", "a", "--state", site.state)
    assert shown.stdout.splitlines() == ["==> jobs/a/attempts/1/logs/launcher-0.log", "hello from rank"]
    unknown = pliant(site, "log", "b", "--state", site.state)
    assert unknown.returncode == 2
    assert "has no job b; it has: a" in unknown.stderr


def test_one_reconciliation_tells_of_the_jobs_that_it_gave_up_and_only_once(site: Site) -> None:
    site.job("a", "--crash-at", 10, samples=20)
    schedule = site.schedule("fifo")
    assert pliant(site, "run", schedule, "--state", site.state).returncode == 0
    until(lambda: left_running(site.folder) == [])
    second, third = (pliant(site, "run", schedule, "--state", site.state, "--retries", 0) for _ in range(2))
    assert second.returncode == 5
    assert "1 of 1 job failed" in second.stderr
    assert third.returncode == 0
