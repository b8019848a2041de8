"""The scheduler as cron or a timer runs it: every minute two processes that remember nothing."""

import configparser
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir, suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.parts.crontab import moves_without_news
from pliant.schemas.io import read_events
from tests.cli.calling import call
from tests.effort import examples
from tests.pipeline.conftest import Shell
from tests.tools.run.site import until

TURN = (
    "pliant schedule --state live --cluster cluster.json --policy fifo --wait 60"
    " | pliant run --state live --wait 60"
)
DOCS = Path(__file__).parents[2] / "docs" / "running.md"
UNITS = Path(__file__).parents[2] / "examples" / "systemd"
SCRIPT = """
import pathlib, sys, time
with open(f"{sys.argv[1]}.began", "a") as began:
    began.write("once\\n")
while not pathlib.Path(f"{sys.argv[1]}.may-end").exists():
    time.sleep(0.05)
"""


def write_world(folder: Path, **rules: float) -> None:
    """One slot, and a script that notes each start of a job and ends when it may."""
    cluster = {"slots": "cpu", "nodes": [{"name": "here", "gpus": 1}], "preemptible": "all", **rules}
    (folder / "cluster.json").write_text(json.dumps(cluster))
    (folder / "train.py").write_text(SCRIPT)


def submit(folder: Path, *names: str) -> None:
    rows = [
        {"id": name, "submit_time": 0, "model": "m", "gpus": {"requested": 1}, "command": ["train.py", name]}
        for name in names
    ]
    (folder / "more.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with chdir(folder):
        done = call("submit", "more.jsonl", "--state", "live")
    assert done.exit_code == 0, done.stderr


def happened(folder: Path) -> Counter[tuple[str, str]]:
    events = read_events(folder / "live" / "events.jsonl")
    return Counter((event.event, event.job) for event in events if event.job)


def turn_here(folder: Path, policy: str, *more: str) -> str:
    """A turn in this process; what the decision says."""
    wait = ("--state", "live", "--wait", "60")
    with chdir(folder):
        decided = call("schedule", *wait, "--cluster", "cluster.json", "--policy", policy, *more)
        assert decided.exit_code == 0, decided.stderr
        done = call("run", *wait, stdin=decided.stdout_bytes)
        assert done.exit_code == 0, done.stderr
    return str(decided.stderr)


def end(folder: Path, name: str) -> None:
    """Let a job end while no run looks."""
    (folder / f"{name}.may-end").touch()
    (attempt,) = (folder / "live" / "jobs" / name / "attempts").iterdir()
    until((attempt / "exit-0").exists)
    until(lambda: not any(runs(each, str(attempt)) for each in psutil.process_iter()))


def runs(process: psutil.Process, attempt: str) -> bool:
    """Whether it is the keeper of an attempt, which ends a moment after it has written the exit code."""
    with suppress(psutil.Error):
        return any(word.startswith(f"{attempt}/") for word in process.cmdline())
    return False


def test_turns_start_each_job_once_and_catch_up_after_an_outage(sh: Shell, inputs: Path) -> None:
    write_world(inputs)
    turn_here(inputs, "fifo")
    submit(inputs, "a", "b")
    both = sh(f"({TURN}) & ({TURN}); wait $!")
    assert both.returncode == 0, both.stderr
    turn_here(inputs, "fifo")
    assert happened(inputs)["start", "a"] == 1
    end(inputs, "a")
    turn_here(inputs, "fifo")  # records the end
    turn_here(inputs, "fifo")  # gives the GPU to the next
    end(inputs, "b")
    turn_here(inputs, "fifo")
    seen = happened(inputs)
    assert [seen[kind, name] for kind in ("start", "finish") for name in "ab"] == [1, 1, 1, 1]
    assert [(inputs / f"{name}.began").read_text() for name in "ab"] == ["once\n"] * 2
    with chdir(inputs):
        assert "no run uses live now; the next call" in call("status", "--state", "live").stderr


def test_the_crontab_of_the_docs_prints_what_is_to_be_mailed(tmp_path: Path) -> None:
    """With no more in the environment than cron gives."""
    crontab = DOCS.read_text().split("In a crontab")[1]
    (path,) = re.findall(r"^    PATH=(.*)$", crontab, re.MULTILINE)
    (line,) = re.findall(r"^    \* \* \* \* \* (.*)$", crontab, re.MULTILINE)
    path = path.replace("/home/ada/venv/bin", str(Path(sys.executable).parent))
    line = line.replace("/home/ada/project", shlex.quote(str(tmp_path)))

    def turn(more: str = "") -> str:
        home = {"HOME": str(tmp_path), "LOGNAME": "ada", "SHELL": "/bin/sh", "PATH": path}
        command = ["/bin/sh", "-c", line.replace("run -q", f"run -q {more}")]
        done = subprocess.run(command, check=False, env=home, cwd="/", capture_output=True, text=True)
        return done.stdout + done.stderr

    (tmp_path / "ends.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "ends.jsonl").write_text('{"id": "ends", "command": ["ends.py"]}\n')
    with chdir(tmp_path):
        assert call("init", "--backend", "local", "--slots", "cpu").exit_code == 0
        assert call("submit", "ends.jsonl").exit_code == 0
        assert turn() == ""
        until((tmp_path / "pliant-state/jobs/ends/attempts/1/exit-0").exists)
        assert "ending" in call("status").stdout
    mailed = turn("--retries 0")
    assert mailed.splitlines()[0].startswith("pliant: job ends failed: exit code 7"), mailed
    (tmp_path / "cluster.json").write_text("{")
    (tmp_path / "pliant.toml").write_text('policy = "fofo"\nstate = "pliant-state"\n')
    assert 'unknown policy "fofo"' in turn()


def test_the_timer_of_the_examples_runs_a_turn(sh: Shell, inputs: Path) -> None:
    service, timer = configparser.ConfigParser(strict=False), configparser.ConfigParser()
    service.optionxform = timer.optionxform = str  # type: ignore[method-assign,assignment]
    service.read(UNITS / "pliant.service")
    timer.read(UNITS / "pliant.timer")
    assert (service["Service"]["Type"], service["Service"]["KillMode"]) == ("oneshot", "process")
    assert "OnUnitInactiveSec" in timer["Timer"]
    write_world(inputs)
    submit(inputs, "a")
    line = service["Service"]["ExecStart"]
    done = sh(f"export STATE=live CLUSTER=cluster.json POLICY=ares; {line}")
    assert done.returncode == 0, done.stderr
    assert happened(inputs)["start", "a"] == 1
    end(inputs, "a")
    fine = {0, *map(int, service["Service"]["SuccessExitStatus"].split())}
    with (inputs / "live" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = sh(f"export STATE=live CLUSTER=cluster.json POLICY=ares; {line.replace('--wait 30s', '')}")
    assert busy.returncode in fine, "another run serves the directory: nothing to be told of"


def served(folder: Path, unit: str) -> Iterator[subprocess.Popen[str]]:
    """The loops that the unit of an example starts, one after the other by the same words."""
    service = configparser.ConfigParser(strict=False)
    service.optionxform = str  # type: ignore[method-assign,assignment]
    service.read(UNITS / unit)
    assert (service["Service"]["Type"], service["Service"]["KillMode"]) == ("exec", "process")
    assert service["Service"]["RestartPreventExitStatus"].split() == ["2", "3"]
    files = {name.upper(): str(folder / f"{name}.json") for name in ("cluster", "roles")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **files, "STATE": str(folder / "state"), "POLICY": "fifo", "PATH": path}
    while True:
        words = shlex.split(service["Service"]["ExecStart"])
        with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as loop:
            yield loop


def decisions(folder: Path) -> int:
    log = folder / "state" / "events.jsonl"
    return log.read_text().count('"origin_s"') if log.exists() else 0


def starts_and_kills(folder: Path, unit: str) -> str:
    """Start and kill it three times; returns what it says as it takes a changed cluster."""
    (folder / "roles.json").write_text('{"schema": "pliant.roles/1", "operators": []}')
    write_world(folder)
    loops = served(folder, unit)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        loop, before = next(loops), decisions(folder)
        until(lambda loop=loop, before=before: loop.poll() is not None or decisions(folder) > before)
        assert loop.poll() is None, loop.communicate()[1]
        loop.send_signal(number)
        assert loop.wait() in (-number, 128 + number)
    (folder / "cluster.json").write_text('{\n"slots": "cpu",\n"nodes": [{"name": "here", "gpus": 2}]}')
    loop = next(loops)
    until(lambda: '"event":"reload"' in (folder / "state" / "events.jsonl").read_text())
    loop.terminate()
    _, said = loop.communicate()
    loops.close()
    return said


def test_the_live_example_service_comes_back_by_the_same_words(tmp_path: Path) -> None:
    assert "cluster.json:3: /nodes/0/gpus: 2, " in starts_and_kills(tmp_path, "pliant-live.service")


@pytest.mark.services
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and ids for other users")
def test_the_shared_example_service_comes_back_by_the_same_words() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        assert "cluster.json:3: /nodes/0/gpus: 2, " in starts_and_kills(Path(folder), "pliant-shared.service")


@pytest.mark.services
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units_of_the_examples(tmp_path: Path) -> None:
    def message(*units: Path) -> str:
        command = ["systemd-analyze", "verify", "--user", "--man=no", *map(str, units)]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        return done.stderr

    wrong = tmp_path / "pliant-wrong.service"
    wrong.write_text((UNITS / "pliant.service").read_text().replace("oneshot", "twoshots"))
    if "twoshots" not in message(wrong):
        pytest.skip("systemd-analyze cannot verify units here")
    assert "pliant" not in message(*sorted(UNITS.glob("pliant*")))


@pytest.mark.parametrize("seed", range(examples(4)))
def test_a_turn_without_news_changes_nothing(tmp_path: Path, seed: int) -> None:
    """Of jobs that state each optional field or not, on workers that report what nobody has decided."""
    assert moves_without_news(tmp_path, jobs=10, turns=4, seed=seed) == []
