from __future__ import annotations

import json
from pathlib import Path

import pytest

from pliant.schemas.io import read_cluster
from tests.cli.calling import call
from tests.tools.run.fake_nvml import Card, install


def discover(*words: str):
    return call("cluster", "discover", *words)


def test_the_cluster_goes_to_stdout_and_words_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Card("GPU-a"), Card("GPU-b"), Card("GPU-c", lost=True))
    done = discover()
    assert done.exit_code == 0
    assert json.loads(done.stdout)["nodes"][0]["devices"] == ["GPU-a", "GPU-b"]
    assert done.stderr == "pliant: left out: GPU 2: GPU is lost\npliant: 2 GPUs on 1 node\n"
    assert discover("--quiet").stderr == ""


def test_what_it_writes_is_read_again_and_validated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Card("GPU-a"))
    path = tmp_path / "cluster.json"
    assert discover("-o", str(path)).stdout == ""
    assert read_cluster(path).nodes[0].devices == ("GPU-a",)
    assert json.loads(path.read_text())["schema"] == "pliant.cluster/1.1"
    checked = call("validate", "-", stdin=path.read_bytes())
    assert (checked.exit_code, checked.stderr) == (0, "")


def test_a_cluster_of_cores_is_as_earlier_versions_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    written = json.loads(discover("--slots", "cpu").stdout)
    assert (written["schema"], written["slots"]) == ("pliant.cluster/1", "cpu")
