from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.parts import figure
from benchmarks.parts.figure import Figure


@pytest.mark.parametrize(
    ("one", "holds"),
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
def test_a_figure_says_whether_it_keeps_to_its_limit(one: Figure, holds: bool | None) -> None:
    row = one.row("make bench NAME=x")
    columns = [column for column in row if column != "low"]
    assert columns == ["name", "value", "unit", "limit", "holds", "command"]
    assert row["holds"] is holds


def test_a_figure_of_another_machine_than_most_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, third = ({"cores": 2, "cpu": name} for name in ("one", "other", "third"))
    monkeypatch.setattr(figure, "RESULTS", tmp_path)

    def renew(names: str, machine: dict[str, object]) -> tuple[dict[str, str | None], str]:
        monkeypatch.setattr(figure, "machine", lambda: machine)
        rows = json.loads(figure.renew("x", [Figure(name, 1.0, "s") for name in names]).read_text())
        recorded = json.loads((tmp_path / "x.machine.json").read_text())
        return {row["name"]: row.get("machine") for row in rows}, recorded["cpu"]

    assert renew("abc", one) == ({"a": None, "b": None, "c": None}, "one")
    assert renew("a", third) == ({"a": "2 cores of third", "b": None, "c": None}, "one")
    assert renew("b", other) == ({"a": "2 cores of third", "b": "2 cores of other", "c": None}, "one")
    assert renew("abc", one) == ({"a": None, "b": None, "c": None}, "one")
    assert renew("a", other) == ({"a": "2 cores of other", "b": None, "c": None}, "one")
    assert renew("b", other) == ({"a": None, "b": None, "c": "2 cores of one"}, "other")
    assert renew("abc", one) == ({"a": None, "b": None, "c": None}, "one")
    (tmp_path / "x.machine.json").unlink()
    assert renew("a", one) == ({"a": None, "b": "unknown", "c": "unknown"}, "one")
