"""The fidelity benchmark: the figures it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay_fidelity import figures


def test_without_the_data_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PLIANT_DATA", str(tmp_path))
    found = figures()
    assert [figure.name for figure in found[:3]] == [
        "pollux_w6_tiresias_s",
        "pollux_w6_optimus_s",
        "pollux_w6_pollux_s",
    ]
    assert all(figure.value is None for figure in found)
