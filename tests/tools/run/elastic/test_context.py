"""What a worker knows of its place among the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.elastic.context import WorkerContext, find_context
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_SLOT, SLOT_FROM_RANK, WorkerOutcome
from tests.tools.run.elastic.gang import plan, put


class TestContext:
    def test_rank_is_the_position_in_the_plan_whatever_torchrun_says(self, tmp_path: Path) -> None:
        put(tmp_path, plan(apart=True))
        env = {ENV_JOB_DIR: str(tmp_path), "RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
        context = find_context({**env, ENV_SLOT: "n1/0"})
        assert (context.rank, context.world_size) == (1, 2)
        assert find_context({**env, ENV_SLOT: SLOT_FROM_RANK, "RANK": "1"}).rank == 1

    @pytest.mark.parametrize(
        ("env", "message"),
        [
            ({ENV_SLOT: "n9/0"}, "slot n9/0 is not in generation 1 of job a: n0/0, n1/0"),
            ({}, "PLIANT_SLOT is not"),
            ({ENV_SLOT: SLOT_FROM_RANK, "RANK": "2"}, "has 2 members"),
        ],
    )
    def test_contradictions_are_named(self, tmp_path: Path, env: dict[str, str], message: str) -> None:
        put(tmp_path, plan(apart=True))
        with pytest.raises(UsageError, match=message):
            find_context({ENV_JOB_DIR: str(tmp_path), "OMP_NUM_THREADS": "1", **env})

    def test_without_a_plan_the_rank_is_torchrun_s(self, tmp_path: Path) -> None:
        with pytest.raises(BadInputError, match=r"plan\.json: no such file"):
            find_context({ENV_JOB_DIR: str(tmp_path), ENV_SLOT: "n0/0"})
        context = find_context({"RANK": "2", "WORLD_SIZE": "4"})
        assert (context.rank, context.world_size, context.plan) == (2, 4, None)
        assert find_context({}).world_size == 1
        with pytest.raises(UsageError, match="0 <= RANK < WORLD_SIZE"):
            find_context({"RANK": "4", "WORLD_SIZE": "4"})
        with pytest.raises(UsageError, match="expected a whole number"):
            find_context({"RANK": "first"})


def test_a_job_is_done_when_a_member_says_so(tmp_path: Path) -> None:
    first, late = (WorkerContext(JobDir(tmp_path), plan(), worker) for worker in range(2))
    assert not late.is_done()
    first.report_end(WorkerOutcome(outcome="stopped"))
    assert not late.is_done()
    first.report_end(WorkerOutcome(outcome="done"))
    assert late.is_done()


def test_a_later_attempt_has_its_own_files(tmp_path: Path) -> None:
    worker = WorkerContext(JobDir(tmp_path), plan(1), 0)
    assert (worker.rank, worker.left) == (0, False)
    worker.follow(plan(2, attempt=2))
    assert worker.left
    worker.report_end(WorkerOutcome(outcome="left"))
    assert JobDir(tmp_path).attempt(1).outcome(0).exists()
    assert not JobDir(tmp_path).attempt(2).path.exists()


def test_a_newer_generation_overtakes_once_it_trains(tmp_path: Path) -> None:
    """A later attempt does so once it is planned."""
    job = put(tmp_path, plan(1))
    worker = WorkerContext(job, plan(1), 0)
    for reached, overtaken in (("1\n", False), ("what is this", False), ("2\n", True)):
        job.attempt(1).reached.write_text(reached)
        put(tmp_path, plan(2, (1,)))  # it trains until all leave together
        assert worker.is_overtaken() is overtaken
    job.attempt(1).reached.unlink()
    assert not worker.is_overtaken()
    put(tmp_path, plan(2, (0,), attempt=2))
    assert worker.is_overtaken()
    job.plan.write_text("{")
    assert not worker.is_overtaken(), "what cannot be read is no reason to lose a checkpoint"
