"""Ids of jobs, made of what a trace calls them: each is used once.

Columns of ids that can stay as they are go by their hashes. All ids become texts in a set only when one has
to be changed, or may be there twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9._-]")
ID_LENGTH: Final = 120
"""Of an id without the number that a repeated one gets."""
_BEGINS: Final = 2
_WORD: Final = 8
"""Bytes of an id that are hashed at a time."""
_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], dtype=np.uint64)
"""By number of bytes."""
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)


class JobIds:
    """The ids that an import has given."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._columns: list[pa.Array] = []
        """Ids that are not in the set yet."""
        self._hashes: list[NDArray[np.uint64]] = []
        """Of all of these, sorted; each array is at least twice as long as the next."""
        self._numbers: dict[str, int] = {}
        """The last number that was put behind a repeated id."""

    def new(self, text: str, assume: Callable[[str], None]) -> str:
        """An id made of ``text``: unused characters become ``_``, a repeated id gets ``-2``, ``-3``, …

        :param assume: records what was done to it.
        """
        self._list_all()
        plain = _NOT_IN_IDS.sub("_", text).lstrip("._-")[:ID_LENGTH] or "job"
        if plain != text:
            assume("an id with characters that ids may not have was rewritten")
        number = self._numbers.get(plain, int(plain in self._ids)) + 1
        unique = plain if number == 1 else f"{plain}-{number}"
        while unique in self._ids and number > 1:
            number += 1
            unique = f"{plain}-{number}"
        if number > 1:
            assume("an id that is there more than once got a number behind it")
            self._numbers[plain] = number
        self._ids.add(unique)
        return unique

    def take(self, texts: pa.Array) -> bool:
        """Use texts that :func:`are_plain` as ids. Returns False, and uses none, if one is used already."""
        if not len(texts):
            return True
        if not self._ids and self._are_new(_hashes(texts)):
            self._columns.append(texts)
            return True
        self._list_all()
        listed = texts.to_pylist()
        distinct = set(listed)
        if len(distinct) < len(listed) or not self._ids.isdisjoint(distinct):
            return False
        self._ids |= distinct
        return True

    def _are_new(self, hashes: NDArray[np.uint64]) -> bool:
        """Whether none of them is there twice; then they are kept."""
        hashes.sort()
        if (hashes[1:] == hashes[:-1]).any() or any(_share_one(known, hashes) for known in self._hashes):
            return False
        self._hashes.append(hashes)
        while len(self._hashes) > 1 and len(self._hashes[-2]) < 2 * len(self._hashes[-1]):
            self._hashes[-2:] = [np.sort(np.concatenate(self._hashes[-2:]))]
        return True

    def _list_all(self) -> None:
        for texts in self._columns:
            self._ids.update(texts.to_pylist())
        self._columns, self._hashes = [], []


def text_bytes(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Texts one after the other, and where each begins and the last ends."""
    ends = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
    return np.frombuffer(texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]], ends - ends[0]


def are_plain(texts: pa.Array) -> bool:
    """Whether all texts can be ids as they are, but for what stands for nothing."""
    if not len(texts):
        return True
    data, ends = text_bytes(texts)
    kinds, lengths = _id_bytes()[data], np.diff(ends)
    within = lengths.min() > 0 and lengths.max() <= ID_LENGTH
    if not within or not kinds.min():
        return False
    return bool((kinds[ends[:-1]] == _BEGINS).all())


@cache
def _id_bytes() -> NDArray[np.uint8]:
    """By byte: 2, an id may begin with it; 1, an id may have it; 0, neither."""
    found = np.zeros(256, dtype=np.uint8)
    found[list(b"._-")] = 1
    found[list((ascii_letters + digits).encode())] = _BEGINS
    return found


def _hashes(texts: pa.Array) -> NDArray[np.uint64]:
    """Of texts of one to eight bytes each is another one."""
    data, ends = text_bytes(texts)
    starts, lengths = ends[:-1], np.diff(ends)
    padded = np.zeros(len(data) + _WORD, dtype=np.uint8)
    padded[: len(data)] = data
    words = np.ndarray(len(data) + 1, dtype="<u8", buffer=padded, strides=(1,))
    found = np.zeros(len(lengths), dtype=np.uint64)
    for place in range(0, int(lengths.max(initial=0)), _WORD):
        left = np.clip(lengths - place, 0, _WORD)
        rows = np.flatnonzero(left) if place else slice(None)
        mixed = (found[rows] ^ (words[starts[rows] + place] & _MASKS[left[rows]])) * _MIXER
        found[rows] = mixed ^ (mixed >> _SHIFT)
    return found


def _share_one(known: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> bool:
    """Whether an element is in both sorted arrays."""
    places = np.searchsorted(known, hashes)
    return bool((known[np.minimum(places, len(known) - 1)] == hashes).any())
