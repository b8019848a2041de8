import io
import json
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.cli.console import UNKNOWN_WIDTH, entry, note_sentence, width_for, write_plainly
from pliant.cli.reference import page, policies
from pliant.schemas.text import fitted, flowing, width_of
from pliant.tools.schedule.registry import describe, policy_names
from tests.effort import examples


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_widths_of_terminals_and_of_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert (width_for(io.StringIO()), width_for(None)) == (None, None)
    # Columns come before the width of the terminal.
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


@settings(max_examples=examples(50))
@given(text=st.text(), encoding=st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8"]))
def test_any_text_can_be_written_in_any_encoding(text: str, encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="surrogatepass")
    if encoding != "utf-8":
        write_plainly(stream)
    stream.write(json.dumps({"why": text}, ensure_ascii=False) + "\n")
    stream.flush()
    written = stream.buffer.getvalue().decode(encoding, "surrogatepass")  # type: ignore[attr-defined]
    plain = {"…": "...", "·": "*", "×": "x", "−": "-", "–": "-", "─": "-", "≤": "<=", "≥": ">=", "→": "->"}
    kept = text
    for sign, alike in plain.items():
        if encoding == "ascii" or not sign.encode(encoding, "ignore"):
            kept = kept.replace(sign, alike)
    assert json.loads(written)["why"] == kept


NAMES = policy_names()


@settings(max_examples=examples(25))
@given(st.integers(40, 200))
def test_no_line_of_policies_is_wider_than_the_terminal(width: int) -> None:
    longest = max(map(len, NAMES))
    for name in NAMES:
        listed = entry(name, describe(name).summary, longest, width)
        reported = fitted(page(describe(name)), width)
        assert max(map(width_of, [*listed, *reported])) <= width
        assert "".join("".join(listed).split()) == "".join(f"{name}{describe(name).summary}".split())
        assert "".join("".join(reported).split()) == "".join("".join(page(describe(name))).split())


def test_policies_fill_a_terminal_and_are_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    text = "First\nline.\n\nmost, least: what\nit means.\n- an item\n  and more\n\n    code\n    stays"
    shown = "First line.\n\nmost, least: what it means.\n- an item and more\n\n    code\n    stays"
    assert flowing(text) == shown
    policies()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
