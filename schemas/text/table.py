"""Tables of text, one line a row, that fit a terminal and never break a number or an id.

What does not fit is left out by columns, those of the highest rank first. Text that may be cut is cut
between words. An id is cut as a last resort, where nothing else would be left beside it. Without a width, as
for a file or a pipe, nothing is left out or cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pliant.schemas.text.fitting import cut_to_width, one_line, width_of

GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column and what happens to it on a narrow terminal."""

    header: str
    rank: int = 0
    """Columns of the highest rank are left out first, those of rank 0 never."""
    least: int | None = None
    """Cells may be cut between words where at least this width is left for them; None: never."""
    right: bool = False
    """Whether cells end at the same place, as numbers do."""


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """The header and a line for each row; ``width`` is that of the terminal in columns, if there is one."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [
        max([width_of(column.header), *(width_of(row[index]) for row in cells)])
        for index, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    if width is not None:
        kept = _kept(columns, widths, width)
        widths = _cut_widths(columns, widths, kept, width)
    lines = [[column.header for column in columns], *cells]
    return "".join(_line(columns, row, widths, kept) for row in lines)


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """The columns that there is room for."""
    kept = list(range(len(columns)))
    while sum(_least(columns[at], widths[at]) + len(GAP) for at in kept) - len(GAP) > width:
        last = max(kept, key=lambda at: columns[at].rank)
        beside = _least(columns[last], widths[last]) + len(GAP)
        if not columns[last].rank or (len(kept) == 2 and beside <= width // 2):
            break
        kept.remove(last)
    return kept


def _least(column: Column, width: int) -> int:
    return width if column.least is None else min(width, column.least)


def _cut_widths(columns: Sequence[Column], widths: Sequence[int], kept: list[int], width: int) -> list[int]:
    """The widths of columns that may be cut, so that all that are kept fit; of the others as they are."""
    found = list(widths)
    for at in reversed(kept):
        excess = sum(found[at] + len(GAP) for at in kept) - len(GAP) - width
        if excess <= 0:
            break
        if columns[at].least is not None:
            found[at] = max(_least(columns[at], found[at]), found[at] - excess)
        elif at == kept[0]:
            found[at] -= excess
    return found


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], kept: Sequence[int]) -> str:
    cells = []
    for at in kept:
        text, room = row[at], widths[at]
        if not text.isascii() or len(text) > room:
            text = cut_to_width(text, room)
            room -= width_of(text) - len(text)
        cells.append(text.rjust(room) if columns[at].right else text.ljust(room))
    return GAP.join(cells).rstrip() + "\n"
