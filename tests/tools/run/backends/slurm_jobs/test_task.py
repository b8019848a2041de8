"""What a task finds out on its node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pliant.tools.run.backends.slurm import task
from pliant.tools.run.backends.slurm.task import TooFewGpusError, address_towards, gpus_of, main, on_this_node
from pliant.tools.run.statedir.contract.plan import ENV_ADDRESS


@pytest.mark.parametrize(
    ("given", "local", "wanted", "own"),
    [
        ("0,1,2", "0", 1, ["0"]),
        ("0,1,2", "2", 1, ["2"]),
        ("4,5", "1", 2, ["4", "5"]),
        ("MIG-1", "0", 1, ["MIG-1"]),
        ("0,1,2", "0", 2, ["0", "1"]),
        ("0,1", "0", 0, []),
    ],
)
def test_a_task_has_the_gpus_that_slurm_names_or_its_share(
    given: str, local: str, wanted: int, own: list[str]
) -> None:
    assert gpus_of({"CUDA_VISIBLE_DEVICES": given, "SLURM_LOCALID": local}, wanted=wanted) == own


def test_too_few_gpus_end_the_unit_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TooFewGpusError, match="2 GPUs are needed, Slurm gives the task none"):
        gpus_of({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, wanted=2)
    unit = {"argv": ["true"], "cwd": "/", "env": {"CUDA_VISIBLE_DEVICES": "0,1"}}
    (tmp_path / "launch.json").write_text(json.dumps({"units": [unit]}))
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "exit-0").read_text() == "1\n"
    assert len(synced) == 1, "the code is on disk before it is seen, as that of every unit"
    assert "Slurm gives the task 3" in capsys.readouterr().err


def test_a_task_without_a_unit_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({"units": []}))
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert main([str(tmp_path)]) == 0


def test_only_torchruns_that_meet_get_an_address() -> None:
    meets = ["torchrun", "--nnodes=2", "--master-addr=127.0.0.1", "--local-addr=127.0.0.1", "--", "t.py"]
    assert on_this_node([*meets, "--master-addr=x"], "10.0.0.2", "10.0.0.1") == [
        *("torchrun", "--nnodes=2", "--master-addr=10.0.0.1", "--local-addr=10.0.0.2"),
        *("--", "t.py", "--master-addr=x"),
    ]
    alone = ["torchrun", "--nnodes=1", "--local-addr=127.0.0.1", "--", "t.py", "--master-addr=x"]
    assert on_this_node(alone, "10.0.0.2", "10.0.0.1") == alone
    assert on_this_node(meets, "", "10.0.0.1") == meets


def test_the_address_is_the_one_on_the_way_to_the_first_node() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("no-such-host.invalid") == ""
    assert task.ENV_ADDRESS == ENV_ADDRESS
