"""How a worker sees plans: at once, never half."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run import elastic
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership import agreement
from pliant.tools.run.elastic.membership.agreement import PlanWatch
from pliant.tools.run.service.commands import write_plan
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Plan
from tests.tools.run.elastic.alone import Alone
from tests.tools.run.site import until

PRESENT = """
import sys
from pathlib import Path
from pliant.tools.run.statedir.contract.presence import Presence

Presence(Path(sys.argv[1])).begin()
sys.stdin.read()
"""


def plan(generation: int = 1, **fields: Any) -> Plan:
    members = tuple({"slot": f"n{i}/0", "node": f"n{i}", "address": f"10.0.0.{i}"} for i in range(2))
    record = {"job": "a", "generation": generation, "attempt": 1, "members": members, **fields}
    return Plan.model_validate(record)


def put(folder: Path, content: Plan) -> JobDir:
    job = JobDir(folder)
    job.attempt(content.attempt).path.mkdir(parents=True, exist_ok=True)
    write_plan(job, content)
    return job


class TestPlans:
    """Seen at once, never half."""

    def test_a_newer_plan_is_seen_and_an_older_one_is_not(self, tmp_path: Path) -> None:
        job = put(tmp_path, plan(3))
        watch = PlanWatch(WorkerContext(job, plan(3), 0))
        assert watch.newest().generation == 3
        put(tmp_path, plan(4, abort=True))
        assert watch.newest().abort
        put(tmp_path, plan(2))
        assert watch.newest().generation == 4
        job.plan.unlink()
        assert watch.newest().generation == 4

    def test_a_plan_that_cannot_be_understood_stops_no_training(self, tmp_path: Path) -> None:
        job = put(tmp_path, plan(3))
        watch = PlanWatch(WorkerContext(job, plan(3), 0))
        job.plan.write_text("{")
        assert watch.newest().generation == 3
        put(tmp_path, plan(5))
        assert watch.newest().generation == 5

    def test_a_plan_that_only_others_see_is_waited_for_and_then_missed(self, tmp_path: Path) -> None:
        watch = PlanWatch(WorkerContext(put(tmp_path, plan(1)), plan(1), 0))
        with pytest.raises(ServiceMissingError, match=r"plan-2\.json was announced by another worker"):
            watch.exactly(2, timeout_s=0.05)
        put(tmp_path, plan(2))
        put(tmp_path, plan(3))
        assert watch.exactly(2, timeout_s=60).generation == 2

    def test_a_plan_is_in_force_when_the_workers_that_it_adds_are_ready(self, tmp_path: Path) -> None:
        job = put(tmp_path, plan(1))
        context = WorkerContext(job, plan(1), 0)
        context.settle()
        watch = PlanWatch(context)
        three = (*plan().members, {"slot": "n2/0", "node": "n2", "address": "10.0.0.2"})
        put(tmp_path, plan(2, members=three))
        assert watch.in_force().generation == 1
        with subprocess.Popen(
            [sys.executable, "-c", PRESENT, str(job.attempt(1).presence(2))],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as worker:
            until(lambda: watch.in_force().generation == 2)
            worker.kill()
        put(tmp_path, plan(3, members=three))
        time.sleep(0.02)  # longer than between two looks: it would be in force now
        assert watch.in_force().generation == 2, "that worker is dead"


def test_a_worker_that_waits_looks_seldom_at_whether_the_others_are_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    now_s = [1000.0]
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(WorkerContext, "is_done", lambda _: looks.append(None))

    def script(job: elastic.ElasticJob) -> None:
        assert job._membership is not None
        for expected in (1, 2, 3):
            for _ in range(100):
                job._membership.check_needed()
            assert len(looks) == expected, "the first one when it starts"
            now_s[0] += 1

    assert Alone(tmp_path, monkeypatch).run(script).message == "the script ended before its training did"
