"""What ``make gpu-check`` does, one check after the other.

``python -m benchmarks.parts.gpu_checks CHECK[,CHECK…] DEVICE`` makes some of the checks in one process.
Each check is a function of a device that returns numbers by name. With the device ``cpu`` those that need
no GPU run as well: so the tests see that the checks themselves work.
"""

from __future__ import annotations

import json
import os
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
from pliant.schemas.errors import JobsFailedError
from pliant.tools.run import elastic
from pliant.tools.run.backends import host
from pliant.tools.run.backends.resource_usage import GpuMeter
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.loop.averaging import Averaging
from pliant.tools.run.elastic.loop.gradients import Gradients
from pliant.tools.run.elastic.membership.process_group import ProcessGroup, use_interface
from pliant.tools.run.elastic.state.checkpoint import staged
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Member, Plan

WARM: Final = 10
"""Changes before the memory is looked at."""
STEPS: Final = 6
BATCH: Final = 33
"""Odd, so that two workers have uneven shares."""
BUSY_S: Final = 3.0
TAKEN_BYTES: Final = 4 << 30


def group(device: torch.device, changes: int = 1) -> dict[str, float]:
    """Form the group of one worker again and again, with a step of training each time."""
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).to(device)
    took, held = [], []
    with tempfile.TemporaryDirectory() as folder:
        averaging, formed = Averaging(), ProcessGroup(_context(Path(folder), device), None)
        gradients = Gradients([net], averaging)
        use_interface("127.0.0.1")
        for number in range(changes):
            place = Path(folder) / str(number)
            place.mkdir()
            began_s = time.monotonic()
            formed.form(place, lambda: False, timedelta(minutes=2))
            averaging.begin([net], device)
            gradients.bind(accumulates=False)
            took.append(time.monotonic() - began_s)
            net(torch.ones(BATCH, 512, device=device)).square().mean().backward()
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
        events, took_s = _run(Path(folder), *_one_slot(Path(folder), device, "mlp"))
        ends = [event.get("event") for event in events]
        return {"took_s": took_s, "unfinished": float("finish" not in ends)}


def scripts(device: torch.device) -> dict[str, float]:
    """The examples, and scripts of three other libraries, train to their end, one after the other.

    :raises RuntimeError: some do not; which, and why, is what it says.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [_job(Path(example).name, [_example(example), *words]) for example, words in EXAMPLES.items()]
        for library, text in LIBRARIES.items():
            (folder / f"with_{library}.py").write_text(f"KIND = {device.type!r}\n{text}")
            about = {"resize": "relaunch", "batch": {"size": 8, "per_gpu_max": 8}, "workdir": name}
            jobs.append(_job(library, [f"with_{library}.py"]) | about | {"env": {"HF_HUB_OFFLINE": "1"}})
        file, cluster = _on_one_slot(folder, device, jobs)
        events, took_s = _run(folder, file, cluster)
    finished = {event["job"] for event in events if event.get("event") == "finish"}
    reasons = {event["job"]: event["detail"]["reason"] for event in events if event.get("event") == "fail"}
    unfinished = [job["id"] for job in jobs if job["id"] not in finished]
    if unfinished:
        raise RuntimeError("; ".join(f"{job}: {reasons.get(job, 'did not end')}" for job in unfinished))
    return {"took_s": took_s, "jobs": float(len(jobs))}


def use(device: torch.device) -> dict[str, float]:
    """What NVML says, as we read it, of a GPU that this process keeps busy: how busy, what is taken, by whom.

    :raises RuntimeError: the driver does not say it, as of instances of a GPU in MIG mode.
    """
    gpu = host.visible_gpus(os.environ)[device.index or 0]
    meter = GpuMeter([gpu.name])
    factor = torch.randn(8192, 8192, device=device)
    (factor @ factor).sum().item()
    _, before = meter.look()
    block = torch.zeros(TAKEN_BYTES, dtype=torch.uint8, device=device)
    looks, looked_s, began_s = [], 0.0, time.monotonic()
    while time.monotonic() < began_s + BUSY_S:
        for _ in range(8):
            factor @ factor
        torch.cuda.synchronize(device)
        look_s = time.monotonic()
        looks.append(meter.look())
        looked_s += time.monotonic() - look_s
    seen = [busy for busy, _ in looks[len(looks) // 2 :] if busy is not None]
    _, after = looks[-1]
    if not seen or before is None or after is None:
        raise RuntimeError(f"the driver does not say how busy {gpu.model} is")
    return {
        "idle_error": 1.0 - sum(seen) / len(seen),
        "memory_error": abs(after - before - block.numel()) / block.numel(),
        "look_s": looked_s / len(looks),
        "missed": float(os.getpid() not in host.processes_on([gpu])[gpu.card]),
    }


_ELASTIC: Final = ("mlp", "convnet", "autoencoder", "char_transformer", "fabric_style", "trainer_style")
_ADAPTED: Final = ("after/stripes", "after/gan", "after/rnn")
EXAMPLES: Final = {
    **dict.fromkeys((*_ELASTIC, *_ADAPTED), ("--epochs", "1")),
    "after/get_batch": ("--steps", "100"),
}
LIBRARIES: Final = {
    "accelerate": """
