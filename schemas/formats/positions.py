"""Find the line of a value in JSON text, for error messages."""

from __future__ import annotations

import json
import re
from typing import Final

_SPACE: Final = re.compile(r"[\s,:]*")
_DECODER: Final = json.JSONDecoder()


def line_of(text: str, path: tuple[str | int, ...]) -> int:
    """The line (from 1) of the value that ``path`` leads to; of its nearest container where it is missing."""
    at = _skip(text, 0)
    for part in path:
        inside = _object_member(text, at, part) if text[at] == "{" else _list_item(text, at, part)
        if inside is None:
            break
        at = inside
    return text.count("\n", 0, at) + 1


def _object_member(text: str, at: int, name: str | int) -> int | None:
    at, found = _skip(text, at + 1), None
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if key == name:
            found = at
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
    return found


def _list_item(text: str, at: int, index: str | int) -> int | None:
    if text[at] != "[" or not isinstance(index, int):
        return None
    at = _skip(text, at + 1)
    for _ in range(index):
        if text[at] == "]":
            return None
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
    return None if text[at] == "]" else at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
