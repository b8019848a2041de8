"""Twenty jobs and a cluster of 16 GPUs, for commands whose start is measured."""

from __future__ import annotations

import json
from pathlib import Path


def write_small_inputs(folder: Path) -> tuple[Path, Path]:
    jobs, cluster = folder / "jobs.jsonl", folder / "cluster.json"
    rows = [
        {"id": f"job-{i}", "submit_time": i, "model": "m", "gpus": {"requested": 2}, "work": {"samples": 1e6}}
        for i in range(20)
    ]
    jobs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cluster.write_text(
        json.dumps({"schema": "pliant.cluster/1", "nodes": [{"name": "n{}", "gpus": 4, "count": 4}]})
    )
    return jobs, cluster
