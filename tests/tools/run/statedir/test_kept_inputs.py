"""A cluster file that is named again: the same in other words, or every difference by its line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.io import read_cluster
from pliant.tools.run.statedir.kept_inputs import cluster_changes, kept_cluster

BEGUN: dict[str, Any] = {"slots": "cpu", "nodes": [{"name": "n{}", "gpus": 2, "count": 2}]}
SAME = (
    BEGUN,
    {"nodes": [{"name": "n1", "gpus": 2}, {"gpus": 2, "name": "n0"}], "slots": "cpu", "backend": "local"},
)
OTHER = {
    "slots": "cpu",
    "nodes": [{"name": "n0", "gpus": 2}, {"name": "n1", "gpus": 4, "memory": 7}, {"name": "m", "gpus": 1}],
    "cooldown_seconds": 5,
}


def named(folder: Path, begun: dict[str, Any], asked: dict[str, Any]) -> None:
    for name, value in (("begun", begun), ("asked", asked)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=1))
    kept_cluster(folder / "begun.json", str(folder / "asked.json"))


@pytest.mark.parametrize("same", SAME)
def test_the_same_cluster_is_accepted_however_it_is_written(tmp_path: Path, same: dict[str, Any]) -> None:
    named(tmp_path, BEGUN, same)


def test_whose_gpus_may_be_taken_is_said_anew_by_each_call(tmp_path: Path) -> None:
    for begun, asked in (("all", None), (None, "all"), ("stated", "all")):
        named(tmp_path, {**BEGUN, "preemptible": begun}, {**BEGUN, "preemptible": asked})
        found = kept_cluster(tmp_path / "begun.json", str(tmp_path / "asked.json"))
        assert found is not None
        assert found.preemptible == asked
    kept = kept_cluster(tmp_path / "asked.json", None)
    assert kept is not None
    assert kept.preemptible == "all"


def test_every_difference_is_named_by_its_line(tmp_path: Path, golden_text: Callable[..., None]) -> None:
    nodes = [{"name": f"n{i}", "gpus": 2} for i in range(3)]
    with pytest.raises(UsageError) as refused:
        named(tmp_path, {**BEGUN, "nodes": nodes}, OTHER)
    golden_text(str(refused.value))
    own, asked = read_cluster(tmp_path / "begun.json"), read_cluster(tmp_path / "asked.json")
    text, name = (tmp_path / "asked.json").read_text(), str(tmp_path / "asked.json")
    assert cluster_changes(own, asked, name, text) == str(refused.value).splitlines()[1:]
    many = [{"name": f"m{i}", "gpus": 2} for i in range(30)]
    with pytest.raises(UsageError, match="and 13 more differences"):
        named(tmp_path, {**BEGUN, "nodes": nodes}, {**BEGUN, "nodes": many})
