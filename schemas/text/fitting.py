"""Text for a terminal: how wide it is, and where it may be broken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_CUT: Final = "…"
_BREAKS: Final = re.compile(r"\d+(?:[.,:]\d+)*|\D")
"""What stays whole in a word that is too long for a line: numbers, and single characters."""


def width_of(text: str) -> int:
    """Columns that a terminal needs for the text; some characters take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def one_line(text: str) -> str:
    """The text without line ends, and with everything escaped that would act on a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return harmless(" ".join(text.split()))


def harmless(text: str, *, keeps: str = "") -> str:
    """The text with everything escaped that would act on a terminal, line ends included.

    :param keeps: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable() or each in keeps
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def cut_to_width(text: str, width: int) -> str:
    """The text, cut after its last word that fits into ``width`` columns; a number is never cut."""
    if width_of(text) <= width:
        return text
    kept, room = "", width - width_of(_CUT)
    for word in text.split():
        longer = f"{kept} {word}".lstrip()
        if width_of(longer) > room:
            break
        kept = longer
    if not kept and room > 0:
        kept = next(_parts(text.split(maxsplit=1)[0], room))[0]
    return f"{kept if width_of(kept) <= room else ''}{_CUT}"


def wrapped(text: str, width: int, *, indent: str = "") -> list[str]:
    """Lines of at most ``width`` columns, broken between words; all but the first begin with ``indent``.

    A word that is longer than a line is broken too, but not within a number.
    """
    lines: list[str] = []
    line = ""
    for word in text.split():
        for part, glued in _parts(word, width - width_of(indent)):
            joined = part if not line else f"{line}{'' if glued else ' '}{part}"
            if width_of(joined) <= width - (width_of(indent) if lines else 0):
                line = joined
            else:
                lines += [line] if line else []
                line = part
    lines.append(line)
    return [lines[0], *(indent + line for line in lines[1:])]


def narrowest(text: str) -> int:
    """The least width that :func:`wrapped` keeps to: that of the longest number."""
    return max(map(width_of, _BREAKS.findall(text)), default=0)


def fitted(lines: Iterable[str], width: int | None) -> list[str]:
    """Lines as they are, those wider than ``width`` broken; what follows is indented as the line was."""
    found: list[str] = []
    for line in lines:
        if width is None or width_of(line) <= width:
            found.append(line)
            continue
        begins = line[: len(line) - len(line.lstrip())]
        found += [begins + each for each in wrapped(line, width - width_of(begins))]
    return found


def _parts(word: str, width: int) -> Iterator[tuple[str, bool]]:
    """A word in parts that each fit a line, and whether a part belongs to the one before."""
    if width_of(word) <= width:
        yield word, False
        return
    part, first = "", True
    for piece in _BREAKS.findall(word):
        if part and width_of(part + piece) > width:
            yield part, not first
            part, first = "", False
        part += piece
    yield part, not first
