"""Markdown for reports, the generated docs and the pages of experiments: tables, and prose that wraps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Final

_WIDTH: Final = 100
_VERBATIM: Final = re.compile(r"```| {4}|\||#|<|!\[|\s*$")
"""How a line begins that is code, a row of a table, a heading, a comment or a figure, or that is blank."""
_ITEM: Final = re.compile(r" *[*-] ")
_PARAMETER: Final = re.compile(r"\w+: ")


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A table, without a last line end; the first columns are words, the others numbers."""
    rule = ["---" if index < text_columns else "---:" for index in range(len(headers))]
    return "\n".join(map(_row, (headers, rule, *rows)))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def wrapped_prose(text: str) -> str:
    """The text with each paragraph, item and parameter that has a longer line wrapped at 100 characters."""
    lines: list[str] = []
    unit: list[str] = []
    is_code = False
    for line in text.split("\n"):
        is_code ^= line.startswith("```")
        is_verbatim = is_code or _VERBATIM.match(line)
        if is_verbatim or _ITEM.match(line) or _PARAMETER.match(line):
            lines += _wrapped(unit)
            unit = []
        (lines if is_verbatim else unit).append(line)
    return "\n".join([*lines, *_wrapped(unit)])


def _wrapped(unit: Sequence[str]) -> Sequence[str]:
    if max(map(len, unit), default=0) <= _WIDTH:
        return unit
    item = _ITEM.match(unit[0])
    joined = " ".join([unit[0].rstrip(), *(line.strip() for line in unit[1:])])
    indent = " " * len(item[0]) if item else ""
    return wrap(joined, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
