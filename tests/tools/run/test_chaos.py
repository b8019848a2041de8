"""A short storm; ``make chaos`` rages for ten minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.run.chaos import Storm


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    raging = Storm(tmp_path, seed=7, elastic_every=3)
    yield raging
    raging.stop()


@pytest.mark.torch
def test_nothing_is_lost_in_a_storm_of_kills_and_cancellations(storm: Storm) -> None:
    storm.rage(lambda blows: blows < 40, pause_s=0.2)
    storm.check()
    assert storm.done["submit"] >= 3, "one of them trains for real"
    assert min(storm.done[name] for name in ("cancel", "kill of the loop")) >= 1
