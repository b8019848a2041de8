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
        (Figure("a", 0.8, "", 1.1, low=0.9), False),
        (Figure("a", 0.9, "", 1.1, low=0.9), True),
        (Figure("a", 1.2, "", 1.1, low=0.9), False),
    ],
)
def test_a_figure_says_whether_it_keeps_to_its_limit(figure: Figure, holds: bool | None) -> None:
    row = figure.row("make bench NAME=x")
    columns = [column for column in row if column != "low"]
    assert columns == ["name", "value", "unit", "limit", "holds", "command"]
    assert row["holds"] is holds
