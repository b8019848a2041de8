"""What ``make gpu-check`` does, one check after the other.

``python -m benchmarks.parts.gpu_checks CHECK[,CHECK…] DEVICE`` makes some of the checks in one process.
Each check is a function of a device that returns numbers by name. With the device ``cpu`` those that need
no GPU run as well: so the tests see that the checks themselves work.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psutil
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.parts.figure import ROOT
from pliant.tools.run import elastic
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.loop.gradients import Averaging, ElasticDataParallel
from pliant.tools.run.elastic.membership.process_group import ProcessGroup, use_interface
from pliant.tools.run.elastic.state.checkpoint import staged
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Member, Plan

WARM: Final = 10
"""Changes before the memory is looked at."""
STEPS: Final = 6
BATCH: Final = 33
"""Odd, so that two workers have uneven shares."""


def group(device: torch.device, changes: int = 1) -> dict[str, float]:
    """Form the group of one worker again and again, with a step of training each time."""
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).to(device)
    took, held = [], []
    with tempfile.TemporaryDirectory() as folder:
        averaging, formed = Averaging(), ProcessGroup(_context(Path(folder), device), None)
        model = ElasticDataParallel(net, averaging)
        use_interface("127.0.0.1")
        for number in range(changes):
            place = Path(folder) / str(number)
            place.mkdir()
            began_s = time.monotonic()
            formed.form(place, lambda: False, timedelta(minutes=2))
            averaging.begin(net, device)
            took.append(time.monotonic() - began_s)
            model(torch.ones(BATCH, 512, device=device)).square().mean().backward()
            sent = torch.ones(1 << 20, device=device)
            dist.all_reduce(sent)
            assert sent.sum().item() == sent.numel()
            net.zero_grad()
            averaging.end()
            formed.leave()
            held.append((_device_bytes(device), psutil.Process().memory_info().rss))
    before, after = held[min(WARM, changes) - 1], held[-1]
    return {
        "form_first_s": took[0],
        "form_last_s": took[-1],
        "device_growth_bytes": after[0] - before[0],
        "memory_growth_bytes": after[1] - before[1],
    }


def changes(device: torch.device) -> dict[str, float]:
    """A hundred changes."""
    return group(device, 100 + WARM if device.type == "cuda" else WARM + 2)


def streams(device: torch.device) -> dict[str, float]:
    """A checkpoint's copy has what the kernels before it wrote, and nothing of those after it."""
    wrong = 0
    for number in range(5):
        weights = torch.full((1 << 20,), float(number), device=device)
        for _ in range(50):
            weights.add_(1)
        copied = staged({"weights": weights})
        for _ in range(50):
            weights.add_(1)
        wrong += int((copied["weights"] != number + 50).sum())
    return {"wrong_values": wrong}


def amp(device: torch.device) -> dict[str, float]:
    """Mixed precision with a GradScaler, by the library and by PyTorch alone."""
    return {
        "relative_error": _apart(_trained(device, mixed=True), _trained(device, mixed=True, plainly=True))
    }


def compiled(device: torch.device) -> dict[str, float]:
    """``torch.compile`` before and after ``job.prepare``, beside no compiler."""
    eager = _trained(device)
    return {
        "before_relative_error": _apart(_trained(device, before=torch.compile), eager),
        "after_relative_error": _apart(_trained(device, after=torch.compile), eager),
    }


