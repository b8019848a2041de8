"""Real measurements: torchrun, PyTorch, memory limits, crashes."""

from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.measuring.launch import Advance, LaunchEnd, Script, launch
from pliant.tools.profile.measuring.plan import MeasuringOptions
from pliant.tools.profile.measuring.request import LaunchOutcome, MeasurementRequest, best_visits
from pliant.tools.profile.measuring.run import measure
from pliant.tools.profile.throughput_model import ThroughputBySize
from tests.builders import job

pytestmark = pytest.mark.torch

SCRIPT = str(Path(__file__).with_name("wired_by_hand.py"))
MEGABYTE = 1_000_000


def short(script: Script, workers: int, request: MeasurementRequest, advance: Advance) -> LaunchEnd:
    return launch(script, workers, request.model_copy(update={"least_seconds": 0.0}), advance)


def quiet(_outcome: LaunchOutcome) -> None:
    pass


def test_one_and_two_workers_with_a_limit_on_memory() -> None:
    """A sample of 80 MB fits a worker, eight do not: two or three batches are there at a time."""
    nodes = ({"name": "here", "gpus": 2, "gpu_type": "cpu", "gpu_memory": 900 * MEGABYTE},)
    cluster = Cluster.model_validate({"nodes": nodes, "slots": "cpu"})
    batch = {"size": 2, "per_gpu_max": 1}
    jobs = [job("a", model="net", command=(SCRIPT, "80"), low=1, high=2, batch=batch)]
    options = MeasuringOptions(batches=(1, 8), iterations=2, warmup=1)
    profile = measure(jobs, cluster, options, clock=lambda: 1e9, start=short).profile

    rows: dict[tuple[int, int, int], ProfileRow] = {
        (row.gpus, row.local_batch, row.accum_steps): row for row in profile.rows
    }
    assert rows[1, 1, 1].feasible
    assert not rows[1, 8, 1].feasible
    assert all((row.peak_memory or 0) <= 900 * MEGABYTE for row in profile.rows if row.feasible)
    assert all(row.parameters == 200 for row in profile.rows)
    gang = rows[2, 1, 1]
    assert gang.step_seconds == pytest.approx((gang.compute_seconds or 0) + (gang.sync_seconds or 0))
    model = ThroughputBySize(profile)
    assert model.step_seconds("net", "cpu", (2,), 2, 1) == gang.step_seconds
    assert model.step_seconds("net", "cpu", (1,), 2, 1) == rows[1, 1, 2].step_seconds


def test_all_reduces_of_two_workers() -> None:
    request = MeasurementRequest(result="", weights=(10, 1000), iterations=2, warmup=1, least_seconds=0.0)
    module = Script("all-reduce", ("-m", "pliant.tools.profile.measuring.allreduce"))
    points = best_visits(launch(module, 2, request, quiet).outcome.points)
    assert [point.weights for point in points] == [10, 1000]
    assert all(len(point.step_s) == 2 and min(point.step_s) > 0 for point in points)
    # The all reduce module is not for hands.
    from pliant.tools.profile.measuring.allreduce import main

    with pytest.raises(SystemExit, match="pliant profile --allreduce"):
        main()
