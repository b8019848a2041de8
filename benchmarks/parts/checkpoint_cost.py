"""What a checkpoint costs a training, beside ``torch.distributed.checkpoint.async_save`` of the same state.

A transformer with AdamW is saved by turns by the library, as rank 0 of a job saves, and by PyTorch, in a
process of their own with one thread. Each is on disk before the other begins. The stall lasts until training
may go on. Memory is the highest resident set of a save, less that before it: pages of files that the process
does not map are not in it, because the system takes them back when it needs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import ROOT, Figure, NotMeasurableError

STALL_LIMIT: Final = 1.2
MEMORY_LIMIT: Final = 0.3
LAYERS: Final = 6
WIDTH: Final = 360
"""Together 9.4 million parameters: 112 MB with what AdamW keeps."""
ROUNDS: Final = 11
_PEAK: Final = Path("/proc/self/clear_refs")


def figures(layers: int = LAYERS, width: int = WIDTH, rounds: int = ROUNDS) -> list[Figure]:
    """Stall and CPU time over those of PyTorch, and memory over the size of the state, in main memory."""
    ours, theirs = compared(layers, width, rounds, "cpu")
    return [
        Figure(
            "checkpoint_stall_over_dcp_async",
            ours["stall_s"] / theirs["stall_s"],
            "ratio",
            STALL_LIMIT,
        ),
        Figure("checkpoint_peak_memory_ratio", ours["memory"], "of the state", MEMORY_LIMIT),
        Figure("checkpoint_cpu_over_dcp_async", ours["cpu_s"] / theirs["cpu_s"], "ratio"),
        Figure("dcp_async_peak_memory_ratio", theirs["memory"], "of the state"),
    ]


def compared(layers: int, width: int, rounds: int, device: str) -> tuple[dict[str, float], dict[str, float]]:
    """What a save costs the library and PyTorch: ``stall_s``, ``cpu_s``, and ``memory`` over the state.

    :raises NotMeasurableError: the system does not tell the peak.
    """
    if not _PEAK.exists():
        raise NotMeasurableError("this system does not tell the peak of a process's memory")
    words = [sys.executable, "-W", "ignore", "-m", "benchmarks.parts.checkpoint_cost"]
    with tempfile.TemporaryDirectory() as folder:
        numbers = [str(number) for number in (layers, width, rounds)]
        words += [folder, *numbers, device]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    return found["ours"], found["theirs"]


def main(folder: Path, layers: int, width: int, rounds: int, device: str) -> None:
    """Measure both in this process; the first round warms them up."""
    import torch
    import torch.distributed.checkpoint as dcp

    from pliant.tools.run.elastic.context import WorkerContext
    from pliant.tools.run.elastic.state.checkpoint import Saving
    from pliant.tools.run.elastic.state.training import Training
    from pliant.tools.run.statedir.contract.folders import JobDir
    from pliant.tools.run.statedir.contract.plan import Member, Plan

    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    training = Training(model, optimizer, {})
    member = Member(slot="here/0", node="here", address="127.0.0.1", worker=0)
    plan = Plan(job="measured", generation=1, attempt=1, members=(member,))
    saving = Saving(WorkerContext(JobDir(folder), plan, 0, torch.device(device)))

    def ours() -> Callable[[], object]:
        training.counters.advance(1)
        saving.begin(training)
        return lambda: saving.ended(wait=True)

    def theirs() -> Callable[[], object]:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        written: Any = dcp.async_save(state, checkpoint_id=folder / "theirs", no_dist=True)
        return lambda: getattr(written, "upload_completion", written).result()

    size = sum(one.numel() * one.itemsize for one in _tensors(training.shared()))
    found: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for _ in range(rounds + 1):
        for name, begin in (("ours", ours), ("theirs", theirs)):
            found[name].append(_measured(begin, size))
    json.dump({name: _summary(rows[1:]) for name, rows in found.items()}, sys.stdout)


def _measured(begin: Callable[[], Callable[[], object]], size: int) -> dict[str, float]:
    _PEAK.write_text("5")  # the peak begins here
    before = _status("VmRSS")
    cpu_s, began_s = time.process_time(), time.perf_counter()
    wait = begin()
    stall_s = time.perf_counter() - began_s
    wait()
    cpu_s = time.process_time() - cpu_s
    return {"stall_s": stall_s, "cpu_s": cpu_s, "memory": (_status("VmHWM") - before) / size}


def _summary(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of times the least, which neighbours disturb least; of memory the most: one save that does not fit."""
    found = {name: min(row[name] for row in rows) for name in ("stall_s", "cpu_s")}
    return {**found, "memory": max(row["memory"] for row in rows)}


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _tensors(state: Any) -> list[Any]:
    import torch

    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [one for value in values for one in _tensors(value)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5])
