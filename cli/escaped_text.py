"""Text of others, made fit for a terminal: it can neither hide anything nor command the terminal."""

from __future__ import annotations

import codecs
from typing import Final

_PLAIN: Final = "\n\t"
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS: Final = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""What turns the direction of writing, so that a line reads differently from what it says."""
_ESCAPES: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_CONTROLS, *_DIRECTIONS)
    if chr(code) not in _PLAIN
}


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
