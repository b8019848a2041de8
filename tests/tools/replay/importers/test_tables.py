"""Tables that a mapping explains, Alibaba's spot jobs, and the Standard Workload Format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas import io
from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.replay.engine.failures import read_failures
from pliant.tools.replay.importers.conversion import ImportSummary
from pliant.tools.replay.importers.formats.swf import lines
from pliant.tools.replay.importers.run import Selection, import_trace
from pliant.tools.replay.recorded import PastRun, runs_of
from tests.tools.replay.importers.importing import facts, gpu_seconds, labels, problems, run, text

MARKED = (("\ufeff", 1), ("", 2), ("\ufeff", 3))
"""Byte order marks before the column names, and the number of the job after them."""
MAP = "id=JobID,submit=Queued,start=Started,end=Ended,gpus=Cards,vc=Queue"


def export(folder: Path, *rows: str) -> str:
    return text(folder, "export.csv", "jobid,QUEUED,Started,Ended,Cards,Queue", *rows)


def test_columns_are_named_in_any_case(tmp_path: Path) -> None:
    path = export(tmp_path, "a,100,160,260,4,blue", "b,150,,,1,red", "c,160,170,,1,red", "d,1,2,3,0,red")
    result = run(tmp_path, "csv", path, mapping=MAP)
    (job,) = result.jobs
    assert facts(job) == ("a", 0.0, 4, 400.0)
    assert job.labels == {"trace": "csv", "vc": "blue", "runs": "60-160"}
    assert result.drops == "1 asked for no GPU, 1 had not finished when the trace ended, 1 never started"


def test_units_zone_and_words_for_priorities_are_kept_in_a_file(tmp_path: Path) -> None:
    """12:00 in Shanghai is 04:00 UTC; waits and durations are minutes."""
    columns = {"id": "n", "submit": "at", "wait": "w", "duration": "d", "gpus": "g", "workers": "k"}
    columns |= {"priority": "class", "model": "net"}
    lines = (f'{field} = "{column}"' for field, column in columns.items())
    whole = ('unit = "min"', 'zone = "Asia/Shanghai"', 'delimiter = ";"')
    mapping = text(tmp_path, "m.toml", *whole, "[columns]", *lines, "[priorities]", "gold = 2")
    rows = ("a;2020-04-04 12:00:00;1;2;4;2;gold;vgg", "b;2020-04-04T04:30:00Z;0;1;1;1;;")
    path = text(tmp_path, "jobs.csv", "n;at;w;d;g;k;class;net", *rows)
    first, second = run(tmp_path, "csv", path, mapping=mapping).jobs
    assert (first.gpus.requested, gpu_seconds(first), first.priority, first.model) == (8, 960.0, 2.0, "vgg")
    assert runs_of(first) == (PastRun(60.0, 180.0, 8),)
    assert (second.submit_time, second.model, second.priority) == (1800.0, "unknown", 0.0)


EXPORTS = {
    "csv": ("jobid,QUEUED,Started,Ended,Cards,Queue", "{0},{0}00,{0}50,900,4,blue"),
    "helios": ("job_id,user,gpu_num,submit_time,start_time,duration", "{0},ann,4,{0}00,{0}50,60"),
    "acme": (
        "job_id,user,node_num,gpu_num,type,state,submit_time,start_time,duration",
        "{0},ann,1,4,SFT,COMPLETED,{0}00,{0}50,60",
    ),
    "swf": ("; Version: 2.2", f"{{0}} {{0}}00 50 60 4{' -1' * 13}"),
    "alibaba-v2023": (
        "name,gpu_spec,num_gpu,creation_time,scheduled_time,deletion_time",
        "job {0},T4,4,{0}00,{0}50,900",
    ),
}
CHANGES = {"csv": "blue red", "helios": "50, 60,", "acme": "SFT x", "swf": "-1\n 7\n"}
CHANGES |= {"alibaba-v2023": "T4 P4", "philly": '"a" "b"'}


@pytest.mark.parametrize("kind", [*EXPORTS, "philly"])
@pytest.mark.parametrize("odd", [False, True], ids=["columns", "rows"])
def test_rows_of_exports_that_overlap_count_once(tmp_path: Path, kind: str, odd: bool) -> None:
    """March has jobs 1 and 2, April 2 and 3; ``odd``: a malformed row, for which rows are read one by one."""
    files = []
    for name, numbers in (("march", (1, 2)), ("april", (2, 3))):
        if kind == "philly":
            attempt = '[{"start_time": "%s50", "end_time": "900", "detail": [{"ip": "a", "gpus": ["g"]}]}]'
            rows = [
                f'{{"jobid": "j{n}", "submitted_time": "{n}00", "user": "u", "attempts": {attempt % n}}}'
                for n in numbers
            ]
            files.append(text(tmp_path, name, f"[{', '.join(rows + ['{}'] * odd)}]"))
        else:
            header, row = EXPORTS[kind]
            wrong = [row.format("1").replace("100", "?")] * odd
            files.append(text(tmp_path, name, header, *(row.format(n) for n in numbers), *wrong))
    result = run(tmp_path, kind, *files, lenient=odd, mapping=MAP if kind == "csv" else None)
    assert [job.submit_time + 100 * (kind != "swf") for job in result.jobs] == [100, 200, 300]
    assert result.summary.joined == {"are there before": 1}
    assert result.summary.dropped.total() == 2 * odd
    # A row that differs in what is no fact of time or size is another job.
    other = text(
        tmp_path, "other", Path(files[0]).read_text(encoding="utf-8").replace(*CHANGES[kind].split(" "))
    )
    result = run(tmp_path, kind, files[0], other, lenient=odd, mapping=MAP if kind == "csv" else None)
    assert [job.id[-2:] == "-2" for job in result.jobs] == [False, True] * 2


@pytest.mark.parametrize("quote", ["", '"'])
def test_files_that_were_put_together_name_their_columns_again(tmp_path: Path, quote: str) -> None:
    names = "jobid,QUEUED,Started,Ended,Cards,Queue"
    path = text(
        tmp_path, "all.csv", *(f"{mark}{names}\n{at},{at},5,9,1,{quote}x{quote}" for mark, at in MARKED)
    )
    result = run(tmp_path, "csv", path, mapping=MAP)
    assert ([job.id for job in result.jobs], result.drops) == (["1", "2", "3"], "2 are lines of column names")
    path = text(tmp_path, "faults.csv", "time,instances", "0,2", "time,instances", "60,1")
    assert import_trace("faults", [path], str(tmp_path / "f.jsonl")).dropped.total() == 1


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("id=a,submit=b", "names no column for gpus"),
        ("id=a,submit=b,gpus=c,start=d", "no column for duration, nor for start and end"),
        ("id", "expected FIELD=COLUMN"),
        (f"{MAP},runs=Queue", "runs is a label that the import itself writes"),
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


def test_spot_jobs_and_words_for_priorities(tmp_path: Path) -> None:
    names = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"
    rows = "a,org1,A100,8,4,3,7,50,HP", "b,org2,H800,8,1,1,9,10,Spot"
    jobs = text(tmp_path, "job_info_df.csv", names, *rows)
    machines = "node_name,gpu_model,gpu_capacity_num,cpu_num", "n1,A100,8,96", "n2,,0,96"
    nodes = text(tmp_path, "node_info_df.csv", *machines)
    cluster = tmp_path / "cluster.json"
    result = run(tmp_path, "alibaba-spot", jobs, nodes, cluster_out=str(cluster))
    first, second = result.jobs
    assert (first.submit_time, first.gpus.requested, gpu_seconds(first)) == (7.0, 12, 600.0)
    classes = [(job.team, job.priority, job.labels["class"]) for job in (first, second)]
    assert classes == [("org1", 1.0, "HP"), ("org2", 0.0, "Spot")]
    (node,) = io.read_cluster(cluster).nodes
    assert (node.name, node.gpus, node.gpu_type, node.cpus) == ("n1", 8, "A100", 96.0)
    columns = 'columns = { id = "n", submit = "t", duration = "d", gpus = "g", priority = "p" }'
    mapping = text(tmp_path, "m.toml", columns, "priorities = { gold = 2 }")
    path = text(tmp_path, "jobs.csv", "n,t,d,g,p", "a,0,1,1,tin")
    assert problems(tmp_path, "csv", path, mapping=mapping) == [
        "jobs.csv:2: /priority: 'tin', expected one of gold"
    ]


SWF = "1 10 5 60 4 -1 -1 8 120 -1 1 3 2 -1 1 -1 -1 -1"


def test_swf_lines_are_jobs_and_round_trip(tmp_path: Path) -> None:
    cancelled, never = SWF.replace("60", "-1").replace(" 1 3", " 5 3"), SWF.replace("4 -1 -1 8", "0 -1 -1 -1")
    path = text(tmp_path, "log.swf", "; Version: 2.2", SWF, "", cancelled, never, SWF.replace("1 10", "1 -1"))
    result = run(tmp_path, "swf", path)
    (job,) = result.jobs
    assert (job.submit_time, job.gpus.requested, gpu_seconds(job), job.user) == (10.0, 4, 240.0, "u3")
    assert job.labels == labels("swf", "status=COMPLETED queue=1 group=2 time_limit=120 runs=5-65")
    assert result.dropped == {"never started": 1, "asked for no processor": 1, "had no time of submission": 1}
    short = text(tmp_path, "short.swf", "1 2 3")
    assert problems(tmp_path, "swf", short) == ["short.swf:1: has 3 fields separated by blanks, expected 18"]
    jobs = run(tmp_path, "swf", text(tmp_path, "log.swf", SWF, SWF.replace("1 10", "2 11"))).jobs
    again = run(tmp_path, "swf", text(tmp_path, "again.swf", *lines(jobs))).jobs
    one, two = ([(facts(job)[1:], runs_of(job)) for job in each] for each in (jobs, again))
    assert one == two
    for stated, written in (("7200", "7200"), ("2h", "7200"), ("soon", "-1"), ("", "-1")):
        (found,) = run(tmp_path, "swf", text(tmp_path, "log.swf", SWF)).jobs
        *_, line = lines([found.model_copy(update={"labels": {**found.labels, "time_limit": stated}})])
        assert line.split()[8] == written


Down = tuple[float, str, bool]


def faults(folder: Path, *rows: tuple[float, str, str]) -> str:
    names = "event_time", "node_id", "event_type"
    events = [dict(zip(names, (days, node, f"fault_{kind}"), strict=True)) for days, node, kind in rows]
    return text(folder, "faults.json", json.dumps(events))


def imported(folder: Path, path: str, **more: Any) -> tuple[list[Down], ImportSummary]:
    """Time, node and whether it comes up, of the events as ``--failures`` reads them."""
    out = folder / "failures.jsonl"
    summary = import_trace("faults", [path], str(out), **more)
    return [(event.time_s, event.node, event.up) for event in read_failures(str(out))], summary


def test_faults_and_counts_become_outages_within_the_trace(tmp_path: Path) -> None:
    # Two faults of one server overlap from day 2 to day 3; the other's ends without having begun.
    rows = ((1, "b", "start"), (2, "b", "start"), (3, "b", "end"), (3.5, "a", "end"), (4, "b", "end"))
    cluster = tmp_path / "cluster.json"
    events, summary = imported(tmp_path, faults(tmp_path, *rows), cluster_out=str(cluster))
    assert events == [(86400.0, "n0", False), (345600.0, "n0", True)]
    assert summary.assumptions["a fault that ends without having begun was left out"] == 1
    assert [(node.name, node.gpus) for node in io.read_cluster(cluster).expanded()] == [("n0", 8), ("n1", 8)]
    # Three at most; of two rows at one moment the last one counts.
    counts = [{"Time": t, "GPUs": n} for t, n in ((0, 2), (60, 3), (90, 0))]
    all_down = ((90.0, f"n{node}", False) for node in range(3))
    found = imported(tmp_path, text(tmp_path, "gpus.json", json.dumps(counts)))[0]
    assert found == [(0.0, "n2", False), (60.0, "n2", True), *all_down]
    spot = text(tmp_path, "spot.csv", "0,1", "0,2", "60000,1")
    assert imported(tmp_path, spot)[0] == [(60.0, "n1", False)]
    seconds = text(tmp_path, "spot.csv", "time,instances", "0,2", "60000,1")
    assert imported(tmp_path, seconds)[0] == [(60000.0, "n1", False)]
    cluster = tmp_path / "mine.json"
    io.write_cluster(Cluster(nodes=(Node(name="gpu-{}", gpus=4, count=1),)), cluster)
    rows = ((0.5, "x", "start"), (1, "y", "start"))
    events, summary = imported(tmp_path, faults(tmp_path, *rows), cluster=str(cluster))
    assert events == [(43200.0, "gpu-0", False)]
    assert "the cluster has 1 nodes: the events of 1 node more are left out" in summary.assumptions
    # Down at day 1 and up at day 3, seen from day 2 on at half the speed of time; y is up by then.
    rows = ((0.5, "y", "start"), (1, "x", "start"), (1.5, "y", "end"), (3, "x", "end"), (9, "x", "start"))
    chosen = Selection(begin="2d", end="5d", scale_time=2.0)
    found = imported(tmp_path, faults(tmp_path, *rows), selection=chosen)[0]
    assert found == [(0.0, "n1", False), (172800.0, "n1", True)]


def test_what_is_no_fault_is_told_by_its_line(tmp_path: Path) -> None:
    path = faults(tmp_path, (1, "a", "start"), (2, "a", "stop"))
    with pytest.raises(BadInputError, match="event_type: 'fault_stop', expected fault_start or fault_end"):
        imported(tmp_path, path)
    for name, content, problem in (
        ("none.json", ["[]"], "is an empty list"),
        ("other.json", ['[{"Time": 1}]'], "/GPUs: is missing"),
        ("other.csv", ["when,what", "1,2"], "has no column time, instances"),
    ):
        with pytest.raises(BadInputError, match=problem):
            imported(tmp_path, text(tmp_path, name, *content))
    with pytest.raises(UsageError, match="2 paths, expected one file"):
        import_trace("faults", [path, path])
    with pytest.raises(UsageError, match="brings no jobs"):
        imported(tmp_path, path, selection=Selection(users=("ann",)))
    with pytest.raises(UsageError, match="--cluster: helios brings no faults"):
        import_trace("helios", [path], cluster="c.json")


def test_the_published_faults_are_all_there(tmp_path: Path, reference_data: Path) -> None:
    """Of 584 faults two begin while another one lasts."""
    events, summary = imported(tmp_path, str(reference_data / "faults" / "infinitehbd.json"))
    assert (summary.rows, len(events), summary.nodes) == (1168, 2 * (584 - 2), 231)
    assert events[-1][0] < 348.98 * 86400
    spot, _ = imported(tmp_path, str(reference_data / "faults" / "spot-p3.csv"))
    assert spot[-1][0] == 40_920.0
