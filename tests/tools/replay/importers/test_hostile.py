"""Files as they come from other people's machines: packed, marked, cut short, backwards, or nearly right."""

from __future__ import annotations

import gzip
import io as streams
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.io import read_cluster
from tests.tools.replay.importers.importing import (
    HELIOS,
    PODS,
    TIRESIAS,
    gpu_seconds,
    pai,
    problems,
    run,
    text,
)

ROWS = (TIRESIAS, "1,2,30,606,vgg19,164,30", '2,1,40,606,"vgg,19",100,30')
POD = "p1,1,1,2,1000,T4,LS,Running,100,400,200"
NODES = "sn,cpu_milli,memory_mib,gpu,model"


def as_bytes(*lines: str, end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


@pytest.mark.parametrize(
    "data",
    [
        as_bytes(*ROWS, end="\r\n"),
        b"\xef\xbb\xbf" + as_bytes(*ROWS),
        as_bytes(*ROWS).rstrip(b"\n"),
        gzip.compress(as_bytes(*ROWS)),
        gzip.compress(b"\xef\xbb\xbf" + as_bytes(*ROWS, end="\r\n")),
    ],
)
@pytest.mark.parametrize("piped", [False, True])
def test_packed_or_marked_it_is_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, piped: bool
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(data)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=streams.BufferedReader(streams.BytesIO(data))))
    result = run(tmp_path, "tiresias", "-" if piped else str(path))
    assert [(job.id, job.model, gpu_seconds(job)) for job in result.jobs] == [
        ("1", "vgg19", 328.0),
        ("2", "vgg,19", 100.0),
    ]


@pytest.mark.parametrize("cut", [12, 40])
def test_a_packed_file_that_is_cut_short(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(gzip.compress(as_bytes(*ROWS))[:cut])
    assert problems(tmp_path, "tiresias", str(path)) == ["jobs.csv: is gzipped, and cut short or damaged"]


def test_columns_and_times_that_cannot_be_are_named(tmp_path: Path) -> None:
    path = text(tmp_path, "jobs.csv", f"{TIRESIAS},duration", "1,2,30,606,vgg19,164,30,7")
    assert problems(tmp_path, "tiresias", path) == ["jobs.csv:1: has more than one column duration"]
    row = f"7,u,v,1,4,1,COMPLETED,{'9' * 400},2020-04-04 11:30:35,2020-04-04 12:30:35,60,0"
    (problem,) = problems(tmp_path, "helios", text(tmp_path, "cluster_log.csv", HELIOS, row))
    assert problem.startswith("cluster_log.csv:2: /submit_time: ")
    path = text(tmp_path, "log", f'[{{"jobid": {"9" * 5000}}}]')
    assert problems(tmp_path, "philly", path) == ["log:1: is not readable JSON: a number has too many digits"]
    names = "time,model,task,epoch_size,patience,batch_size,lr,max_lr,target_acc,num_gpus"
    path = text(tmp_path, "trace.csv", names, "0,vgg,cifar,100,10,32,1e-300,1e300,0.7,1")
    assert problems(tmp_path, "ones", path) == ["trace.csv:2: holds a number that is out of all bounds"]
    row = "7,u,v,99999999,4,1,COMPLETED,2020-04-04 11:25:35,2020-04-04 11:30:35,2020-04-04 12:30:35,60,0"
    (problem,) = problems(tmp_path, "helios", text(tmp_path, "cluster_log.csv", HELIOS, row))
    assert problem.startswith("cluster_log.csv:2: /requested: 99999999 is above")


@pytest.mark.parametrize("field", ["1_000", "0x10", "1e999", "-1", "nan", "1,5"])
def test_numbers_that_are_none(tmp_path: Path, field: str) -> None:
    path = text(tmp_path, "jobs.csv", TIRESIAS, f'1,2,"{field}",606,vgg19,164,30')
    (problem,) = problems(tmp_path, "tiresias", path)
    assert problem.startswith("jobs.csv:2: /submit_time: ")


def test_times_with_zones_are_what_they_say(tmp_path: Path) -> None:
    times = {"a": "2020-04-04 10:00:00", "b": "2020-04-04T12:30:00+02:00", "c": "2020-04-04T11:00:00Z"}
    row = "{},u,v,1,4,1,COMPLETED,{},2020-04-04 12:00:00,2020-04-04 13:00:00,60,0"
    rows = [row.format(*each) for each in times.items()]
    result = run(tmp_path, "helios", text(tmp_path, "cluster_log.csv", HELIOS, *rows))
    assert [(job.id, job.submit_time) for job in result.jobs] == [("a", 0.0), ("b", 1800.0), ("c", 3600.0)]


ATTEMPT = {
    "start_time": "2017-10-09 07:00:00",
    "end_time": "2017-10-09 08:00:00",
    "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
}


def philly(folder: Path, **fields: object) -> str:
    entry = {"jobid": "j", "submitted_time": "2017-10-09 06:00:00", "attempts": [ATTEMPT], **fields}
    return text(folder, "log", json.dumps([entry]))


def test_attempts_and_pods_that_end_before_they_begin(tmp_path: Path) -> None:
    path = text(tmp_path, "pods.csv", PODS, POD, POD.replace("400", "150"), POD.replace("400", "200"))
    result = run(tmp_path, "alibaba-v2023", path)
    assert result.dropped == {"ended before they started": 1, "ran for no time": 1}
    back = {**ATTEMPT, "end_time": "2017-10-09 06:59:00"}
    result = run(tmp_path, "philly", philly(tmp_path, attempts=[ATTEMPT, back]))
    assert gpu_seconds(result.jobs[0]) == 2 * 3600.0
    assert result.summary.assumptions["an attempt that ended before it started took no time"] == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"jobid": None}, "log:1: /jobid: is not text, expected the name of the job"),
        ({"jobid": ["j"]}, "log:1: /jobid: is not text, expected the name of the job"),
        (
            {"attempts": [{"start_time": None, "end_time": None, "detail": [{"gpus": "gpu0"}]}]},
            "log:1: /attempts/0: expected start_time, end_time and detail with gpus",
        ),
        ({"attempts": [7]}, "log:1: /attempts/0: expected start_time, end_time and detail with gpus"),
    ],
)
def test_philly_entries_of_another_shape(tmp_path: Path, fields: dict[str, object], problem: str) -> None:
    assert problems(tmp_path, "philly", philly(tmp_path, **fields)) == [problem]


