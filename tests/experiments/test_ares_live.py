"""Figure 6 of Ares: a live run beside its replay, and how the page shows what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.ares import live
from experiments.ares.live import LIMIT, WORDS, compare, live_table
from pliant.schemas.event import Event
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord
from tests.builders import cluster, job
from tests.tools.report.runs import begin, submit


def run(end_s: float) -> RunRecord:
    """10 s of one GPU's work, alone on that GPU: an FTF of a tenth of when it ends."""
    events = [
        begin(cluster(1)),
        submit(job("a"), 10.0),
        Event(0, "start", "a", 1),
        Event(end_s, "finish", "a", 0),
    ]
    return fold(events)


def test_a_run_and_its_replay_by_hand() -> None:
    jct, unfair, worst = compare(run(20), run(19))
    assert (jct.live, jct.simulated) == (20, 19)
    assert (unfair.live, unfair.simulated) == (1.0, 1.0)
    assert (worst.live, worst.simulated) == (pytest.approx(2.0), pytest.approx(1.9))
    assert {each.limit for each in (jct, unfair, worst)} == {LIMIT}
    assert [each.name for each in (jct, unfair, worst)] == list(WORDS)


def test_the_page_has_what_was_recorded_and_nothing_where_nothing_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "RECORD", tmp_path / "live.json")
    assert live_table() == ""
    rows = [each.row() for each in compare(run(20), run(19))]
    live.RECORD.write_text(json.dumps({"jobs": 1, "slots": 1, "figures": rows}))
    assert "| average JCT, s | 20.00 | 19.00 | 5.0 % |" in live_table()
