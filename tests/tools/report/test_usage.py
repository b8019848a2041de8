"""GPU hours and money by group, computed by hand from a log with a change of the cluster."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import event_lines
from pliant.schemas.io import write_events
from pliant.tools.report.rendering.sections import job_rows
from pliant.tools.report.report import read_report
from pliant.tools.report.usage import (
    UsageFold,
    take_lines,
    usage_csv,
    usage_document,
    usage_of_log,
    usage_rows,
    usage_text,
)

HOUR = 3600.0


def began(time: float, name: Any, gpus: float, **more: Any) -> Event:
    nodes = [{"name": "n0", "gpus": 4, "gpu_type": "a100"}, {"name": "n1", "gpus": 4, "gpu_type": "t4"}]
    shares = {"teams": {"nlp": {"users": ["ada"]}}}
    cluster = {"nodes": nodes, "price": {"a100": gpus, "t4": 1.0}, "shares": shares}
    return Event(time, name, detail={"cluster": cluster, "policy": "fifo", **more})


def job(time: float, job_id: str, user: str, **labels: str) -> Event:
    spec = {"id": job_id, "submit_time": time, "model": "m", "gpus": {"requested": 2}, "user": user}
    return Event(time, "submit", job_id, detail={"job": {**spec, "labels": labels}})


def holds(time: float, name: Any, job_id: str, gpus: int, node: str = "", **more: Any) -> Event:
    detail = {"beside": more.pop("beside")} if "beside" in more else None
    return Event(time, name, job_id, gpus, ((node, gpus),) if node else (), detail=detail, **more)


LOG = [
    began(0.0, "decision", 4.0),
    job(0.0, "a", "ada", project="x"),
    job(0.0, "b", "bob", project="x"),
    job(0.0, "c", "bob"),
    holds(0.0, "start", "a", 2, "n0"),  # 2 h at 4.00 and 1 h at 8.00, 2 GPUs
    holds(HOUR, "start", "b", 4, "n1"),  # 1 h alone, then 1 h shared with c
    Event(HOUR, "progress", "b", overhead_seconds=360.0),
    began(2 * HOUR, "reload", 8.0),
    holds(2 * HOUR, "start", "c", 4, "n1", beside="b"),
    holds(3 * HOUR, "finish", "a", 0),
    holds(3 * HOUR, "fail", "b", 0),
    holds(4 * HOUR, "finish", "c", 0),
]


def folded(*by: str, since_s: float = 0.0, until_s: float = 1e9, log: list[Event] = LOG) -> UsageFold:
    fold = UsageFold(by, since_s, until_s)
    take_lines([line + b"\n" for line in event_lines(log).splitlines()], fold, "log")
    fold.finish()
    return fold


def test_hours_and_money_by_user_and_team() -> None:
    rows = list(usage_rows(folded("user", "team")))
    assert [(row["user"], row["team"], row["jobs"], row["gpu_hours"], row["money"]) for row in rows] == [
        ("bob", "*", 2, 4 + 2 + 2 + 4, 12.0),
        ("ada", "nlp", 1, 6.0, 2 * 2 * 4.0 + 2 * 8.0),
    ]
    assert rows[0]["training"] == pytest.approx(1 - 4 * 0.1 / 12)
    assert (rows[0]["finished"], rows[0]["failed"], rows[0]["gpu_hours_t4"]) == (1, 1, 12.0)
    assert sum(row["share"] for row in rows) == 1.0


def test_jobs_that_are_requeued_after_their_end_are_counted_on() -> None:
    again = [holds(4 * HOUR, "resume", "a", 2, "n0"), holds(5 * HOUR, "cancel", "a", 0)]
    log = [*LOG, holds(4 * HOUR, "requeue", "a", 0), *again]
    for since_s, hours in ((0.0, 8.0), (4.5 * HOUR, 1.0)):
        rows = {row["user"]: row for row in usage_rows(folded("user", since_s=since_s, log=log))}
        assert (rows["ada"]["jobs"], rows["ada"]["gpu_hours"], rows["ada"]["cancelled"]) == (1, hours, 1)


def test_jobs_count_once_by_their_last_end_and_use_is_of_what_ended() -> None:
    log = [
        began(0.0, "decision", 4.0),
        *(job(0.0, name, "ada") for name in "ab"),
        holds(0.0, "start", "a", 2, "n0"),
        holds(0.0, "start", "b", 2, "n1"),
        used(HOUR, "finish", "a", used_gpu_seconds=1800.0, memory_gpu_seconds=720.0),
        holds(HOUR, "requeue", "a", 0),
        holds(HOUR, "resume", "a", 2, "n0"),
        used(2 * HOUR, "fail", "a", used_gpu_seconds=5400.0),
        holds(2 * HOUR, "finish", "b", 0),  # not measured
    ]
    (row,) = usage_rows(folded("user", log=log))
    assert (row["jobs"], row["finished"], row["failed"]) == (2, 1, 1)
    assert row["used"] == pytest.approx(5400 / (4 * HOUR))
    assert row["memory_used"] == 720 / (2 * HOUR)
    assert usage_text(folded("user", log=log)).splitlines()[1].split()[-5:-3] == ["38", "%"]


@pytest.mark.parametrize("end", ["fail", "finish"])
def test_an_end_counts_the_use_that_no_earlier_end_has(end: str) -> None:
    log = [began(0.0, "decision", 4.0), job(0.0, "a", "ada"), holds(0.0, "start", "a", 1, "n0")]
    log += [used(10 * HOUR, end, "a", used_gpu_seconds=10 * HOUR), holds(10 * HOUR, "requeue", "a", 0)]
    log += [
        holds(10 * HOUR, "resume", "a", 1, "n0"),
        used(20 * HOUR, "finish", "a", used_gpu_seconds=10 * HOUR),
    ]
    for since_s, part in ((0.0, 0.5), (12 * HOUR, 0.0)):
        (row,) = usage_rows(folded("user", since_s=since_s, log=log))
        assert row["used"] == part
    (row,) = usage_rows(folded("user", since_s=10 * HOUR, log=[*log[:3], log[-1]]))
    assert row["used"] == 0.5, "of the time in the span as of all"


def used(time: float, name: Any, job_id: str, **detail: float) -> Event:
    return Event(time, name, job_id, 0, (), detail=detail)


def test_a_span_counts_what_was_held_in_it_and_labels_group() -> None:
    rows = list(usage_rows(folded("project", since_s=2.5 * HOUR, until_s=3.5 * HOUR)))
    assert {row["project"]: row["gpu_hours"] for row in rows} == {"x": 1.0 + 1.0, "-": 1.0 + 2.0}


def test_the_report_has_the_money_of_each_job(tmp_path: Path) -> None:
    about = {"simulated": True, "trace_hash": "0" * 64, "pliant_version": "1", **(LOG[0].detail or {})}
    path = tmp_path / "events.jsonl"
    write_events([replace(LOG[0], detail=about), *LOG[1:]], path)
    rows = {row["job"]: row["money"] for row in job_rows(read_report([str(path)]).runs[0])}
    bill = {row["job"]: row["money"] for row in usage_rows(folded("job"))}
    assert rows == bill == {"a": 32.0, "b": 6.0, "c": 6.0}


def test_every_form_says_the_same(tmp_path: Path) -> None:
    fold = folded("job")
    assert usage_text(fold).splitlines()[1].split()[:3] == ["a", "1", "6.0"]
    rows = [*csv.DictReader(io.StringIO(usage_csv(fold)))]
    document = json.loads(usage_document(fold, 0.0, HOUR))
    assert [float(row["money"]) for row in rows] == [row["money"] for row in document["groups"]]
    (tmp_path / "log").write_bytes(b'{"time":1,"event":"submit","job":"a"}\n')
    with pytest.raises(BadInputError, match=r":1: this line cannot be read"):
        usage_of_log(tmp_path / "log", fold)


def test_prices_make_a_newer_minor_version() -> None:
    assert Cluster.model_validate({"nodes": (), "price": {"a100": 2.5}}).minor == 5
