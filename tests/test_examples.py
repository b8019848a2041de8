"""Examples run as they stand: the notebook, the commands of README and tutorials, the files for CI."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from benchmarks.parts.slurm_cluster import SlurmCluster
from benchmarks.parts.wheel import replays_from_wheel
from pliant.schemas.io import read_jobs, write_profile
from pliant.schemas.job import trace_hash
from pliant.schemas.profile import Profile, ProfileRow
from tests.pasting import Block, blocks, check, paste
from tests.tools.run.site import until

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
    assert "jobs:1: /gpus/requested: -1 is" in done.stdout
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


ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
INSTALL, *BLOCKS = blocks(TEXT)


def test_the_readme_names_extras_that_exist() -> None:
    assert INSTALL.commands == "pip install .\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {extra for group in re.findall(r"'\.\[(.*?)\]'", TEXT) for extra in group.split(",")}
    tabled = set(re.findall(r"^\| `(\w+)` \|", TEXT.partition("## First replay")[0], re.MULTILINE))
    assert named <= tabled <= set(project["optional-dependencies"])


def test_the_commands_that_train_run_when_they_are_pasted(tmp_path: Path) -> None:
    replays, trains = (block.commands for block in BLOCKS)
    tutorial = (ROOT / "docs/tutorials/profile-your-first-job.md").read_text().replace("\\\n ", "")
    lines = {" ".join(line.split()) for line in tutorial.splitlines()}
    [measures] = re.findall(r"^pliant profile .*$", trains, re.MULTILINE)
    [runs] = re.findall(r"^pliant run .* > .*$", trains, re.MULTILINE)
    assert {measures.replace("64,128", "512,1024"), runs} <= lines
    [options] = re.findall(r'"examples/mlp.py", (.*?)\]', trains)
    script = (ROOT / "examples/mlp.py").read_text()
    assert all(f'"{name}"' in script for name in re.findall(r"--\w+", options))

    rows = [ProfileRow("train", "mlp", "cpu", 1, gpus, str(gpus), 128, step_seconds=0.1) for gpus in (1, 2)]
    made = tuple(replace(row, samples_per_second=1280.0 * row.gpus) for row in rows)
    write_profile(Profile(made), tmp_path / "measured")
    inputs = "jobs.jsonl --cluster examples/cluster.json --policy fifo"
    replayed = f"mkdir state; pliant replay {inputs} -o state/events.jsonl"
    stands_in = {measures: f"cp {shlex.quote(str(tmp_path / 'measured'))} profile.parquet", runs: replayed}
    for line, other in stands_in.items():
        trains = trains.replace(f"{line}\n", f"{other}\n")
    first = replays.splitlines(keepends=True)[0]
    assert first == "pliant examples .\n"
    *_, reported = paste([Block(first), Block(trains)], tmp_path)
    assert re.search(r"^ digits +finished", reported, re.MULTILINE)


@pytest.mark.services
def test_a_wheel_in_an_empty_environment_replays(tmp_path: Path) -> None:
    done = replays_from_wheel(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "shadow-price" in done.stdout


TUTORIALS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
SIMULATE = ("replay-last-month", "write-a-policy")
TRAIN = ("profile-your-first-job",)
SLURM = "on-slurm"


BATCHES = "--batches 512,1024 "


FIRST_HOUR = "../first-hour"


def follow(name: str, folder: Path) -> None:
    """Few steps are measured, and no quiet machine is waited for."""
    text = (TUTORIALS / f"{name}.md").read_text()
    check(blocks(text.replace(BATCHES, f"{BATCHES}--iterations 3 --warmup 1 --patience 0 ")), folder)


def test_every_tutorial_is_tried() -> None:
    assert BATCHES in (TUTORIALS / f"{TRAIN[0]}.md").read_text()
    assert {page.stem for page in TUTORIALS.glob("*.md")} == {*SIMULATE, *TRAIN, SLURM}


@pytest.mark.parametrize("name", SIMULATE)
def test_a_tutorial_that_only_simulates(name: str, tmp_path: Path) -> None:
    follow(name, tmp_path)


@pytest.mark.torch
@pytest.mark.parametrize("name", [*TRAIN, FIRST_HOUR])
def test_a_tutorial_that_trains(name: str, tmp_path: Path) -> None:
    follow(name, tmp_path)


@pytest.fixture
def live_slurm(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The Slurm of the tests is what commands find, and afterwards it is as it was."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    yield slurm
    slurm.end_jobs()
    until(lambda: set(slurm.states().values()) == {"idle"})


@pytest.mark.services
def test_the_tutorial_on_slurm_leaves_no_lease(live_slurm: SlurmCluster, tmp_path: Path) -> None:
    follow(SLURM, tmp_path)
    until(lambda: live_slurm.command("squeue", "-h", "-o", "%j").strip() == "")


EXAMPLE = Path(__file__).parents[1] / "examples" / "ci"
PIP_INSTALL = "pip install"


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
        if PIP_INSTALL not in script and (always or not code):
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
