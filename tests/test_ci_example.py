"""The workflow in examples/ci passes as it stands, and fails after drift."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from pliant.schemas.io import read_jobs
from pliant.schemas.job import trace_hash

EXAMPLE = Path(__file__).parents[1] / "examples" / "ci"
INSTALL = "pip install"


def steps(workflow: str) -> list[tuple[bool, str]]:
    result = []
    plain = re.sub(r"^ *#.*\n", "", workflow, flags=re.MULTILINE)
    for step in re.split(r"^ {6}- ", plain, flags=re.MULTILINE)[1:]:
        lines = dedent(f"        {step}")
        block = re.search(r"^run: \|\n((?:  .*\n|\n)+)", lines, re.MULTILINE)
        line = re.search(r"^run: ([^|].*)$", lines, re.MULTILINE)
        if block or line:
            result.append(("if: always()" in step, dedent(block[1]) if block else str(line and line[1])))
    return result


def run(workflow: str, folder: Path) -> tuple[int, str]:
    """The steps as GitHub runs them, but for the installation: the first failure's exit code, and stderr."""
    (folder / "ci").mkdir()
    for name in ("jobs.jsonl", "cluster.json", "expected.json"):
        shutil.copy(EXAMPLE / name, folder / "ci")
    command = folder / "bin" / "pliant"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pliant.cli "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    code, message = 0, ""
    for always, script in steps(workflow):
        if INSTALL not in script and (always or not code):
            line = ["bash", "-e", "-c", script]
            done = subprocess.run(
                line, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            code, message = code or done.returncode, message + done.stderr
    return code, message


@pytest.fixture
def workflow() -> str:
    return (EXAMPLE / "workflow.yml").read_text()


def test_the_example_passes_as_it_stands(workflow: str, tmp_path: Path) -> None:
    assert len(steps(workflow)) == 4
    code, message = run(workflow, tmp_path)
    assert code == 0, message
    assert 'failures="0"' in (tmp_path / "junit.xml").read_text()
    assert "Expected figures" in (tmp_path / "summary.md").read_text()


def test_the_expected_figures_name_the_trace_as_written_files_do() -> None:
    expected = json.loads((EXAMPLE / "expected.json").read_text())
    assert expected["traces"] == [trace_hash(read_jobs(EXAMPLE / "jobs.jsonl"))]


def test_the_example_fails_where_scheduling_became_worse(workflow: str, tmp_path: Path) -> None:
    drifted = workflow.replace("--rescale-cost 30", "--rescale-cost 300")
    assert drifted != workflow
    code, message = run(drifted, tmp_path)
    assert code == 5
    assert re.search(r"shadow-price mean_jct_s is \S+, above max 2310 \(lower is better\)", message)
    assert 'failures="0"' not in (tmp_path / "junit.xml").read_text()
    assert "OUT OF RANGE" in (tmp_path / "summary.md").read_text()
