"""The search for the largest batch that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.profile.measuring.request import RESOLUTION, BatchSearch


def tried(bracket: BatchSearch, limit: int) -> list[int]:
    batches = []
    while (batch := bracket.next()) is not None:
        batches.append(batch)
        bracket.tell(batch, fits=batch <= limit)
    return batches


@pytest.mark.parametrize(
    ("search", "limit", "batches", "fits"),
    [
        pytest.param(BatchSearch([8, 32, 16]), 1000, [8, 16, 32], 32, id="everything fits"),
        pytest.param(
            BatchSearch([16, 32, 64, 128]), 45, [16, 32, 64, 48, 40, 44], 44, id="halved to an eighth"
        ),
        pytest.param(BatchSearch([4, 8]), 0, [4, 2, 1], 0, id="one sample does not fit"),
        pytest.param(BatchSearch([16, 32, 64], fits=32, misfit=64), 45, [48, 40, 44], 44, id="interrupted"),
    ],
)
def test_a_search_worked_by_hand(search: BatchSearch, limit: int, batches: list[int], fits: int) -> None:
    assert tried(search, limit) == batches
    assert search.fits == fits


@given(st.lists(st.integers(1, 4096), min_size=1), st.integers(0, 5000))
def test_the_limit_is_found_to_an_eighth(wanted: list[int], limit: int) -> None:
    bracket = BatchSearch(wanted)
    batches = tried(bracket, limit)
    assert len(batches) == len(set(batches))
    assert bracket.fits == max((batch for batch in batches if batch <= limit), default=0)
    if limit >= max(wanted):
        assert set(batches) == set(wanted)
    else:
        assert bracket.misfit is not None
        assert bracket.fits <= limit < bracket.misfit
        assert bracket.misfit - bracket.fits <= max(1, bracket.fits // RESOLUTION)
