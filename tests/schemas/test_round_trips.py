import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pliant.schemas import io
from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.event import Event
from pliant.schemas.events import row_of, typed
from pliant.schemas.file_io.events import event_lines
from pliant.schemas.profile import Profile, ProfileRow
from pliant.schemas.schedule import PolicyState, PolicyUse, Schedule
from tests import strategies
from tests.builders import cluster, job
from tests.effort import examples

KINDS: dict[str, tuple[str, st.SearchStrategy[Any], Callable[..., None], Callable[..., Any]]] = {
    "job": ("jobs.jsonl", strategies.traces(), io.write_jobs, io.read_jobs),
    "cluster": ("cluster.json", strategies.clusters(), io.write_cluster, io.read_cluster),
    "schedule": ("schedule.json", strategies.schedules(), io.write_schedule, io.read_schedule),
    "metrics": ("metrics.json", strategies.metrics, io.write_metrics, io.read_metrics),
    "predictor": ("predictor.json", strategies.predictors(), io.write_predictor, io.read_predictor),
    "profile": ("profile.parquet", strategies.profiles, io.write_profile, io.read_profile),
    "convergence": ("c.parquet", strategies.convergence_rows, io.write_convergence, io.read_convergence),
    "event": ("events.jsonl", strategies.events, io.write_events, io.read_events),
    "finished event": ("events.parquet", strategies.events, io.write_events, io.read_events),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_kind_survives_a_file(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    name, values, write, read = KINDS[kind]
    value, first, second = data.draw(values), tmp_path / name, tmp_path / f"again-{name}"
    write(value, first)
    again = read(first)
    assert again == value
    write(again, second)
    assert first.read_bytes() == second.read_bytes()


@given(rows=strategies.events)
def test_typed_events_give_back_their_rows(rows: tuple[Event, ...]) -> None:
    assert event_lines([row_of(typed(row)) for row in rows]) == event_lines(rows)


@given(rows=st.lists(strategies.profile_rows(), max_size=4))
@settings(max_examples=examples(25), deadline=None)
def test_a_profile_survives_as_columns_inside_json(rows: list[ProfileRow]) -> None:
    columns = json.loads(json.dumps(io.profile_to_columns(rows)))
    assert io.profile_from_columns(columns) == tuple(rows)


def test_the_written_forms_stay_as_they_are(tmp_path: Path) -> None:
    """Golden texts: other programs read these files."""
    io.write_jobs([job("a", gpus=2, low=1, high=4, work={"samples": 5.0})], tmp_path / "jobs")
    assert (tmp_path / "jobs").read_text() == (
        '{"schema":"pliant.job/1"}\n'
        '{"id":"a","submit_time":0.0,"model":"linear","gpus":{"requested":2,"min":1,"max":4},'
        '"batch":{"size":960},"elastic":"size","work":{"samples":5.0}}\n'
    )
    io.write_cluster(cluster(4, 4), tmp_path / "cluster")
    assert (tmp_path / "cluster").read_text() == (
        '{\n"schema": "pliant.cluster/1",\n"nodes": [\n'
        '  {"name": "n0", "gpus": 4},\n  {"name": "n1", "gpus": 4}\n]\n}\n'
    )
    node = Node(name="n0", gpus=1, devices=("GPU-aa11",))
    io.write_cluster(Cluster(nodes=(node,)), tmp_path / "named")
    assert (tmp_path / "named").read_text() == (
        '{\n"schema": "pliant.cluster/1.1",\n"nodes": [\n'
        '  {"name": "n0", "gpus": 1, "devices": ["GPU-aa11"]}\n]\n}\n'
    )
    io.write_events([Event(1.0, "start", "a", 2, (("n0", 2),), detail={"why": "é"})], tmp_path / "events")
    assert (tmp_path / "events").read_text() == (
        '{"schema":"pliant.event/1"}\n'
        '{"time":1.0,"job":"a","event":"start","gpus":2,"placement":[["n0",2]],"detail":{"why":"é"}}\n'
    )


def test_jobs_of_one_file_share_what_is_equal_in_them(tmp_path: Path) -> None:
    """A million jobs fit into memory by that; nothing that is different may be shared."""
    written = [job("a", gpus=2), job("b", gpus=2), job("c", gpus=1), job("d", low=1, high=1)]
    io.write_jobs(written, tmp_path / "jobs")
    a, b, c, d = io.read_jobs(tmp_path / "jobs")
    assert [a, b, c, d] == written
    assert a.gpus is b.gpus
    assert a.batch is b.batch is c.batch
    assert a.model_fields_set is b.model_fields_set
    assert [one.gpus.min for one in (a, c, d)] == [None, None, 1]
    assert b.model_copy(update={"user": "u"}).model_fields_set == a.model_fields_set | {"user"}
    assert "user" not in a.model_fields_set


def test_writers_refuse_what_no_reader_accepts(tmp_path: Path) -> None:
    bad_row = ProfileRow("train", "m", "gpu", 1, 1, "1", 8, step_seconds=float("nan"))
    state = PolicyState(policy="p", state={"finish": float("inf")})
    decision = Schedule(time=0.0, policy=PolicyUse(name="p"), cluster=cluster(1), policy_state=state)
    with pytest.raises(ValueError, match="finite"):
        io.write_profile(Profile((bad_row,)), tmp_path / "out")
    with pytest.raises(ValueError, match="JSON compliant"):
        io.write_schedule(decision, tmp_path / "out")
    with pytest.raises(ValueError, match="same id"):
        io.write_jobs([job("a"), job("a")], tmp_path / "out")
    with pytest.raises(ValueError, match="expected a job id"):
        io.write_events([Event(1.0, "start")], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_schemas_are_accepted_on_every_line_and_not_needed(tmp_path: Path) -> None:
    line = '"id":"{}","submit_time":0,"model":"m","gpus":{{"requested":1}}'
    lines = [
        "{" + line.format("bare") + "}",
        '{"schema":"pliant.job/1"}',
        "",
        '{"schema": "pliant.job/1", ' + line.format("first") + "}",
        "{" + line.format("last") + ',"schema":"pliant.job/1"}',
    ]
    (tmp_path / "jobs").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert [result.id for result in io.read_jobs(tmp_path / "jobs")] == ["bare", "first", "last"]
    # A cluster written by hand needs no schema.
    (tmp_path / "c").write_text('{"nodes": [{"name": "n{}", "gpus": 4, "count": 2}]}')
    assert io.read_cluster(tmp_path / "c") == Cluster(nodes=(Node(name="n{}", gpus=4, count=2),))
