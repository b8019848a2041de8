import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_jobs, write_profile
from pliant.schemas.profile import Profile, ProfileRow
from tests.builders import cluster, job

HELP = """
import io, json, sys
from contextlib import redirect_stdout
from pliant.cli.main import app

loaded = []
for words in (["schema"], ["replay", "--help"], ["run", "--help"], ["status", "--help"]):
    with redirect_stdout(io.StringIO()):
        app(words, standalone_mode=False)
    loaded.append([*sys.modules])
print(json.dumps(loaded))
"""


def test_help_loads_no_command_and_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    schema, *_, last = map(set, json.loads(done.stdout))
    assert "pliant.cli.reference" in schema
    assert "pliant.cli.replay" not in schema
    assert not last & {"matplotlib", "numpy", "pandas", "pyarrow", "scipy", "torch"}
    # The list of commands loads no command and no package.
    result = imports("--help")
    assert not result & {"pydantic", "pydantic_core", "importlib.metadata", "numpy", "pyarrow"}
    assert not result & {"markdown_it", "pygments", "pliant.cli.reference", "pliant.cli.replay"}


def imports(*arguments: str) -> set[str]:
    line = [sys.executable, "-X", "importtime", "-m", "pliant.cli", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return set(re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE))


def test_no_command_waits_for_pandas(here: Path) -> None:
    write_jobs([job("a", gpus=2, work={"samples": 20})], "jobs.jsonl")
    write_cluster(cluster(2), "cluster.json")
    row = ProfileRow("train", "linear", "gpu", 1, 2, "2", 480, step_seconds=1.0, samples_per_second=960.0)
    write_profile(Profile((row,)), "profile.parquet")
    files = ("jobs.jsonl", "--cluster", "cluster.json", "--profile", "profile.parquet", "--policy", "fifo")
    replayed = imports("replay", *files, "-o", "fifo.parquet")
    reported = imports("report", "fifo.parquet", "--format", "json")
    for result in (replayed, reported):
        assert "pyarrow" in result
        assert "pandas" not in result
    checked = imports("doctor", "--state", "live")
    assert "pliant.tools.run.doctor" in checked
    assert not checked & {"torch", "pandas", "matplotlib", "scipy"}


@pytest.mark.parametrize(
    ("command", "given", "threads"), [("status", None, "1"), ("status", "3", "3"), ("run", None, "None")]
)
def test_commands_that_calculate_have_numpy_start_no_threads(command, given, threads) -> None:
    code = f"from pliant.cli.main import app; app(['{command}', '--help'], standalone_mode=False)"
    result = "import os; print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    env = {name: text for name, text in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    line = [sys.executable, "-c", f"{code}; {result}"]
    more = {} if given is None else {"OPENBLAS_NUM_THREADS": given}
    done = subprocess.run(line, env=env | more, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == threads
