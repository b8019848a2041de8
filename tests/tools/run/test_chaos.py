"""A short storm; ``make chaos`` rages for ten minutes."""

from pathlib import Path

from benchmarks.parts.chaos.blows import BLOWS
from benchmarks.parts.chaos.storm import Storm


def test_nothing_is_lost_in_a_storm(tmp_path: Path) -> None:
    storm = Storm(tmp_path, seed=7, elastic_every=10**6)  # none: lost workers are in test_training.py
    try:
        storm.rage(BLOWS, lambda blows: blows < len(BLOWS), pause_s=0.1)
        storm.check()
    finally:
        storm.stop()
    assert storm.done["submission"] >= 3
    assert min(storm.done[name] for name in ("cancellation", "kill of the loop")) >= 1
