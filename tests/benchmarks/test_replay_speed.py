"""The benchmark of replays measures each in a process of its own, at the load it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import import_rows
from benchmarks.parts import figure
from benchmarks.replay_speed import figures, main
from pliant.schemas.io import read_cluster, read_jobs
from pliant.schemas.job import GpuTimeWork


def test_the_load_is_0_85_of_the_gpus(tmp_path: Path) -> None:
    main("make", str(tmp_path), "fifo", "20000", "2048")
    jobs = read_jobs(tmp_path / "jobs.jsonl")
    works = [one.work for one in jobs]
    gpu_hours = sum(work.gpu_seconds for work in works if isinstance(work, GpuTimeWork)) / 3600
    gpus = sum(node.gpus for node in read_cluster(tmp_path / "cluster.json").expanded())
    assert gpus == 2048
    assert gpu_hours / (jobs[-1].submit_time / 3600 * gpus) == pytest.approx(0.85, rel=0.05)


def test_every_figure_is_measured_and_has_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_rows, "figures", list)
    monkeypatch.setattr(figure, "need_data", lambda *_: None)
    measured = {row.name: row for row in figures(large=60, medium=40, small=20, processes={})}
    assert {name: row.limit for name, row in measured.items() if row.limit is not None} == {
        "ares_100k_jobs_cpu_s": 60,
        "ares_100k_jobs_peak_mb": 2048,
        "fifo_1m_jobs_units": 540,
        "cost_per_event_growth": 3,
    }
    assert all(row.value is not None and row.value > 0 for row in measured.values())
