"""What a training job goes through on a GPU: changes of its workers, its library's own time, neighbours.

The slots of the node are all the same GPU, so that one GPU is enough to see changes of workers: these talk
through gloo, because NCCL refuses two workers on one GPU. What a change takes where each worker has a GPU of
its own, NCCL's communicator included, stays unknown. With the device ``cpu`` the same runs on CPU slots.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.parts import figure
from benchmarks.parts.figure import ROOT, Figure
from benchmarks.parts.library_cpu import MODELS
from benchmarks.parts.training_job import SLOTS, one_machine, running
from benchmarks.rescale import Relaunching, stalls
from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Backend, NodeInfo
from pliant.tools.run.service.executor import Executor

BATCH: Final = 24
ROUNDS: Final = 1
PATH: Final = (2, 1)
STATES: Final = {"small": (256, 2), "large": (2048, 8)}
"""Width and layers of the transformers whose changes are timed: 4 and 420 million parameters, of which AdamW
makes 0.04 and 5 GB of state."""
STEPPED: Final = {"mlp": 1024, "transformer": 64}
"""Models whose steps are timed, and their batches."""
EPOCHS: Final = 4
EPOCH_STEPS: Final = 60
NEIGHBOURS: Final = (("small", "small"), ("small", "large"), ("large", "large"))
TOGETHER_S: Final = 8.0

COMMON: Final = (
    MODELS
    + """
import time


def words(count):
    return TensorDataset(*torch.randint(4096, (2, count, 64)))


