"""Talking to people on stderr and to the next program on stdout. Data and words never mix.

Text of others can neither hide anything nor command the terminal.
"""

from __future__ import annotations

import codecs
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
from pliant.schemas.text import harmless

if TYPE_CHECKING:
    from rich.console import Console


Advance = Callable[[int, int | None], None]
_PREFIX: Final = "pliant: "
LINES: Final = "\n\t"
"""What text of several lines may do to a terminal."""
_WITHOUT_CURSOR: Final = frozenset(("dumb", "unknown"))
"""Values of $TERM: editors and job runners that only pass text on."""
UNKNOWN_WIDTH: Final = 80
"""Columns of a terminal that does not say how wide it is."""
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS: Final = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""What turns the direction of writing, so that a line reads differently from what it says."""
_ESCAPES: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_CONTROLS, *_DIRECTIONS)
    if chr(code) not in LINES
}


@dataclass(slots=True)
class Settings:
    """What the common options say; set once by ``cli.common``."""

    debug: bool = False
    quiet: bool = False


settings = Settings()


def stderr() -> Console:
    """A rich console on stderr; says nothing with --quiet, nor when its reader is gone.

    Text that it prints cannot act on the terminal.
    """
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


def note(text: str) -> None:
    """One line for the person at the terminal."""
    if not settings.quiet:
        say(text)


def note_sentence(text: str) -> None:
    """As :func:`note`, of prose: a terminal that is narrower gets further lines, broken between words."""
    from pliant.schemas.text import wrapped

    width = None if sys.stderr is None else width_for(sys.stderr)
    if width is None:
        note(text)
        return
    for line in wrapped(text, width - len(_PREFIX), indent="  "):
        note(line)


def say(line: str) -> None:
    """A line on stderr, also with --quiet. It never fails, even if the reader is gone or the disk full.

    What it quotes, such as names of files and keys, cannot act on the terminal.
    """
    try:
        print(f"{_PREFIX}{harmless(line, keeps=LINES)}", file=sys.stderr, flush=True)
    except OSError:
        abandon(sys.stderr)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end. A closed stream (``<&-``, ``>&-``) is not a terminal."""
    return stream is not None and stream.isatty()


def is_screen(stream: TextIO | None) -> bool:
    """Whether text there can be overwritten: a terminal whose cursor moves, so not a dumb one."""
    return is_terminal(stream) and os.environ.get("TERM", "").lower() not in _WITHOUT_CURSOR


def width_for(stream: TextIO | None) -> int | None:
    """Columns of the terminal, $COLUMNS first. Returns None without a terminal: then nothing is cut."""
    if stream is None or not is_terminal(stream):
        return None
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(stream.fileno()).columns or UNKNOWN_WIDTH
    except (OSError, ValueError):
        return UNKNOWN_WIDTH


def reader_left(stream: TextIO | None) -> bool:
    """Whether it is a pipe whose other end is closed: further output has no reader."""
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

    :raises UsageError: none was named or piped in; ``missing`` says what and how to give it.
    """
    if path is None and nothing_comes_in():
        raise UsageError(missing)
    return path or PIPE


def nothing_comes_in() -> bool:
    """Whether stdin is a terminal or closed, so that no input was piped in."""
    return sys.stdin is None or is_terminal(sys.stdin)


def out_text(text: str) -> None:
    """Write the product to stdout as text; nothing in it acts on a terminal, and a pipe gets it as it is."""
    stream = stdout()
    text = harmless(text, keeps=LINES) if is_terminal(stream) else text
    write_stdout(text.encode(stream.encoding, stream.errors or "strict"))


@contextmanager
def progress(label: str, unit: str) -> Iterator[Advance]:
    """Progress of long work: a bar on a screen, a line every 10 s elsewhere, nothing with --quiet.

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
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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
        left = "" if total is None or not rate else f", {(total - done) / rate:.0f} s left"
        note(f"{label}: {done}{of} {unit}, {rate:.1f}/s{left}")

    return advance


class Shown:
    """Text for a terminal from bytes that come in pieces; control characters and bytes that are not UTF-8 are
    escaped, but for line ends and tabs.

    :param encoding: the terminal's; what it does not have is escaped, too.
    """

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def of(self, piece: bytes) -> bytes:
        """A piece, fit to be shown; a character that is cut off at its end comes with the next one."""
        text = self._decoder.decode(piece).replace("\r\n", "\n").translate(_ESCAPES)
        return text.encode(self._encoding, "backslashreplace")
