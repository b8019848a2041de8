"""Generated live states, and what is found broken in their tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.parts import status_width
from pliant.tools.run.watch.screen import status_text

Change = Callable[[str], str]


def test_no_table_of_a_few_states_is_broken() -> None:
    assert [row.value for row in status_width.figures(8)] == [0.0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("\n", " " * 80 + "x\n", 1), id="too wide"),
        pytest.param(lambda text: "".join(text.splitlines(keepends=True)[:-1]), id="a job lacks its line"),
        pytest.param(lambda text: text.replace("  ", " x", 1), id="a cell beside its header"),
    ],
)
def test_what_is_broken_is_found(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_width, "status_text", lambda *args, **more: change(status_text(*args, **more)))
    assert status_width.figures(2)[0].value
