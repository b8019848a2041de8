"""A worker that was started to join a job which is through by the time it is ready."""

from __future__ import annotations

from pathlib import Path

from pliant.tools.run.elastic.setting import Orders
from pliant.tools.run.layout import JobDir
from pliant.tools.run.plan import Member, Plan, WorkerOutcome


def test_a_job_is_through_when_a_member_says_so_and_not_when_one_was_stopped(tmp_path: Path) -> None:
    members = tuple(Member(slot=f"n/{n}", node="n", address="127.0.0.1", worker=n) for n in range(2))
    plan = Plan(job="a", generation=2, attempt=1, members=members)
    first, late = (Orders(JobDir(tmp_path), plan, worker) for worker in range(2))
    assert not late.is_done()
    first.report_end(WorkerOutcome(outcome="stopped"))
    assert not late.is_done()
    first.report_end(WorkerOutcome(outcome="done"))
    assert late.is_done()
