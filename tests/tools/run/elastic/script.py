"""A training script as an author would write it; the tests start it as workers. Options come as JSON."""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import StepLR

from pliant.tools.run import elastic
from pliant.tools.run.elastic.membership import rendezvous
from pliant.tools.run.elastic.membership.process_group import ProcessGroup

options = {
    "out": ".",
    "samples": 47,
    "epochs": 3,
    "step_s": 0.0,
    "hold_at": None,
    "clip": False,
    "schedule": False,  # by epochs
    "stop_at": None,
    "num_workers": 0,
    "groups": False,
    "connects_at": 1,
    "look_s": rendezvous.POLL_INTERVAL_S,
    "norm": False,  # of a batch, with given statistics: its buffers are exchanged all the same
    "shape": "plain",  # how it takes batches, as authors do
    "hold_in": [],  # after the first step of these epochs
    "compiled": None,  # "before" or "after" job.prepare, or "in place"
    "backend": "counting",  # of the compiler
    "track": [],
    **json.loads(sys.argv[1]),
}


TAKEN = 3
"""Of the five batches of an epoch, where a script takes some only."""


class Numbers(torch.utils.data.Dataset):
    """Sample i says that it is sample i."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 8, generator=generator)
        self.y = torch.randn(count, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


class OwnGroup:
    """A group that the script makes whenever its workers change, as its use of the default store."""

    def __init__(self) -> None:
        self.world, self.group, self.made, self.used = None, None, 0, 0

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Of all workers, which call this together."""
        world = dist.group.WORLD
        if world is None:
            return value.detach()
        if world is not self.world:
            self.world, self.group, self.made, self.used = world, dist.new_group(), self.made + 1, 0
        self.used += 1
        store = dist.distributed_c10d._get_default_store()
        store.set(f"used-{dist.get_rank()}-{self.used}", "yes")
        everybody = [f"used-{rank}-{self.used}" for rank in range(dist.get_world_size())]
        assert [store.get(key) for key in everybody] == [b"yes"] * len(everybody)
        assert store.check(everybody)
        total = value.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total / dist.get_world_size(self.group)


def connect_at_last(form):
    """Forming a process group, which fails until it is done for the ``connects_at``-th time."""
    times = []

    def formed(self, *arguments):
        form(self, *arguments)
        times.append(None)
        if len(times) < options["connects_at"]:
            raise RuntimeError("NCCL error: unhandled system error")

    return formed


def one_ahead(batches):
    """A generator that has read the next batch when it gives one out."""
    upcoming = iter(batches)
    held = next(upcoming)
    for following in upcoming:
        yield held
        held = following
    yield held


def endless(batches):
    while True:
        yield from batches


kept = {}
"""Iterators that outlive an epoch."""


def batches_of(loader):
    match options["shape"]:
        case "plain":
            return loader
        case "peek":
            assert len(next(iter(loader))) == 3
            return loader
        case "peek, kept":
            kept["peek"] = iter(loader)
            assert len(next(kept["peek"])) == 3
            return loader
        case "a shorter one":
            another = torch.utils.data.DataLoader(range(TAKEN))
            return (batch for batch, _ in zip(loader, another, strict=False))
        case "islice":
            return itertools.islice(loader, TAKEN)
        case "steps done":
            return itertools.takewhile(lambda _: loader.steps_done < TAKEN, loader)
        case "break":
            return (batch for number, batch in enumerate(loader) if number < TAKEN)
        case "endless":
            return itertools.islice(kept.setdefault("endless", endless(loader)), len(loader))
        case "one ahead":
            return one_ahead(loader)
        case "list":
            return list(loader)
        case "side by side":
            return (batch for batch, _ in zip(loader, loader, strict=False))
        case "continued":
            return itertools.islice(kept.setdefault("first", iter(loader)), TAKEN)
    raise ValueError(options["shape"])


class Net(nn.Sequential):
    def forward(self, x):
        """A frame that is not PyTorch's own, which the compiler would pass over."""
        return super().forward(x)


compiled_frames = []


def counting(graph, inputs):
    """A backend that notes what it compiles."""
    compiled_frames.append(graph)
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


ProcessGroup.form = connect_at_last(ProcessGroup.form)
rendezvous.POLL_INTERVAL_S = options["look_s"]
own_group = OwnGroup()
job = elastic.init(batch_size=10, seed=5, track=options["track"])
norm = nn.BatchNorm1d(16, momentum=0.0).eval() if options["norm"] else nn.Identity()
net = Net(nn.Linear(8, 16), norm, nn.Tanh(), nn.Linear(16, 1)).double()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
data = Numbers(options["samples"])
backend = counting if options["backend"] == "counting" else options["backend"]
model = torch.compile(net, backend=backend) if options["compiled"] == "before" else net
model, optimizer, loader = job.prepare(model, optimizer, data, num_workers=options["num_workers"])
if options["compiled"] == "after":
    model = torch.compile(model, backend=backend)
elif options["compiled"] == "in place":
    model.compile(backend=backend)
scheduler = StepLR(optimizer, 2, gamma=0.5)
job.register(scheduler)
used: list[float] = []
optimizer.register_step_pre_hook(lambda it, *_: used.append(it.param_groups[0]["lr"]))
out = Path(options["out"])
name = f"{job.rank}-{os.getpid()}"
seen = (out / f"seen-{name}.jsonl").open("a")
passes = 0
for epoch in job.epochs(options["epochs"]):
    for number, (x, y, index) in enumerate(batches_of(loader), 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x.double()), y.double())
        loss.backward()
        if options["clip"]:
            clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if options["groups"]:
            assert own_group.mean(torch.tensor(float(job.rank))) == (job.world_size - 1) / 2
            (out / f"made-{name}").write_text(f"{own_group.made}")
        job.log(loss=loss, **({"lr": used[-1]} if options["track"] else {}))
        seen.write(json.dumps({"epoch": epoch, "rank": job.rank, "index": index.tolist()}) + "\n")
        seen.flush()
        time.sleep(options["step_s"])
        passes += 1
        while passes == options["hold_at"] and not (out / "go").exists():
            time.sleep(0.01)
        if epoch in options["hold_in"] and number == 1:
            (out / f"holds-{epoch}-{job.rank}").touch()
            while not (out / f"go-{epoch}").exists():
                time.sleep(0.01)
        if passes == options["stop_at"] or (options["shape"] == "break" and number == TAKEN):
            break
    if passes == options["stop_at"]:
        break
    if options["schedule"]:
        scheduler.step()
    job.log(metric=float(epoch))
if options["compiled"]:
    (out / f"graphs-{job.rank}").write_text(f"{len(compiled_frames)}")
if job.rank == 0:
    result = {"lr": optimizer.param_groups[0]["lr"], "used": used[-1:]}
    torch.save({"model": net.state_dict(), **result}, out / "final.pt")
