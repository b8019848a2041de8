"""Nodes that fail, and that come and go: as events that a replay reads."""

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
from pliant.tools.replay.importers.run import Selection, import_trace
from tests.tools.replay.importers.importing import text

Down = tuple[float, str, bool]


def faults(folder: Path, *rows: tuple[float, str, str]) -> str:
    events = [
        {"node_id": node, "event_time": days, "event_type": f"fault_{kind}"} for days, node, kind in rows
    ]
    return text(folder, "faults.json", json.dumps(events))


def imported(folder: Path, path: str, **more: Any) -> tuple[list[Down], ImportSummary]:
    """Time, node and whether it comes up, of the events as ``--failures`` reads them."""
    out = folder / "failures.jsonl"
    summary = import_trace("faults", [path], str(out), **more)
    return [(event.time_s, event.node, event.up) for event in read_failures(str(out))], summary


def test_a_server_is_down_while_any_of_its_faults_lasts(tmp_path: Path) -> None:
    """Two faults of one server overlap from day 2 to day 3; the other's ends without having begun."""
    rows = ((1, "b", "start"), (2, "b", "start"), (3, "b", "end"), (3.5, "a", "end"), (4, "b", "end"))
    cluster = tmp_path / "cluster.json"
    events, summary = imported(tmp_path, faults(tmp_path, *rows), cluster_out=str(cluster))
    assert events == [(86400.0, "n0", False), (345600.0, "n0", True)]
    assert summary.assumptions["a fault that ends without having begun was left out"] == 1
    assert [(node.name, node.gpus) for node in io.read_cluster(cluster).expanded()] == [("n0", 8), ("n1", 8)]


def test_of_a_count_the_first_nodes_are_up(tmp_path: Path) -> None:
    """Three at most; of two rows at one moment the last one counts."""
    path = text(
        tmp_path, "gpus.json", json.dumps([{"Time": t, "GPUs": n} for t, n in ((0, 2), (60, 3), (90, 0))])
    )
    assert imported(tmp_path, path)[0] == [
        (0.0, "n2", False),
        (60.0, "n2", True),
        *((90.0, f"n{node}", False) for node in range(3)),
    ]
    spot = text(tmp_path, "spot.csv", "0,1", "0,2", "60000,1")
    assert imported(tmp_path, spot)[0] == [(60.0, "n1", False)]
    seconds = text(tmp_path, "spot.csv", "time,instances", "0,2", "60000,1")
    assert imported(tmp_path, seconds)[0] == [(60000.0, "n1", False)]


def test_the_nodes_of_a_cluster_fail_in_the_place_of_the_servers(tmp_path: Path) -> None:
    cluster = tmp_path / "mine.json"
    io.write_cluster(Cluster(nodes=(Node(name="gpu-{}", gpus=4, count=1),)), cluster)
    rows = ((0.5, "x", "start"), (1, "y", "start"))
    events, summary = imported(tmp_path, faults(tmp_path, *rows), cluster=str(cluster))
    assert events == [(43200.0, "gpu-0", False)]
    assert "the cluster has 1 nodes: the events of 1 node more are left out" in summary.assumptions


def test_a_span_begins_with_the_nodes_that_are_down_then(tmp_path: Path) -> None:
    """Down at day 1 and up at day 3, seen from day 2 on at half the speed of time; y is up by then."""
    rows = ((0.5, "y", "start"), (1, "x", "start"), (1.5, "y", "end"), (3, "x", "end"), (9, "x", "start"))
    chosen = Selection(begin="2d", end="5d", scale_time=2.0)
    assert imported(tmp_path, faults(tmp_path, *rows), selection=chosen)[0] == [
        (0.0, "n1", False),
        (172800.0, "n1", True),
    ]


def test_what_is_no_fault_is_told_by_its_line(tmp_path: Path) -> None:
    path = faults(tmp_path, (1, "a", "start"), (2, "a", "stop"))
    with pytest.raises(BadInputError, match="event_type: 'fault_stop', expected fault_start or fault_end"):
        imported(tmp_path, path)
    with pytest.raises(BadInputError, match="is an empty list"):
        imported(tmp_path, text(tmp_path, "none.json", "[]"))
    with pytest.raises(BadInputError, match="/GPUs: is missing"):
        imported(tmp_path, text(tmp_path, "other.json", '[{"Time": 1}]'))
    with pytest.raises(BadInputError, match="has no column time, instances"):
        imported(tmp_path, text(tmp_path, "other.csv", "when,what", "1,2"))
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
