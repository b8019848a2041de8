"""A job under the launcher itself goes from two workers to three and back: no change is taken for a death."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.parts.training_job import running
from pliant.tools.run.service.executor import Executor
from tests.tools.run.elastic.gang import ENDLESS, SCRIPT, Gang
from tests.tools.run.elastic.test_in_place import trained_as_alone

pytestmark = pytest.mark.torch
BATCH = 10


def test_two_three_two_workers_change_and_none_is_taken_for_dead(
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
