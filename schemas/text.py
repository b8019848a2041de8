"""Text for people: words, numbers, times, and what fits a terminal.

:func:`text_table` makes tables with one line a row. Columns that do not fit are left out, those of the
highest rank first; text is cut between words, numbers never, and ids only if nothing else would be left
beside them. Without a width, as for a file or a pipe, nothing is left out or cut.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

TOO_MANY: Final = "a number has too many digits"
EPOCH_LIKE_S: Final = 1e9
"""Times from this on (September 2001) are UTC seconds since the epoch; below, since the start of a trace."""
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_UNITS: Final = frozenset({"s", "min"})
"""Units of spans that have one unit."""
_CUT: Final = "…"
_LABEL: Final = re.compile(r"[\w-]+(?:, [\w-]+)*: |[-*] ")
"""What begins a line that stays a line: a parameter with its meaning, or an item of a list."""
_BREAKS: Final = re.compile(r"\d+(?:[.,:]\d+)*|\D")
"""Parts of a long word that stay whole: numbers, and single characters."""
GAP: Final = "  "
_LONGEST_NAME: Final = 100
"""Characters of a mistyped name that are compared with the known ones."""
_SHORTEST_WORD: Final = 4
_ALIKE: Final = 0.75
"""How alike a name and one word of a known one have to be, of 1."""


def shortened(text: str, limit: int = 60) -> str:
    """A value as a message shows it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def without_long_words(line: str, limit: int = 300) -> str:
    """Cuts the middle out of words that are too long to be read."""
    return re.sub(rf"\S{{{limit},}}", lambda word: f"{word[0][: limit // 2]}…{word[0][-limit // 4 :]}", line)


def counted(count: int, noun: str) -> str:
    """``1 job``, ``2,000 jobs``; for nouns whose plural takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def rate_text(value: float) -> str:
    """Three digits, without an exponent where it is large: 44,600 or 0.0123."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def in_gpu_hours(gpu_s: float) -> str:
    """GPU seconds in words."""
    return f"{gpu_s / 3600:.3g} GPU hours"


def in_gpus(count: int) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return counted(count, "GPU")


