"""What a job prints is read in pieces, each byte once; what is gone from the disk is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.tools.run.backends import keep
from pliant.tools.run.watch import output as worker_output
from pliant.tools.run.watch.output import OutputFile

MOST = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


def test_a_large_file_comes_in_pieces(path: Path) -> None:
    whole = os.urandom(3 * worker_output.PIECE + 5)
    path.write_bytes(whole)
    pieces = list(OutputFile(path).rest())
    assert [len(piece) for piece in pieces if isinstance(piece, bytes)] == [worker_output.PIECE] * 3 + [5]
    assert pieces == [
        whole[: worker_output.PIECE],
        whole[worker_output.PIECE : 2 * worker_output.PIECE],
        whole[2 * worker_output.PIECE : 3 * worker_output.PIECE],
        whole[-5:],
    ]


def test_each_byte_is_given_out_once_and_a_file_that_is_not_there_has_none(path: Path) -> None:
    output = OutputFile(path)
    assert list(output.rest()) == []
    with path.open("ab", buffering=0) as file:
        file.write(b"one\n")
        assert list(output.rest()) == [b"one\n"]
        assert list(output.rest()) == []
        file.write(b"two\n")
        assert list(output.rest()) == [b"two\n"]


def test_what_was_taken_away_before_it_was_read_is_counted(path: Path) -> None:
    output, whole = OutputFile(path), bytes(range(1, 251)) * (4 * MOST // 250)
    path.write_bytes(whole[:1000])
    assert list(output.rest()) == [whole[:1000]]
    path.write_bytes(whole)
    keep.trim(str(path), MOST)
    gone, *rest = output.rest()
    assert isinstance(gone, int)
    assert b"".join(piece for piece in rest if isinstance(piece, bytes)) == whole[1000 + gone :]
    assert MOST // 2 <= len(whole) - 1000 - gone <= MOST
    assert list(output.rest()) == []


def test_what_is_taken_away_while_it_is_read_is_no_row_of_zeros(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = b"x" * (4 * MOST)
    path.write_bytes(whole)
    read = os.pread

    def just_before(descriptor: int, count: int, place: int) -> bytes:
        keep.trim(str(path), MOST)
        return read(descriptor, count, place)

    monkeypatch.setattr(os, "pread", just_before)
    gone, *rest = OutputFile(path).rest()
    assert isinstance(gone, int)
    assert b"".join(piece for piece in rest if isinstance(piece, bytes)) == whole[gone:]


@pytest.mark.parametrize(
    ("text", "lines", "shown"),
    [
        ("one\ntwo\nthree\n", 2, "two\nthree\n"),
        ("one\ntwo\nthree", 2, "two\nthree"),
        ("one\n\n\n", 2, "\n\n"),
        ("one\n", 5, "one\n"),
        ("one\n", 0, ""),
        ("", 3, ""),
    ],
)
def test_the_last_lines_are_found_from_the_end_whatever_the_size_of_a_piece(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str, lines: int, shown: str
) -> None:
    path.write_text(text)
    for piece in (1, 2, 3, 1 << 20):
        monkeypatch.setattr(worker_output, "PIECE", piece)
        output = OutputFile(path)
        output.skip_all_but(lines)
        assert b"".join(part for part in output.rest() if isinstance(part, bytes)) == shown.encode()


def test_the_last_lines_of_a_large_file_need_no_look_at_the_rest(path: Path) -> None:
    """A file of a terabyte without one, but for its last lines."""
    with path.open("wb") as file:
        file.seek(1 << 40)
        file.write(b"x\nlast\n")
    output = OutputFile(path)
    output.skip_all_but(1)
    assert list(output.rest()) == [b"last\n"]
