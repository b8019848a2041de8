from __future__ import annotations

from pathlib import Path

from pliant.tools.profile.last_words import LONGEST, last_words, printable


def test_a_line_is_cut_and_has_nothing_that_acts_on_a_terminal() -> None:
    assert printable("no \x1b[31mroom\x07") == "no \\x1b[31mroom\\x07"
    assert len(printable("x" * 1000)) == LONGEST


def test_only_the_end_of_a_long_file_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_text("ValueError: of long ago\n" + "warning\n" * 100_000 + "the last line\n\n")
    assert last_words([path]) == "the last line"


def test_files_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    assert last_words([tmp_path / "0" / "stderr.log"], tmp_path / "other") == ""
