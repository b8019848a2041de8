"""The search for the largest batch that fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.profile.measuring.request import RESOLUTION, BatchSearch


def tried(bracket: BatchSearch, limit: int) -> list[int]:
    batches = []
    while (batch := bracket.next()) is not None:
        batches.append(batch)
        bracket.tell(batch, fits=batch <= limit)
    return batches


def test_where_everything_fits_only_the_wanted_batches_are_tried() -> None:
    assert tried(BatchSearch([8, 32, 16]), limit=1000) == [8, 16, 32]


def test_the_gap_below_the_first_misfit_is_halved_until_it_is_an_eighth() -> None:
    bracket = BatchSearch([16, 32, 64, 128])
    assert tried(bracket, limit=45) == [16, 32, 64, 48, 40, 44]
    assert (bracket.fits, bracket.misfit) == (44, 48)


def test_where_one_sample_does_not_fit_the_search_ends() -> None:
    bracket = BatchSearch([4, 8])
    assert tried(bracket, limit=0) == [4, 2, 1]
    assert bracket.fits == 0


def test_an_interrupted_search_goes_on_where_it_stopped() -> None:
    assert tried(BatchSearch([16, 32, 64, 128], fits=32, misfit=64), limit=45) == [48, 40, 44]


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
