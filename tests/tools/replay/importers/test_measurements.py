"""Pollux, Sia, ONES, Gavel and ElasticFlow: formats that bring measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas import io
from pliant.schemas.errors import UsageError
from pliant.schemas.job import EpochWork, IterationWork, Regime, SampleWork
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.profile.predictor import ended_jobs
from pliant.tools.replay.importers.run import import_trace
from pliant.tools.replay.progress import validations
from tests.tools.replay.importers.importing import WORKLOAD, facts, problems, run, text

STEPS = "local_bsz,step_time,sync_time"
EPOCHS = "progress,iteration,metric,grad_sqr,grad_var"
BERT = "0,bert,cola,80,5,16,5e-06,2e-5,0.8,2"
RESNET = "9,resnet18,cifar,400,10,256,0.005,0.08,0.7,4"
ONES = "time,model,task,epoch_size,patience,batch_size,lr,max_lr,target_acc,num_gpus"
HISTORY = "id,epoch,epoch_size,num_samples,total_workload,batch_size,lr,initial_loss,loss,acc,throughput"


def application(folder: Path, model: str = "cifar10", suffix: str = "") -> Path:
    """One application with a placement in three orders, two sizes and two validation runs."""
    inner = folder / "traces" / model
    rows = ("124,32,0.5,0.1", "142,32,0.6,0.2", "4,32,0.25,0.05", "4,64,0.4,0.05")
    text(inner, f"placements{suffix}.csv", f"placement,{STEPS}", *rows)
    sizes = ("3,7,32,0.75,0.5", "2,2,32,0.45,0.2")
    text(inner, f"scalability{suffix}.csv", f"num_nodes,num_replicas,{STEPS}", *sizes)
    text(inner, "validation-128.csv", EPOCHS, "391.0,390,0.4,8.9,5.0", "782.0,781,0.6,1.9,1.6")
    text(inner, "validation-4096.csv", EPOCHS, "400.0,106,0.3,9.0,90.0", "790.0,120,,2.0,60.0")
    return folder


def workload(folder: Path, *rows: str) -> str:
    return text(folder, "workload-9.csv", WORKLOAD, *rows)


def test_placements_keep_node_order_and_sizes_split_evenly(tmp_path: Path) -> None:
    result = run(tmp_path, "pollux", str(application(tmp_path / "data")))
    rows = io.read_profile(result.out / "profile.parquet").rows
    measured = {row.node_order: row for row in rows if row.node_order is not None and row.nodes > 1}
    assert {order: row.step_seconds for order, row in measured.items()} == {"1,2,4": 0.5, "1,4,2": 0.6}
    ring = measured["1,4,2"]
    assert (ring.kind, ring.model, ring.gpu_type, ring.source) == ("train", "cifar10", "t4", "imported")
    assert (ring.nodes, ring.gpus, ring.placement, ring.local_batch) == (3, 7, "4,2,1", 32)
    assert (ring.sync_seconds, ring.compute_seconds) == (0.2, pytest.approx(0.4))
    assert ring.samples_per_second == pytest.approx(7 * 32 / 0.6)
    sizes = [(row.nodes, row.gpus, row.placement) for row in rows if row.node_order is None]
    assert sizes == [(3, 7, "3,2,2"), (2, 2, "1,1")]
    epochs = io.read_convergence(result.out / "convergence.parquet")
    assert [(row.batch, row.epoch) for row in epochs] == [(128, 0), (128, 1), (4096, 0), (4096, 1)]
    assert epochs[-1] == ConvergenceRow("cifar10", 4096, 1, 120.0, 790.0, None, 2.0, 60.0)


def test_pollux_jobs_have_validated_batches_and_epochs(tmp_path: Path) -> None:
    data = application(tmp_path / "data")
    workload(data / "workloads", "cifar10-1,154,cifar10,6,2048", "cifar10-0,53,cifar10,4,128")
    result = run(tmp_path, "pollux", str(data), workload="workload-9.csv")
    first, second = result.jobs
    assert (first.id, first.submit_time, second.id, second.submit_time) == ("cifar10-0", 53, "cifar10-1", 154)
    assert (second.gpus.requested, second.min_gpus, second.elastic) == (6, 1, "size+batch")
    assert (second.batch.size, second.batch.min, second.batch.max) == (2048, 128, 4096)
    assert second.work == EpochWork(epochs=2.0, dataset_size=round(781 * 128 / 2))
    assert second.convergence == "cifar10"
    assert second.labels == {"trace": "pollux", "row": "1", "max_epochs": "2"}


def test_sia_files_name_their_gpu_type_and_those_without_are_aws(tmp_path: Path) -> None:
    data = application(tmp_path / "data")
    for suffix in ("-aws", "-dgx-ext"):
        application(tmp_path / "data", suffix=suffix)
    result = run(tmp_path, "sia", str(data))
    rows = io.read_profile(result.out / "profile.parquet").rows
    assert {row.gpu_type for row in rows} == {"aws", "dgx-ext"}
    assert len(rows) == 12
    assert "files without a GPU type repeat those of aws and were not read" in result.summary.assumptions


def test_what_is_wrong_in_a_data_folder_is_told_by_file_and_line(tmp_path: Path) -> None:
    data = application(tmp_path / "data")
    steps = ("4,32,0.5,0.6", "40,32,0.5,0.1", "4,0,0.5,0.1", "4,20.5,0.5,0.1", "4,32,0,0")
    text(data / "traces" / "cifar10", "placements.csv", f"placement,{STEPS}", *steps)
    path = workload(tmp_path, "a,0,cifar10,0,128", "b,0,vgg,1,128", "c,0,cifar10,1,8192")
    lines = problems(tmp_path, "pollux", str(data), workload=path)
    assert lines == [
        "data/traces/cifar10/placements.csv:2: /sync_time: 0.6 is above step_time 0.5, which includes it",
        "data/traces/cifar10/placements.csv:3: /placement: '40', expected GPUs per node as digits, like 42",
        "data/traces/cifar10/placements.csv:4: /local_bsz: is 0, expected 1 or more",
        "data/traces/cifar10/placements.csv:5: /local_bsz: '20.5' is not a whole number",
        "data/traces/cifar10/placements.csv:6: /step_time: is 0, expected more than 0",
        "workload-9.csv:2: /num_replicas: is 0, expected 1 or more",
        "workload-9.csv:3: /application: 'vgg' has no validation runs (there are: cifar10)",
        "workload-9.csv:4: /size: 8192 is above batch.max 4096",
    ]
    for metric in ("inf", "-inf", "1e999"):
        data = application(tmp_path / "data")
        text(data / "traces" / "cifar10", "validation-128.csv", EPOCHS, f"1,10,{metric},1,1")
        (problem,) = problems(tmp_path, "pollux", str(data))
        assert problem.startswith("data/traces/cifar10/validation-128.csv:2: /metric: ")


def test_a_folder_goes_to_a_folder_and_needs_one(tmp_path: Path) -> None:
    data = application(tmp_path / "data")
    with pytest.raises(UsageError, match="gives several files: name a folder with -o FOLDER"):
        import_trace("pollux", [str(data)])
    with pytest.raises(UsageError, match="is not a folder; pollux takes its data folder and --workload FILE"):
        run(tmp_path, "pollux", workload(tmp_path, "a,0,cifar10,1,128"))
    with pytest.raises(UsageError, match="helios brings no measurements"):
        run(tmp_path, "helios", "x.csv", workload="y.csv")
    assert problems(tmp_path, "sia", str(tmp_path)) == [
        f"{tmp_path}: holds no APPLICATION/placements*.csv, expected the data folder"
    ]


def ones(folder: Path) -> Path:
    """A test trace of two jobs, of which the first was recorded, after another one of its id."""
    text(folder, "trace_dev.csv", ONES, RESNET, BERT)
    rows = (
        "0,1,900,900,1800,64,0.01,6.9,1.7,0.3,5410.6",
        "0,1,400,400,1200,100,0.01,6.9,1.7,0.3,5410.6",
        "0,2,400,800,1200,200,0.02,6.9,1.4,0.5,6568.9",
    )
    text(folder, "job_history.csv", HISTORY, *rows)
    return folder


def test_ones_jobs_get_epochs_of_the_recorded_job_of_their_kind(tmp_path: Path) -> None:
    data = ones(tmp_path / "data")
    trace = text(tmp_path, "t.csv", ONES, BERT, RESNET)
    result = run(tmp_path, "ones", str(data), workload=trace)
    unknown, known = result.jobs
    assert (unknown.work, unknown.convergence) == (None, None)
    assert (known.id, known.submit_time, known.lr) == ("ones-2", 9.0, 0.005)
    assert known.work == EpochWork(epochs=3.0, dataset_size=400)
    assert (known.batch.size, known.batch.max) == (256, 4096)
    stated = {"task": "cifar", "epoch_size": "400", "patience": "10", "target_acc": "0.7"}
    assert known.labels == {"trace": "ones", **stated}
    assert result.dropped == {"are epochs of a run that does not fit trace_dev.csv": 1}


def test_ones_epochs_history_and_kinds(tmp_path: Path) -> None:
    result = run(tmp_path, "ones", str(ones(tmp_path / "data")))
    assert [*io.read_convergence(result.out / "convergence.parquet")] == [
        ConvergenceRow("resnet18-cifar-400", 100, 0, 4.0, 400.0, 0.3, loss=1.7, initial_loss=6.9),
        ConvergenceRow("resnet18-cifar-400", 100, 1, 6.0, 800.0, 0.5, loss=1.4, initial_loss=6.9),
    ]
    assert not (result.out / "profile.parquet").exists()
    events = io.read_events(result.out / "history.jsonl")
    assert [(event.event, event.job, event.samples_done, event.loss, event.metric) for event in events] == [
        ("submit", "recorded-1", None, None, None),
        ("progress", "recorded-1", 0.0, 6.9, None),
        ("epoch", "recorded-1", 400.0, 1.7, 0.3),
        ("epoch", "recorded-1", 800.0, 1.4, 0.5),
        ("finish", "recorded-1", 1200.0, None, None),
    ]
    assert events[3].time - events[2].time == pytest.approx(400 / 6568.9)
    (learned_from,) = ended_jobs(events)
    assert learned_from.total_samples == 1200
    assert learned_from.epochs[0][:4] == (400, 6.9, 400, 1.7)


def test_ones_jobs_train_by_the_epochs_imported_with_them(tmp_path: Path) -> None:
    """Runs of one kind and batch are one entry of a convergence table: that of the first is kept."""
    data = ones(tmp_path / "data")
    text(data, "trace_dev.csv", ONES, RESNET, BERT, RESNET)
    again = [f"2,{epoch},400,{400 * epoch},800,100,0.01,6.9,1.4,0.5,65.9" for epoch in (1, 2)]
    with (data / "job_history.csv").open("a") as history:
        history.writelines(f"{line}\n" for line in again)
    result = run(tmp_path, "ones", str(data), workload=text(tmp_path, "t.csv", ONES, RESNET))
    assert result.dropped["are epochs of a run whose kind and batch another run has"] == 2
    assert result.jobs[0].work == EpochWork(epochs=3.0, dataset_size=400)
    (table,) = validations(io.read_convergence(result.out / "convergence.parquet")).values()
    assert (table.batches, table.epochs) == ((100,), 2)


def test_gavel_throughputs_count_all_workers_alone_and_in_pairs(tmp_path: Path) -> None:
    one, two = "('LM (batch size 20)', 1)", "('A3C', 1)"
    gang = "('LM (batch size 20)', 4)"
    types = {
        one: {"null": 8.0, two: [6.0, 1.0], one: [0.0, 0.0]},
        two: {"null": 4.0, one: [1.0, 6.0]},
        gang: {"null": 16.0},
    }
    spread = {one: {"null": 8.0}, gang: {"null": 0.0}}
    both = json.dumps({"v100": types, "v100_unconsolidated": spread})
    text(tmp_path / "data", "simulation_throughputs.json", both)
    result = run(tmp_path, "gavel", str(tmp_path / "data"))
    rows = io.read_profile(result.out / "profile.parquet").rows
    lm, a3c, gang, spread = (row for row in rows if row.kind == "train")
    assert (lm.model, lm.local_batch, lm.step_seconds, lm.samples_per_second) == ("LM", 20, 0.125, 160.0)
    assert (a3c.model, a3c.local_batch) == ("A3C", 1)
    assert (gang.gpus, gang.placement, gang.step_seconds, gang.samples_per_second) == (4, "4", 0.25, 320.0)
    assert (spread.placement, spread.feasible, spread.step_seconds) == ("1,1,1,1", False, None)
    pairs = {(row.model, row.beside_model): row for row in rows if row.kind == "pair"}
    found = {names: row.samples_per_second for names, row in pairs.items()}
    assert found == {("A3C", "LM"): 1.0, ("LM", "A3C"): 120.0, ("LM", "LM"): None}
    assert not pairs["LM", "LM"].feasible
    assert {(row.gpu_type, row.placement) for row in pairs.values()} == {("v100", "1")}
    assert (pairs["A3C", "LM"].local_batch, pairs["A3C", "LM"].beside_batch) == (1, 20)


def test_gavel_traces_come_in_two_forms(tmp_path: Path) -> None:
    short = "LM (batch size 20)\tcd x && python3 main.py\t--steps\t1\t300\t6.000000\t4"
    long = "A3C\tpython3 main.py\tdqn\t--max-steps\t0\t50\t1\t2\t-1.000000\t3"
    result = run(tmp_path, "gavel", text(tmp_path, "x.trace", short, long))
    second, first = result.jobs
    assert (first.id, first.submit_time, first.model, first.gpus.requested) == ("gavel-1", 6.0, "LM", 4)
    assert (first.batch.size, first.work) == (80, SampleWork(samples=6000.0))
    assert (second.id, second.submit_time, second.priority) == ("gavel-2", 3.0, 2.0)
    assert second.work == SampleWork(samples=50.0)


def test_shockwave_jobs_change_their_batch_as_their_mode_says(tmp_path: Path) -> None:
    """An epoch of ResNet-18 at batch 64 has 782 steps; 20 epochs end in the middle of the second regime.

    Accordion's first critical epochs are ten.
    """

    def line(job_type: str, steps: int, gpus: int, mode: str) -> str:
        return f"{job_type}\tmain.py\tcifar10\t--num_steps\t1\t{steps}\t{gpus}\t{mode}\t1\t-1.0\t55\t0"

    small = "ResNet-18 (batch size 64)"
    stated = [(small, 20 * 782, 1, "gns"), (small, 40 * 782, 4, "accordion"), (small, 11 * 782, 1, "gns")]
    stated += [("Transformer (batch size 16)", 6250, 2, "accordion"), (small, 7820, 1, "static")]
    path = text(tmp_path, "x.trace", *(line(*each) for each in stated))
    grows, large, short, fixed, static = (job.batch for job in run(tmp_path, "shockwave", path).jobs)
    assert grows.regimes == (Regime(after=11 / 20, size=128),)
    assert (large.size, large.regimes) == (256, (Regime(after=10 / 40, size=1024),))
    assert (short.regimes, fixed.regimes, static.regimes) == ((), (), ())


def test_shockwave_and_gavel_lines_that_are_wrong_are_named(tmp_path: Path) -> None:
    line = "LM (batch size 5)\tmain.py\tlm\t--steps\t1\t10\t1\tpollux\t1\t-1.0\t55\t0"
    assert problems(tmp_path, "shockwave", text(tmp_path, "y.trace", line)) == [
        "y.trace:1: /mode: 'pollux', expected static, accordion or gns"
    ]
    for size in ("0", "9" * 30, "9" * 5000):
        path = text(tmp_path, "w.trace", f"A (batch size {size})\tpython x\t--steps\t1\t100\t0\t1")
        (problem,) = problems(tmp_path, "gavel", path)
        assert problem.endswith("expected a batch size from 1 to 2,147,483,648")
    path = text(tmp_path, "x.trace", "LM\tx", "LM\tx\t-n\t1\t300\t0.0\t1.5")
    assert problems(tmp_path, "gavel", path) == [
        "x.trace:1: has 2 fields separated by tabs, expected 7 or 10",
        "x.trace:2: /gpus: '1.5', expected a whole number above 0",
    ]


FLOW = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"


def elasticflow(folder: Path) -> Path:
    """Two iterations a second on one A100, three on two, five on 16; the T4s' do not know 16."""
    sizes = "global_batch_size,1,2,16"
    text(folder / "throughputs_A100", "vgg16.csv", sizes, "64,2.0,3.0,5.0")
    text(folder / "throughputs_T4", "yolov3.csv", sizes, "64,0.5,,nan", "128,0.25,0,")
    return folder


def test_elasticflow_throughputs_are_of_whole_batches(tmp_path: Path) -> None:
    result = run(tmp_path, "elasticflow", str(elasticflow(tmp_path / "data")))
    rows = io.read_profile(result.out / "profile.parquet").rows
    found = [(row.gpu_type, row.placement, row.local_batch, row.step_seconds) for row in rows]
    assert found[:3] == [("a100", "1", 64, 0.5), ("a100", "2", 32, 1 / 3), ("a100", "8,8", 4, 0.2)]
    assert found[3:] == [("t4", "1", 64, 2.0), ("t4", "1", 128, 4.0)]
    assert [row.samples_per_second for row in rows[:3]] == [128.0, 192.0, 320.0]
    assert result.dropped == {"are sizes without a throughput": 4}


def test_elasticflow_jobs_have_iterations_or_durations_alone(tmp_path: Path) -> None:
    data = elasticflow(tmp_path / "data")
    one = "a,50,1000,vgg16,650,64,2,334"
    text(data, "w.csv", FLOW, one, "b,60,500,vgg16,,64,1,250", "c,1,0,vgg16,,64,1,2")
    result = run(tmp_path, "elasticflow", str(data), workload="w.csv")
    first, second = result.jobs
    assert (first.id, first.submit_time, first.model) == ("a", 50.0, "vgg16")
    assert first.work == IterationWork(iterations=1000.0)
    assert (first.gpus.requested, first.min_gpus, first.gpus.max, first.elastic) == (2, 1, 16, "size")
    assert first.batch.size == 64
    assert (first.utility.shape, first.utility.target) == ("step", 600.0)
    assert second.utility.shape == "constant"
    assert result.dropped["have no iterations to do"] == 1
    (alone,) = run(tmp_path, "elasticflow", text(tmp_path, "w.csv", FLOW, one)).jobs
    assert (alone.work, alone.gpus.max, alone.utility.target) == (first.work, None, 600.0)
    rows = "job_id,submission_time,duration,num_gpu", "x,16566,3890,4", "y,1,2,0"
    result = run(tmp_path, "elasticflow", text(tmp_path, "cluster1.csv", *rows))
    (job,) = result.jobs
    assert (facts(job), job.elastic) == (("x", 16566.0, 4, 15560.0), "none")
    assert result.dropped == {"asked for no GPU": 1}


def test_wrong_elasticflow_data_is_named_by_file_and_line(tmp_path: Path) -> None:
    data = elasticflow(tmp_path / "data")
    text(data / "throughputs_A100", "vgg16.csv", "global_batch_size,1,many,3", "64,2,3,4", "0,1,,")
    rows = "a,50,1,vgg16,40,64,1,1", "b,0,1,bert,,64,1,1", "c,0,1,vgg16,,64,9,1"
    path = text(tmp_path, "w.csv", FLOW, *rows)
    assert problems(tmp_path, "elasticflow", str(data), workload=path) == [
        "data/throughputs_A100/vgg16.csv:2: /many: expected a number of GPUs from 1 to 65,536 as column",
        "data/throughputs_A100/vgg16.csv:2: /global_batch_size: 64 is not divisible by 3 GPUs",
        *["data/throughputs_A100/vgg16.csv:3: /global_batch_size: is 0, expected 1 or more"] * 3,
        "w.csv:2: /deadline: is before submission_time",
        "w.csv:3: /model_name: 'bert' has no throughputs for the batch 64",
        "w.csv:4: /requested: 9 is above gpus.max 1",
    ]
    (tmp_path / "empty").mkdir()
    found = problems(tmp_path, "elasticflow", str(tmp_path / "empty"))
    assert found == ["empty: holds no throughputs_GPUTYPE/MODEL.csv, expected the data folder"]


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        *(
            (
                {"A (batch size 2)": {"null": 4.0, "('B (batch size 2)', 1)": [2.0, 1.0]}, **other},
                "expected the throughputs of both job types",
            )
            for other in ({}, {"B (batch size 2)": 5}, {"B (batch size 2)": {}})
        ),
        *(
            ({f"A (batch size {size})": {"null": 4.0}}, "expected a batch size from 1 to 2,147,483,648")
            for size in ("0", "9" * 30, "9" * 5000)
        ),
        *(({"A (batch size 8)": {"null": rate}}, "") for rate in (5e-324, 10**400)),
    ],
)
def test_gavel_throughputs_that_cannot_be_are_malformed(tmp_path: Path, types: dict[str, Any], problem: str):
    types = {f"('{name}', 1)": rates for name, rates in types.items()}
    text(tmp_path / "data", "simulation_throughputs.json", json.dumps({"v100": types}))
    assert problem in problems(tmp_path, "gavel", str(tmp_path / "data"))[0]
