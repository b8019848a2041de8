from __future__ import annotations

import pytest

from benchmarks.parts.figure import Figure


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (Figure("a", 1.0, "s"), None),
        (Figure("a", 1.0, "s", 1.0), True),
        (Figure("a", 1.1, "s", 1.0), False),
        (Figure("a", 12.0, "ratio", 10.0, at_least=True), True),
        (Figure("a", 9.0, "ratio", 10.0, at_least=True), False),
        (Figure("a", None, "s", 1.0), False),
    ],
)
def test_a_figure_says_whether_it_keeps_to_its_limit(figure: Figure, holds: bool | None) -> None:
    row = figure.row("make bench NAME=x")
    assert list(row) == ["name", "value", "unit", "limit", "holds", "command"]
    assert row["holds"] is holds
