import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from pliant.cli.common import command
from pliant.cli.replay import replay as replay_command
from pliant.schemas import io
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, ServiceMissingError, UsageError
from pliant.schemas.file_io import limits
from pliant.schemas.file_io.record import Record
from pliant.schemas.job import trace_hash
from pliant.schemas.profile import Profile
from pliant.schemas.runinfo import PromisedBounds, RunInfo, SubmitDetail
from pliant.tools.replay.batch import Task, parameters_by_policy, replay_all, worker_pool
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Sources, inputs, trace_name
from pliant.tools.replay.options import Conditions, ReplayOptions
from pliant.tools.replay.output import output_paths, write
from pliant.tools.replay.run import Run, replay
from pliant.tools.replay.sweep import SweepTask
from pliant.tools.replay.sweep_recipe import SweepRecipe
from tests.builders import cluster, job
from tests.leftovers import PATIENCE_S
from tests.tools.profile.rows_builder import step

TRACE = (
    job("a", gpus=2, gpu_seconds=100),
    job("b", at=10, gpus=1, low=1, high=4, gpu_seconds=50, labels={"team": "größe"}),
    job("c", at=20, gpus=16, gpu_seconds=10),
    job("d", at=20, gpus=1, gpu_seconds=30, model="other"),
)
NODES = cluster(2, 1)


FORMS: tuple[dict[str, Any], ...] = (
    {"gpus": 2, "gpu_seconds": 40},
    {"low": 1, "high": 4, "batch": 64, "work": {"samples": 300.0}},
    {"batch": {"size": 8, "regimes": ({"after": 0.5, "size": 16},)}, "work": {"iterations": 20.0}},
    {"gpus": 2, "gpu_seconds": 25, "user": "u", "priority": 1.0},
    {"gpus": 2, "each": 2, "gpu_seconds": 30, "labels": {"of": "x"}},
    {"gpu_seconds": 15, "resources": {"worker": {"cpu": 4.0}}},
    {"gpu_seconds": 15, "hold": True},
    {"gpu_seconds": 1e-5},  # Python and pydantic write it in two ways
)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "ares"])
def test_jobs_of_one_form_are_replayed_as_each_alone(policy: str, tmp_path: Path) -> None:
    jobs = [job(f"j{n}", at=n * 7.5, **form) for n, form in enumerate(FORMS * 3)]
    io.write_jobs(jobs, tmp_path / "jobs.jsonl")
    nodes = Cluster(nodes=tuple(node.model_copy(update={"cpus": 8}) for node in cluster(4, 2).expanded()))
    table = io.read_job_table(tmp_path / "jobs.jsonl")
    assert len(set(table.kind)) < len(jobs)
    found = [replay(inputs(each, nodes), Run(policy)).log.json_lines() for each in (table, tuple(jobs))]
    assert found[0] == found[1]


def info(run: Run) -> RunInfo:
    first = next(replay(inputs(TRACE, NODES), run).log.events())
    assert (first.time, first.event, first.job) == (0.0, "decision", None)
    return RunInfo.model_validate(first.detail, strict=False)


def test_the_first_event_names_the_run() -> None:
    simulated = SimulatedCluster(Cost(1), Cost(2, {"other": 3}))
    run = Run("ares", {"alpha": "0.9"}, seed=7, simulated=simulated)
    found = info(run)
    assert (found.policy, found.parameters["alpha"], found.seed, found.simulated) == ("ares", 0.9, 7, True)
    assert (found.cluster, found.trace_hash, found.profile_hash) == (NODES, trace_hash(TRACE), None)
    assert (found.start_cost_s, found.rescale_cost_s) == (1.0, {"linear": 2.0, "other": 3.0})
    summary = replay(inputs(TRACE, NODES), run).summary
    assert found.counters == {"events": summary.events, "decisions": summary.decisions}
    assert info(Run("las")).interval_s == 60.0
    assert info(Run("las", conditions=Conditions(interval=0))).interval_s is None
    assert info(Run("fifo")).interval_s is None
    assert info(Run("fifo", conditions=Conditions(interval=5))).interval_s == 5.0
    assert info(Run("fifo")).bounds is None
    assert info(Run("ares", {"alpha": 0.8})).bounds == PromisedBounds(gps_delay=1 / 0.8 - 1)


REPLAYS = """
import sys
from pliant.tools.replay.batch import Task, replay_all
from pliant.tools.replay.inputs import Sources
from pliant.tools.replay.run import Run

replay_all(Sources("jobs.jsonl", "cluster.json", "profile.parquet"), [Task(Run("fifo"), "out.parquet")])
print(*sorted({"pandas", "pyarrow", "pyarrow.compute", "scipy", "torch"} & sys.modules.keys()))
"""