def test_pai_tables_come_packed_and_beside_their_headers(tmp_path: Path) -> None:
    folder = Path(pai(tmp_path / "pai", (), ()))
    jobs, tasks = "j1,i,u,Terminated,100,900\n", "j1,w,1,T,100,200,6,6,100,T4\nj2,w,1,T,100,200,6,6,100,T4\n"
    for name, table in (("pai_job_table", jobs), ("pai_task_table", tasks)):
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(table.encode()))
        (folder / f"{name}.csv").unlink()
    every = sorted(str(path) for path in folder.iterdir())  # as a shell expands pai/*
    for paths in ([str(folder)], every):
        result = run(tmp_path, "pai", *paths)
        assert [job.id for job in result.jobs] == ["j1"]
        assert (
            "GPU tasks of 1 job that pai_job_table does not have were left out" in result.summary.assumptions
        )


def test_a_list_of_nodes_becomes_a_cluster_where_one_is_asked(tmp_path: Path) -> None:
    pods = text(tmp_path, "pods.csv", PODS, POD)
    nodes = text(tmp_path, "nodes.csv", NODES, "a,64000,1024,2,P100", "b,96500,2048,8,T4", "c,64000,1,0,")
    result = run(tmp_path, "alibaba-v2023", nodes, pods, cluster_out=str(tmp_path / "cluster.json"))
    found = read_cluster(tmp_path / "cluster.json")
    assert [(node.name, node.gpus, node.gpu_type, node.cpus) for node in found.nodes] == [
        ("a", 2, "P100", 64.0),
        ("b", 8, "T4", 96.5),
    ]
    assert found.nodes[0].memory == 1024 * 2**20
    assert result.dropped == {"are nodes without GPUs": 1}
    assert result.summary.lines()[0] == ("alibaba-v2023: 4 rows read, 1 job, 2 nodes written, 1 row dropped")
    pods = text(tmp_path, "pods.csv", PODS, POD)
    nodes = text(tmp_path, "nodes.csv", NODES, "a,64000,1024,2,P100", "a,64000,1024,2,P100")
    found = problems(tmp_path, "alibaba-v2023", pods, nodes, cluster_out=str(tmp_path / "none.json"))
    assert found == ["nodes.csv: /nodes/1/name: node name 'a' is used twice"]
    assert not (tmp_path / "none.json").exists()
    pods = text(tmp_path, "pods.csv", PODS, POD)
    nodes = text(tmp_path, "nodes.csv", NODES, "a,64000,1024,2,P100")
    with pytest.raises(UsageError, match="say with --cluster-out FILE"):
        run(tmp_path, "alibaba-v2023", pods, nodes)
    with pytest.raises(UsageError, match="no list of nodes is among the paths"):
        run(tmp_path, "alibaba-v2023", pods, cluster_out=str(tmp_path / "cluster.json"))
    for kind in ("tiresias", "gavel"):
        with pytest.raises(UsageError, match=f"{kind} lists no nodes"):
            run(tmp_path, kind, pods, cluster_out=str(tmp_path / "cluster.json"))


