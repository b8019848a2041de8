import binascii
import zlib

import numpy as np
import pytest
from scipy.interpolate import LinearNDInterpolator

from pliant.schemas.file_io import limits
from pliant.tools.profile.simplices import Lifted, Simplices

GRID = [(x, y, z) for x in (1, 2, 4) for y in (1, 2, 3, 8) for z in (8, 11, 16, 32)]
"""A grid with uneven gaps: many of its points lie on one sphere."""
VALUES = [(x * y + z**0.5, float((7 * x + 3 * y * y + 11 * z) % 13)) for x, y, z in GRID]


def test_points_are_interpolated_as_scipy_does_and_kept() -> None:
    found = Simplices(GRID, VALUES)
    for point, value in zip(GRID, VALUES, strict=True):
        assert found.at(point) == pytest.approx(value)
    # Between points it answers as scipy does.
    found, reference = Simplices(GRID, VALUES), LinearNDInterpolator(np.array(GRID, float), np.array(VALUES))
    rng = np.random.default_rng(1)
    for point in rng.integers([1, 1, 8], [5, 9, 33], (300, 3)).tolist():
        assert found.at(tuple(point)) == pytest.approx(reference([point])[0].tolist(), rel=1e-12), point
    # Outside nothing is claimed nor in a plane.
    found = Simplices(GRID, VALUES)
    assert found.at((5, 1, 8)) is None
    assert found.at((1, 1, 7)) is None
    hollow = Simplices([(0, 0, 0), (4, 0, 0), (0, 4, 0), (0, 0, 4), (1, 1, 1)], [[1.0]] * 5)
    assert hollow.at((3, 3, 3)) is None
    # Points that span no space have no between.
    flat = Simplices([(1, y, z) for y in range(3) for z in range(3)], [[1.0]] * 9)
    assert flat.at((1, 1, 1)) is None
    assert flat.text() == ""
    # A kept triangulation answers alike for its points alone.
    kept = Simplices(GRID, VALUES).text()
    again = Simplices(GRID, VALUES, kept)
    points = [(2, y, 13) for y in range(1, 9)]
    assert [*map(again.at, points)] == [*map(Simplices(GRID, VALUES).at, points)]
    damaged = Simplices(GRID, VALUES, kept[:40] + "?" + kept[41:])
    assert damaged.at((2, 5, 13)) == again.at((2, 5, 13))
    other = [(x + 1, y, z) for x, y, z in GRID]
    assert Simplices(other, VALUES, kept).at(other[5]) == pytest.approx(VALUES[5])


def test_a_kept_text_that_unpacks_to_far_more_is_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 20)
    kept = Simplices(GRID, VALUES).text()
    endless = binascii.b2a_base64(zlib.compress(bytes(1 << 24)), newline=False).decode()
    with pytest.raises(ValueError, match="far too long"):
        Lifted.from_text(endless)
    assert Simplices(GRID, VALUES, kept[:16] + endless).at((2, 5, 13)) == Simplices(GRID, VALUES).at(
        (2, 5, 13)
    )