def listed(names: Sequence[str], shown: int = 3) -> str:
    """``"a", "b", "c" and 2 more``."""
    text = ", ".join(f'"{name}"' for name in names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """``did you mean "ares"?``, with up to ``most`` similar names, the nearest first; empty without any."""
    near = similar(name, known, most)
    *others, last = [f'"{each}"' for each in near] or [""]
    if not near:
        return ""
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


def similar(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Up to ``most`` of the known names that a mistyped or shortened one may stand for, the nearest first."""
    from difflib import get_close_matches

    by_lower: dict[str, str] = {}
    for each in known:
        by_lower.setdefault(each.lower(), each)
    typed = name.lower()
    near = get_close_matches(typed[:_LONGEST_NAME], by_lower, n=most)
    if len(typed) > 1:
        near += [each for each in sorted(by_lower) if each.startswith(typed) and each not in near]
    if not near:  # one word of a name, mistyped
        names = ((word, each) for each in sorted(by_lower, reverse=True) for word in each.split("-"))
        words = {word: each for word, each in names if len(word) >= _SHORTEST_WORD and word.isalpha()}
        alike = get_close_matches(typed[:_LONGEST_NAME], words, cutoff=_ALIKE)
        near = list(dict.fromkeys(words[word] for word in alike))
    return [by_lower[each] for each in near[:most]]


def whole_number(text: str) -> int | None:
    """The number, if the text is up to 18 decimal digits.

    ``int`` also takes signs, blanks, underscores and digits of other scripts, and limits the digits.
    """
    plain = text.isascii() and text.isdigit()
    return int(text) if plain and len(text.lstrip("0")) <= 18 else None  # all of them fit 64 bits


def span_text(seconds: float) -> str:
    """A length of time in one unit or two: ``40 s``, ``3 min``, ``2 h 5 min``, ``3 d 4 h``."""
    rounded = round(max(0.0, seconds))
    if rounded < _MINUTE_S:
        return f"{rounded} s"
    if rounded < _HOUR_S:
        return f"{round(rounded / _MINUTE_S)} min"
    if rounded < _DAY_S:
        return _two(rounded, _HOUR_S, "h", _MINUTE_S, "min")
    return _two(rounded, _DAY_S, "d", _HOUR_S, "h")


def between_text(first_s: float, last_s: float, now_s: float) -> str:
    """A future time that is not known exactly: ``in 24 to 47 min``, ``in 50 min to 1 h 10 min``."""
    first, last = (span_text(max(0.0, at_s - now_s)) for at_s in (first_s, last_s))
    if first == last:
        return f"in {first}"
    number, _, unit = first.partition(" ")
    same = unit in _UNITS and last.partition(" ")[2] == unit
    return f"in {number if same else first} to {last}"


def when_text(at_s: float, now_s: float) -> str:
    """A time from now and by the clock: ``in 3 min (14:05)``, ``2 h ago (2026-03-01 23:50)``.

    :param at_s: UTC seconds since the epoch, or seconds since the start of a trace.
    :param now_s: the present on the same clock.
    """
    span = span_text(abs(at_s - now_s))
    relative = f"in {span}" if at_s > now_s else f"{span} ago"
    if abs(at_s - now_s) < 0.5:
        relative = "now"
    at = "at " if at_s < EPOCH_LIKE_S else ""
    return f"{relative} ({at}{clock_text(at_s, now_s)})"


def clock_text(at_s: float, now_s: float) -> str:
    """The local time, with the date on another day; of a trace, its seconds."""
    if at_s < EPOCH_LIKE_S:
        return f"{at_s:,.0f} s"
    try:
        at, today = time.localtime(at_s), time.localtime(now_s)
    except (OverflowError, ValueError, OSError):
        return "far ahead"
    form = "%H:%M" if at[:3] == today[:3] else "%Y-%m-%d %H:%M"
    return time.strftime(form, at)


def iso_time(at_s: float | None) -> str | None:
    """ISO 8601 with milliseconds. Returns None without a time, or for one beyond the calendar."""
    if at_s is None:
        return None
    try:
        moment = datetime.fromtimestamp(at_s, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _two(seconds: int, large_s: int, large: str, small_s: int, small: str) -> str:
    smalls = round(seconds / small_s)
    whole, rest = divmod(smalls, large_s // small_s)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def width_of(text: str) -> int:
    """Columns on a terminal; some characters take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def one_line(text: str) -> str:
    """Without line ends and characters that act on a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return harmless(" ".join(text.split()))


def harmless(text: str, *, keeps: str = "") -> str:
    """Escapes everything that would act on a terminal, line ends included.

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
    """Cut after the last word that fits into ``width`` columns; numbers are never cut."""
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
    """Lines of at most ``width`` columns, broken between words; further lines begin with ``indent``.

    Words that are longer than a line are broken too, but not within a number.
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
    """The least width of :func:`wrapped`: that of the longest number."""
    return max(map(width_of, _BREAKS.findall(text)), default=0)


def fitted(lines: Iterable[str], width: int | None) -> list[str]:
    """Breaks lines that are wider than ``width``; further lines are indented alike."""
    cut: list[str] = []
    for line in lines:
        if width is None or width_of(line) <= width:
            cut.append(line)
            continue
        begins = line[: len(line) - len(line.lstrip())]
        cut += [begins + each for each in wrapped(line, width - width_of(begins))]
    return cut


def flowing(text: str) -> str:
    """The text with each paragraph and each item of a list on one line; other indented lines stay."""
    joined: list[str] = []
    for line in text.splitlines():
        before = joined[-1] if joined else ""
        indented = line[:1].isspace() and not _LABEL.match(before)
        if not before or before[0].isspace() or not line or indented or _LABEL.match(line):
            joined.append(line)
        else:
            joined[-1] += f" {line.strip()}"
    return "\n".join(joined)


def _parts(word: str, width: int) -> Iterator[tuple[str, bool]]:
    """Parts of a word that each fit a line, and whether a part belongs to the one before."""
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column and what happens to it on a narrow terminal."""

    header: str
    rank: int = 0
    """Columns of the highest rank are left out first; those of rank 0 never are."""
    least: int | None = None
    """Cells may be cut between words down to this width; None: never."""
    right: bool = False


def text_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None, *, wraps: bool = False
) -> str:
    """A header and a line for each row.

    :param width: columns of the terminal, if there is one.
    :param wraps: what does not fit the last column goes on below it; else it is cut.
    """
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
    if not wraps or columns[kept[-1]].least is None or len(kept) == 1:
        return "".join(_line(columns, row, widths, kept) for row in lines)
    last, broken = kept[-1], list[list[str]]()
    for row in lines:
        first, *rest = wrapped(row[last], widths[last]) or [""]
        broken.append([*row[:last], first, *row[last + 1 :]])
        broken += [[*[""] * last, each, *[""] * (len(columns) - last - 1)] for each in rest]
    return "".join(_line(columns, row, widths, kept) for row in broken)


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
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
    """Widths with which all columns that are kept fit."""
    cut = list(widths)
    for at in reversed(kept):
        excess = sum(cut[at] + len(GAP) for at in kept) - len(GAP) - width
        if excess <= 0:
            break
        if columns[at].least is not None:
            cut[at] = max(_least(columns[at], cut[at]), cut[at] - excess)
        elif at == kept[0]:
            cut[at] -= excess
    return cut


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], kept: Sequence[int]) -> str:
    cells = []
    for at in kept:
        text, room = row[at], widths[at]
        if not text.isascii() or len(text) > room:
            text = cut_to_width(text, room)
            room -= width_of(text) - len(text)
        cells.append(text.rjust(room) if columns[at].right else text.ljust(room))
    return GAP.join(cells).rstrip() + "\n"
