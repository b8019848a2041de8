"""What ``make gpu-check`` says and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import CheckFailedError
from benchmarks.parts import figure, gpu_checks
from benchmarks.parts.figure import Figure
from pliant.tools.profile.torchrun.start import tree

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    return tmp_path


def test_without_a_gpu_one_line_says_so_and_no_record_changes(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == gpu.NO_GPU == 66
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "PyTorch sees no GPU" in said.err
    assert list(results.iterdir()) == []


def test_without_the_library_of_the_driver_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert gpu.main([]) == gpu.NO_GPU
    assert "pip install 'pliant[gpu]'" in capsys.readouterr().err


def test_a_check_that_fails_is_named_and_the_others_are_made(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[Figure]:
        raise CheckFailedError("NCCL error")

    monkeypatch.setattr(gpu, "need_gpu", lambda: None)
    good, bad = Figure("good", 1.0, "s", 2.0), Figure("bad", 3.0, "s", 2.0)
    monkeypatch.setattr(gpu, "PARTS", {"one": broken, "two": lambda: [good]})
    assert gpu.main([]) == gpu.FAILED
    said = capsys.readouterr().out
    assert "one: FAILED: NCCL error" in said
    assert "left out: NCCL among several workers" in said
    assert [row["name"] for row in json.loads((results / "gpu.json").read_text())] == ["good"]
    assert gpu.main(["two"]) == 0
    monkeypatch.setattr(gpu, "PARTS", {"two": lambda: [bad]})
    assert gpu.main(["two"]) == gpu.FAILED


def test_a_check_that_does_not_end_well_gives_its_last_line() -> None:
    with pytest.raises(CheckFailedError, match="KeyError: 'nothing'"):
        gpu.check("nothing", device="cpu")


def test_scripts_that_do_not_end_well_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "EXAMPLES", {"mlp": ("--size", "none")})
    monkeypatch.setattr(gpu_checks, "LIBRARIES", {"short": "print(KIND)"})
    with pytest.raises(RuntimeError, match=r"^mlp: exit code 2") as caught:
        gpu_checks.scripts(torch.device("cpu"))
    assert "short" not in str(caught.value)


def test_nothing_is_left_of_a_check_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[psutil.Process]] = []
    monkeypatch.setattr(gpu, "tree", lambda process: started.append(tree(process)) or started[0])
    monkeypatch.setattr(gpu, "LIMIT_S", 0.1)
    with pytest.raises(CheckFailedError, match="no end after"):
        gpu.check("demo", device="cpu")
    gone, alive = psutil.wait_procs(started[0], timeout=60)
    assert gone
    assert not alive
