"""Real training of three users: resized in place, stopped with its service, and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.shared.in_sight import in_sight
from tests.tools.run.shared.users import ANN, BOB, CYD, of_user
from tests.tools.run.site import Site, environment, in_order, python_path, until
from tests.tools.run.test_training import ELASTIC, slow_until_the_gate

pytestmark = pytest.mark.torch


@contextmanager
def service(site: Site, *schedule: str) -> Iterator[subprocess.Popen[str]]:
    uids = json.dumps({"long": ANN, "short": BOB, "late": CYD})
    own = [sys.executable, "-m", "tests.tools.run.shared.service_process", str(site.state), uids, *schedule]
    about = {"cwd": site.folder, "env": environment(), "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*in_sight(site.folder), *own], **about) as run:  # type: ignore[call-overload]
        try:
            yield run
        finally:
            run.kill()


def test_a_job_is_resized_and_resumed_as_its_user(shared_folder: Path) -> None:
    site = Site(shared_folder)
    env = python_path()
    site.job("long", 24, 0.5, text=slow_until_the_gate(site), samples=24 * 64, high=2, env=env)
    site.job("short", 2, 0.02, text=ELASTIC, samples=2 * 64, env=env)
    late = site.job("late", 2, 0.02, text=ELASTIC, samples=2 * 64, env=env)
    del site.jobs[-1]

    def held(wanted: str) -> None:
        until(lambda: run.poll() is not None or in_order(wanted.split("; "), site.of("long")))
        assert run.poll() is None, run.stderr and run.stderr.read()

    with service(site, site.schedule("fair-share")) as run:
        until((site.state / "events.jsonl").exists)
        held("start long 1; grow long 2")
        until(lambda: run.poll() is not None or site.log().jobs["long"].change is None)
        submit(site.state, [late], "jobs", folder=site.folder, now_s=0.0)
        held("grow long 2; shrink long 1")
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 0
    assert of_user(ANN) == []
    before = site.log().jobs["long"].samples_done
    with service(site) as run:
        site.gate.touch()
        assert run.wait() == 0, run.stderr and run.stderr.read()
    log = site.log()
    assert {name: job.phase for name, job in log.jobs.items()} == dict.fromkeys(
        ("long", "short", "late"), "finished"
    )
    assert 0 < before < log.jobs["long"].samples_done == 24 * 64
    for name, uid in (("long", ANN), ("short", BOB), ("late", CYD)):
        assert {path.lstat().st_uid for path in StateDir(site.state).job(name).path.rglob("*")} == {uid}
