"""A short storm; ``make chaos`` rages for ten minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.run.blows import BLOWS
from tests.tools.run.chaos import Storm


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    raging = Storm(tmp_path, seed=7, elastic_every=10**6)  # none: lost workers are in test_training.py
    yield raging
    raging.stop()


def test_nothing_is_lost_in_a_storm(storm: Storm) -> None:
    storm.rage(BLOWS, lambda blows: blows < len(BLOWS), pause_s=0.1)
    storm.check()
    assert storm.done["submission"] >= 3
    assert min(storm.done[name] for name in ("cancellation", "kill of the loop")) >= 1