def throughputs(folder: Path, types: Mapping[str, object]) -> str:
    """A data folder of Gavel; returns its path."""
    text(folder / "data", "simulation_throughputs.json", json.dumps({"v100": types}))
    return str(folder / "data")


@pytest.mark.parametrize("other", [{}, {"('B (batch size 2)', 1)": 5}, {"('B (batch size 2)', 1)": {}}])
def test_a_pair_needs_both_job_types_alone(tmp_path: Path, other: dict[str, object]) -> None:
    alone = {"null": 4.0, "('B (batch size 2)', 1)": [2.0, 1.0]}
    found = problems(tmp_path, "gavel", throughputs(tmp_path, {"('A (batch size 2)', 1)": alone, **other}))
    assert "expected the throughputs of both job types" in found[0]


@pytest.mark.parametrize("size", ["0", "9" * 30, "9" * 5000])
def test_a_job_type_with_a_batch_out_of_bounds_is_malformed(tmp_path: Path, size: str) -> None:
    data = throughputs(tmp_path, {f"('A (batch size {size})', 1)": {"null": 4.0}})
    trace = text(tmp_path, "w.trace", f"A (batch size {size})\tpython x\t--steps\t1\t100\t0\t1")
    for path in (data, trace):
        (problem,) = problems(tmp_path, "gavel", path)
        assert problem.endswith("expected a batch size from 1 to 2,147,483,648")


@pytest.mark.parametrize("rate", [5e-324, 10**400])
def test_a_rate_that_gives_no_time_of_a_step_is_malformed(tmp_path: Path, rate: float) -> None:
    data = throughputs(tmp_path, {"('A (batch size 8)', 1)": {"null": rate}})
    assert len(problems(tmp_path, "gavel", data)) == 1


@pytest.mark.parametrize("metric", ["inf", "-inf", "1e999"])
def test_a_metric_that_is_not_finite_is_malformed(tmp_path: Path, metric: str) -> None:
    folder = tmp_path / "data"
    text(folder / "net", "placements.csv", "placement,local_bsz,step_time,sync_time", "1,8,0.5,0")
    epochs = "progress,iteration,metric,grad_sqr,grad_var"
    text(folder / "net", "validation-8.csv", epochs, f"1,10,{metric},1,1")
    (problem,) = problems(tmp_path, "pollux", str(folder))
    assert problem.startswith("data/net/validation-8.csv:2: /metric: ")


@pytest.mark.parametrize(
    ("column", "value"),
    [("AllocTRES", f"gres/gpu={'9' * 5000}"), ("ElapsedRaw", "9" * 5000), ("Elapsed", f"{'9' * 5000}:1")],
)
def test_accounting_with_too_many_digits_is_no_crash(tmp_path: Path, column: str, value: str) -> None:
    start = "2020-04-04T11:00:00"
    row = {"JobID": "1", "Submit": start, "Start": start, "AllocTRES": "gres/gpu=2", "Elapsed": "01:00:00"}
    row[column] = value
    path = text(tmp_path, "sacct.txt", "|".join(row), "|".join(row.values()))
    assert problems(tmp_path, "slurm", path)
