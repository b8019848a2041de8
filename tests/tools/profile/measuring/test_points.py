"""A profile that is cut short keeps its points, and the same command goes on from them."""

import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pliant.cli.profile import profile
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, JobsFailedError, PliantError
from pliant.schemas.io import read_profile, write_cluster, write_jobs, write_profile
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.measuring import run as sweep
from pliant.tools.profile.measuring.launch import PointsFile
from pliant.tools.profile.measuring.request import MeasurementRequest, Point, PointSearch, is_measured
from pliant.tools.profile.measuring.run import AllReduceCache, cluster_label, measure
from tests.builders import cluster, job, mixed_cluster
from tests.tools.profile.measuring.machine import Machine
from tests.tools.profile.rows_builder import reduce, step
from tests.tools.run.site import until


def ends_at(local_batch: int, error: BaseException, model: str = "net") -> Callable[[str, int], None]:
    def trouble(name: str, local: int) -> None:
        if (name, local) == (model, local_batch):
            raise error

    return trouble


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    trained = [job(name, model=name, command=("train.py",), high=2, batch=8) for name in ("net", "other")]
    write_jobs(trained, "jobs.jsonl")
    write_cluster(cluster(2, slots="cpu", gpu_type="cpu"), "cluster.json")
    (tmp_path / "train.py").write_text("train()")
    return tmp_path


def measure_with(machine: Machine, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    monkeypatch.setattr(sweep, "measure", partial(measure, start=machine))
    profile("jobs.jsonl", **{"cluster": "cluster.json", "output": "p.parquet", **options})  # type: ignore[arg-type]


def rows(made: Profile) -> list[tuple[object, ...]]:
    return [(row.model, row.gpus, row.local_batch, row.accum_steps, row.step_seconds) for row in made.rows]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(143), JobsFailedError("net: KeyError: 7")], ids=repr
)
@pytest.mark.parametrize("costs", [False, True])
def test_the_same_command_measures_the_rest_alone(here, monkeypatch, capsys, error, costs):
    whole = Machine()
    measure_with(whole, monkeypatch, output="whole.parquet", costs=costs)
    cut, rest = Machine(ends_at(8, error)), Machine()
    with pytest.raises(type(error)):
        measure_with(cut, monkeypatch, costs=costs)
    kept = here / "p.points.jsonl"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    goes_on = "what was measured is in p.points.jsonl: the same command goes on from there"
    assert goes_on in capsys.readouterr().err
    measure_with(rest, monkeypatch, costs=costs)
    known = f"{len(cut.measured)} of {len(whole.measured)} measurements were already made"
    assert known in capsys.readouterr().err
    again = 1 if costs else 0  # the launch that was cut short measures costs after a step
    assert len(cut.measured) + len(rest.measured) <= len(whole.measured) + again
    assert set(cut.measured) | set(rest.measured) == set(whole.measured)
    assert rows(read_profile("p.parquet")) == rows(read_profile("whole.parquet"))
    starts = {row.start_seconds for row in read_profile("p.parquet").rows}
    assert starts == ({1.0} if costs else {None})
    assert not kept.exists()


def test_all_reduces_go_on_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def second_sum(name: str, _local: int) -> None:
        if name == "all-reduce" and any(each[0] == name for each in cut.measured):
            raise KeyboardInterrupt

    cut = Machine(second_sum)
    with pytest.raises(KeyboardInterrupt):
        measure_with(cut, monkeypatch, allreduce=True)
    rest = Machine()
    measure_with(rest, monkeypatch, allreduce=True)
    grid = [100_000, 1_000_000, 5_000_000, 10_000_000]
    assert [weights for _, _, weights in rest.measured] == [*grid[1:], *grid], "each a second time, too"
    assert sum(row.kind == "allreduce" for row in read_profile("p.parquet").rows) == 4


@pytest.mark.parametrize("change", ["script", "iterations", "batches"])
def test_points_of_another_script_or_command_do_not_count(here, monkeypatch, change):
    with pytest.raises(KeyboardInterrupt):
        measure_with(Machine(ends_at(8, KeyboardInterrupt())), monkeypatch)
    if change == "script":
        (here / "train.py").write_text("train(faster=True)")
    changed = {"script": {}, "iterations": {"iterations": 20}, "batches": {"batches": "2,8"}}[change]
    again = Machine()
    measure_with(again, monkeypatch, **changed)
    assert ("net", 1, 2) in again.measured


