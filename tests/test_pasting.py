"""Pages' output is held against what commands print, with … for what differs from run to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pasting import Block, blocks, check, fits, paste


def test_commands_and_the_output_below_them_are_found() -> None:
    text = "```sh\necho a\n```\n\nWords.\n\n```text\nno\n```\n\n```sh\necho b\n```\n\n```text\nb\n```\n"
    assert blocks(text) == [Block("echo a\n"), Block("echo b\n", "b\n")]


@pytest.mark.parametrize(
    ("shown", "printed", "fit"),
    [
        ("a\nb\n", "a  \nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a …\n", "a 12.5 s\n", True),
        ("a …\n", "b 12.5 s\n", False),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("a\n…\nz\n", "a\nz\n", True),
        ("a … (c)\n", "a b\n(c)\n", False),
    ],
)
def test_what_is_printed_fits_what_is_shown(shown: str, printed: str, fit: bool) -> None:
    assert fits(shown, printed) is fit


def test_a_page_that_shows_other_output_or_whose_command_fails_is_found(tmp_path: Path) -> None:
    for number, wrong in enumerate([Block("echo a\n", "b\n"), Block("false | cat\n")]):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(AssertionError):
            check([wrong], tmp_path / str(number))


def test_what_the_commands_leave_behind_is_ended_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.pasting.DYING_S", 0.1)
    with pytest.raises(AssertionError, match="left behind"):
        paste([Block("setsid sleep 600 &\n")], tmp_path)
