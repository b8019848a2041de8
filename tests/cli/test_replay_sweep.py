"""``pliant replay --recipe``."""

from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_jobs
from tests.builders import cluster, job
from tests.cli import calling
from tests.cli.calling import sweep


@pytest.fixture
def here(here: Path) -> Path:
    write_jobs([job("a", gpus=2, gpu_seconds=20), job("b", at=1, gpus=2, gpu_seconds=30)], "jobs.jsonl")
    write_cluster(cluster(2), "cluster.json")
    (here / "sweep.toml").write_text(sweep("fifo", "las"))
    return here


def call(*args: str):
    return calling.call("replay", *args, columns=200)


def test_a_sweep_fills_a_folder_and_says_so(here: Path) -> None:
    done = call("--recipe", "sweep.toml", "-o", "out")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"2 of 2 replays are in {here}/out" in done.stderr
    assert sorted(path.name for path in (here / "out").glob("*.parquet")) == [
        "t-fifo.parquet",
        "t-las.parquet",
    ]
    assert "no profile: every GPU is taken to train 1 sample per second (2 of 2 replays)" in done.stderr


def test_a_policy_in_a_file_beside_the_recipe_takes_part(here: Path) -> None:
    """A change of the file makes its results again."""
    code = "from pliant.tools.schedule.policies.srtf import Srtf\n\n\nclass Mine(Srtf):\n    name = 'mine'\n"
    (here / "policy.py").write_text(code)
    (here / "sweep.toml").write_text(sweep("fifo", "./policy.py"))
    done = call("--recipe", "sweep.toml", "-o", "out")
    assert done.exit_code == 0, done.stderr
    assert sorted(path.stem for path in (here / "out").glob("*.parquet")) == ["t-fifo", "t-mine"]
    (here / "policy.py").write_text(code + "# changed\n")
    again = call("--recipe", "sweep.toml", "-o", "out")
    assert "1 result to be made again: the policy's code changed" in again.stderr
    (here / "sweep.toml").write_text(sweep("./none.py"))
    assert (found := call("--recipe", "sweep.toml", "-o", "out")).exit_code == 3
    assert "none.py: no such file" in found.stderr


def test_a_task_whose_recipe_changed_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    arguments = ("--recipe", "sweep.toml", "-o", "out", "--executor", "slurm-array", "--max-array-size", "1")
    call(*arguments)
    scripts = [(here / "out" / name).read_text() for name in ("sweep.sbatch", "sweep-2.sbatch")]
    (table,) = {script.partition("--table ")[2].split()[0] for script in scripts}
    assert call("--task", "1", "--table", table, "-o", "out").exit_code == 0
    (here / "sweep.toml").write_text(sweep("fifo", "sjf"))
    call(*arguments)
    done = call("--task", "1", "--table", table, "-o", "out")
    assert (done.exit_code, len(done.stderr.splitlines())) == (3, 1)
    assert "was written again after this job array was submitted" in done.stderr
