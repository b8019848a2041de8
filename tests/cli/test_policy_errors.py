"""What the commands say of an error in somebody else's policy."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_jobs
from tests.builders import cluster, job
from tests.cli.calling import call, sweep
from tests.tools.run.stories import Story
from tests.tools.schedule.foreign import Foreign

FILES = ["jobs.jsonl", "--cluster", "cluster.json"]


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    write_jobs([job("a", gpu_seconds=5.0)], "jobs.jsonl")
    write_cluster(cluster(4), "cluster.json")
    return Foreign(here, monkeypatch)


BROKEN = "def decide(self, snapshot, rng):\n    return snapshot.jobs['x']"


def broken(mine: Foreign) -> int:
    return mine.is_written(BROKEN, "snapshot.jobs")


@pytest.mark.parametrize("args", [["schedule", *FILES], ["replay", *FILES, "-o", "out.parquet"]])
@pytest.mark.parametrize(
    ("body", "error"),
    [(BROKEN, "KeyError: 'x'"), (BROKEN.replace("return", "raise SystemExit(7)  #"), "SystemExit: 7")],
)
def test_an_error_in_a_policy_is_one_line_with_its_place(
    mine: Foreign, args: list[str], body: str, error: str
):
    line = mine.is_written(body, "snapshot.jobs")
    done = call(*args, "--policy", "mine")
    assert done.exit_code == 1
    assert f'policy "mine" (mine.py:{line}): {error}' in done.stderr
    assert "bug in pliant" not in done.stderr
    assert "Traceback" not in done.stderr
    shown = call(*args, "--policy", "mine", "--debug")
    assert "snapshot.jobs['x']" in "".join(traceback.format_exception(shown.exception))


def test_a_sweep_names_the_line_and_does_the_other_policies(mine: Foreign, tmp_path: Path):
    line = broken(mine)
    (tmp_path / "recipe.toml").write_text(sweep("mine", "fifo"))
    done = call("replay", "--recipe", "recipe.toml", "-o", "out", "--workers", "1")
    assert done.exit_code != 0
    assert f"(mine.py:{line}): KeyError: 'x'" in done.stderr
    assert "bug in pliant" not in done.stderr
    assert [path for path in (tmp_path / "out").glob("*.parquet") if "fifo" in path.name]


def test_a_policy_without_description_hides_no_others(mine: Foreign):
    mine.is_written("def __init__(self, floor: 'Nothing' = 1):\n    self.floor = floor", "")
    done = call("policies")
    assert "First come, first served" in done.stdout
    assert "NameError" in done.stderr


def test_a_policy_that_fails_under_cron_changes_no_run(mine: Foreign, tmp_path: Path):
    line = broken(mine)
    story = Story(1)
    story.go_on(50)
    dirs = story.write(tmp_path / "state")
    before = dirs.events.read_bytes()
    done = call("schedule", "--state", str(dirs.path), "--policy", "mine")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"(mine.py:{line}): KeyError: 'x'" in done.stderr
    onward = call("run", "--state", str(dirs.path), stdin=b"")
    assert onward.exit_code == 3, "a schedule that is empty is not one that takes all GPUs away"
    assert dirs.events.read_bytes() == before


def test_a_signal_while_a_policy_decides_is_not_its_failure(mine: Foreign):
    body = "from pliant.cli.common import _terminate\n    _terminate(15, None)"
    mine.is_written(f"def decide(self, snapshot, rng):\n    {body}", "")
    assert call("schedule", *FILES, "--policy", "mine").exit_code == 143


@pytest.mark.parametrize("after", ["def f(:", "import not_there", "raise SystemExit(3)"])
def test_a_module_that_fails_to_load_is_named_by_line(mine: Foreign, after: str):
    line = mine.is_written("pass", "", after)
    done = call("schedule", *FILES, "--policy", "mine")
    assert done.exit_code == 2
    assert f"cannot be loaded: mine.py:{line}: " in done.stderr
    assert "(mine.py, line" not in done.stderr
