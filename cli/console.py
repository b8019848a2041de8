"""Talking to people on stderr and to the next program on stdout. Quoted text cannot command the terminal."""

from __future__ import annotations

import codecs
import io
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.files import PIPE, abandon, stdout, write_stdout
from pliant.schemas.text import harmless, span_text, wrapped

if TYPE_CHECKING:
    from rich.console import Console


Advance = Callable[[int, int | None], None]
_PREFIX: Final = "pliant: "
LINES: Final = "\n\t"
_WITHOUT_CURSOR: Final = frozenset(("dumb", "unknown"))
"""Values of $TERM in editors and job runners, which only pass text on."""
UNKNOWN_WIDTH: Final = 80
"""Columns of a terminal that does not state its width."""
UNKNOWN_LINES: Final = 24
_BETWEEN_DRAWINGS_S: Final = 0.1
"""Seconds between two drawings of a progress bar."""
SLOWEST_SHOWN: Final = 0.1
"""Steps a second; below, only the time that is left says something."""
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS: Final = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""These turn the direction of writing, so that a line reads differently."""
_ESCAPES: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_CONTROLS, *_DIRECTIONS)
    if chr(code) not in LINES
}


_PLAIN_ERRORS: Final = "pliant.plain"
"""Name of the handler of characters that a terminal lacks."""
_PLAIN: Final = {
    "…": "...",
    "·": "*",
    "×": "x",
    "−": "-",
    "–": "-",
    "─": "-",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
}


@dataclass(slots=True)
class CommonOptions:
    """The common options; set once by ``cli.common``."""

    debug: bool = False
    quiet: bool = False


settings = CommonOptions()


def stderr() -> Console:
    """A rich console on stderr, silent with --quiet and after its reader left. Text is made harmless."""
    from rich.console import Console

    class Words(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(
                *(harmless(each, keeps=LINES) if isinstance(each, str) else each for each in objects),
                **options,
            )

        def on_broken_pipe(self) -> None:
            self.quiet = True
            abandon(sys.stderr)

    return Words(stderr=True, quiet=settings.quiet, highlight=False)


def write_plainly(*streams: TextIO | None) -> None:
    """Let streams in another encoding than UTF-8 take any text: no character that they lack is an error."""
    codecs.register_error(_PLAIN_ERRORS, _in_plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors=_PLAIN_ERRORS)


def _in_plain(error: UnicodeError) -> tuple[str, int]:
    """What looks alike, or a JSON escape, which keeps JSON what it is."""
    import json

    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(each, json.dumps(each)[1:-1]) for each in lacking), error.end


def note(text: str) -> None:
    """One line for the person at the terminal."""
    if not settings.quiet:
        print_line(text)


def note_sentence(text: str) -> None:
    """As :func:`note`, wrapped between words on a terminal."""
    from pliant.schemas.text import wrapped

    width = None if sys.stderr is None else width_for(sys.stderr)
    if width is None:
        note(text)
        return
    for line in wrapped(text, width - len(_PREFIX), indent="  "):
        note(line)


def print_line(line: str) -> None:
    """A line on stderr, also with --quiet. It never fails, and cannot act on the terminal."""
    try:
        print(f"{_PREFIX}{harmless(line, keeps=LINES)}", file=sys.stderr, flush=True)
    except OSError:
        abandon(sys.stderr)


def is_terminal(stream: TextIO | None) -> bool:
    """A closed stream (``<&-``, ``>&-``) is not a terminal."""
    return stream is not None and stream.isatty()


def is_screen(stream: TextIO | None) -> bool:
    """Whether text can be overwritten there: not on a dumb terminal."""
    return is_terminal(stream) and os.environ.get("TERM", "").lower() not in _WITHOUT_CURSOR


def width_for(stream: TextIO | None) -> int | None:
    """$COLUMNS, else the terminal's. Returns None without a terminal: then nothing is cut."""
    if stream is None or not is_terminal(stream):
        return None
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(stream.fileno()).columns or UNKNOWN_WIDTH
    except (OSError, ValueError):
        return UNKNOWN_WIDTH


