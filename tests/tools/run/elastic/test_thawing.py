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


@pytest.mark.parametrize("grow", [True, False])
def test_unfrozen_layers_train_the_same(
    gang: Make, tmp_path: Path, alone: dict[bool, Path], grow: bool
) -> None:
    assert gang(grow=grow).run(3, accum=2) == ["done"] * 3
    assert_same_weights(tmp_path, alone[grow])
    assert len({path.read_text() for path in tmp_path.glob("weights-*")}) == 1, "the workers differ"
    plain(tmp_path / "torchrun", script=SCRIPT, workers=2, grow=grow)
    assert_same_weights(tmp_path / "torchrun", alone[grow])


@pytest.mark.parametrize("grow", [True, False])
def test_what_was_unfrozen_survives_relaunches_and_joins(
    gang: Make, tmp_path: Path, alone: dict[bool, Path], grow: bool
) -> None:
    job = gang(grow=grow)
    for epochs, passes in (
        (1, STEPS + 2),
        (1, STEPS + 1),
    ):  # behind the first thaw, and behind the second one
        job.options["hold_at"] = passes
        job.start(1)
        job.until(lambda epochs=epochs: len(job.events("epoch")) == epochs, "epoch")
        job.publish(1, abort=True)
        job.go()
        job.end()
        assert job.outcomes() == ["stopped"]
    job.options |= {"hold_at": 1, "step_s": 0.05}
    job.start(1)
    job.publish(2)
    job.add(1)
    job.until(lambda: job.here.presence(1).exists(), "second worker")
    job.go()
    job.reaches()
    assert job.end() == [0, 0]
    assert job.outcomes() == ["done"] * 2
    assert_same_weights(tmp_path, alone[grow])
