"""What the README's install lines install works without the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts.wheel import replays_from_wheel


@pytest.mark.services
def test_a_wheel_in_an_empty_environment_replays(tmp_path: Path) -> None:
    done = replays_from_wheel(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "shadow-price" in done.stdout
