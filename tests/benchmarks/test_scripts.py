import pytest

from benchmarks.parts import relaunch_cost, training_job
from benchmarks.parts.training_job import running
from pliant.tools.run.service.executor import Executor


@pytest.mark.torch
def test_the_relaunched_script_trains_and_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_job, "SETTLE_S", 0.0)
    with running(Executor, relaunch_cost.SCRIPT, "", 8, resize="relaunch") as job:
        assert relaunch_cost._takes(job, 1) > 0
        job.give(0)
        job.ends()
        assert (job.folder / "saved.pt").exists()