def finished(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
"""
)
CHANGED: Final = (
    COMMON
    + """
from pliant.tools.run import elastic

WIDTH, LAYERS, BATCH = json.loads(sys.argv[1])
job = elastic.init(batch_size=BATCH, seed=1, backend="gloo")
torch.manual_seed(0)
model = Transformer(WIDTH, LAYERS, 0.0).to(job.device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
model, optimizer, loader = job.prepare(model, optimizer, words(100 * BATCH))
for epoch in job.epochs(100000):
    for x, y in loader:
        job.log(loss=train(model, optimizer, x, y))
"""
)
STEPS: Final = (
    COMMON
    + """
from pliant.tools.run import elastic

NAME, BATCH, STEPS, EPOCHS = json.loads(sys.argv[1])


def make():
    torch.manual_seed(0)
    if NAME == "transformer":
        return Transformer(512, 6, 0.0)
    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers)


def samples():
    count = STEPS * BATCH
    if NAME == "transformer":
        return words(count)
    return TensorDataset(torch.randn(count, 256), torch.randint(10, (count,)))


def plain(reads_by_batch):
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    if reads_by_batch:
        held = [tensor.to(device) for tensor in data.tensors]
    else:
        loader = DataLoader(data, BATCH, shuffle=True, pin_memory=device.type == "cuda")
    summed = torch.zeros((), device=device)
    while True:
        order = torch.randperm(STEPS * BATCH, device=device).split(BATCH) if reads_by_batch else None
        for batch in order if reads_by_batch else loader:
            x, y = (
                [tensor[batch] for tensor in held]
                if reads_by_batch
                else [tensor.to(device, non_blocking=True) for tensor in batch]
            )
            summed += train(model, optimizer, x, y).detach()
            yield


job = elastic.init(batch_size=BATCH, seed=1)
device, data, model = job.device, samples(), make().to(job.device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model, optimizer, loader = job.prepare(model, optimizer, data)
others = {"plain": plain(False), "least": plain(True)}
took = {"library": [], "plain": [], "least": []}
began_s = finished(device)
for epoch in job.epochs(EPOCHS):
    for x, y in loader:
        job.log(loss=train(model, optimizer, x, y))
    took["library"].append((finished(device) - began_s) / STEPS)
    for name, steps in others.items():
        began_s = finished(device)
        for _ in range(STEPS):
            next(steps)
        took[name].append((finished(device) - began_s) / STEPS)
    began_s = finished(device)
with open("took.json", "w") as file:
    json.dump({name: times[1:] for name, times in took.items()}, file)
"""
)
NEIGHBOUR: Final = (
    COMMON
    + """
WIDTH, LAYERS, BATCH, WHERE = json.loads(sys.argv[1])
device = torch.device(WHERE)
model = Transformer(WIDTH, LAYERS, 0.0).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
x, y = (tensor.to(device) for tensor in words(BATCH).tensors)
for _ in range(3):
    train(model, optimizer, x, y)
finished(device)
print("ready", flush=True)
SECONDS = float(sys.stdin.readline())
began_s, steps = time.perf_counter(), 0
while finished(device) < began_s + SECONDS:
    for _ in range(5):
        train(model, optimizer, x, y)
    steps += 5
print(steps / (finished(device) - began_s))
"""
)


class OneGpu(LocalBackend):
    """A node whose slots are all the first GPU."""

    def nodes(self) -> Sequence[NodeInfo]:
        return [NodeInfo("n0", SLOTS, devices=("0",) * SLOTS)]


def machine(device: str) -> Callable[[Path], Backend]:
    """Opens the backend of :data:`SLOTS` slots on a device."""
    if device == "cpu":
        return one_machine
    shape = {"slots": "gpu", "nodes": ({"name": "n0", "gpus": SLOTS},)}
    return lambda jobs: OneGpu(Cluster.model_validate(shape), jobs)


def changes(
    device: str = "cuda",
    states: Sequence[str] = tuple(STATES),
    rounds: int = ROUNDS,
    path: Sequence[int] = PATH,
) -> list[Figure]:
    """Stalls in place and by relaunch, and their parts, by the size of the state.

    A lost worker is not among them: on a GPU it ends the attempt, and the job is relaunched.
    """
    found = []
    for state in states:
        words, place = json.dumps([*STATES[state], BATCH]), machine(device)
        with running(Executor, CHANGED, words, BATCH, place) as training:
            in_place, parts, growths = stalls(training, rounds, path)
        with running(Relaunching, CHANGED, words, BATCH, place) as training:
            relaunched, *_ = stalls(training, 1, path)
        found += [
            *(Figure(f"{state}_stall_{change}_s", value, "s") for change, value in in_place.items()),
            *(Figure(f"{state}_relaunch_{change}_s", value, "s") for change, value in relaunched.items()),
            *(Figure(f"{state}_stall_{part}_s", value, "s") for part, value in parts.items()),
            *(
                Figure(f"{state}_growth_{change}_over_least", value, "ratio")
                for change, value in growths.items()
            ),
        ]
    return found


def steps(device: str = "cuda", epochs: int = EPOCHS, count: int = EPOCH_STEPS) -> list[Figure]:
    """A step by the library beside one of PyTorch's loader and one of tensors that the GPU holds already.

    One worker; the three take turns, an epoch each. The values are medians.
    """
    found = []
    for name, batch in STEPPED.items():
        words = json.dumps([name, batch, count, epochs])
        with running(Executor, STEPS, words, batch, machine(device)) as training:
            training.go_to(1)
            took = {kind: statistics.median(times) for kind, times in training.finish().items()}
        found += [
            *(Figure(f"step_{name}_{kind}_s", value, "s") for kind, value in took.items()),
            Figure(f"step_{name}_plain_over_library", took["plain"] / took["library"], "ratio"),
            Figure(f"step_{name}_least_over_library", took["least"] / took["library"], "ratio"),
        ]
    return found


def neighbours(
    device: str = "cuda:0",
    pairs: Sequence[tuple[str, str]] = NEIGHBOURS,
    together_s: float = TOGETHER_S,
) -> list[Figure]:
    """What is left of a job's speed when it shares its GPU with another, and how fast each is alone.

    Each is measured alone before and after the pairs; the spread says what the machine itself moved.
    """
    names = sorted({name for pair in pairs for name in pair})
    alone = {name: _speeds((name,), device, together_s) for name in names}
    together = {pair: _speeds(pair, device, together_s) for pair in pairs}
    found = []
    for name in names:
        alone[name] += _speeds((name,), device, together_s)
        found += [
            Figure(f"alone_{name}_steps_per_s", statistics.fmean(alone[name]), "1/s"),
            Figure(f"alone_{name}_spread", max(alone[name]) / min(alone[name]) - 1.0, "ratio"),
        ]
    for pair, speeds in together.items():
        left = [speed / statistics.fmean(alone[name]) for name, speed in zip(pair, speeds, strict=True)]
        shown = zip((pair, tuple(reversed(pair))), left, strict=True)
        found += [
            Figure(f"shared_{'_beside_'.join(way)}", one, "of its speed alone")
            for way, one in (shown if len(set(pair)) > 1 else [(pair, statistics.fmean(left))])
        ]
        found.append(Figure(f"shared_{'_beside_'.join(pair)}_sum", sum(left), "of a GPU"))
    return found


def _speeds(names: Sequence[str], device: str, seconds: float) -> list[float]:
    """Steps a second of processes that train at the same time."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for name in names:
            words = json.dumps([*STATES[name], BATCH, device])
            command = [sys.executable, "-c", NEIGHBOUR, words]
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        for process in processes:
            _line(process)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return [float(_line(process)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError("a neighbour has ended early")
    return line


PROFILED: Final[dict[str, dict[str, Any]]] = {
    "convnet": {"words": ["--width", "192", "--size", "131072"], "most": 131_072, "dataset": 131_072},
    "char_transformer": {"words": ["--width", "512", "--length", "128"], "most": 1024, "dataset": 4096},
    "mlp": {"words": ["--width", "4096"], "most": 16_384, "dataset": 32_768},
}
"""Examples at a size that a GPU feels; the convolutional one's largest batches are beyond any memory."""


def profiled(model: str, target: Path | None = None) -> list[Figure]:
    """``pliant profile`` of an example over all batches that fit one GPU; writes the profile.

    :param target: by default beside the results, named by the model.
    """
    began_s = time.monotonic()
    target = target or figure.RESULTS / f"gpu_profile_{model}.parquet"
    with tempfile.TemporaryDirectory() as folder:
        jobs = Path(folder) / "jobs.jsonl"
        jobs.write_text(
            "".join(json.dumps(each) + "\n" for each in ({"schema": "pliant.job/1"}, _job(model)))
        )
        words = [sys.executable, "-m", "pliant", "profile", str(jobs), "--gpus", "1", "--costs"]
        subprocess.run([*words, "-o", str(target)], cwd=ROOT, check=True)
    return [Figure(f"profile_{model}_took_s", time.monotonic() - began_s, "s")]


def _job(model: str) -> dict[str, Any]:
    about = PROFILED[model]
    return {
        "id": model,
        "submit_time": 0,
        "model": model,
        "command": [str(ROOT / "examples" / f"{model}.py"), *about["words"]],
        "gpus": {"requested": 1, "min": 1, "max": 1},
        "elastic": "size+batch",
        "batch": {"size": 64, "min": 16, "max": about["most"], "per_gpu_max": about["most"]},
        "work": {"epochs": 1, "dataset_size": about["dataset"]},
    }
