"""Expressions over the labels of nodes, as Kubernetes and Slurm have them.

``nvlink`` holds where a node has the label, whatever its value, and ``!nvlink`` where it has not;
``rack=a``, ``rack!=a``, ``rack in (a,b)`` and ``rack notin (a,b)`` compare the value. ``!=`` and ``notin``
hold of a node without the label, too, as in Kubernetes. Conditions are joined by ``,`` or ``&``, which both
mean "and", or by ``|``; parentheses and ``!`` group them. A word with other characters stands in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

Condition = Callable[[Mapping[str, str]], bool]
"""Whether it holds of a node's labels."""
_TOKEN: Final = re.compile(r"""\s*(==|!=|[=!&|,()]|"[^"]*"|'[^']*'|[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*|\S)""")
_WORD: Final = re.compile(r"[\"'A-Za-z0-9_]")
_END: Final = ""
_FORMS: Final = "expected NAME, !NAME, NAME=VALUE, NAME!=VALUE, NAME in (A,B) or NAME notin (A,B)"
_MOST_DEEP: Final = 50


@cache
def condition(text: str) -> Condition:
    """:raises ValueError: it is no expression; the message says why."""
    reader = _Reader(text)
    condition_read = reader.joined()
    if reader.next != _END:
        raise reader.refusal()
    return condition_read


class _Reader:
    """Reads an expression from left to right; ``next`` is the token to come."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._depth = 0
        self.next = _END
        self._step()

    def refusal(self) -> ValueError:
        where = "ends too early" if self.next == _END else f'"{self.next}" is not understood there'
        return ValueError(f'"{self._text}": {where}, {_FORMS}, joined by "," or "&", or by "|"')

    def joined(self) -> Condition:
        """Conditions with "and" between all of them, or "or"."""
        parts, sign = [self._one()], ""
        while self.next in (",", "&", "|"):
            joint = "|" if self.next == "|" else "&"
            if sign not in ("", joint):
                raise ValueError(f'"{self._text}" mixes "and" with "|": put parentheses around one of them')
            sign = joint
            self._step()
            parts.append(self._one())
        if len(parts) == 1:
            return parts[0]
        every = any if sign == "|" else all
        return lambda labels: every(part(labels) for part in parts)

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _MOST_DEEP:
            raise ValueError(f'"{self._text}": more than {_MOST_DEEP} levels of parentheses')
        try:
            if self.next == "!":
                self._step()
                inner = self._one()
                return lambda labels: not inner(labels)
            if self.next == "(":
                self._step()
                inner = self.joined()
                self._expect(")")
                return inner
            return self._compared(self._word())
        finally:
            self._depth -= 1

    def _compared(self, name: str) -> Condition:
        match self.next:
            case "=" | "==" | "!=" as sign:
                self._step()
                values = {self._word() if _WORD.match(self.next) else ""}
                is_in = sign != "!="
            case "in" | "notin" as sign:
                self._step()
                values, is_in = self._values(), sign == "in"
            case _:
                return lambda labels: name in labels
        return lambda labels: (name in labels and labels[name] in values) is is_in

    def _values(self) -> set[str]:
        self._expect("(")
        values = {self._word()}
        while self.next == ",":
            self._step()
            values.add(self._word())
        self._expect(")")
        return values

    def _word(self) -> str:
        word = self.next
        if not _WORD.match(word) or word in ("'", '"'):
            raise self.refusal()
        self._step()
        return word[1:-1] if word[0] in "\"'" else word

    def _expect(self, token: str) -> None:
        if self.next != token:
            raise self.refusal()
        self._step()

    def _step(self) -> None:
        token = _TOKEN.match(self._text, self._end)
        self.next, self._end = (_END, self._end) if token is None else (token[1], token.end())


_RANGES: Final = re.compile(r"\[(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]")
_BETWEEN: Final = re.compile(r",(?![^\[]*\])")
_MOST_NAMES: Final = 100_000


def names_in(text: str) -> list[str]:
    """The nodes of a list as Slurm writes it: ``login,node[01-16,20]``.

    :raises ValueError: a range is not one, or there are too many names.
    """
    names = [part.strip() for part in _BETWEEN.split(text)]
    while any("[" in name for name in names):
        names = [each for name in names for each in _of_first_range(name)]
        if len(names) > _MOST_NAMES:
            raise ValueError(f"more than {_MOST_NAMES:,} nodes")
    if "" in names:
        raise ValueError("expected names of nodes, as node1,node[3-5]")
    return names


def _of_first_range(name: str) -> list[str]:
    if "[" not in name:
        return [name]
    if (span := _RANGES.search(name)) is None:
        raise ValueError(f'"{name}": expected numbers and ranges in brackets, as node[1-3,7]')
    before, after = name[: span.start()], name[span.end() :]
    spans = [part.partition("-") for part in span[1].split(",")]
    if any(int(high or low) < int(low) for low, _, high in spans):
        raise ValueError(f'"{name}": expected ranges that rise, as node[1-3,7]')
    return [
        f"{before}{number:0{len(low)}}{after}"
        for low, _, high in spans
        for number in range(int(low), min(int(high or low), int(low) + _MOST_NAMES) + 1)
    ]
