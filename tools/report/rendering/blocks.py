"""The tables of a report as text that fits a terminal: where a table is too wide, in blocks of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from pliant.schemas.text.fitting import narrowest, one_line, width_of, wrapped
from pliant.tools.report.rendering.sections import Section

_GAP: Final = "   "
_MARGIN: Final = " "
_NARROW: Final = 8
"""Columns of words are made narrower than this only where numbers would be broken otherwise."""


def drawn(section: Section, width: int | None = None) -> str:
    """A titled table and its notes; ``width`` is that of the terminal, None: as wide as it needs to be.

    Headers, and cells of words, are broken between words where a block is too wide. Numbers stay whole.
    """
    shown = replace(
        section,
        headers=tuple(map(one_line, section.headers)),
        rows=tuple(tuple(map(one_line, row)) for row in section.rows),
    )
    blocks = [range(len(shown.headers))] if width is None else _blocks(shown, width)
    parts = [_lines(shown, list(block), width) for block in blocks]
    lines = [section.title, ""] if width is None else [*wrapped(section.title, width), ""]
    for part in parts:
        lines += [*part, ""]
    for note in section.notes:
        lines += [f"  {note}"] if width is None else _note(note, width)
    return "".join(f"{line.rstrip()}\n" for line in "\n".join(lines).rstrip().splitlines())


def _note(note: str, width: int) -> list[str]:
    return [f"  {line}" for line in wrapped(note, width - 2, indent="  ")]


def _blocks(section: Section, width: int) -> list[list[int]]:
    """Columns that fit beside each other, the first ``keys`` of them in every block."""
    keys, others = range(section.keys), range(section.keys, len(section.headers))
    if _total([_natural(section, at) for at in range(len(section.headers))]) <= width:
        return [[*keys, *others]]
    blocks: list[list[int]] = []
    for at in others:
        if blocks and _total([_key_width(section, each, width) for each in [*blocks[-1], at]]) <= width:
            blocks[-1].append(at)
        else:
            blocks.append([*keys, at])
    return blocks or [[*keys]]


def _lines(section: Section, columns: Sequence[int], width: int | None) -> list[str]:
    """The header, a rule, and the rows of a block."""
    widths = [_natural(section, at) for at in columns]
    if width is not None and _total(widths) > width:
        widths = _narrowed(section, columns, width)
    table = [section.headers, *section.rows]
    found: list[str] = []
    for number, row in enumerate(table):
        cells = [
            [row[at]] if width_of(row[at]) <= room else wrapped(row[at], room)
            for at, room in zip(columns, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            placed = [
                _placed(text, room, right=at >= section.text_columns)
                for text, at, room in zip(parts, columns, widths, strict=True)
            ]
            found.append(_MARGIN + _GAP.join(placed))
        if number == 0:
            found.append(_MARGIN + "─" * (_total(widths) - len(_MARGIN)))
    return found


def _narrowed(section: Section, columns: Sequence[int], width: int) -> list[int]:
    """Widths that fit: words are broken into lines first, then the headers of numbers, never a number."""
    widths = [_key_width(section, at, width) for at in columns]
    last = [_least(section, at) for at in columns]
    first = [
        max(_NARROW, least) if at < section.text_columns else have
        for at, have, least in zip(columns, widths, last, strict=True)
    ]
    for floors in (first, last):
        while (excess := _total(widths) - width) > 0:
            room = [have - floor for have, floor in zip(widths, floors, strict=True)]
            widest = max(range(len(room)), key=room.__getitem__)
            if room[widest] <= 0:
                break
            widths[widest] -= min(excess, room[widest])
    return widths


def _least(section: Section, at: int) -> int:
    """The least width of a column without breaking a number."""
    words = [section.headers[at], *(row[at] for row in section.rows if at < section.text_columns)]
    numbers = [row[at] for row in section.rows if at >= section.text_columns]
    return max(1, *map(narrowest, words), *map(width_of, numbers))


def _natural(section: Section, at: int) -> int:
    return max(width_of(row[at]) for row in [section.headers, *section.rows])


def _key_width(section: Section, at: int, width: int) -> int:
    """The least width of a column without breaking a word or a cell; half of the terminal for words."""
    header = max(map(width_of, section.headers[at].split()), default=0)
    widest = max([header, *(width_of(row[at]) for row in section.rows)])
    return min(widest, width // 2) if at < section.text_columns else widest


def _total(widths: Sequence[int]) -> int:
    return len(_MARGIN) + sum(widths) + len(_GAP) * (len(widths) - 1)


def _placed(text: str, width: int, *, right: bool) -> str:
    blank = " " * max(0, width - width_of(text))
    return blank + text if right else text + blank
