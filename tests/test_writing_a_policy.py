"""docs/writing-a-policy.md works as written: a stranger's package, its commands and its conformance test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_jobs
from tests.builders import cluster, job

PAGE = Path(__file__).parents[1] / "docs" / "writing-a-policy.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The page's files, installed as pip would: modules and an entry point, without a network."""
    files = dict(FILE.findall(PAGE.read_text()))
    assert set(files) == {"pyproject.toml", "pliant_important.py", "test_important.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = tmp_path / "pliant_important-1.0.dist-info"
    info.mkdir()
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
        for group, rows in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    return tmp_path


def commands() -> list[str]:
    [shell] = [text for language, text in BLOCK.findall(PAGE.read_text()) if language == "sh"]
    return shell.splitlines()


def call(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = line.split()
    start = {"pliant": [sys.executable, "-m", "pliant.cli"], "python": [sys.executable]}[program]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [*start, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_takes_less_than_sixty_lines():
    files = dict(FILE.findall(PAGE.read_text()))
    assert sum(len(text.splitlines()) for text in files.values()) < 60


def test_the_page_works_as_typed(package: Path):
    write_jobs(
        [job("a", gpus=2), job("b", gpus=2, priority=2.0), job("c", priority=1.0)], package / "jobs.jsonl"
    )
    write_cluster(cluster(3), package / "cluster.json")
    described, scheduled, tested = (call(line, package) for line in commands())
    assert described.returncode == 0, described.stderr
    assert "Highest priority first" in described.stdout
    assert "floor=0.0  a number" in described.stdout
    assert "priorities of jobs: free GPUs go to waiting jobs of higher priority first" in described.stdout
    assert scheduled.returncode == 0, scheduled.stderr
    assert "priorit" not in scheduled.stderr
    found = json.loads(scheduled.stdout)
    assert {given["job"]: given["gpus"] for given in found["allocations"]} == {"b": 2, "c": 1}
    assert found["policy"] == {"name": "important", "parameters": {"floor": 1.0}}
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout
