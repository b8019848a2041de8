"""The published data, where it is: what the importers make of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

from pliant.schemas import io
from pliant.schemas.job import EpochWork, IterationWork
from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.throughput import Load, PairTable
from pliant.tools.replay.importers.run import import_trace
from tests.tools.replay.importers.importing import Result, run


def profiled(result: Result) -> tuple[ProfileRow, ...]:
    return io.read_profile(result.out / "profile.parquet").rows


def test_pollux_keeps_all_measurements_and_epochs(tmp_path: Path, reference_data: Path) -> None:
    data = reference_data / "pollux"
    result = run(tmp_path, "pollux", str(data), workload="workload-6.csv")
    rows = profiled(result)
    placements = [row for row in rows if row.node_order is not None]
    files = [*data.glob("traces/*/placements.csv")], [*data.glob("traces/*/scalability.csv")]
    lines = [sum(len(path.read_text().splitlines()) - 1 for path in found) for found in files]
    assert lines == [len(placements), len(rows) - len(placements)]
    orders = {row.node_order for row in placements if row.model == "bert"}
    assert len(orders) == 108
    assert {"1,2,4", "1,4,2"} <= orders
    assert len({(row.model, row.node_order, row.local_batch) for row in placements}) == len(placements)
    assert not result.summary.dropped
    assert len(result.jobs) == 160
    assert result.jobs[0].submit_time > 0
    epochs = {job.model: job.work.epochs for job in result.jobs if isinstance(job.work, EpochWork)}
    expected = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
    assert epochs == expected
    assert all(job.convergence == job.model for job in result.jobs)


def test_sia_and_ones_have_their_types_and_kinds(tmp_path: Path, reference_data: Path) -> None:
    sia = run(tmp_path, "sia", str(reference_data / "sia"), workload="newtrace/workload-1.csv")
    types = {row.gpu_type for row in profiled(sia)}
    assert types == {"aws", "rtx", "quad", "dgx", "dgx-ext", "azure"}
    assert (len(sia.jobs), sia.summary.dropped.total()) == (960, 0)
    ones = run(tmp_path, "ones", str(reference_data / "ones"), workload="trace_1.csv")
    assert len(ones.jobs) == 400
    assert all(isinstance(job.work, EpochWork) for job in ones.jobs)
    models = {row.model for row in io.read_convergence(ones.out / "convergence.parquet")}
    assert {job.convergence for job in ones.jobs} <= models


def test_gavel_traces_and_throughputs_name_the_same_models(tmp_path: Path, reference_data: Path) -> None:
    result = run(tmp_path, "gavel", str(reference_data / "gavel"), workload="msr-seed0-0e4a51.trace")
    rows = profiled(result)
    assert len(result.jobs) == 1181
    assert {job.model for job in result.jobs} <= {row.model for row in rows if row.kind == "train"}
    assert Counter(row.feasible for row in rows)[False] > 0
    table, place = PairTable(rows), (1,)
    loads = {Load(row.model, row.local_batch) for row in rows if row.kind == "pair"}
    found = [table.measured(one, other, "v100", place) for one in loads for other in loads]
    assert None in found
    assert 0.5 < fmean(each[0] for each in found if isinstance(each, tuple)) < 0.8


def test_elasticflow_jobs_take_what_their_trace_says(tmp_path: Path, reference_data: Path) -> None:
    """The artifact drew iterations so that throughputs and requested GPUs give the recorded duration."""
    result = run(tmp_path, "elasticflow", str(reference_data / "elasticflow"), workload="195job.csv")
    rows = profiled(result)
    seconds = {(row.model, row.gpus, row.local_batch): row.step_seconds for row in rows}
    assert len(result.jobs) == 195
    for job in result.jobs:
        size = job.gpus.requested
        step_s = seconds[job.model, size, (job.batch.size or 0) // size]
        assert isinstance(job.work, IterationWork)
        assert job.work.iterations * (step_s or 0.0) == pytest.approx(float(job.labels["duration"]), abs=1.0)


def test_every_job_of_the_lists_is_there_or_accounted_for(tmp_path: Path, reference_data: Path) -> None:
    for kind, path in (
        ("philly", "pollux/traces/philly.csv"),
        ("alibaba-v2023", "alibaba-v2023/openb_pod_list_cpu100.csv"),
        ("tiresias", "tiresias/60_job.csv"),
        ("tiresias", "tiresias/yarn-gput1000.csv"),
        ("gavel", "gavel/traces/small_test.trace"),
        ("ones", "ones/trace_1.csv"),
        ("elasticflow", "elasticflow/cluster01.csv"),
    ):
        summary = import_trace(kind, [str(reference_data / path)], str(tmp_path / "jobs.jsonl"))
        assert summary.rows == summary.jobs + summary.dropped.total()
        assert not any("malformed" in reason for reason in summary.dropped)


@pytest.mark.parametrize(
    ("kind", "path"),
    [("philly", "philly/cluster_job_log"), ("helios", "helios/cluster_log.csv"), ("pai", "pai-v2020")],
)
def test_traces_too_large_to_ship_are_read_where_they_are(
    tmp_path: Path, reference_data: Path, kind: str, path: str
) -> None:
    if not (reference_data / path).exists():
        pytest.skip(f"too large to ship: no {path} in the published data")
    summary = import_trace(kind, [str(reference_data / path)], str(tmp_path / "jobs.jsonl"))
    assert summary.jobs > 10_000


def test_shockwave_jobs_change_their_batch_as_published(tmp_path: Path, reference_data: Path) -> None:
    folder = reference_data / "shockwave"
    result = run(tmp_path, "shockwave", str(folder), workload=str(folder / "120-jobs-dynamic.trace"))
    by_mode = Counter(job.labels["mode"] for job in result.jobs)
    assert by_mode == {"gns": 57, "accordion": 59, "static": 4}
    assert sum(bool(job.batch.regimes) for job in result.jobs) == 67
    known = {(row.model, row.gpus, row.local_batch) for row in profiled(result) if row.kind == "train"}
    for job in result.jobs:
        for size in (job.batch.size, *(regime.size for regime in job.batch.regimes)):
            assert (job.model, job.gpus.requested, size // job.gpus.requested) in known
