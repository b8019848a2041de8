from __future__ import annotations

from benchmarks.parts.whatif_time import figures


def test_a_small_state_is_measured() -> None:
    (found,) = figures(jobs=12, visits=1)
    assert (found.name, found.holds) == ("whatif_s", True)
