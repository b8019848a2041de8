"""Checksums in the lines of a log: readers notice changed bytes, and lines that are lost, moved or repeated.

A sealed line ends in ``"crc":"PPPPPPPPOOOOOOOO"``: the CRC-32 of the line before it (00000000 after a header)
and its own, which covers all bytes up to there. Lines without the field are read as they are.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

FIRST: Final = b"00000000"
"""What the first sealed line after a header continues."""
CRC_DOC: Final = (
    "in logs, as the last field: CRC-32 of the line before (00000000 after a header), "
    "then of this line up to here"
)
DAMAGED: Final = "the line is damaged: its checksum is wrong"
OUT_OF_ORDER: Final = "does not follow the line before it: lines are missing, moved or there twice"
_FIELD: Final = b',"crc":"'
_END: Final = b'"}'
_DIGITS: Final = len(FIRST)
_OWN: Final = _DIGITS + len(_END)
_LENGTH: Final = len(_FIELD) + _DIGITS + _OWN
_WHOLE: Final = re.compile(_FIELD + rb'[0-9a-f]{16}"\}')


def seal(line: bytes, link: bytes) -> tuple[bytes, bytes]:
    """A sealed line, and what the next one continues.

    :param line: one JSON object with at least one field, without a line end.
    :param link: what the line before it gave.
    """
    head = line[:-1] + _FIELD + link
    own = b"%08x" % crc32(head)
    return head + own + _END, own


def link_of(line: bytes) -> bytes | None:
    """What the line after a sealed one continues; None: this one is not sealed."""
    return line[-_OWN : -len(_END)] if _is_sealed(line) else None


def followed_by(line: bytes) -> bytes:
    """What a sealed line continues."""
    return line[-_OWN - _DIGITS : -_OWN]


def holds_seal(line: bytes) -> bool:
    """Whether bytes hold a whole seal, so that no crash while writing has cut them short."""
    return _WHOLE.search(line) is not None


class Seals:
    """Opens the sealed lines of one file, in their order."""

    def __init__(self, link: bytes | None = FIRST) -> None:
        self.link = link
        """What the next line continues; None: unknown, as after a damaged line."""

    def restart(self) -> None:
        """A header line: what follows it continues nothing."""
        self.link = FIRST

    def open(self, line: bytes) -> tuple[bytes, str | None]:
        """The line without its seal, and what is wrong with it; a line without a seal stays as it is."""
        if not _is_sealed(line):
            self.link = None
            return line, None
        own, before = line[-_OWN : -len(_END)], followed_by(line)
        expected, self.link = self.link, own
        if b"%08x" % crc32(line[:-_OWN]) != own:
            self.link = None
            return line, DAMAGED
        follows = expected is None or expected == before
        return line[:-_LENGTH] + b"}", None if follows else OUT_OF_ORDER


def _is_sealed(line: bytes) -> bool:
    return line.endswith(_END) and line[-_LENGTH : -_LENGTH + len(_FIELD)] == _FIELD
