"""The job that is resized and whose workers are killed while it is measured."""

from __future__ import annotations

import json

import pytest

from benchmarks import rescale
from benchmarks.parts.training_job import running
from pliant.tools.run.service.executor import Executor


@pytest.mark.torch
def test_workers_that_are_killed_exchange_nothing_but_by_the_library() -> None:
    # in an exchange of the script's own the loss of a worker ends the others
    small, _, _, *compared = json.loads(rescale.SMALL)
    epochs = 2
    with running(Executor, rescale.SCRIPT, json.dumps([small, 24, epochs, *compared]), rescale.BATCH) as job:
        job.give(2)
        job.wait(lambda: bool(job.executor.gangs))
        took = job.finish()
    assert len(took["elastic"]) == epochs
    assert took["plain"] == []
