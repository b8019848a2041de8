import json
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import CheckFailedError
from benchmarks.parts import figure
from benchmarks.parts.figure import Figure
from pliant.tools.profile.torchrun.start import tree

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    return tmp_path


def test_without_a_gpu_or_its_driver_nothing_is_checked(results: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == gpu.NO_GPU == 66
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "PyTorch sees no GPU" in printed.err
    assert list(results.iterdir()) == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert gpu.main([]) == gpu.NO_GPU
    assert "pip install 'pliant[gpu]'" in capsys.readouterr().err


def test_a_failed_check_is_named_and_the_others_are_made(results: Path, monkeypatch, capsys) -> None:
    def broken() -> list[Figure]:
        raise CheckFailedError("NCCL error")

    monkeypatch.setattr(gpu, "need_gpu", lambda: None)
    good, bad = Figure("good", 1.0, "s", 2.0), Figure("bad", 3.0, "s", 2.0)
    monkeypatch.setattr(gpu, "PARTS", {"one": broken, "two": lambda: [good]})
    assert gpu.main([]) == gpu.FAILED
    printed = capsys.readouterr().out
    assert "one: FAILED: NCCL error" in printed
    assert "left out: NCCL among several workers" in printed
    assert [row["name"] for row in json.loads((results / "gpu.json").read_text())] == ["good"]
    assert gpu.main(["two"]) == 0
    monkeypatch.setattr(gpu, "PARTS", {"two": lambda: [bad]})
    assert gpu.main(["two"]) == gpu.FAILED


def test_a_check_gives_its_reason_and_is_killed_if_it_hangs(tmp_path, monkeypatch) -> None:
    module = tmp_path / "root/benchmarks/parts/gpu_checks.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(gpu, "ROOT", tmp_path / "root")
    module.write_text("raise KeyError('nothing')")
    with pytest.raises(CheckFailedError, match="KeyError: 'nothing'"):
        gpu.check("nothing", device="cpu")
    module.write_text("import time; time.sleep(1000)")
    started: list[list[psutil.Process]] = []
    monkeypatch.setattr(gpu, "tree", lambda process: started.append(tree(process)) or started[0])
    monkeypatch.setattr(gpu, "LIMIT_S", 0.1)
    with pytest.raises(CheckFailedError, match="no end after"):
        gpu.check("demo", device="cpu")
    gone, alive = psutil.wait_procs(started[0], timeout=60)
    assert gone
    assert not alive