def ranks(device: torch.device) -> dict[str, float]:
    """Two workers on one device, under gloo, beside one worker."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        words = ["-m", "benchmarks.parts.gpu_checks", "rank", str(device), folder]
        subprocess.run([*launch, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found = torch.load(Path(folder) / "weights", weights_only=True)
    return {"relative_error": _apart(found, _trained(device))}


def rank(device: torch.device, folder: str) -> dict[str, float]:
    """One of the two workers."""
    weights = _trained(device, backend="gloo")
    if dist.get_rank() == 0:
        torch.save(weights, Path(folder) / "weights")
    return {}


def profile(device: torch.device) -> dict[str, float]:
    """``pliant profile`` of a convolutional network on one slot."""
    with tempfile.TemporaryDirectory() as folder:
        job, cluster = _one_slot(Path(folder), device, "convnet")
        began_s = time.monotonic()
        _pliant("profile", job, "--cluster", cluster, "-o", f"{folder}/profile.parquet")
        return {"took_s": time.monotonic() - began_s}


def demo(device: torch.device) -> dict[str, float]:
    """Schedule and run a job to its end on one slot."""
    with tempfile.TemporaryDirectory() as folder:
        job, cluster = _one_slot(Path(folder), device, "mlp")
        schedule, state = f"{folder}/schedule.json", f"{folder}/state"
        _pliant("schedule", job, "--cluster", cluster, "--policy", "fifo", "-o", schedule)
        began_s = time.monotonic()
        said = _pliant("run", schedule, "--state", state, "--until-done")
        ends = [json.loads(line).get("event") for line in said.splitlines()]
        return {"took_s": time.monotonic() - began_s, "unfinished": float("finish" not in ends)}


CHECKS: Final[dict[str, Callable[[torch.device], dict[str, float]]]] = {
    "group": group,
    "changes": changes,
    "streams": streams,
    "amp": amp,
    "compiled": compiled,
    "ranks": ranks,
    "profile": profile,
    "demo": demo,
}


def _trained(
    device: torch.device,
    *,
    mixed: bool = False,
    plainly: bool = False,
    backend: str | None = None,
    before: Callable[[Any], Any] = lambda model: model,
    after: Callable[[Any], Any] = lambda model: model,
) -> torch.Tensor:
    """All weights after a few steps of a small network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)).to(device)
    x, y = torch.randn(STEPS * BATCH, 16), torch.randn(STEPS * BATCH, 4)
    model, optimizer = before(net), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=mixed)
    kind = torch.float16 if device.type == "cuda" else torch.bfloat16
    batches: Any = zip(x.to(device).split(BATCH), y.to(device).split(BATCH), strict=True)
    epochs: Any = range(1)
    if not plainly:
        job = elastic.init(batch_size=BATCH, backend=backend)
        job.register(scaler)
        data = torch.utils.data.TensorDataset(x, y)
        model, optimizer, batches = job.prepare(model, optimizer, data, shuffle=False)
        epochs = job.epochs(1)
    model = after(model)
    for _ in epochs:
        for samples, wanted in batches:
            precision: AbstractContextManager[Any] = (
                torch.autocast(device.type, kind) if mixed else nullcontext()
            )
            optimizer.zero_grad()
            with precision:
                loss = nn.functional.mse_loss(model(samples), wanted)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).cpu()


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def _context(folder: Path, device: torch.device) -> WorkerContext:
    member = Member(slot="here/0", node="here", address="127.0.0.1", worker=0)
    plan = Plan(job="checked", generation=1, attempt=1, members=(member,))
    return WorkerContext(JobDir(folder), plan, 0, device)


def _device_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def _one_slot(folder: Path, device: torch.device, example: str) -> tuple[str, str]:
    kind = "gpu" if device.type == "cuda" else "cpu"
    cluster = {"schema": "pliant.cluster/1", "slots": kind, "backend": "local"}
    node = {"name": "here", "gpus": 1, "gpu_type": kind}
    job = {
        "id": "one",
        "submit_time": 0,
        "model": example,
        "command": [str(ROOT / "examples" / f"{example}.py"), "--epochs", "1"],
        "gpus": {"requested": 1, "min": 1, "max": 1},
        "elastic": "size",
        "batch": {"size": 64, "per_gpu_max": 64},
        "work": {"epochs": 1, "dataset_size": 4096},
    }
    (folder / "cluster.json").write_text(json.dumps({**cluster, "nodes": [node]}))
    (folder / "jobs.jsonl").write_text(json.dumps({"schema": "pliant.job/1"}) + "\n" + json.dumps(job) + "\n")
    return str(folder / "jobs.jsonl"), str(folder / "cluster.json")


def _pliant(*words: str) -> str:
    command = [sys.executable, "-m", "pliant", *words]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    name, where, *rest = sys.argv[1:]
    if name == "rank":
        here = torch.device(where)
        rank(here, *rest)
    else:
        json.dump({each: CHECKS[each](torch.device(where)) for each in name.split(",")}, sys.stdout)
