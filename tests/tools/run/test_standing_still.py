"""Workers that stand still (SIGSTOP) are noticed by calls that remember nothing, as cron makes them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from pliant.tools.run.service import run as runner
from pliant.tools.run.service.run import run_once
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.conftest import left_running
from tests.tools.run.scripts import PlainBackend
from tests.tools.run.site import Site, until

PRESENT = """
import json, os, pathlib, time
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.presence import Presence

job, worker = JobDir(pathlib.Path(os.environ["PLIANT_JOB_DIR"])), int(os.environ["PLIANT_WORKER"])
attempt = job.attempt(1)
Presence(attempt.presence(worker)).begin()
attempt.progress.touch()
while True:
    if worker == 0:
        plan = json.loads(job.plan.read_text())
        for member in plan["members"]:
            while not attempt.presence(member["worker"]).exists():
                time.sleep(0.01)
        (attempt.path / "reached.new").write_text(f"{plan['generation']}\\n")
        (attempt.path / "reached.new").replace(attempt.reached)
    time.sleep(0.05)
"""
"""Trains nothing, and is present as an elastic worker is; the first one says what generation trains."""


def worker(site: Site, number: int) -> psutil.Process:
    (found,) = (
        process
        for process in left_running(site.folder)
        if process.environ().get(ENV_WORKER) == str(number)
        and str(site.folder / "a.py") in process.cmdline()[1:2]
    )
    return found


def test_calls_from_cron_replace_a_worker_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "open_backend", lambda _name, nodes, dirs: PlainBackend(nodes, dirs.jobs))
    site = Site(tmp_path)
    site.job("a", text=PRESENT, gpus=2, high=2)
    attempt = StateDir(site.state).job("a").attempt(1)
    run_once(site.options())
    until(attempt.reached.exists)
    run_once(site.options())
    assert attempt.reached.read_text() == "1\n", "all live: nothing is changed"
    worker(site, 1).send_signal(signal.SIGSTOP)
    os.utime(attempt.presence(1), (1.0, 1.0))  # a minute goes by
    run_once(site.options())
    assert "the workers on n0/1 stand still: killed" in caplog.text
    until(lambda: attempt.reached.read_text() == "3\n")
    assert attempt.presence(2).exists(), "one without it, one with another in its place"
    for process in left_running(site.folder):
        process.kill()
