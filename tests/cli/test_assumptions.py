"""What the inputs leave open: said once on stderr, kept in the report's footer, an error with --strict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_convergence, write_jobs, write_profile
from pliant.schemas.profile import ConvergenceRow, Profile
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.tools.profile.rows_builder import step

FILES = ["jobs.jsonl", "--cluster", "cluster.json"]
PROFILE = ["--profile", "profile.parquet"]
NO_PROFILE = "no profile: every GPU is taken to train 1 sample per second"
NO_TABLE = 'there is no --convergence table for "run-1": 2 jobs train by samples instead'
FREE = ["--start-cost", "0", "--rescale-cost", "0"]
UNUSED = '--rescale-cost: no job has the model "bert"'
NO_COSTS = "no start or rescale cost is stated or measured: each is taken to be 30 s"
NO_START_COST = "no start cost is stated or measured: it is taken to be 30 s"
OTHER_TYPE = 'the profile lacks GPU type "new" for "net": it is taken to be as fast as "old"'


@pytest.fixture
def here(here: Path) -> Path:
    work = {"epochs": 1, "dataset_size": 80}
    trained = [job(name, model="net", gpus=1, batch=8, work=work, convergence="run-1") for name in ("a", "b")]
    write_jobs(trained, "jobs.jsonl")
    write_cluster(cluster(2, gpu_type="new"), "cluster.json")
    write_profile(Profile((step(1, 8, 0.1, gpu_type="old"),)), "profile.parquet")
    return here


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], [NO_PROFILE, NO_COSTS, NO_TABLE]),
        (["--progress", "samples", *FREE], [NO_PROFILE]),
        ([*PROFILE], [OTHER_TYPE, NO_COSTS, NO_TABLE]),
        (["--rescale-cost", "bert=30,net=2"], [NO_PROFILE, NO_START_COST, NO_TABLE, UNUSED]),
        (
            ["--progress", "goodput", "--noise-scale", "bert=1,5", *FREE],
            [NO_PROFILE, '--noise-scale: no job has the model "bert"'],
        ),
    ],
)
def test_assumptions_are_printed_once_and_are_in_the_report(here: Path, options, message) -> None:
    done = call("replay", *FILES, *options, "--policy", "fifo,las", "-o", "out")
    assert done.exit_code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[: len(message)] == [f"pliant: {text}" for text in message]
    assert all(lines.count(f"pliant: {text}") == 1 for text in message)
    shown = " ".join(call("report", "out").stdout.split())
    assert all(shown.count(text) == 1 for text in message)
    assert json.loads((here / "out" / "fifo.summary.json").read_text())["assumptions"] == message

    refused = call("replay", *FILES, *options, "--policy", "fifo", "--strict", "-o", "none/")
    assert refused.exit_code == 3
    assert refused.stderr.splitlines() == [f"pliant: --strict: {text}" for text in message]
    assert not (here / "none").exists()


def jct_s(*options: str) -> float:
    """Of one of two jobs that train 80 samples at 80 a second, each on a GPU of its own."""
    done = call(
        "replay", *FILES, *PROFILE, *options, "--progress", "samples", "--policy", "fifo", "-o", "x.parquet"
    )
    assert done.exit_code == 0, done.stderr
    result = json.loads(call("report", "x.parquet", "--format", "json").stdout)
    mean_s: float = result["runs"][0]["mean_jct_s"]
    return mean_s


def test_what_costs_and_tables_leave_open_is_named(here: Path) -> None:
    assert jct_s() == 31.0
    assert jct_s(*FREE) == 1.0
    assert jct_s("--rescale-cost", "0") == 31.0
    # Costs that no option states are those of the profile.
    row = replace(step(1, 8, 0.1, gpu_type="new"), start_seconds=4.0, relaunch_seconds=6.0)
    write_profile(Profile((row,)), "profile.parquet")
    assert jct_s("--strict") == 5.0
    assert jct_s("--start-cost", "2", "--strict") == 3.0
    # A validation run that the table lacks is named.
    write_convergence([ConvergenceRow("run-2", 8, 0, 10, 0.5, 0.5, 1.0, 1.0)], "table.parquet")
    done = call("replay", *FILES, "--convergence", "table.parquet", "--policy", "fifo", "-o", "x.jsonl")
    assert 'the --convergence table lacks "run-1": 2 jobs train by samples instead' in done.stderr


def test_a_strict_sweep_fails_replays_that_assume(here: Path) -> None:
    sweep = """
    policies = ["fifo"]
    progress = "samples"
    strict = {}
    traces = [{{name = "t", jobs = "jobs.jsonl"}}, {{name = "u", jobs = "jobs.jsonl", jobs_limit = 1}}]
    clusters = [{{name = "c", path = "cluster.json"}}]
    """
    (here / "sweep.toml").write_text(sweep.format("true"))
    done = call("replay", "--recipe", "sweep.toml", "-o", "out", "--workers", "1")
    assert done.exit_code == 5
    assert f"t-fifo: --strict: {NO_PROFILE}" in done.stderr
    (here / "sweep.toml").write_text(sweep.format("false"))
    done = call("replay", "--recipe", "sweep.toml", "-o", "out", "--workers", "1")
    assert (done.exit_code, done.stderr.count(f"pliant: {NO_PROFILE} (2 of 2 replays)\n")) == (0, 1)


def test_every_reader_warns_of_a_profile_that_is_off(here: Path) -> None:
    trained = [job("a", model="net", gpus=1, batch=8, work={"samples": 80})]
    write_jobs(trained, "jobs.jsonl")
    gang = replace(step(2, 16, 0.1, gpu_type="new"), visits=4, spread=0.77, model_error=-0.35)
    write_profile(Profile((step(1, 8, 0.1, gpu_type="new"), gang)), "profile.parquet")
    apart = "measured another time; measure them again when the machine is quiet"
    held_out = '1 row of the profile held out ("net"): expect predictions to be, too'
    doubts = [
        f'pliant: 1 of 2 rows of the profile ("net") took up to 77% longer when {apart}',
        f"pliant: the throughput model is 35% off in the median of {held_out}",
    ]
    replayed = call("replay", *FILES, *PROFILE, *FREE, "--policy", "fifo", "-o", "x.parquet")
    assert replayed.stderr.splitlines()[:2] == doubts
    scheduled = call("schedule", *FILES, *PROFILE, "--policy", "fifo", "-o", "schedule.json")
    assert scheduled.stderr.splitlines()[:2] == doubts
    refused = call("schedule", *FILES, *PROFILE, "--policy", "fifo", "--strict", "-o", "none.json")
    assert (refused.exit_code, Path("none.json").exists()) == (3, False)
    embedded = json.loads(Path("schedule.json").read_text())["profile"]
    assert (embedded["visits"], embedded["spread"]) == ([None, 4], [None, 0.77])
