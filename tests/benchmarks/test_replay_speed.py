"""The benchmark of replays measures each in a process of its own, at the load it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay_speed import main
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
