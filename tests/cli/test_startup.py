"""Commands import no more than they need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_jobs, write_profile
from pliant.schemas.profile import Profile, ProfileRow
from tests.builders import cluster, job

FILES = ["jobs.jsonl", "--cluster", "cluster.json"]


def imports(*arguments: str) -> set[str]:
    """The modules that Python has imported when it ends."""
    line = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return set(re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE))


def test_no_command_waits_for_pandas(here: Path) -> None:
    write_jobs([job("a", gpus=2, work={"samples": 20})], "jobs.jsonl")
    write_cluster(cluster(2), "cluster.json")
    row = ProfileRow("train", "linear", "gpu", 1, 2, "2", 480, step_seconds=1.0, samples_per_second=960.0)
    write_profile(Profile((row,)), "profile.parquet")
    replayed = imports("-m", "pliant.cli", "replay", *FILES, "--policy", "fifo", "-o", "fifo.parquet")
    reported = imports("-m", "pliant.cli", "report", "fifo.parquet", "--format", "json")
    copy = (
        "from pliant.schemas import io; io.write_profile(io.read_profile('profile.parquet'), 'copy.parquet')"
    )
    copied = imports("-c", copy)
    assert all("pyarrow" in found for found in (replayed, reported, copied))
    assert all("pandas" not in found for found in (replayed, reported, copied))
    assert (here / "copy.parquet").read_bytes() == (here / "profile.parquet").read_bytes()


@pytest.mark.parametrize("name", ["replay", "run", "status"])
def test_help_imports_nothing_heavy(name: str) -> None:
    found = imports("-m", "pliant.cli", name, "--help")
    assert not found & {"matplotlib", "numpy", "pandas", "pyarrow", "scipy", "torch"}


def test_the_help_of_all_commands_loads_neither_schemas_nor_packages() -> None:
    found = imports("-m", "pliant.cli", "--help")
    assert not found & {"pydantic", "pydantic_core", "importlib.metadata", "numpy", "pyarrow"}
    assert not found & {"markdown_it", "pygments"}


@pytest.mark.parametrize(("words", "made"), [(["schema"], ["reference"]), (["--help"], [])])
def test_a_command_does_not_wait_for_the_others(words: list[str], made: list[str]) -> None:
    code = f"import sys; from pliant.cli.main import app; app({words}, standalone_mode=False)"
    loaded = "print([name for name in ('reference', 'replay') if f'pliant.cli.{name}' in sys.modules])"
    line = [sys.executable, "-c", f"{code}; {loaded}"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(made)


@pytest.mark.parametrize(
    ("words", "given", "threads"),
    [
        (["status", "--help"], {}, "1"),
        (["status", "--help"], {"OPENBLAS_NUM_THREADS": "3"}, "3"),
        (["run", "--help"], {}, "None"),
    ],
)
def test_commands_that_calculate_have_numpy_start_no_threads(
    words: list[str], given: dict[str, str], threads: str
) -> None:
    code = f"from pliant.cli.main import app; app({words}, standalone_mode=False)"
    said = "import os; print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    env = {name: text for name, text in os.environ.items() if name != "OPENBLAS_NUM_THREADS"} | given
    line = [sys.executable, "-c", f"{code}; {said}"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == threads


def test_doctor_imports_nothing_heavy(here: Path) -> None:
    found = imports("-m", "pliant.cli", "doctor", "--state", "live")
    assert "pliant.tools.run.doctor" in found
    assert not found & {"torch", "pandas", "matplotlib", "scipy"}
