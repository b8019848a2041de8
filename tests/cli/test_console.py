from __future__ import annotations

import io
import os
import sys

import pytest

from pliant.cli.console import UNKNOWN_WIDTH, note_sentence, width_for


class Terminal(io.StringIO):
    """A terminal that does not say how wide it is."""

    def isatty(self) -> bool:
        return True


def test_what_is_no_terminal_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert (width_for(io.StringIO()), width_for(None)) == (None, None)


def test_columns_come_before_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert width_for(Terminal()) == 50
    monkeypatch.delenv("COLUMNS")
    assert width_for(Terminal()) == UNKNOWN_WIDTH
    ours, theirs = os.openpty()
    with open(ours, "rb"), open(theirs, "w") as screen:
        assert width_for(screen) == UNKNOWN_WIDTH


def test_prose_is_broken_between_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "ares: 160 of 160 jobs finished, ends at 880640 s, 1234 decisions"
    monkeypatch.setenv("COLUMNS", "48")
    for stream, lines in (
        (io.StringIO(), [f"pliant: {text}"]),
        (
            Terminal(),
            ["pliant: ares: 160 of 160 jobs finished, ends at", "pliant:   880640 s, 1234 decisions"],
        ),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        note_sentence(text)
        assert stream.getvalue().splitlines() == lines
