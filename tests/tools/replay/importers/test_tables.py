"""Tables that a mapping explains, Alibaba's spot jobs, and the Standard Workload Format."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas import io
from pliant.schemas.errors import UsageError
from pliant.tools.replay.importers.formats.swf import lines
from pliant.tools.replay.recorded import PastRun, runs_of
from tests.tools.replay.importers.importing import gpu_seconds, problems, run, text

MAP = "id=JobID,submit=Queued,start=Started,end=Ended,gpus=Cards,vc=Queue"


def export(folder: Path, *rows: str) -> str:
    return text(folder, "export.csv", "jobid,QUEUED,Started,Ended,Cards,Queue", *rows)


def test_columns_are_named_once_whatever_their_case(tmp_path: Path) -> None:
    path = export(tmp_path, "a,100,160,260,4,blue", "b,150,,,1,red", "c,160,170,,1,red", "d,1,2,3,0,red")
    result = run(tmp_path, "csv", path, mapping=MAP)
    (job,) = result.jobs
    assert (job.id, job.submit_time, job.gpus.requested, gpu_seconds(job)) == ("a", 0.0, 4, 400.0)
    assert job.labels == {"trace": "csv", "vc": "blue", "runs": "60-160"}
    assert result.dropped == {
        "never started": 1,
        "had not finished when the trace ended": 1,
        "asked for no GPU": 1,
    }


def test_units_zone_and_words_for_priorities_are_kept_in_a_file(tmp_path: Path) -> None:
    """12:00 in Shanghai is 04:00 UTC; waits and durations are minutes."""
    mapping = text(
        tmp_path,
        "mine.toml",
        'unit = "min"',
        'zone = "Asia/Shanghai"',
        'delimiter = ";"',
        "[columns]",
        'id = "n"',
        'submit = "at"',
        'wait = "w"',
        'duration = "d"',
        'gpus = "g"',
        'workers = "k"',
        'priority = "class"',
        'model = "net"',
        "[priorities]",
        "gold = 2",
    )
    rows = ("a;2020-04-04 12:00:00;1;2;4;2;gold;vgg", "b;2020-04-04T04:30:00Z;0;1;1;1;;")
    path = text(tmp_path, "jobs.csv", "n;at;w;d;g;k;class;net", *rows)
    first, second = run(tmp_path, "csv", path, mapping=mapping).jobs
    assert (first.gpus.requested, gpu_seconds(first), first.priority, first.model) == (8, 960.0, 2.0, "vgg")
    assert runs_of(first) == (PastRun(60.0, 180.0, 8),)
    assert (second.submit_time, second.model, second.priority) == (1800.0, "unknown", 0.0)


def test_a_word_for_a_priority_that_no_number_explains(tmp_path: Path) -> None:
    mapping = text(
        tmp_path,
        "m.toml",
        'columns = { id = "n", submit = "t", duration = "d", gpus = "g", priority = "p" }',
        "priorities = { gold = 2 }",
    )
    path = text(tmp_path, "jobs.csv", "n,t,d,g,p", "a,0,1,1,tin")
    assert problems(tmp_path, "csv", path, mapping=mapping) == [
        "jobs.csv:2: /priority: 'tin', expected one of gold"
    ]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("id=a,submit=b", "names no column for gpus"),
        ("id=a,submit=b,gpus=c,start=d", "no column for duration, nor for start and end"),
        ("id", "expected FIELD=COLUMN"),
        (f"{MAP},unit=fortnight", "unit 'fortnight', expected one of ms, s, min, h, d"),
        (f"{MAP},zone=Mars", "zone 'Mars', expected one like"),
        (f"{MAP},delimiter=::", "expected one character"),
        ("gone.toml", "no such file"),
    ],
)
def test_what_a_mapping_has_to_say(tmp_path: Path, mapping: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path, "csv", export(tmp_path), mapping=mapping)


def test_a_mapping_is_for_csv_and_csv_needs_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="csv: say with --map"):
        run(tmp_path, "csv", export(tmp_path))
    with pytest.raises(UsageError, match="only those of csv are mapped"):
        run(tmp_path, "helios", export(tmp_path), mapping=MAP)
    other = MAP.replace("Cards", "Boards")
    assert problems(tmp_path, "csv", export(tmp_path), mapping=other) == [
        "export.csv:1: has no column boards; it has: jobid, queued, started, ended, cards, queue"
    ]


def test_a_spot_job_is_a_gang_of_its_organisation(tmp_path: Path) -> None:
    names = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"
    jobs = text(
        tmp_path, "job_info_df.csv", names, "a,org1,A100,8,4,3,7,50,HP", "b,org2,H800,8,1,1,9,10,Spot"
    )
    nodes = text(
        tmp_path,
        "node_info_df.csv",
        "node_name,gpu_model,gpu_capacity_num,cpu_num",
        "n1,A100,8,96",
        "n2,,0,96",
    )
    cluster = tmp_path / "cluster.json"
    result = run(tmp_path, "alibaba-spot", jobs, nodes, cluster_out=str(cluster))
    first, second = result.jobs
    assert (first.submit_time, first.gpus.requested, gpu_seconds(first)) == (7.0, 12, 600.0)
    assert [(job.team, job.priority, job.labels["class"]) for job in (first, second)] == [
        ("org1", 1.0, "HP"),
        ("org2", 0.0, "Spot"),
    ]
    (node,) = io.read_cluster(cluster).nodes
    assert (node.name, node.gpus, node.gpu_type, node.cpus) == ("n1", 8, "A100", 96.0)


SWF = "1 10 5 60 4 -1 -1 8 120 -1 1 3 2 -1 1 -1 -1 -1"


def test_a_line_of_the_standard_workload_format_is_a_job(tmp_path: Path) -> None:
    cancelled, never = SWF.replace("60", "-1").replace(" 1 3", " 5 3"), SWF.replace("4 -1 -1 8", "0 -1 -1 -1")
    path = text(tmp_path, "log.swf", "; Version: 2.2", SWF, "", cancelled, never)
    result = run(tmp_path, "swf", path)
    (job,) = result.jobs
    assert (job.submit_time, job.gpus.requested, gpu_seconds(job), job.user) == (10.0, 4, 240.0, "u3")
    assert job.labels == {
        "trace": "swf",
        "status": "COMPLETED",
        "queue": "1",
        "group": "2",
        "time_limit": "120",
        "runs": "5-65",
    }
    assert result.dropped == {"never started": 1, "asked for no processor": 1}


def test_a_line_with_other_fields_is_malformed(tmp_path: Path) -> None:
    short = text(tmp_path, "short.swf", "1 2 3")
    assert problems(tmp_path, "swf", short) == ["short.swf:1: has 3 fields separated by blanks, expected 18"]


def test_a_trace_that_is_written_and_read_is_the_same_trace(tmp_path: Path) -> None:
    jobs = run(tmp_path, "swf", text(tmp_path, "log.swf", SWF, SWF.replace("1 10", "2 11"))).jobs
    again = run(tmp_path, "swf", text(tmp_path, "again.swf", *lines(jobs))).jobs
    kept = [(job.submit_time, job.gpus.requested, gpu_seconds(job), runs_of(job)) for job in jobs]
    assert [(job.submit_time, job.gpus.requested, gpu_seconds(job), runs_of(job)) for job in again] == kept


@pytest.mark.parametrize(
    ("stated", "written"), [("7200", "7200"), ("2h", "7200"), ("soon", "-1"), ("", "-1")]
)
def test_a_time_limit_is_written_in_seconds(tmp_path: Path, stated: str, written: str) -> None:
    (found,) = run(tmp_path, "swf", text(tmp_path, "log.swf", SWF)).jobs
    *_, line = lines([found.model_copy(update={"labels": {**found.labels, "time_limit": stated}})])
    assert line.split()[8] == written
