"""``make test`` leaves out tests that need services; in ``make test-services`` a skip is a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import os
import pytest

def test_bare():
    assert not os.path.exists(os.environ["PLIANT_DATA"])

@pytest.mark.services
def test_without_a_gpu():
    pytest.skip("needs a GPU")

def test_of_slurm(slurm):
    pass

@pytest.fixture
def slurm():
    pytest.skip("needs Slurm: no slurmctld")
"""


@pytest.mark.parametrize(
    ("options", "counts", "command"),
    [
        ([], "1 passed, 2 deselected", None),
        (["-m", "services"], "1 skipped, 1 deselected, 1 error", "-m pytest -n 0 -m services "),
    ],
)
def test_services_are_left_out_or_must_be_there(tmp_path: Path, options, counts, command) -> None:
    (tmp_path / "test_these.py").write_text(TESTS)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.conftest",
    ]
    chosen = [f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"), *options, str(tmp_path)]
    done = subprocess.run([*words, *chosen], cwd=ROOT, check=False, capture_output=True, text=True)
    assert counts in done.stdout, done.stdout + done.stderr
    assert ("counts as a failure in make test-services" in done.stdout) == (command is not None)
    assert command is None or command in done.stdout
