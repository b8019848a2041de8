"""A worker that was started to join a job which is through by the time it is ready."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant.tools.run import elastic
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership import plan_watch as watch
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.outcome import WorkerOutcome
from pliant.tools.run.statedir.contract.plan import Member, Plan
from tests.tools.run.elastic.alone import Alone


def test_a_job_is_through_when_a_member_says_so_and_not_when_one_was_stopped(tmp_path: Path) -> None:
    members = tuple(Member(slot=f"n/{n}", node="n", address="127.0.0.1", worker=n) for n in range(2))
    plan = Plan(job="a", generation=2, attempt=1, members=members)
    first, late = (WorkerContext(JobDir(tmp_path), plan, worker) for worker in range(2))
    assert not late.is_done()
    first.report_end(WorkerOutcome(outcome="stopped"))
    assert not late.is_done()
    first.report_end(WorkerOutcome(outcome="done"))
    assert late.is_done()


def test_a_worker_that_waits_looks_seldom_at_whether_the_others_are_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    now_s = [1000.0]
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(WorkerContext, "is_done", lambda _: looks.append(None))

    def script(job: elastic.ElasticJob) -> None:
        assert job._membership is not None
        for expected in (1, 2, 3):
            for _ in range(100):
                job._membership.check_needed()
            assert len(looks) == expected, "the first one when it starts"
            now_s[0] += 1

    assert Alone(tmp_path, monkeypatch).run(script).message == "the script ended before its training did"