import torch
from accelerate import Accelerator
from pliant.integrations.accelerate import RelaunchedTraining

accelerator = Accelerator(cpu=KIND == "cpu")
assert accelerator.device.type == KIND
model = torch.nn.Linear(32, 1)
data = torch.utils.data.TensorDataset(torch.randn(160, 32), torch.randn(160, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
training = RelaunchedTraining(accelerator, "accelerate", per_worker_batch=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
for step, (x, y) in enumerate(loader, training.resume() + 1):
    loss = torch.nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    training.step(step, loss=loss)
training.done()
""",
    "lightning": """
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from pliant.integrations.lightning import PliantCallback, local_workers, nodes

trainer = Trainer(
    callbacks=[pliant := PliantCallback("lightning", every_n_steps=5)],
    strategy="ddp", devices=local_workers(), num_nodes=nodes(), accelerator=KIND.replace("cuda", "gpu"),
    max_epochs=1, limit_val_batches=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
)
trainer.fit(BoringModel(), ckpt_path=pliant.checkpoint)
""",
    "transformers": """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from pliant.integrations.transformers import PliantCallback, newest_checkpoint

shape = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 32, "n_positions": 8}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
data = [{"input_ids": each, "labels": each} for each in torch.randint(32, (160, 8))]
args = TrainingArguments(
    "transformers", per_device_train_batch_size=8, num_train_epochs=1, use_cpu=KIND == "cpu", report_to=[],
    disable_tqdm=True,
)
assert args.device.type == KIND
trainer = Trainer(model, args, train_dataset=data, callbacks=[PliantCallback()])
trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))
""",
}
CHECKS: Final[dict[str, Callable[[torch.device], dict[str, float]]]] = {
    "group": group,
    "changes": changes,
    "streams": streams,
    "amp": amp,
    "compiled": compiled,
    "ranks": ranks,
    "profile": profile,
    "demo": demo,
    "scripts": scripts,
    "use": use,
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
    return _on_one_slot(folder, device, [_job("one", [_example(example), "--epochs", "1"])])


def _on_one_slot(folder: Path, device: torch.device, jobs: list[dict[str, Any]]) -> tuple[str, str]:
    """Files of the jobs and of a cluster of one slot."""
    kind = "gpu" if device.type == "cuda" else "cpu"
    cluster = {"schema": "pliant.cluster/1", "slots": kind, "backend": "local"}
    node = {"name": "here", "gpus": 1, "gpu_type": kind}
    (folder / "cluster.json").write_text(json.dumps({**cluster, "nodes": [node]}))
    lines = [{"schema": "pliant.job/1"}, *jobs]
    (folder / "jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder / "jobs.jsonl"), str(folder / "cluster.json")


def _job(name: str, command: list[str]) -> dict[str, Any]:
    return {
        "id": name,
        "submit_time": 0,
        "model": name,
        "command": command,
        "gpus": {"requested": 1, "min": 1, "max": 1},
        "elastic": "size",
        "batch": {"size": 64, "per_gpu_max": 64},
        "work": {"epochs": 1, "dataset_size": 4096},
    }


def _example(name: str) -> str:
    return str(ROOT / "examples" / f"{name}.py")


def _run(folder: Path, jobs: str, cluster: str) -> tuple[list[dict[str, Any]], float]:
    """The events of jobs that are run to their end, and how long that takes.

    :raises RuntimeError: ``pliant run`` did not end as it does when jobs have finished or failed.
    """
    schedule, state = f"{folder}/schedule.json", f"{folder}/state"
    _pliant("schedule", jobs, "--cluster", cluster, "--policy", "fifo", "-o", schedule)
    began_s = time.monotonic()
    words = [sys.executable, "-m", "pliant", "run", schedule, "--state", state, "--until-done"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, JobsFailedError.exit_code):
        raise RuntimeError(f"pliant run ended with {done.returncode}")
    said = done.stdout
    return [json.loads(line) for line in said.splitlines()], time.monotonic() - began_s


def _pliant(*words: str) -> None:
    command = [sys.executable, "-m", "pliant", *words]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    name, where, *rest = sys.argv[1:]
    if name == "rank":
        here = torch.device(where)
        rank(here, *rest)
    else:
        json.dump({each: CHECKS[each](torch.device(where)) for each in name.split(",")}, sys.stdout)
