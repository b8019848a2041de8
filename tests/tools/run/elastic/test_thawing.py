"""Layers that are frozen and unfrozen while training goes on, and groups that an optimizer is given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.run.elastic.gang import Gang, assert_same_weights, plain

pytestmark = pytest.mark.torch
THAWING = Path(__file__).with_name("thawing.py")
STEPS = 5
"""Of an epoch."""
Make = Callable[..., Gang]


@pytest.fixture(scope="module", params=[True, False], ids=["new groups", "one group"])
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """What one process trains, without a plan; whether each thaw gives the optimizer another group."""
    folder = tmp_path_factory.mktemp("alone")
    plain(folder, script=THAWING, grow=request.param)
    return folder, request.param


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Make]:
    made: list[Gang] = []

    def make(**options: Any) -> Gang:
        made.append(Gang(tmp_path, script=THAWING, **options))
        made[-1].patience_s = 60
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.mark.parametrize(("workers", "accum"), [(1, 3), (2, 1), (3, 2)])
def test_what_is_unfrozen_is_trained_as_by_one_process(
    gang: Make, tmp_path: Path, alone: tuple[Path, bool], workers: int, accum: int
) -> None:
    expected, grow = alone
    job = gang(grow=grow)
    assert job.run(workers, accum=accum) == ["done"] * workers
    assert_same_weights(tmp_path, expected)
    assert len({path.read_text() for path in tmp_path.glob("weights-*")}) == 1, "the workers differ"


def test_the_same_under_plain_torchrun(tmp_path: Path, alone: tuple[Path, bool]) -> None:
    expected, grow = alone
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    plain(tmp_path, *torchrun, script=THAWING, grow=grow)
    assert_same_weights(tmp_path, expected)


@pytest.mark.parametrize("hold_at", [STEPS + 2, 2 * STEPS + 3])
def test_a_job_that_is_launched_again_goes_on_with_what_was_unfrozen(
    gang: Make, tmp_path: Path, alone: tuple[Path, bool], hold_at: int
) -> None:
    expected, grow = alone
    job = gang(grow=grow, hold_at=hold_at)
    job.start(1)
    job.until(lambda: len(job.events("epoch")) == (hold_at - 1) // STEPS, "epoch")
    job.publish(1, abort=True)
    job.go()
    job.end()
    assert job.outcomes() == ["stopped"]
    job.options |= {"hold_at": None}
    assert job.run(2) == ["done"] * 2
    assert_same_weights(tmp_path, expected)


def test_workers_that_join_train_what_was_unfrozen_before(
    gang: Make, tmp_path: Path, alone: tuple[Path, bool]
) -> None:
    expected, grow = alone
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
    assert_same_weights(tmp_path, expected)
