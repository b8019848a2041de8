"""Helios, PAI, Alibaba 2023, Slurm and Tiresias."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import read_cluster
from tests.tools.replay.importers import importing
from tests.tools.replay.importers.importing import Result, facts, gpu_seconds, labels, problems, run, text

SACCT = "JobID|JobName|User|Partition|State|Submit|Start|ElapsedRaw|NNodes|AllocTRES"


def helios(folder: Path, *rows: str) -> str:
    return text(folder, "cluster_log.csv", importing.HELIOS, *rows)


def test_helios_and_acme_jobs_are_executed_time_on_gpus(tmp_path: Path) -> None:
    path = helios(
        tmp_path,
        "7,u1,vcA,16,64,2,TIMEOUT,2020-04-04 11:25:35,2020-04-04 11:30:35,2020-04-04 12:30:35,3600,300",
        "8,u2,vcA,0,64,2,COMPLETED,2020-04-04 11:25:35,2020-04-04 11:30:35,2020-04-04 12:30:35,3600,300",
        "9,u2,vcA,1,64,2,CANCELLED,2020-04-04 11:25:35,,2020-04-04 12:30:35,0,300",
        "10,u2,vcA,1,64,2,FAILED,2020-04-04 11:25:35,2020-04-04 11:30:35,2020-04-04 11:30:35,0,300",
    )
    result = run(tmp_path, "helios", path)
    (job,) = result.jobs
    assert facts(job) == ("7", 0.0, 16, 57600.0)
    assert job.labels == labels("helios", "status=TIMEOUT vc=vcA nodes=2 runs=300-3900")
    assert result.dropped == {"asked for no GPU": 1, "never started": 1, "ran for no time": 1}
    path = text(
        tmp_path,
        "trace_seren.csv",
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue",
        "d1,u1,2,16,64,Pretrain,COMPLETED,2023-03-01 00:00:05+08:00,2023-03-01 00:01:05+08:00,,600,60",
        "d2,u2,1,0,8,Other,COMPLETED,2023-03-01 00:00:06+08:00,2023-03-01 00:01:06+08:00,,60,60",
        "d3,u2,1,8,8,Evaluation,FAILED,2023-03-01 00:00:35+08:00,2023-03-01 00:00:36+08:00,,30,1",
    )
    result = run(tmp_path, "acme", path)
    assert [facts(job) for job in result.jobs] == [("d1", 0.0, 16, 9600.0), ("d3", 30.0, 8, 240.0)]
    assert result.jobs[0].labels == labels("acme", "status=COMPLETED nodes=2 type=Pretrain runs=60-660")
    assert [job.labels["trace"] for job in run(tmp_path, "helios", path).jobs] == ["helios", "helios"]
    assert result.dropped == {"asked for no GPU": 1}
    row = "7,u1,vcA,1,4,1,COMPLETED,2020-04-04 11:25:35,2020-04-04 11:30:35,2020-04-04 12:30:35,3600,300"
    one, two = helios(tmp_path / "saturn", row), helios(tmp_path / "earth", row.replace("u1", "u2"))
    result = run(tmp_path, "helios", one, two)
    assert [job.id for job in result.jobs] == ["7", "7-2"]
    assert result.summary.assumptions["an id that is there more than once got a number behind it"] == 1


def test_importers_ask_only_for_columns_that_they_need(tmp_path: Path) -> None:
    """Each format with no column but those: one job on two GPUs for 50 s."""
    files = {
        "helios": text(tmp_path, "h.csv", "job_id,gpu_num,submit_time,duration", "a,2,7,50"),
        "tiresias": text(tmp_path, "t.csv", "job_id,num_gpu,submit_time,model_name,duration", "a,2,7,m,50"),
        "alibaba-v2023": text(
            tmp_path, "p.csv", "name,num_gpu,creation_time,deletion_time,scheduled_time", "a,2,7,60,10"
        ),
        "slurm": text(tmp_path, "s.csv", "JobID|Submit|Start|ElapsedRaw|AllocTRES", "1|7|9|50|gres/gpu=2"),
        "philly": text(tmp_path, "y.csv", "timestamp,duration,num_gpus", "7,50,2"),
    }
    for name, path in files.items():
        (job,) = run(tmp_path, name, path).jobs
        assert (job.gpus.requested, gpu_seconds(job)) == (2, 100.0), name


def test_a_pai_job_is_joined_with_its_gpu_tasks(tmp_path: Path) -> None:
    jobs = "j1,i1,ann,Terminated,1000,9000", "j2,i2,bob,Failed,1500.0,9000.0"
    unfinished = "j3,i3,bob,Waiting,1500,", "j4,i,bob,Running,1,"
    tasks = (
        "j1,ps,2.0,Terminated,1010.0,9000.0,600.0,29.3,,",
        "j1,worker,4.0,Terminated,1100.0,1300.0,600.0,29.3,100.0,V100",
        "j1,evaluator,1.0,Terminated,1050.0,1250.0,600.0,29.3,50.0,V100",
        "j2,tensorflow,1.0,Failed,2000.0,2100.0,600.0,29.3,25.0,T4",
        "j3,tensorflow,1.0,Waiting,,,600.0,29.3,25.0,T4",
        "j4,worker,1.0,Terminated,1000.0,1100.0,600.0,29.3,100.0,T4",
        "j4,worker,1.0,Running,1000.0,,600.0,29.3,100.0,T4",
    )
    result = run(tmp_path, "pai", importing.pai(tmp_path / "pai", jobs + unfinished, tasks))
    gang, share = result.jobs
    assert facts(gang) == ("j1", 0.0, 5, 5 * 250.0)
    assert gang.labels == labels("pai", "status=Terminated gpu_type=V100 gpu_share=4.5 runs=50-300")
    assert (share.submit_time, share.gpus.requested, gpu_seconds(share)) == (500.0, 1, 100.0)
    assert share.labels["gpu_share"] == "0.25"
    lost = "1 are tasks without GPUs, 1 had not finished when the trace ended, 1 never started"
    assert result.drops == lost


def test_pai_shares_models_and_missing_tables(tmp_path: Path) -> None:
    tenth = "j1,worker,1.0,Terminated,1010.0,1020.0,600.0,29.3,10.0,V100"
    folder = importing.pai(tmp_path / "pai", ("j1,i1,ann,Terminated,1000.0,9000.0",), (tenth,) * 10)
    (found,) = run(tmp_path, "pai", folder).jobs
    assert found.gpus.requested == 1
    assert "gpu_share" not in found.labels
    task = "{},worker,1.0,Terminated,1010.0,1020.0,600.0,29.3,100.0,V100"
    jobs = ("j1,i1,ann,Terminated,1000.0,9000.0", "j2,i2,ann,Terminated,1000.0,9000.0")
    folder = tmp_path / "pai"
    importing.pai(folder, jobs, (task.format("j1"), task.format("j2")))
    text(folder, "pai_group_tag_table.header", "inst_id,user,gpu_type_spec,group,workload")
    text(folder, "pai_group_tag_table.csv", "i1,ann,,g1,bert", "i2,ann,,g2,")
    assert [job.model for job in run(tmp_path, "pai", str(folder)).jobs] == ["bert", "unknown"]
    folder = Path(importing.pai(tmp_path / "pai", ("j1,i1,ann,Terminated,1000.0,9000.0",), ()))
    with pytest.raises(UsageError, match=r"0 files pai_task_table.csv are given, expected one"):
        run(tmp_path, "pai", str(folder / "pai_job_table.csv"))
    (folder / "pai_task_table.header").unlink()
    with pytest.raises(BadInputError, match=r"pai_task_table.header: no such file"):
        run(tmp_path, "pai", str(folder))


def test_a_pod_runs_from_its_scheduling_to_its_deletion(tmp_path: Path) -> None:
    path = text(
        tmp_path,
        "pods.csv",
        importing.PODS,
        "pod-0,12500,57344,2,1000,V100M16|V100M32,LS,Running,5000,5700,5100",
        "pod-1,12500,57344,1,470,,BE,Failed,5060,5160,5060",
        "pod-2,12500,57344,1,1000,,BE,Pending,5060,,",
        "pod-3,12500,57344,0,0,,BE,Running,5060,5160,5060",
        "pod-4,12500,57344,1,1000,,BE,Running,5060,5160,5161",
        "pod-5,12500,57344,1,1000,,BE,Running,5060,5160,5160",
    )
    result = run(tmp_path, "alibaba-v2023", path)
    whole, part = result.jobs
    assert (whole.submit_time, whole.gpus.requested, gpu_seconds(whole)) == (0.0, 2, 1200.0)
    assert whole.labels["gpu_spec"] == "V100M16|V100M32"
    assert (part.submit_time, part.gpus.requested, gpu_seconds(part)) == (60.0, 1, 100.0)
    assert part.labels["gpu_milli"] == "470"
    assert (
        result.drops == "1 asked for no GPU, 1 ended before they started, 1 never started, 1 ran for no time"
    )


@pytest.mark.parametrize(
    ("columns", "size", "gpus"),
    [
        ("AllocTRES", "billing=8,cpu=8,gres/gpu=4,mem=64G,node=1", 4),
        ("AllocTRES", "cpu=8,gres/gpu:a100=4,gres/gpu=4", 4),
        ("AllocTRES", "cpu=8,gres/gpu:a100=4,gres/gpu:v100=2", 6),
        ("ReqGRES", "gpu:2", 4),
        ("ReqGRES", "gres:gpu:v100:2", 4),
        ("ReqGRES", "gpu:a100:8,license:1", 16),
    ],
)
def test_gpus_of_a_slurm_job_are_read_from_what_there_is(
    tmp_path, columns: str, size: str, gpus: int
) -> None:
    header = SACCT.replace("AllocTRES", columns)
    row = f"12|train|ann|gpu|COMPLETED|2024-01-05T10:00:00|2024-01-05T10:05:00|60|2|{size}"
    (job,) = run(tmp_path, "slurm", text(tmp_path, "sacct.txt", header, row)).jobs
    assert (job.gpus.requested, gpu_seconds(job)) == (gpus, gpus * 60)


def test_slurm_steps_and_jobs_that_did_not_run_are_no_jobs(tmp_path: Path) -> None:
    times, tres = "2024-01-05T10:00:00|2024-01-05T10:05:00", "cpu=1,gres/gpu:a100=1,gres/gpu=1"
    path = text(
        tmp_path,
        "sacct.txt",
        SACCT,
        f"12|train|ann|gpu|CANCELLED by 1000|{times}|60|1|{tres}",
        f"12.batch|batch|||CANCELLED|{times}|60|1|{tres}",
        f"13_2|train|ann|gpu|TIMEOUT|{times}|60|1|{tres}",
        f"14_[3-9]|train|ann|gpu|PENDING|2024-01-05T10:00:00|Unknown|0|1|{tres}",
        "18|train|ann|gpu|CANCELLED by 1000|2024-01-05T10:00:00|None|0|1|",
        f"15|train|ann|gpu|RUNNING|{times}|60|1|{tres}",
        f"16|prepare|ann|cpu|COMPLETED|{times}|60|1|cpu=8",
        f'17|say "hi|ann|gpu|COMPLETED|{times}|0|1|{tres}',
    )
    result = run(tmp_path, "slurm", path)
    assert [job.id for job in result.jobs] == ["12", "13_2"]
    stated = "status=CANCELLED partition=gpu name=train nodes=1 gpu_type=a100 runs=300-360"
    assert result.job("12").labels == labels("slurm", stated)
    assert result.drops == (
        "1 are steps of jobs, 1 asked for no GPU, 1 had not finished when the trace ended, "
        "2 never started, 1 ran for no time"
    )


@pytest.mark.parametrize(
    ("column", "value", "seconds"),
    [
        ("Elapsed", "1-02:03:04", 93784.0),
        ("Elapsed", "02:03:04", 7384.0),
        ("Elapsed", "03:04", 184.0),
        ("End", "2024-01-05T10:06:40", 100.0),
    ],
)
def test_slurm_times_come_in_several_columns(tmp_path: Path, column: str, value: str, seconds: float) -> None:
    header = f"JobID|Submit|Start|{column}|ReqTRES"
    row = f"12|2024-01-05T10:00:00|2024-01-05T10:05:00|{value}|gres/gpu=1"
    (job,) = run(tmp_path, "slurm", text(tmp_path, "sacct.txt", header, row)).jobs
    assert gpu_seconds(job) == seconds


def test_slurm_output_without_sizes_or_delimiters_is_named(tmp_path: Path) -> None:
    path = text(tmp_path, "sacct.txt", "JobID|Submit|Start|Elapsed", "1|2024-01-05T10:00:00|Unknown|00:00:00")
    (line,) = problems(tmp_path, "slurm", path)
    assert line.startswith("sacct.txt:1: has none of the columns AllocTRES, ReqTRES")
    for delimiter in (",", "  "):
        path = text(tmp_path, "sacct.txt", SACCT.replace("|", delimiter))
        (line,) = problems(tmp_path, "slurm", path)
        assert line.endswith("; fields are expected with | between them, as sacct -P writes them")
    for odd in (
        {"AllocTRES": f"gres/gpu={'9' * 5000}"},
        {"ElapsedRaw": "9" * 5000},
        {"Elapsed": f"{'9' * 5000}:1"},
    ):
        row = dict.fromkeys(("Submit", "Start"), "2020-04-04T11:00:00") | {"JobID": "1"}
        row |= {"AllocTRES": "gres/gpu=2", "Elapsed": "01:00:00"} | odd
        path = text(tmp_path, "sacct.txt", "|".join(row), "|".join(row.values()))
        assert problems(tmp_path, "slurm", path), "too many digits are no crash"


def test_tiresias_lists_and_distributions(tmp_path: Path) -> None:
    path = text(
        tmp_path, "jobs.csv", importing.TIRESIAS, "0,4,30,606,vgg19,164,30", "1,0,53,133,vgg11,147,23"
    )
    result = run(tmp_path, "tiresias", path)
    (job,) = result.jobs
    assert (job.id, job.submit_time, job.model, gpu_seconds(job)) == ("0", 30.0, "vgg19", 656.0)
    assert job.labels == {"trace": "tiresias", "iterations": "606"}
    assert result.dropped == {"asked for no GPU": 1}
    path = tmp_path / "gput.csv"
    path.write_bytes(b"duration\r\n121\r\n97000\r\n")
    result = run(tmp_path, "tiresias", str(path))
    sizes = [(job.id, job.gpus.requested, gpu_seconds(job)) for job in result.jobs]
    assert sizes == [("tiresias-1", 1, 121.0), ("tiresias-2", 1, 97000.0)]
    assert any("sample from it with `pliant trace synth`" in line for line in result.summary.lines())


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    """An attempt on as many machines as there are numbers of GPUs."""
    machines = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(count)]} for i, count in enumerate(gpus)]
    day = "2017-10-01 "
    return {"start_time": start and day + start, "end_time": end and day + end, "detail": machines}


def entry(job_id: str, submitted: str | None, *attempts: dict[str, Any]) -> dict[str, Any]:
    known = {"status": "Killed", "vc": "a1", "jobid": job_id, "user": "ann"}
    return {**known, "attempts": list(attempts), "submitted_time": submitted and "2017-10-01 " + submitted}


def log(folder: Path, *entries: Any) -> str:
    return text(folder, "cluster_job_log", "[", ",\n".join(json.dumps(found) for found in entries), "]")


def test_philly_attempts_add_up_to_a_gang(tmp_path: Path) -> None:
    early = entry("application_1", "08:00:00", attempt("08:10:00", "08:20:00", 1))
    gang = entry("application_2", "08:00:30", attempt("09:00:00", "10:00:00", 8, 4))
    (_, job) = run(tmp_path, "philly", log(tmp_path, early, gang)).jobs
    assert (job.id, job.submit_time, job.gpus.requested, job.user) == ("application_2", 30.0, 12, "ann")
    assert gpu_seconds(job) == 12 * 3600
    assert job.labels == labels("philly", "status=Killed vc=a1 attempts=1 runs=3570-7170")
    retried = entry("a", "08:00:00", attempt("08:00:00", "08:01:00", 2), attempt("09:00:00", "09:00:10", 4))
    result = run(tmp_path, "philly", log(tmp_path, retried))
    assert result.jobs[0].gpus.requested == 4
    assert gpu_seconds(result.jobs[0]) == 2 * 60 + 4 * 10
    largest = "a job whose attempts had different numbers of GPUs requests the largest"
    assert largest in result.summary.assumptions
    going_on = entry("a", "08:00:00", attempt("08:00:00", "08:01:00", 2), attempt("09:00:00", None, 2))
    assert gpu_seconds(run(tmp_path, "philly", log(tmp_path, going_on)).jobs[0]) == 120
    back = entry("a", "08:00:00", attempt("08:00:00", "08:01:00", 2), attempt("09:00:00", "08:59:00", 2))
    result = run(tmp_path, "philly", log(tmp_path, back))
    assert gpu_seconds(result.jobs[0]) == 120
    assert result.summary.assumptions["an attempt that ended before it started took no time"] == 1


def test_what_is_no_gpu_training_job_is_dropped_by_reason(tmp_path: Path) -> None:
    entries = (
        entry("kept", "08:00:00", attempt("08:00:00", "08:01:00", 1)),
        entry("lost", None, attempt("08:00:00", "08:01:00", 1)),
        entry("waits", "08:00:00"),
        entry("never", "08:00:00", attempt(None, None, 1)),
        entry("cpu", "08:00:00", attempt("08:00:00", "08:01:00")),
        entry("instant", "08:00:00", attempt("08:00:00", "08:00:00", 1)),
        entry("runs", "08:00:00", attempt("08:00:00", None, 1)),
    )
    result = run(tmp_path, "philly", log(tmp_path, *entries))
    assert [job.id for job in result.jobs] == ["kept"]
    assert result.drops == (
        "1 asked for no GPU, 1 had no time of submission, 1 had not finished when the trace ended, "
        "2 never started, 1 ran for no time"
    )
    assert (result.summary.rows, result.summary.jobs) == (7, 1)


def test_malformed_entries_are_named_with_their_lines(tmp_path: Path) -> None:
    good = attempt("08:00:00", "08:01:00", 1)
    shape = "/attempts/0: expected start_time, end_time and detail with gpus"
    no_list = {**attempt(None, None), "detail": [{"gpus": "gpu0"}]}
    path = log(
        tmp_path,
        {**entry("a", "08:00:00", good), "submitted_time": "yesterday"},
        {"jobid": "b"},
        {**entry("c", "08:00:00"), "attempts": [{"start_time": None}]},
        {"jobid": "d", "submitted_time": None},
        {**entry("", "08:00:00", good), "jobid": None},
        {**entry("", "08:00:00", good), "jobid": ["j"]},
        {**entry("e", "08:00:00"), "attempts": [no_list]},
        {**entry("f", "08:00:00"), "attempts": [7]},
    )
    assert problems(tmp_path, "philly", path) == [
        "cluster_job_log:2: /submitted_time: 'yesterday', expected a time like 2017-10-09 07:01:55",
        "cluster_job_log:3: /submitted_time: is missing",
        f"cluster_job_log:4: {shape}",
        "cluster_job_log:5: /attempts: is missing",
        *(f"cluster_job_log:{n}: /jobid: is not text, expected the name of the job" for n in (6, 7)),
        *(
            f"cluster_job_log:{n}: /attempts/0: expected start_time, end_time and detail with gpus"
            for n in (8, 9)
        ),
    ]


def test_the_reduced_csv_is_told_from_the_log(tmp_path: Path) -> None:
    path = text(
        tmp_path,
        "philly.csv",
        "timestamp,duration,num_gpus,gpu_time,cluster",
        "2017-10-09 07:01:55,66.0,2,132.0,11cb48",
        "2017-10-09 07:00:55,5.0,0,0.0,11cb48",
        "2017-10-09 07:00:55,5.5,1,5.5,6214e9",
    )
    result = run(tmp_path, "philly", path)
    assert [(job.id, job.submit_time) for job in result.jobs] == [("philly-3", 0.0), ("philly-1", 60.0)]
    assert gpu_seconds(result.job("philly-1")) == 132.0
    assert result.dropped == {"asked for no GPU": 1}


def test_the_runs_of_a_requeued_slurm_job_are_one_job(tmp_path: Path) -> None:
    """100 s on 2 GPUs, then 60 s on 4 within 90 s, as it was suspended for 30."""
    names = "JobID|State|Submit|Start|ElapsedRaw|Suspended|TimelimitRaw|QOS|Priority|NodeList|AllocTRES"
    path = text(
        tmp_path,
        "sacct.txt",
        names,
        "7|NODE_FAIL|0|1000|100|00:00:00|60|high|4711|n[1-2]|gres/gpu=2",
        "7.batch|NODE_FAIL||1000|100|00:00:00||||n1|gres/gpu=2",
        "7|COMPLETED|1200|1300|60|00:00:30|60|high|4711|n3|gres/gpu=4",
        "8|COMPLETED|1400|1500|60|00:00:00|UNLIMITED||||gres/gpu=1",
    )
    result = run(tmp_path, "slurm", path)
    first, second = result.jobs
    assert facts(first) == ("7", 0.0, 4, 440.0)
    assert first.labels["runs"] == "1000-1100*2, 1300-1390"
    stated = ("qos", "slurm_priority", "node_list", "time_limit")
    assert [first.labels[name] for name in stated] == ["high", "4711", "n3", "3600"]
    assert (second.id, "time_limit" in second.labels) == ("8", False)
    assert result.summary.joined == {"are runs of jobs that were requeued or resized": 1}


def sacct_json(**fields: Any) -> dict[str, Any]:
    gpus = [{"type": "cpu", "name": "", "count": 8}, {"type": "gres", "name": "gpu:a100", "count": 2}]
    limit = {"set": True, "infinite": False, "number": 90}
    times = {"submission": 100, "start": 160, "elapsed": 50, "suspended": 10, "limit": limit}
    job = {"job_id": 7, "name": "train", "user": "ann", "state": {"current": ["COMPLETED"]}, "time": times}
    job |= {"tres": {"allocated": gpus, "requested": gpus}, "partition": "gpu"}
    job["priority"] = {"set": True, "infinite": False, "number": 5}
    return {**job, **fields}


def test_sacct_json_says_the_same(tmp_path: Path) -> None:
    times = {"submission": 1, "start": 0, "elapsed": 0}
    waiting = sacct_json(job_id=8, time=times, state={"current": "PENDING"})
    path = text(
        tmp_path, "sacct.json", json.dumps({"jobs": [sacct_json(constraints="nvlink"), waiting], "meta": {}})
    )
    result = run(tmp_path, "slurm", path)
    (job,) = result.jobs
    assert (job.id, job.user, job.gpus.requested, gpu_seconds(job)) == ("7", "ann", 2, 100.0)
    stated = "status=COMPLETED partition=gpu name=train gpu_type=a100 slurm_priority=5 time_limit=5400"
    assert job.labels == labels("slurm", f"{stated} constraint=nvlink runs=60-120")
    assert result.dropped == {"never started": 1}
    for document in ('{"jobs": [{}]}', '{"jobs": 7}', "{}"):
        (problem,) = problems(tmp_path, "slurm", text(tmp_path, "sacct.json", document))
        assert "sacct --json prints" in problem


def needs(result: Result) -> list[tuple[str, int, float, dict[str, float]]]:
    return [(job.id, job.gpus.requested, gpu_seconds(job), job.resources.worker) for job in result.jobs]


def test_jobs_without_gpus_are_kept_where_the_import_asks(tmp_path: Path) -> None:
    pods = text(
        tmp_path,
        "pods.csv",
        importing.PODS,
        "p0,12500,1024,0,0,,BE,Running,5060,5160,5060",
        "p1,1000,1024,1,1000,,BE,Running,5060,5160,5060",
    )
    kept = run(tmp_path, "alibaba-v2023", pods, cpu_jobs=True)
    assert needs(kept) == [("p0", 0, 100.0, {"cpu": 12.5, "memory": 2.0**30}), ("p1", 1, 100.0, {})]
    assert (kept.drops, "runs" in kept.jobs[0].labels) == ("", False)
    jobs = tuple(f"j{n},i,ann,Terminated,1000,9000" for n in range(1, 4))
    tasks = (
        "j1,ps,1,Terminated,1010,1300,600,2,,",
        "j2,ps,1,Terminated,1010,1300,600,2,,",
        "j2,worker,1,Terminated,1100,1300,600,2,100,T4",
        "j3,ps,2,Terminated,1010,1300,600,2,,",
    )
    kept = run(tmp_path, "pai", importing.pai(tmp_path / "pai", jobs, tasks), cpu_jobs=True)
    assert needs(kept) == [("j1", 0, 290.0, {"cpu": 6.0, "memory": 2.0**31}), ("j2", 1, 200.0, {})]
    assert kept.drops == "1 ran without a GPU on several nodes"
    with pytest.raises(UsageError, match="--cpu-jobs: of swf only jobs with GPUs are read"):
        run(tmp_path, "swf", pods, cpu_jobs=True)


@pytest.mark.parametrize("again", ["", "7||ann|COMPLETED|0|40|20|cpu=8,mem=2G,node=1\n"])
def test_slurm_jobs_without_gpus_are_kept_with_cores_and_memory(tmp_path: Path, again: str) -> None:
    rows = "7||ann|COMPLETED|0|10|20|cpu=8,mem=2G,node=1", "8||ann|COMPLETED|0|10|20|cpu=8,node=2", again
    names = "JobID|Cluster|User|State|Submit|Start|ElapsedRaw|AllocTRES"
    kept = run(tmp_path, "slurm", text(tmp_path, "s", names, *filter(None, rows)), cpu_jobs=True)
    seconds = 40.0 if again else 20.0
    assert needs(kept) == [("7", 0, seconds, {"cpu": 8.0, "memory": 2.0**31})]
    demands = [{"type": "cpu", "name": "", "count": 8}, {"type": "mem", "name": "", "count": 512}]
    job = sacct_json(tres={"allocated": demands, "requested": demands})
    kept = run(tmp_path, "slurm", text(tmp_path, "j", json.dumps({"jobs": [job]})), cpu_jobs=True)
    assert needs(kept) == [("7", 0, 50.0, {"cpu": 8.0, "memory": 2.0**29})]


def test_pai_tables_come_packed_and_beside_their_headers(tmp_path: Path) -> None:
    folder = Path(importing.pai(tmp_path / "pai", (), ()))
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


NODES = "sn,cpu_milli,memory_mib,gpu,model"


def test_a_list_of_nodes_becomes_a_cluster_where_one_is_asked(tmp_path: Path) -> None:
    pods = text(tmp_path, "pods.csv", importing.PODS, "p1,1,1,2,1000,T4,LS,Running,100,400,200")
    nodes = text(tmp_path, "nodes.csv", NODES, "a,64000,1024,2,P100", "b,96500,2048,8,T4", "c,64000,1,0,")
    out = tmp_path / "cluster.json"
    result = run(tmp_path, "alibaba-v2023", nodes, pods, cluster_out=str(out))
    found = read_cluster(out).nodes
    kept = [("a", 2, "P100", 64.0), ("b", 8, "T4", 96.5)]
    assert [(node.name, node.gpus, node.gpu_type, node.cpus) for node in found] == kept
    assert found[0].memory == 1024 * 2**20
    assert result.dropped == {"are nodes without GPUs": 1}
    assert result.summary.lines()[0] == "alibaba-v2023: 4 rows read, 1 job, 2 nodes written, 1 row dropped"
    with pytest.raises(UsageError, match="say with --cluster-out FILE"):
        run(tmp_path, "alibaba-v2023", pods, nodes)
    for kind, problem in (
        ("alibaba-v2023", "no list of nodes is among the paths"),
        ("tiresias", "tiresias lists no nodes"),
        ("gavel", "gavel lists no nodes"),
    ):
        with pytest.raises(UsageError, match=problem):
            run(tmp_path, kind, pods, cluster_out=str(out))
    twice = text(tmp_path, "twice.csv", NODES, *["a,64000,1024,2,P100"] * 2)
    wrong = problems(tmp_path, "alibaba-v2023", pods, twice, cluster_out=str(tmp_path / "none.json"))
    assert wrong == ["twice.csv: /nodes/1/name: node name 'a' is used twice"]
    assert not (tmp_path / "none.json").exists()
