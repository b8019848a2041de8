"""One big JSON list of objects as a stream: only the object at hand and a block of text are in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import source_name
from pliant.schemas.file_io.limits import check_text
from pliant.schemas.text.digits import TOO_MANY
from pliant.tools.replay.importers.input_row import InputRow
from pliant.tools.replay.importers.text_input import open_text

BLOCK: Final = 1 << 18
"""Characters read at a time."""
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_decode: Final = json.JSONDecoder().raw_decode


def json_rows(path: str | Path, *, block: int = BLOCK) -> Iterator[InputRow]:
    """The objects of the list with the lines on which they begin.

    :raises BadInputError: the file is not one JSON list of objects, with the line where that shows.
    """
    with open_text(path) as stream:
        yield from _Reader(stream, source_name(path), block).objects()


class _Reader:
    """A window on the text; ``at`` is the place in it, ``line`` the line of that place."""

    def __init__(self, stream: TextIO, source: str, block: int) -> None:
        self.stream, self.source, self.block = stream, source, block
        self.text, self.at, self.line = "", 0, 1

    def objects(self) -> Iterator[InputRow]:
        self.expect("[", "a JSON list")
        first = self.next()
        while first != "]":
            if first != "{":
                raise self.problem("is not an object, expected the objects of one JSON list")
            line = self.line
            yield InputRow(self.source, line, self.object())
            if self.next() == ",":
                self.skip(1)
                first = self.next()
            else:
                first = self.expect("]", "',' or ']' after an object", stay=True)
        self.skip(1)
        if self.next():
            raise self.problem("there is text behind the list")

    def object(self) -> dict[str, Any]:
        while True:
            try:
                value, end = _decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                # The end of the text at hand may be in the middle of the object.
                check_text(len(self.text) - self.at, self.source, line=self.line)
                if not self.more():
                    reason = "too deep" if isinstance(error, RecursionError) else _reason(error)
                    raise self.problem(f"is not readable JSON: {reason}") from None
            else:
                self.skip(end - self.at)
                found: dict[str, Any] = value
                return found

    def expect(self, character: str, what: str, *, stay: bool = False) -> str:
        found = self.next()
        if found != character:
            raise self.problem(f"found {found or 'the end of the file'!r}, expected {what}")
        if not stay:
            self.skip(1)
        return found

    def next(self) -> str:
        """The next character that is not a blank; empty at the end."""
        while True:
            blanks = _BLANKS.match(self.text, self.at)
            self.skip((blanks.end() if blanks else self.at) - self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def skip(self, characters: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + characters)
        self.at += characters

    def more(self) -> bool:
        """Read on: as much again as is waiting, so that a long object is not parsed once per block."""
        waiting = self.text[self.at :]
        fresh = self.stream.read(max(self.block, len(waiting)))
        self.text, self.at = waiting + fresh, 0
        return bool(fresh)

    def problem(self, message: str) -> BadInputError:
        return BadInputError.one(self.source, message, line=self.line)


def _reason(error: ValueError) -> str:
    return error.msg.lower() if isinstance(error, json.JSONDecodeError) else TOO_MANY
