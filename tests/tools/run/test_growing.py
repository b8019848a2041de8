"""A job under the launcher itself goes from two workers to three and back: no change is taken for a death."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.parts.training_job import running
from pliant.tools.run.service.commands import read_plan, write_plan
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.statedir.contract.plan import PROTOCOL
from tests.tools.run.elastic.gang import ENDLESS, SCRIPT, Gang
from tests.tools.run.elastic.test_in_place import trained_as_alone

pytestmark = pytest.mark.torch
BATCH = 10


def test_two_three_two_workers_change_as_planned_and_none_is_taken_for_dead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker looks at what it has open when it leaves a group; to close a copy would free its lock."""
    caplog.set_level(logging.WARNING, "pliant")
    options = {**ENDLESS, "out": str(tmp_path), "step_s": 0.02}
    with running(Executor, SCRIPT.read_text(), json.dumps(options), BATCH) as training:
        changes = [training.go_to(workers).detail or {} for workers in (2, 3, 2)]
        assert training.gang.plan.workers == (0, 1), "those that were there stay"
        assert len(training.gang.statuses) == 3, "no other one was ever started"
        job = cast("Gang", SimpleNamespace(dir=training.gang.files))
        training.give(0)
        while training.executor.gangs:
            training.turn()
        assert trained_as_alone(job, tmp_path) > 4
    assert [change.get("mechanism") for change in changes] == [None, "in place", "in place"]
    assert not any("lost" in change for change in changes)
    assert [record.message for record in caplog.records if "lost" in record.message] == []


def test_workers_that_a_former_version_started_are_launched_again_instead_of_joined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An upgrade while a job trains: new workers and former ones do not understand each other."""
    caplog.set_level(logging.WARNING, "pliant")
    options = {**ENDLESS, "out": str(tmp_path), "step_s": 0.02}
    with running(Executor, SCRIPT.read_text(), json.dumps(options), BATCH) as training:
        training.go_to(2)
        folder = training.gang.handle.job_files
        former = training.gang.plan.model_copy(update={"protocol": None})
        write_plan(folder, former)
        assert "protocol" not in json.loads(folder.plan.read_text()), "its workers know no such field"
        training.gang.plan = former
        shrunk = training.go_to(1).detail or {}
        assert (shrunk.get("mechanism"), training.gang.handle.attempt) == ("in place", 1)
        grown = training.go_to(2).detail or {}
        assert (grown.get("mechanism"), training.gang.handle.attempt) == ("relaunched", 2)
        plan = read_plan(folder)
        assert plan is not None
        assert (plan.protocol, plan.workers) == (PROTOCOL, (0, 1))
        again = training.go_to(3).detail or {}
        assert (again.get("mechanism"), training.gang.handle.attempt) == ("in place", 2)
        training.give(0)
        training.ends()
    reasons = [record.message for record in caplog.records if "launched again" in record.message]
    assert reasons == ["job a is launched again: its workers are of another version than new ones"]