def test_what_a_crash_has_torn_is_skipped(here, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        measure_with(Machine(ends_at(8, KeyboardInterrupt())), monkeypatch)
    kept = here / "p.points.jsonl"
    kept.write_bytes(kept.read_bytes() + b'{"launch": "abc", "meas')
    with pytest.raises(KeyboardInterrupt):
        measure_with(Machine(ends_at(8, KeyboardInterrupt(), "other")), monkeypatch)
    rest = Machine()
    measure_with(rest, monkeypatch)
    assert {name for name, _, _ in rest.measured} == {"other"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"schema":"pliant.points/1"}\n{"launch":7}\n{}\n', "points.jsonl:2: /launch"),
        ('{"schema":"pliant.job/1"}\n', "'job' file, expected a 'points' file"),
        ('{"schema":"pliant.points/2"}\n', "major version 2"),
        ("nothing\n", "points.jsonl:1"),
    ],
)
def test_another_file_or_a_damaged_one_is_refused_and_kept(here, monkeypatch, text, problem):
    path = here / "p.points.jsonl"
    path.write_text(text)
    machine = Machine()
    with pytest.raises(BadInputError, match=problem):
        measure_with(machine, monkeypatch)
    assert (path.read_text(), machine.measured) == (text, [])


def test_a_file_that_cannot_be_read_is_not_one_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PliantError, match="cannot be read"):
        PointsFile.read(tmp_path)
    assert PointsFile.read(tmp_path / "missing").count({"a"}) == 0


def test_a_profile_into_a_pipe_keeps_points_in_a_named_file(here, monkeypatch):
    trouble = ends_at(8, KeyboardInterrupt())
    for options, left in (({}, []), ({"points": "here.jsonl"}, ["here.jsonl"])):
        with pytest.raises(KeyboardInterrupt):
            measure_with(Machine(trouble), monkeypatch, output="/dev/null", **options)
        assert sorted(path.name for path in here.glob("*.jsonl") if path.name != "jobs.jsonl") == left


def test_a_course_passes_over_what_is_known() -> None:
    request = MeasurementRequest(result="", local_batches=(2, 4, 32), global_batches=(8, 48), per_gpu_max=64)
    course, tried = PointSearch(request, 1), []
    while (cut := course.next()) is not None:
        tried.append(cut)
        course.record(cut, fits=cut[0] <= 17)
    assert tried == [(2, 1), (4, 1), (32, 1), (18, 1), (11, 1), (14, 1), (16, 1), (8, 1), (16, 3)]
    points = [Point(local_batch=a, accum=b, feasible=a <= 17, step_s=(1.0,)) for a, b in tried]
    for count, cut in enumerate(tried):
        known = request.model_copy(update={"known": tuple(points[:count])})
        assert PointSearch(known, 1).next() == cut
        assert not is_measured(known, 1)
    assert not is_measured(request.model_copy(update={"known": tuple(points)}), 1), "each is visited twice"
    assert is_measured(request.model_copy(update={"known": tuple(points * 2)}), 1)


WIRED = str(Path(__file__).with_name("wired_by_hand.py"))
HELD = f"""
import pathlib, runpy, sys, time
from pliant.tools.profile.measuring import worker as measure

serve = measure.Sweep._serve

def held(self, local, accum):
    hold = pathlib.Path("hold")
    end = hold.read_text() if hold.exists() else ""
    while local >= 8 and hold.exists():
        pathlib.Path("held-" + end).touch()
        time.sleep(0.05)
    yield from serve(self, local, accum)

measure.Sweep._serve = held
sys.argv = [{WIRED!r}]
runpy.run_path({WIRED!r}, run_name="__main__")
"""
COMMAND = (
    *("sh", "-c", "trap '' INT; exec \"$@\"", "sh"),  # as a script starts what runs in its background
    *(sys.executable, "-m", "pliant.cli", "profile", "jobs.jsonl", "--cluster", "cluster.json"),
    *("--iterations", "2", "--warmup", "1", "--batches", "2,4,8", "--patience", "0", "-o", "p.parquet"),
)


@pytest.mark.torch
def test_a_real_measurement_goes_on_where_it_ended(tmp_path: Path) -> None:
    """It is ended repeatedly at its last batch, and measures the two before that once."""
    (tmp_path / "train.py").write_text(HELD)
    write_jobs([job("a", model="net", command=("train.py",), batch=8)], tmp_path / "jobs.jsonl")
    write_cluster(cluster(1, slots="cpu", gpu_type="cpu"), tmp_path / "cluster.json")
    hold, kept = tmp_path / "hold", tmp_path / "p.points.jsonl"
    known = "2 of 6 measurements were already made"

    def is_held(end: str) -> bool:
        return (tmp_path / f"held-{end}").exists() and kept.exists() and kept.read_bytes().count(b"\n") == 3

    for end, code in {"SIGKILL": -9, "SIGTERM": 143}.items():
        hold.write_text(end)
        with subprocess.Popen(COMMAND, cwd=tmp_path, stderr=subprocess.PIPE) as ended:
            until(lambda process=ended, end=end: is_held(end) or process.poll() is not None)
            started = psutil.Process(ended.pid).children(recursive=True)
            ended.send_signal(signal.SIGINT)  # it goes on
            ended.send_signal(getattr(signal, end))
            stderr = ended.communicate()[1].decode()
        assert ended.returncode == code, (end, stderr)
        assert not (tmp_path / "p.parquet").exists(), end
        assert kept.read_bytes().count(b"\n") == 3, end
        assert (known in stderr) is (end != "SIGKILL"), "the first of them had to measure"
        assert started
        if end != "SIGKILL":
            psutil.wait_procs(started)

    hold.unlink()
    again = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert known in again.stderr
    assert {row.local_batch for row in read_profile(tmp_path / "p.parquet").rows} == {2, 4, 8}
    assert not kept.exists()


