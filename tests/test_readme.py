"""The README's commands run when they are pasted, in order, in an empty folder."""

import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.parts import readme_commands
from benchmarks.parts.wheel import replays_from_wheel
from pliant.schemas.io import write_profile
from pliant.schemas.profile import Profile, ProfileRow
from tests.pasting import Block, blocks, paste

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


def test_commands_count_up_to_the_first_that_fails() -> None:
    block = "cat > a <<'END'\nfalse\nEND\npliant --version\nfalse\ntrue\n"
    assert len(readme_commands.commands_of(block)) == 4
    assert [row.value for row in readme_commands.figures([block])] == [0.5]


@pytest.mark.services
def test_a_wheel_in_an_empty_environment_replays(tmp_path: Path) -> None:
    done = replays_from_wheel(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "shadow-price" in done.stdout
