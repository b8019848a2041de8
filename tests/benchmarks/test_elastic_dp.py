"""The benchmark of the optimizer of elastic-dp, run small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks import elastic_dp


def test_a_recorded_run_of_real_jobs_is_among_the_figures_and_a_missing_one_holds_nowhere(
    tmp_path: Path,
) -> None:
    record = tmp_path / "live.json"
    (completed, *_) = missing = list(elastic_dp._live(record))
    assert [row.value for row in missing] == [None, None, None]
    assert completed.row("x")["holds"] is False
    record.write_text(json.dumps({"figures": [{"name": "live_vs_replay_sjs", "difference": 0.02}]}))
    assert [row.value for row in elastic_dp._live(record)] == [None, 0.02, None]


def test_sizes_that_are_not_the_best_would_be_counted(monkeypatch) -> None:
    rng = np.random.default_rng(1)
    instances = [elastic_dp._small(rng) for _ in range(60)]
    assert all(map(elastic_dp.is_right, instances))
    monkeypatch.setattr(elastic_dp.Optimizer, "sizes", lambda self: list(self._sizes))
    assert not all(map(elastic_dp.is_right, instances))
