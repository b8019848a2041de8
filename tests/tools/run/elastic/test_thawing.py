"""Layers that are frozen and unfrozen while training goes on, and groups that an optimizer is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.run.elastic.gang import Gang, assert_same_weights, plain

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("thawing.py")
STEPS = 5
"""Of an epoch."""
Make = Callable[..., Gang]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """What one process trains, without a plan, by whether each thaw gives the optimizer another group."""
    folders = {grow: tmp_path_factory.mktemp("alone") for grow in (True, False)}
    for grow, folder in folders.items():
        plain(folder, script=SCRIPT, grow=grow)
    return folders


@pytest.mark.parametrize(("grow", "workers", "accum"), [(True, 1, 3), (True, 3, 2), (False, 3, 2)])
def test_unfrozen_layers_train_the_same(
    gang: Make, tmp_path: Path, alone: dict[bool, Path], grow: bool, workers: int, accum: int
) -> None:
    job = gang(grow=grow)
    assert job.run(workers, accum=accum) == ["done"] * workers
    assert_same_weights(tmp_path, alone[grow])
    assert len({path.read_text() for path in tmp_path.glob("weights-*")}) == 1, "the workers differ"


def test_the_same_under_plain_torchrun(tmp_path: Path, alone: dict[bool, Path]) -> None:
    plain(tmp_path, script=SCRIPT, workers=2)
    assert_same_weights(tmp_path, alone[True])


@pytest.mark.parametrize(("grow", "hold_at"), [(True, STEPS + 2), (True, 2 * STEPS + 3), (False, STEPS + 2)])
def test_a_relaunched_job_keeps_what_was_unfrozen(
    gang: Make, tmp_path: Path, alone: dict[bool, Path], grow: bool, hold_at: int
) -> None:
    job = gang(grow=grow, hold_at=hold_at)
    job.start(1)
    job.until(lambda: len(job.events("epoch")) == (hold_at - 1) // STEPS, "epoch")
    job.publish(1, abort=True)
    job.go()
    job.end()
    assert job.outcomes() == ["stopped"]
    job.options |= {"hold_at": None}
    assert job.run(2) == ["done"] * 2
    assert_same_weights(tmp_path, alone[grow])


@pytest.mark.parametrize("grow", [True, False])
def test_joining_workers_train_what_was_unfrozen(
    gang: Make, tmp_path: Path, alone: dict[bool, Path], grow: bool
) -> None:
    job = gang(grow=grow, hold_at=2 * STEPS + 3, step_s=0.05)
    job.start(1)
    job.until(lambda: len(job.events("epoch")) == 2, "two epochs")
    job.publish(2)
    job.add(1)
    job.until(lambda: job.here.presence(1).exists(), "second worker")
    job.go()
    job.reaches()
    assert job.end() == [0, 0]
    assert job.outcomes() == ["done"] * 2
    assert_same_weights(tmp_path, alone[grow])
