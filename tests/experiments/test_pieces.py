"""Studies in pieces: what was measured before an interruption is not measured again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from experiments.harness.pieces import in_pieces


def appended(path: Path, value: int) -> dict[str, int]:
    """Leaves a mark for each time that it is measured."""
    with path.open("a") as marks:
        marks.write(f"{value}\n")
    return {"value": value}


def quiet(_text: str) -> None:
    """Says nothing."""


def test_a_study_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    marks, folder = tmp_path / "marks", tmp_path / "pieces"
    measured = {f"piece-{value}": partial(appended, marks, value) for value in range(3)}

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_pieces({**measured, "piece-1": interrupted}, folder, 1, quiet)
    found = in_pieces(measured, folder, 1, quiet)
    assert found == {f"piece-{value}": {"value": value} for value in range(3)}
    assert marks.read_text().split() == ["0", "1", "2"]


def test_several_workers_find_what_one_does(tmp_path: Path) -> None:
    tasks = {f"piece-{value}": partial(appended, tmp_path / "marks", value) for value in range(3)}
    found = [in_pieces(tasks, tmp_path / str(workers), workers, quiet) for workers in (1, 2)]
    assert found[0] == found[1]
