"""Workers come, go and die while training goes on, told by plan files as the launcher would."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.run.elastic.gang import Gang, assert_same_weights, plain, seen

pytestmark = pytest.mark.torch
EPOCHS, SAMPLES = 3, 47
EVERY_SAMPLE = {epoch: list(range(SAMPLES)) for epoch in range(EPOCHS)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, no plan."""
    folder = tmp_path_factory.mktemp("undisturbed")
    plain(folder, schedule="epoch", clip=True)
    return folder


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Any]:
    made: list[Gang] = []

    def make(**options: Any) -> Gang:
        made.append(Gang(tmp_path, schedule="epoch", clip=True, **options))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def test_one_two_three_two_one_trains_as_one_process_does(
    gang: Any, tmp_path: Path, undisturbed: Path
) -> None:
    job = gang(step_s=0.15)
    job.start(1)
    job.wait_for("progress")
    for members in ([0, 1], [0, 1, 2], [0, 2], [2]):
        job.publish(members)
        job.add(*(number for number in members if number >= len(job.workers)))
        job.reaches()
    job.end()
    assert job.outcomes() == ["left", "left", "done"]
    assert_same_weights(tmp_path, undisturbed)
    assert {epoch: sorted(found) for epoch, found in seen(tmp_path).items()} == EVERY_SAMPLE
    changes = [e for e in job.events("progress") if (e.detail or {}).get("mechanism") == "in place"]
    assert [event.gpus for event in changes] == [2, 3, 2, 1]
    assert {"leave", "meet", "broadcast", "first_step"} <= changes[0].detail["parts"].keys()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_worker_that_is_killed_costs_nothing_that_was_trained(
    gang: Any, tmp_path: Path, undisturbed: Path, victim: int
) -> None:
    job = gang(step_s=0.15)
    job.start(3)
    job.wait_for("progress", 2)
    job.signal(victim, signal.SIGKILL)
    job.publish([number for number in range(3) if number != victim])
    job.reaches()
    job.end()
    assert_same_weights(tmp_path, undisturbed)
    survivor = 1 if victim == 0 else 0
    assert job.outcome(survivor).samples_done == EPOCHS * SAMPLES
