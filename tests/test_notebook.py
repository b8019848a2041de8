"""The notebook in examples/ runs from top to bottom in a fresh folder, and is stored without outputs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
KERNEL = """
import ast, json, sys

names = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin), 1):
    *body, last = ast.parse(source, f"<code cell {number}>").body
    shown = isinstance(last, ast.Expr)
    exec(compile(ast.Module(body if shown else [*body, last], []), f"<code cell {number}>", "exec"), names)
    ending = ast.Expression(last.value) if shown else ast.parse("None", mode="eval")
    value = eval(compile(ending, f"<code cell {number}>", "eval"), names)
    if value is not None:
        print(value._repr_markdown_() if hasattr(value, "_repr_markdown_") else repr(value))
"""
"""Runs code cells in one namespace and shows the last value of each, as a kernel does."""


@pytest.fixture
def notebook() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((EXAMPLES / "replay.ipynb").read_bytes())
    return result


def test_the_notebook_runs_from_top_to_bottom(notebook: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "ci", tmp_path / "ci")
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", KERNEL],
        input=json.dumps(cells),
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "jobs:1: /gpus/requested: 0 is not above 0, expected more than 0" in done.stdout
    assert "| --- |" in done.stdout, "the report is a table"
    assert sorted(path.name for path in (tmp_path / "out").glob("*.parquet")) == [
        "fifo.parquet",
        "shadow-price.parquet",
    ]
    assert (tmp_path / "report.html").exists()


def test_the_notebook_is_stored_without_outputs(notebook: dict[str, Any]) -> None:
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert notebook["nbformat"] == 4
