"""A shell in which ``pliant`` is on the path, and a small cluster with three jobs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Shell = Callable[..., "subprocess.CompletedProcess[str]"]

JOBS = (
    {"id": "long", "submit_time": 0, "gpus": {"requested": 4, "min": 1}, "work": {"samples": 9e5}},
    {"id": "short", "submit_time": 10, "gpus": {"requested": 2, "min": 1}, "work": {"samples": 4e3}},
    {"id": "rigid", "submit_time": 20, "gpus": {"requested": 3}, "work": {"samples": 6e3}},
)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with jobs.jsonl and cluster.json."""
    lines = [
        {**job, "model": "m", "batch": {"size": 64}, "elastic": "size" if "min" in job["gpus"] else "none"}
        for job in JOBS
    ]
    (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "cluster.json").write_text(json.dumps({"nodes": [{"name": "n{}", "gpus": 4, "count": 2}]}))
    return tmp_path


@pytest.fixture
def sh(inputs: Path) -> Shell:
    """Run a line of bash in the folder of the inputs."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            check=False,
            cwd=inputs,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    return run
