"""The figure is the longer of two times; where no hosts can be made there is none."""

from __future__ import annotations

import pytest

from benchmarks import dead_node
from benchmarks.parts.figure import NotMeasurableError
from benchmarks.parts.hosts import NoHostsError


def test_without_hosts_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> float:
        raise NoHostsError("needs root")

    monkeypatch.setattr(dead_node, "noticed_s", refuse)
    with pytest.raises(NotMeasurableError, match="needs root"):
        dead_node.figures()


def test_the_figure_is_the_longer_of_the_two_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_node, "dead_s", lambda: 10.0)
    monkeypatch.setattr(dead_node, "cut_off_s", lambda: 12.5)
    (found,) = dead_node.figures()
    assert (found.value, found.holds) == (12.5, True)
