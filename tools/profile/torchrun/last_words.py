"""Why a script failed, from the end of what its workers wrote on stderr."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ERROR_LINE: Final = re.compile(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception|Interrupt)\b")
"""Last line of a Python traceback; torch puts the rank before it."""
_WARNING: Final = re.compile(r"\S.*:\d+: \w*Warning: |\[?W\d{3,4} |\[W\] ")
"""First line of a warning of Python's, or of the libraries below torch."""
_SIGNAL: Final = re.compile(r"Signal \d+ \((?P<name>SIG\w+)\) received by PID")
"""Where torchrun says that a worker was killed."""
_SYNTAX_ERROR: Final = re.compile(r"(SyntaxError|IndentationError|TabError)\b")
_PLACE: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
"""Where a traceback says that it was."""
LONGEST: Final = 200
"""Characters of a line that are kept."""
_END_BYTES: Final = 65536
"""So much of the end of a file is looked at."""


def last_words(workers: Iterable[Path], *others: Path) -> str:
    """The error of the worker that failed first, else what killed one, else the last line that is no warning.

    It is one line that a terminal shows as it is; empty: there is nothing in any of the files.

    :param workers: stderr of each worker, in files whose folder is named after the worker's number.
    :param others: what else may have something to say, asked where no worker was started: what a launcher
        says of a worker that failed is only that it did.
    """
    started = [*workers]
    told = [_without_warnings(lines) for lines in _files(started, others)]
    lines = next(filter(None, told), [])
    if not any(map(ERROR_LINE.match, lines)) and started:
        killed = (_SIGNAL.search(line) for path in others for line in _end_of(path).splitlines())
        if (found := next(filter(None, killed), None)) is not None:
            return f"killed by {found['name']}"
    if told and not lines:
        return "only warnings on stderr"
    return printable(_most_telling(lines)) if lines else ""


def _without_warnings(lines: Iterable[str]) -> list[str]:
    """Lines without warnings, and without the lines of code that Python shows below them."""
    found, below = list[str](), False
    for line in lines:
        is_code = below and line[:1].isspace()
        below = _WARNING.match(line) is not None
        if not (below or is_code):
            found.append(line.strip())
    return found


def _most_telling(lines: list[str]) -> str:
    place = max((i for i, line in enumerate(lines) if ERROR_LINE.match(line)), default=len(lines) - 1)
    line = lines[place]
    if _SYNTAX_ERROR.match(line):  # its message alone does not say where
        where = [found for before in lines[:place] if (found := _PLACE.match(before))]
        return f"{line} ({Path(where[-1]['file']).name}, line {where[-1]['line']})" if where else line
    return line


def last_lines(workers: Iterable[Path], *others: Path, most: int) -> list[str]:
    """The last lines of the file that :func:`last_words` speaks from, each fit for a terminal."""
    lines = next(_files(workers, others), [])
    return [printable(line.rstrip()) for line in lines[-most:]]


def printable(line: str) -> str:
    """A line without what would act on a terminal, cut to :data:`LONGEST` characters."""
    text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _files(workers: Iterable[Path], others: Iterable[Path]) -> Iterator[list[str]]:
    """The last lines of each file that has any."""
    for path in sorted(workers, key=_failed_first) or others:
        if lines := [line for line in _end_of(path).splitlines() if line.strip()]:
            yield lines


def _failed_first(log: Path) -> tuple[bool, int, str]:
    try:
        changed_ns = log.stat().st_mtime_ns
    except OSError:
        changed_ns = 0
    return "Traceback" not in _end_of(log), changed_ns, log.parent.name.rjust(9)


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _END_BYTES))
            return file.read().decode(errors="replace").strip("\0")
    except OSError:
        return ""
