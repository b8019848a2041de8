"""The benchmark of resizes by a relaunch, in its smallest form."""

from __future__ import annotations

import pytest

from benchmarks.parts.relaunch_cost import figures


@pytest.mark.torch
def test_a_resize_is_compared_with_a_plain_start_of_the_same_size() -> None:
    found = {figure.name: figure for figure in figures(rounds=1, changes=((2, 1),))}
    assert (found["relaunch_resize_over_start"].value or 0.0) > 0
    assert [found[f"added_lines_{name}"].value for name in ("trainer", "lightning")] == [3, 3]
    assert all(figure.holds for figure in found.values() if figure.unit == "lines")