def test_a_replay_of_parquet_loads_no_slow_library(tmp_path: Path) -> None:
    io.write_jobs([job("a", gpus=2, batch=6, work={"samples": 60})], tmp_path / "jobs.jsonl")
    io.write_cluster(NODES, tmp_path / "cluster.json")
    row = step(2, 3, 0.5, model="linear")
    io.write_profile(Profile((row,)), tmp_path / "profile.parquet")
    command = [sys.executable, "-c", REPLAYS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("pyarrow\n", "")


def test_the_profile_is_named_by_its_hash_and_gives_curves() -> None:
    sizes = [(gpus, batch) for gpus in (1, 2, 3) for batch in (6, 12)]
    rows = tuple(step(gpus, batch // gpus, batch / gpus, model="linear") for gpus, batch in sizes)
    trace = [job("a", low=1, high=3, batch=12, gpu_seconds=10)]
    info, submit = [*replay(inputs(trace, cluster(3), Profile(rows)), Run("fifo")).log.events()][:2]
    assert info.detail["profile_hash"] == io.profile_hash(io.profile_to_columns(rows))
    assert "profile" not in info.detail, "it is as large as the profile"
    curve = SubmitDetail.model_validate(submit.detail, strict=False).curve
    assert [size for size, _ in curve] == [1, 2, 3]


def test_the_summary_counts_and_a_limit_takes_first_arrivals(sources: Sources, tmp_path: Path) -> None:
    done = replay(inputs(TRACE, NODES), Run("ares"))
    summary = done.summary
    assert (summary.jobs, summary.finished, summary.rejected, summary.unfinished) == (4, 3, 1, ())
    assert summary.events == len(list(done.log.events()))
    assert summary.without_timing() == replay(inputs(TRACE, NODES), Run("ares")).summary.without_timing()
    limited = Sources(sources.jobs, sources.cluster, jobs_limit=2)
    summary = replay_all(limited, tasks(tmp_path, "fifo"))[0]
    assert (summary.jobs, summary.trace_hash) == (2, trace_hash(TRACE[:2]))


def test_work_that_is_unknown_or_has_no_speed_is_refused() -> None:
    with pytest.raises(BadInputError) as caught:
        inputs([job("a"), job("b", gpu_seconds=1), job("c")], NODES, source="trace.jsonl")
    needs = "a replay needs samples, epochs with dataset_size, iterations or gpu_seconds"
    assert str(caught.value).splitlines() == [
        f'trace.jsonl: job "a" states no work, {needs}',
        f'trace.jsonl: job "c" states no work, {needs}',
    ]
    trace = [job("a", at=5, gpus=2, gpu_seconds=9), job("b", at=9, gpus=4, batch=2, gpu_seconds=9)]
    needs = r'trace\.jsonl: job "?b"?: work is stated in GPU-seconds at 4 GPUs'
    with pytest.raises(BadInputError, match=needs):
        inputs([*trace, job("c", at=9, gpus=4, gpu_seconds=9)], cluster(4), source="trace.jsonl")
    simulated = SimulatedCluster(node_events=(NodeEvent(5, "n9", up=False),))
    with pytest.raises(BadInputError, match='no node "n9"'):
        replay(inputs(TRACE, NODES), Run("fifo", simulated=simulated))


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    io.write_jobs(TRACE, tmp_path / "jobs.jsonl")
    io.write_cluster(NODES, tmp_path / "cluster.json")
    return Sources(str(tmp_path / "jobs.jsonl"), str(tmp_path / "cluster.json"))


def tasks(folder: Path, *policies: str) -> list[Task]:
    paths = output_paths(str(folder), policies)
    return [Task(Run(name), path, timing=False) for name, path in zip(policies, paths, strict=True)]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_workers_write_the_same_bytes(sources: Sources, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    replay_all(sources, tasks(tmp_path / "one", "fifo", "las"))
    two = tasks(tmp_path / "two", "fifo", "las")
    replay_all(sources, two, workers=2, advance=lambda *at: told.append(at))
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert told == [(4, 8), (8, 8)]


def test_killed_and_interrupted_workers_leave_none() -> None:
    with pytest.raises(ServiceMissingError, match="a worker process was killed"), worker_pool(2) as pool:
        pool.submit(os._exit, 1).result()
    assert_no_workers()
    with pytest.raises(KeyboardInterrupt), worker_pool(2) as pool:  # noqa: PT012
        pool.submit(time.sleep, 600)
        raise KeyboardInterrupt
    assert_no_workers()


def test_no_worker_outlives_a_killed_parent() -> None:
    script = (
        "import os, signal, time\n"
        "from pliant.tools.replay.batch import worker_pool\n"
        "with worker_pool(2) as pool:\n"
        f"    pool.submit(time.sleep, {PATIENCE_S + 60})\n"
        "    pool.submit(os.getpid).result()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=False)  # workers hold it
    assert done.returncode == -signal.SIGKILL


def assert_no_workers() -> None:
    until = time.monotonic() + PATIENCE_S
    while active_children() and time.monotonic() < until:
        time.sleep(0.01)
    assert active_children() == []


def test_stdin_and_wrong_policies_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stdin"):
        replay_all(Sources("-", "cluster.json"), tasks(tmp_path, "fifo", "ares"), workers=2)
    with pytest.raises(UsageError, match='unknown policy "fofi"'):
        replay_all(Sources("nowhere", "nowhere"), tasks(tmp_path, "fifo", "fofi"))


def test_a_log_of_jobs_that_take_turns_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same few values over and over, and so small a file that it would not be trusted."""
    trace = [job(name, gpus=1, gpu_seconds=12_000) for name in "abcdef"]
    done = replay(inputs(trace, cluster(1)), Run("las", {}))
    assert len(done.log) > 2000
    monkeypatch.setattr(limits, "FREE_BYTES", 0)
    write(done.log, done.summary, str(tmp_path / "las.parquet"))
    assert len(io.read_events(tmp_path / "las.parquet")) == len(done.log)


def test_files_and_parameters_are_told_apart_by_policy() -> None:
    assert output_paths("-", ["fifo"]) == ["-"]
    assert output_paths("a/run.jsonl", ["fifo"]) == ["a/run.jsonl"]
    assert output_paths("runs", ["fifo", "las"]) == ["runs/fifo.parquet", "runs/las.parquet"]
    for path, policies, problem in (
        ("-", ["fifo", "las"], "2 policies do not fit into stdout"),
        ("run.parquet", ["fifo", "las"], r"2 policies do not fit into run\.parquet"),
        ("runs", ["fifo", "las", "fifo"], '"fifo" is named twice'),
    ):
        with pytest.raises(UsageError, match=problem):
            output_paths(path, policies)
    both = ["ares", "fifo"]
    assert parameters_by_policy(both, ["ares.alpha=1"]) == {"ares": {"alpha": "1"}, "fifo": {}}
    assert parameters_by_policy(["ares"], ["alpha=1", "ares.pool=2"]) == {"ares": {"alpha": "1", "pool": "2"}}
    for stated, problem in (("alpha=1", r"ares\.alpha=1"), ("las.x=1", '"las" is not among')):
        with pytest.raises(UsageError, match=problem):
            parameters_by_policy(both, [stated])
    # A trace is called after its file.
    paths = ("traces/philly-t0.jsonl", "w6/jobs.jsonl", "jobs.jsonl", "/jobs.jsonl", "-")
    assert [trace_name(path) for path in paths] == ["philly-t0", "w6", "jobs", "jobs", None]


@pytest.mark.parametrize(("record", "declared"), [(SweepRecipe, Conditions), (SweepTask, ReplayOptions)])
def test_a_recipe_and_a_task_have_the_declared_fields(record: type[Record], declared: type) -> None:
    own = {"jobs", "cluster"} if record is SweepTask else set()
    for each in fields(declared):
        assert each.name in record.model_fields
        if each.name not in own:
            assert record.model_fields[each.name].default == each.default


def test_the_command_has_an_option_for_every_declared_field() -> None:
    alone = typer.Typer()
    alone.command("replay")(command(replay_command))
    options = {parameter.name: parameter for parameter in get_command(alone).params}
    for each in fields(ReplayOptions):
        name = each.name if each.name == "jobs" else f"--{each.name.replace('_', '-')}"
        assert name in options[each.name].opts
        assert options[each.name].default == each.default


def test_what_no_replay_can_follow_is_said_in_words() -> None:
    assert [text for _, text in Conditions(interval=1e-9, interference=1.0).wrong()] == [
        "1e-09: expected 0, or 0.001 s or more",
        "1: expected a part of the speed, from 0 to below 1",
    ]
    assert [*Conditions(interval=0.0, interference=0.5).wrong()] == []
