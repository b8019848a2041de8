"""Linear interpolation between scattered points of a grid, on their Delaunay triangulation.

Many points of a grid lie on one sphere. Qhull makes flat and overlapping simplices of them, so the value at a
point depends on which simplex is found. It must be the one that scipy's ``LinearNDInterpolator`` finds for a
single point, so :meth:`Simplices.at` searches in the same way: up the lifted planes to the nearest, then
across faces, and through all simplices if a flat one is in the way.

The triangulation needs scipy and takes longer than all questions together, so it can be kept as text.
"""

from __future__ import annotations

import binascii
import math
import struct
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pliant.schemas.file_io.limits import allowed_bytes

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

Point = tuple[int, int, int]
Corner = tuple[float, float, float]

_EPS: Final = 100 * 2.0**-52
"""How far beyond a face a point still counts as inside."""
_BROAD_EPS: Final = 2.0**-26
"""The same towards a flat simplex."""
_SIDES: Final = range(4)


class Lifted(NamedTuple):
    """A triangulation: simplices with their neighbours, and their planes in the lifted space."""

    corners: array[int]
    """Four points of each simplex."""
    neighbours: array[int]
    """The simplex across the face opposite to each corner; -1 outside."""
    plane: array[int]
    """Index of the plane of each simplex; those on one sphere share it."""
    planes: array[float]
    """Five coefficients of each plane."""
    scale: float
    shift: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> Self:
        """Qhull's triangulation; empty if the points do not span the space."""
        if len(points) < 5 or any(len(set(axis)) < 2 for axis in zip(*points, strict=True)):
            return cls(array("H"), array("h"), array("H"), array("d"), 0.0, 0.0)
        import numpy as np
        from scipy.spatial import Delaunay, QhullError

        try:
            triangulation = Delaunay(np.array(points, float))
        except QhullError:  # all points on one plane: nothing lies between them
            return cls.of(())
        planes, which = np.unique(triangulation.equations, axis=0, return_inverse=True)
        return cls(
            array("H", triangulation.simplices.ravel().tolist()),
            array("h", triangulation.neighbors.ravel().tolist()),
            array("H", which.ravel().tolist()),
            array("d", planes.ravel().tolist()),
            float(triangulation.paraboloid_scale),
            float(triangulation.paraboloid_shift),
        )

    def text(self) -> str:
        head = struct.pack("<IIdd", len(self.plane), len(self.planes), self.scale, self.shift)
        columns = (self.corners, self.neighbours, self.plane, self.planes)
        packed = zlib.compress(head + b"".join(column.tobytes() for column in columns), 6)
        return binascii.b2a_base64(packed, newline=False).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The inverse of :meth:`text`.

        :raises ValueError, zlib.error, struct.error: the text is damaged.
        """
        packed = zlib.decompressobj()
        data = packed.decompress(binascii.a2b_base64(text), int(allowed_bytes(len(text))))
        if not packed.eof:
            raise ValueError("cut short, or far too long")
        count, coefficients, scale, shift = struct.unpack_from("<IIdd", data)
        corners, neighbours, plane, planes = array("H"), array("h"), array("H"), array("d")
        start = struct.calcsize("<IIdd")
        columns: list[tuple[array[Any], int]] = [
            (corners, 4 * count),
            (neighbours, 4 * count),
            (plane, count),
            (planes, coefficients),
        ]
        for column, length in columns:
            end = start + length * column.itemsize
            column.frombytes(data[start:end])
            start = end
        return cls(corners, neighbours, plane, planes, scale, shift)


class _Candidates(NamedTuple):
    """Simplices that may be found around a point, one in a column, in the order in which they count.

    A simplex has its place in the triangulation; a neighbour of a flat one also has that of the flat one.
    """

    numbers: Integers
    rows: Floats
    base: Floats
    low: Floats
    """The smallest coordinates of their corners."""
    high: Floats
    least: Floats
    """The weights from which on a point counts as inside."""

    def along(self, x: int, y: int) -> _Line:
        """Those that may hold a point (x, y, ·).

        Points and corners are whole numbers, so a point outside of the box around a simplex has a weight far
        below those that count as inside.
        """
        may_hold = (self.low[0] <= x) & (x <= self.high[0]) & (self.low[1] <= y) & (y <= self.high[1])
        columns = may_hold.nonzero()[0]
        rows, base = self.rows[:, :, columns], self.base[:, columns]
        level = rows[:, 0] * (x - base[0]) + rows[:, 1] * (y - base[1])
        return _Line(self.numbers[columns], level, rows[:, 2].copy(), base[2], self.least[:, columns])


class _Line(NamedTuple):
    """The same along a line of points that differ in their last coordinate alone."""

    numbers: Integers
    level: Floats
    """Weights of the first three corners but for the last coordinate,"""
    slope: Floats
    """and what they gain with it,"""
    base: Floats
    """from here on."""
    least: Floats

    def at(self, z: int) -> tuple[int, list[float]] | None:
        """The first that is around a point, and the weights of its corners."""
        import numpy as np

        weights = np.empty_like(self.least)
        np.add(self.level, self.slope * (z - self.base), out=weights[:3])
        np.subtract(1.0, weights[0] + weights[1] + weights[2], out=weights[3])
        inside = np.logical_and.reduce(weights >= self.least).nonzero()[0]
        if not inside.size:
            return None
        first = int(inside[0])
        return int(self.numbers[first]), weights[:, first].tolist()


class Simplices:
    """Values at points in space, and in between."""

    def __init__(self, points: Sequence[Point], values: Sequence[Sequence[float]], kept: str = "") -> None:
        """:param values: of each point, all of one length.
        :param kept: what :meth:`text` gave; ignored if it belongs to other points.
        """
        self._points = points
        self._values = values
        self._kept = kept
        # What gives the weights in each simplex; None where it is flat.
        self._inverse: dict[int, tuple[tuple[Corner, ...], Point] | None] = {}
        # Of points (x, y, ·).
        self._lines: dict[tuple[int, int], _Line] = {}

    def load(self) -> None:
        """Triangulate now, so that the first question costs no more than others."""
        _ = self._lifted, self._planes, self._bounds if self._points else None

    def text(self) -> str:
        """The triangulation as text, to be kept beside the points; empty if there is none."""
        return self._digest() + self._lifted.text() if self._lifted.plane else ""

    def at(self, point: Point) -> tuple[float, ...] | None:
        """Values at ``point``; None outside of the points' hull."""
        if not self._lifted.plane or self._is_far(point):
            return None
        place = self._across_faces(self._nearest_plane(point), point)
        if place is None:
            return None
        simplex, (a, b, c, d) = place
        corners = self._lifted.corners[4 * simplex : 4 * simplex + 4]
        columns = zip(*[self._values[corner] for corner in corners], strict=True)
        return tuple(
            [a * first + b * second + c * third + d * last for first, second, third, last in columns]
        )

    @cached_property
    def _lifted(self) -> Lifted:
        digest = self._digest()
        if self._kept.startswith(digest):
            with suppress(ValueError, zlib.error, struct.error):  # a damaged text: find it again
                return Lifted.from_text(self._kept[len(digest) :])
        return Lifted.of(self._points)

    def _digest(self) -> str:
        return blake2b(repr(list(self._points)).encode(), digest_size=8).hexdigest()

    def _is_far(self, point: Point) -> bool:
        (x, y, z), (low, high) = point, self._bounds
        return not (low[0] <= x <= high[0] and low[1] <= y <= high[1] and low[2] <= z <= high[2])

    @cached_property
    def _bounds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The smallest and the largest coordinates of the points."""
        axes = [*zip(*self._points, strict=True)]
        return tuple(map(min, axes)), tuple(map(max, axes))

    def _nearest_plane(self, point: Point) -> int:
        """From the first simplex on to neighbours whose plane lies higher over the point."""
        _, neighbours, plane, *_ = lifted = self._lifted
        planes, (x, y, z) = self._planes, point
        height = lifted.scale * sum(float(place) ** 2 for place in point) + lifted.shift
        a, b, c, d, e = planes[plane[0]]
        simplex, best = 0, e + a * x + b * y + c * z + d * height
        moved = True
        while moved and best <= 0:
            moved = False
            for side in _SIDES:
                other = neighbours[4 * simplex + side]
                if other < 0:
                    continue
                a, b, c, d, e = planes[plane[other]]
                distance = e + a * x + b * y + c * z + d * height
                if distance > best + _EPS * (1 + abs(best)):
                    simplex, best, moved = other, distance, True
        return simplex

    @cached_property
    def _planes(self) -> list[tuple[float, ...]]:
        """Their coefficients."""
        coefficients = iter(self._lifted.planes)
        return list(zip(*[coefficients] * 5, strict=True))

    def _across_faces(self, simplex: int, point: Point) -> tuple[int, list[float]] | None:
        """From a simplex through the first face beyond which the point lies, to the one around it."""
        neighbours, known = self._lifted.neighbours, self._inverse
        for _ in range(1 + len(self._lifted.plane) // 4):
            if simplex not in known:
                known[simplex] = self._inverse_of(simplex)
            inverse = known[simplex]
            if inverse is None:
                break
            ((a, b, c), row_1, row_2), (x, y, z) = inverse
            x, y, z = point[0] - x, point[1] - y, point[2] - z
            if (first := a * x + b * y + c * z) < -_EPS:
                simplex = neighbours[4 * simplex]
            elif (second := row_1[0] * x + row_1[1] * y + row_1[2] * z) < -_EPS:
                simplex = neighbours[4 * simplex + 1]
            elif (third := row_2[0] * x + row_2[1] * y + row_2[2] * z) < -_EPS:
                simplex = neighbours[4 * simplex + 2]
            elif (fourth := 1.0 - math.fsum((first, second, third))) < -_EPS:
                simplex = neighbours[4 * simplex + 3]
            elif max(weights := [first, second, third, fourth]) <= 1 + _EPS:
                return simplex, weights
            else:
                break
            if simplex < 0:
                return None
        return self._through_all(point)

    def _through_all(self, point: Point) -> tuple[int, list[float]] | None:
        """The first simplex around a point, or beside a flat one."""
        x, y, z = point
        line = self._lines.get((x, y))
        if line is None:
            line = self._lines[x, y] = self._candidates.along(x, y)
        return line.at(z)

    @cached_property
    def _candidates(self) -> _Candidates:
        """All simplices."""
        import numpy as np

        corners = np.frombuffer(self._lifted.corners, np.uint16).reshape(-1, 4)
        places = np.array(self._points, float)[corners].transpose(1, 2, 0).copy()
        base = places[3]
        a, b, c = places[:3] - base
        rows = np.stack([_crossed(b, c), _crossed(c, a), _crossed(a, b)])
        volumes = (a * rows[0]).sum(axis=0)
        is_flat = volumes == 0
        volumes[is_flat] = np.nan
        neighbours = np.frombuffer(self._lifted.neighbours, np.int16).reshape(-1, 4).astype(np.int64)
        solid, flat = np.flatnonzero(~is_flat), np.repeat(np.flatnonzero(is_flat), 4)
        beside = neighbours[flat[::4]].ravel()
        flat, beside = flat[beside >= 0], beside[beside >= 0]
        least = np.full((len(solid) + len(flat), 4), -_EPS)
        least[len(solid) :][neighbours[beside] == flat[:, None]] = -_BROAD_EPS
        order = np.concatenate((solid, flat)).argsort(kind="stable")
        numbers = np.concatenate((solid, beside))[order]
        each = (rows / volumes)[..., numbers], base[:, numbers]
        boxes = places.min(axis=0)[:, numbers], places.max(axis=0)[:, numbers]
        return _Candidates(numbers, *each, *boxes, least[order].T)

    def _inverse_of(self, simplex: int) -> tuple[tuple[Corner, ...], Point] | None:
        corners = self._lifted.corners[4 * simplex : 4 * simplex + 4]
        return _inverse(*(self._points[corner] for corner in corners))


def _inverse(p: Point, q: Point, r: Point, base: Point) -> tuple[tuple[Corner, ...], Point] | None:
    """What gives the weights of the first three corners (Cramer's rule); None if they are flat."""
    a, b, c = (tuple(x - y for x, y in zip(corner, base, strict=True)) for corner in (p, q, r))
    rows = (_cross(b, c), _cross(c, a), _cross(a, b))
    volume = sum(x * y for x, y in zip(a, rows[0], strict=True))
    if not volume:
        return None
    return tuple((x / volume, y / volume, z / volume) for x, y, z in rows), base


def _crossed(u: Floats, v: Floats) -> Floats:
    """Vector products, column by column; ``numpy.cross`` takes several times as long."""
    import numpy as np

    return np.stack([u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]])


def _cross(u: tuple[int, ...], v: tuple[int, ...]) -> Point:
    return u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]