def lines_for(stream: TextIO) -> int:
    """$LINES, else the lines of the terminal; 24 where it does not state them."""
    stated = os.environ.get("LINES", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(stream.fileno()).lines or UNKNOWN_LINES
    except (OSError, ValueError):
        return UNKNOWN_LINES


def page_width(stream: TextIO | None) -> int:
    """As :func:`width_for`; in a pipe $COLUMNS, or else 80."""
    stated = os.environ.get("COLUMNS", "")
    return width_for(stream) or (int(stated) if stated.isdecimal() and int(stated) else UNKNOWN_WIDTH)


def reader_left(stream: TextIO | None) -> bool:
    """Whether it is a pipe whose other end is closed."""
    if stream is None:
        return False
    poll = select.poll()
    with suppress(OSError, ValueError):
        poll.register(stream.fileno(), 0)
    return any(happened & select.POLLERR for _, happened in poll.poll(0))


def terminal_left(stream: TextIO | None) -> bool:
    """Whether it is a terminal that was closed: still a device, but no longer a terminal."""
    if stream is None:
        return False
    with suppress(OSError, ValueError):
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode) and not stream.isatty()
    return False


def named_or_piped(path: str | None, missing: str) -> str:
    """The input that was named, else stdin.

    :raises UsageError: neither; ``missing`` says how to give it.
    """
    if path is None and nothing_comes_in():
        raise UsageError(missing)
    return path or PIPE


def nothing_comes_in() -> bool:
    """Whether stdin is a terminal or closed."""
    return sys.stdin is None or is_terminal(sys.stdin)


def out_text(text: str, paint: Callable[[str], str] = str) -> None:
    """Write the product to stdout: harmless to a terminal, unchanged into a pipe.

    :param paint: colours it for a terminal that shows colours.
    """
    stream = stdout()
    if is_terminal(stream):
        text = harmless(text, keeps=LINES)
        text = paint(text) if is_screen(stream) and not os.environ.get("NO_COLOR") else text
    write_stdout(text.encode(stream.encoding, stream.errors or "strict"))


def entry(name: str, summary: str, longest: int, width: int | None) -> list[str]:
    """A policy in the list; its summary stands below its name on a narrow terminal."""
    beside = f"{name:{longest}}  {summary}"
    if width is None or len(beside) <= width:
        return [beside]
    indent = " " * (longest + 2)
    if len(indent) > width // 2:
        return [name, *(f"  {line}" for line in wrapped(summary, width - 2))]
    first, *rest = wrapped(summary, width - len(indent))
    return [f"{name:{longest}}  {first}", *(indent + line for line in rest)]


@contextmanager
def progress(label: str, unit: str) -> Iterator[Advance]:
    """Progress: a bar on a screen, a line every 10 s elsewhere, nothing with --quiet.

    Yields ``advance(done, total)``; total None while it is unknown.
    """
    if settings.quiet:
        yield lambda _done, _total: None
    elif is_screen(sys.stderr):
        with _bar(label, unit) as advance:
            yield advance
    else:
        yield _lines(label, unit)


@contextmanager
def _bar(label: str, unit: str) -> Iterator[Advance]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    drawn = time.monotonic()

    def advance(done: int, total: int | None) -> None:
        nonlocal drawn
        now = time.monotonic()
        is_due = now - drawn >= _BETWEEN_DRAWINGS_S
        bar.update(task, completed=done, total=total, refresh=is_due)
        drawn = now if is_due else drawn

    # a thread that draws would keep worker processes from being copies of this one
    with Progress(*columns, console=stderr(), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=None)
        yield advance


def _lines(label: str, unit: str, every_s: float = 10.0) -> Advance:
    started = last = time.monotonic()

    def advance(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < every_s:
            return
        last = now
        rate = done / (now - started)
        of = "" if total is None else f" of {total}"
        speed = f", {rate:.1f}/s" if rate >= SLOWEST_SHOWN else ""
        left = "" if total is None or not rate else f", {span_text((total - done) / rate)} left"
        note(f"{label}: {done}{of} {unit}{speed}{left}")

    return advance


class Escaping:
    """Bytes for a terminal: escapes control characters but line ends and tabs, and what is not UTF-8.

    :param encoding: the terminal's; characters that it lacks are escaped too.
    """

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def of(self, piece: bytes) -> bytes:
        """A character that is cut at the end of a piece comes with the next one."""
        text = self._decoder.decode(piece).replace("\r\n", "\n").translate(_ESCAPES)
        return text.encode(self._encoding, "backslashreplace")