# All-reduce times are measured once for a cluster and used for every job after that.


FOUR_CPUS = cluster(4, slots="cpu", gpu_type="cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(sweep, "measure", partial(measure, start=made))
    return made


def measured(folder: Path, nodes: Cluster = FOUR_CPUS, **options: Any) -> tuple[ProfileRow, ...]:
    jobs, machines, out = (str(folder / name) for name in ("jobs.jsonl", "cluster.json", "profile.parquet"))
    write_jobs([job("a", model="net", command=("train.py",), batch=8)], jobs)
    write_cluster(nodes, machines)
    profile(jobs, cluster=machines, output=out, **options)
    return tuple(row for row in read_profile(out).rows if row.kind == "allreduce")


def test_the_first_profile_measures_and_the_second_one_uses_that(machine, tmp_path, capsys) -> None:
    first = measured(tmp_path, allreduce=True)
    assert machine.reduced_on == [2, 4]
    assert read_profile(tmp_path / "allreduce.parquet").rows == first
    capsys.readouterr()
    assert measured(tmp_path, allreduce=True) == first
    assert machine.reduced_on == [2, 4]
    stderr = capsys.readouterr().err
    assert "allreduce.parquet, measured 20" in stderr
    assert "UTC on the cluster of n0 4 × cpu (cpu slots)" in stderr
    # Times of another cluster are refused before anything is measured.
    refused = r"on the cluster of n0 4 × cpu .*, not on the cluster of n0 to n1"
    with pytest.raises(BadInputError, match=refused):
        measured(tmp_path, cluster(4, 4, slots="cpu", gpu_type="cpu"), allreduce=True)
    assert machine.reduced_on == [2, 4]
    machine.allreduce_s = 0.005
    fresh = measured(tmp_path, refresh=True)
    assert {row.step_seconds for row in fresh} == {0.005}
    assert {row.step_seconds for row in measured(tmp_path, allreduce=True)} == {0.005}


def test_a_named_file_serves_profiles_in_any_folder(machine: Machine, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        measured(tmp_path / name, allreduce_file=str(tmp_path / "ours.parquet"))
    assert machine.reduced_on == [2, 4]


def test_times_of_one_gpu_type_do_not_stand_for_another(machine, tmp_path):
    both = mixed_cluster(old=(2,), new=(4,)).model_copy(update={"slots": "cpu"})
    old = reduce(2, 10_000_000, 0.5, gpu_type="old")
    kept = tmp_path / "allreduce.parquet"
    AllReduceCache.of(Profile((old,)), cluster_label(both)).write(kept)
    found = measured(tmp_path, both, allreduce=True)
    assert machine.reduced_on == [2, 4]
    assert {row.gpu_type for row in found} == {"old", "new"}
    assert read_profile(kept).rows == found
    assert measured(tmp_path, both, allreduce=True) == found
    assert machine.reduced_on == [2, 4], "both are known now"
    machine.allreduce_s = 0.005
    fresh = measured(tmp_path, both, refresh=True)
    assert old in fresh
    assert {row.step_seconds for row in fresh if row != old} == {0.005}
    assert fresh == tuple(row for row in read_profile(kept).rows if row.kind == "allreduce")


def test_clusters_differ_by_nodes_slots_and_types(tmp_path: Path) -> None:
    others = cluster(2, 2, 2), cluster(4), cluster(2, 2, slots="cpu"), cluster(2, 2, gpu_type="p100")
    assert len({cluster_label(each) for each in (None, cluster(2, 2), *others)}) == 6
    assert cluster_label(cluster(2, 2)) == "the cluster of n0 to n1, each 2 × gpu (gpu slots)"
    # A profile of jobs is no file of all reduce times.
    path = tmp_path / "profile.parquet"
    write_profile(Profile((step(1, 8, 0.1), reduce(2, 10, 0.1))), path)
    with pytest.raises(BadInputError, match="is not a file of all-reduce times"):
        AllReduceCache.read(path, "this cluster")
