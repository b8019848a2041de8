"""One grammar for all commands: which spelling is which, and what a mistake is told."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pliant.cli.main import app
from pliant.schemas.io import read_events, write_cluster, write_jobs, write_profile
from tests.builders import cluster, job
from tests.cli import calling
from tests.tools.schedule.test_decide import PROFILE

CLUSTER = "--cluster cluster.json --policy fifo"
NOW = f"{CLUSTER} --now 9e9 --no-timing"


def call(line: str) -> Any:
    return calling.call(*shlex.split(line))


@pytest.fixture
def here(here: Path) -> Path:
    (here / "train.py").write_text("print('done')\n")
    more: Any = {"model": "m", "gpu_seconds": 20, "command": ("train.py",)}
    write_jobs([job("a", gpus=2, **more), job("b", **more)], "jobs.jsonl")
    write_cluster(cluster(4), "cluster.json")
    write_profile(PROFILE, "profile.parquet")
    return here


@pytest.fixture
def live(here: Path) -> str:
    assert call("submit jobs.jsonl --state live").exit_code == 0
    return "live"


def commands() -> list[Any]:
    group: Any = get_command(app)
    made = [group.get_command(None, name) for name in group.commands]
    return [sub for each in made for sub in getattr(each, "commands", {"": each}).values()]


@pytest.mark.parametrize("command", commands(), ids=lambda each: each.name)
def test_o_is_a_file_and_f_a_format_on_every_command(command: Any) -> None:
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    for each in shown:
        names = {*each.opts}
        assert names & {"-o", "--output"} in (set(), {"-o", "--output"}), each.opts
        if command.name != "log":  # -f follows, as tail and journalctl do, and there is no form to choose
            assert names & {"-f", "--format"} in (set(), {"-f", "--format"}), each.opts
        assert "-o" not in names or each.type_descriptor.choices is None


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("by_name", "line"),
    [
        (f"replay --jobs jobs.jsonl {CLUSTER}", f"replay jobs.jsonl {CLUSTER}"),
        (f"schedule --jobs jobs.jsonl {NOW}", f"schedule jobs.jsonl {NOW}"),
        (
            f"schedule profile.parquet --jobs jobs.jsonl {NOW}",
            f"schedule jobs.jsonl {NOW} --profile profile.parquet",
        ),
    ],
)
def test_jobs_may_be_named_by_an_option(by_name: str, line: str) -> None:
    first, second = call(by_name), call(line)
    assert (first.exit_code, first.stdout) == (0, second.stdout)
    twice = call(f"{line} --jobs jobs.jsonl" + " --profile profile.parquet" * ("--profile" not in line))
    assert (twice.exit_code, "jobs.jsonl: " in twice.stderr) == (2, True)


@pytest.mark.usefixtures("live")
def test_what_status_and_doctor_print_goes_to_a_file(here: Path) -> None:
    assert call("status --state live -o json").exit_code == 2
    done = call("status --state live -f json -o status.json")
    assert (done.exit_code, done.stdout) == (0, "")
    assert len(json.loads((here / "status.json").read_text())["jobs"]) == 2
    assert call("doctor -o doctor.txt").stdout == ""
    assert (here / "doctor.txt").read_text()
    watched = call("status --state live --watch -o status.json")
    assert (watched.exit_code, watched.stderr.count("\n")) == (2, 1)


def test_times_of_any_unit_mean_the_same_everywhere(here: Path) -> None:
    seconds = "--interval 120 --rescale-cost 90 --start-cost m=3600 --mtbf 48 --repair 0.5"
    units = "--interval 2m --rescale-cost 1m30s --start-cost m=1h --mtbf 2d --repair 30m"
    for name, options in (("s.jsonl", seconds), ("u.jsonl", units)):
        assert call(f"replay jobs.jsonl {CLUSTER} {options} -o {name}").exit_code == 0
    assert read_events("s.jsonl") == read_events("u.jsonl")
    # A recipe and a parameter take times too.
    world = '[[traces]]\nname = "t"\njobs = "jobs.jsonl"\n[[clusters]]\nname = "c"\npath = "cluster.json"\n'
    recipe = 'policies = ["shadow-price"]\ninterval = "2m"\n[parameters.shadow-price]\ndwell_s = ["5m"]\n'
    (here / "sweep.toml").write_text(recipe + world)
    assert call("replay --recipe sweep.toml -o out --workers 1").exit_code == 0
    (result,) = (here / "out").glob("*.parquet")
    detail = read_events(result)[0].detail or {}
    assert (detail["interval_s"], detail["parameters"]["dwell_s"]) == (120.0, 300.0)
    # A decision is asked for at a date.
    result = json.loads(call(f"schedule jobs.jsonl {CLUSTER} --now 2026-03-01T12:00Z").stdout)
    assert result["time"] == 1_772_366_400.0


def test_the_help_explains_times_and_sizes() -> None:
    text = " ".join(call("run --help").stdout.split())
    assert "DURATION: 30s, 5m, 2h or 1d; a plain number is seconds" in text
    assert "SIZE: bytes, or a size like 64GB or 64GiB." in text
    assert "DURATION" not in call("hold --help").stdout
