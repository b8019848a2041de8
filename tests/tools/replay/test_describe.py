"""What is in a trace, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.io import write_cluster, write_jobs
from pliant.schemas.job import Job
from pliant.tools.replay.batch import offered_load, overload
from pliant.tools.replay.describe import cluster_for, describe, warning
from pliant.tools.replay.inputs import Inputs, inputs
from tests.builders import cluster, job
from tests.cli.calling import call

HOUR_S = 3600.0


def trace() -> list[Job]:
    """Two days: 24 GPU hours at first, 72 at hour 36 and none known of the last, at hour 48."""
    return [
        job("a", at=0.0, gpus=2, gpu_seconds=24 * HOUR_S, user="ann", labels={"status": "FAILED"}),
        job("b", at=36 * HOUR_S, gpus=4, gpu_seconds=72 * HOUR_S, user="bob", labels={"runs": "0-10"}),
        job("c", at=48 * HOUR_S, gpus=4, work={"samples": 5.0}, user="ann"),
    ]


def test_jobs_work_and_load_of_a_cluster_by_day() -> None:
    found = describe(trace(), gpus=2)
    assert (found.jobs, found.users, found.span_s, found.gpu_hours) == (3, 2, 48 * HOUR_S, 96.0)
    assert (found.jobs_without_work, found.sizes) == (1, ((2, 1), (4, 2)))
    assert found.durations_s == (12 * HOUR_S, 12 * HOUR_S, 18 * HOUR_S, 18 * HOUR_S)
    assert (found.arrivals_by_hour[0], found.arrivals_by_hour[12]) == (2, 1)
    assert (found.states, found.most_held_gpus) == ((("FAILED", 1),), 4)
    assert found.load == pytest.approx(96 / (2 * 48))
    assert found.load_by_day == pytest.approx((24 / 48, 72 / 48))
    assert found.bin_s == HOUR_S
    assert {hour: gpus for hour, gpus in enumerate(found.arriving_gpus) if gpus} == {0: 24.0, 36: 72.0}
    assert warning(found) is None
    assert warning(describe(trace(), gpus=1)) == (
        "overload: 2 times what 1 GPU can do arrives; days above 1: 2"
    )


def test_a_cluster_for_a_load_holds_the_largest_job() -> None:
    found = describe(trace())
    assert found.load is None
    assert cluster_for(found, 0.2) == 10
    assert cluster_for(found, 0.8) == 4
    with pytest.raises(UsageError, match="expected a load above 0"):
        cluster_for(found, 0.0)
    with pytest.raises(UsageError, match="states no GPU time"):
        cluster_for(describe(trace()[2:]), 0.8)


def test_the_command_says_it_in_words(tmp_path: Path) -> None:
    jobs, machines = tmp_path / "jobs.jsonl", tmp_path / "cluster.json"
    write_jobs(trace(), jobs)
    write_cluster(cluster(1), machines)
    done = call("trace", "describe", str(jobs), "--cluster", str(machines), "--cluster-for", "0.2")
    assert "work: 96.0 GPU hours, none known of 1 job" in done.stdout
    assert "cluster for a load of 0.2: 10 GPUs" in done.stdout
    assert "overload: 2 times" in done.stderr


def test_the_work_that_arrives_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jobs([*trace(), job("d", at=200 * HOUR_S, gpu_seconds=48 * HOUR_S)], Path("jobs.jsonl"))
    write_cluster(cluster(2), Path("cluster.json"))
    words = ("trace", "describe", "jobs.jsonl", "--cluster", "cluster.json", "--figure")
    for name in ("one.svg", "two.svg"):
        assert call(*words, name).exit_code == 0
    drawn = Path("one.svg").read_bytes()
    assert drawn == Path("two.svg").read_bytes()
    assert b"<svg" in drawn
    done = call(*words, "one.gif")
    assert (done.exit_code, done.stderr) == (
        2,
        "pliant: --figure one.gif: expected a name that ends in .svg, .png or .pdf\n",
    )


def test_long_traces_are_counted_by_day() -> None:
    found = describe([*trace(), job("d", at=200 * HOUR_S, gpu_seconds=48 * HOUR_S)])
    assert found.bin_s == 24 * HOUR_S
    assert found.arriving_gpus == pytest.approx((1.0, 3.0, 0, 0, 0, 0, 0, 0, 2.0))


def stream(count: int, every_s: float, gpu_seconds: float = 200.0, gpus: int = 2) -> Inputs:
    """Jobs of so many GPU-seconds arrive at a steady pace at ten GPUs."""
    jobs = [job(f"j{n}", at=n * every_s, gpus=gpus, gpu_seconds=gpu_seconds) for n in range(count)]
    return inputs(jobs, cluster(10))


def test_twice_the_capacity_by_hand():
    """41 jobs of 200 GPU-seconds in 400 s, in which ten GPUs have 4000."""
    assert offered_load(stream(41, 10.0)) == pytest.approx(41 * 200 / 4000)
    assert overload(stream(41, 10.0)) == (
        "overload: jobs arrive for 7 min and bring 2.05 times the work that 10 GPUs can do in that time: "
        "the queue grows to the last arrival"
    )


def test_what_a_cluster_can_do_is_no_overload():
    assert overload(stream(41, 20.0)) is None


@pytest.mark.parametrize("few", [stream(10, 1.0), stream(41, 0.0), stream(41, 2.0), stream(0, 1.0)])
def test_a_batch_of_jobs_is_no_stream(few):
    """Few jobs, or jobs that arrive faster than half of them end, wait for each other by design."""
    assert offered_load(few) is None


def test_jobs_that_can_never_run_bring_no_work():
    too_large = stream(41, 10.0, gpus=11)
    assert offered_load(too_large) is None
