"""A training script in whose steps things go wrong; the tests start it as workers. Options come as JSON."""

import hashlib
import json
import os
import signal
import sys
from itertools import chain, islice
from pathlib import Path

import torch
from torch import nn

from pliant.tools.run import elastic

options = {
    "out": ".",
    "samples": 47,
    "epochs": 3,
    "die": None,  # [worker, pass]: it kills itself between the forward and the backward pass
    "broken": None,  # [worker, pass]: from then on what it exchanges fails there
    "unlike": None,  # "wider" or "frozen": the model of worker 1
    "breaks": None,  # out of the loop over the loader, in each epoch after this number of passes
    "decays": False,  # the learning rate, by a scheduler that acts at the end of each epoch
    "leaves": None,  # the loop over the loader after this number of passes, and begins it again
    "nan": False,  # as loss, as metric and as what rank 0 tells
    "noisy": False,  # batch normalization and dropout; tells how each pass begins
    "unused": False,  # no gradient for a part of the model, in turns
    "by_hand": False,  # gradients are set without a backward pass
    **json.loads(sys.argv[1]),
}
worker = int(os.environ.get("PLIANT_WORKER", "-1"))


class Net(nn.Module):
    """A trunk and two heads; ``unused`` heads take turns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width) if options["noisy"] else nn.Identity()
        self.drop = nn.Dropout(0.2 if options["noisy"] else 0.0)
        self.heads = nn.ModuleList([nn.Linear(width, 1) for _ in range(2)])

    def forward(self, x: torch.Tensor, turn: int) -> torch.Tensor:
        inner = self.drop(torch.tanh(self.norm(self.trunk(x))))
        return self.heads[turn](inner) if options["unused"] else sum(head(inner) for head in self.heads)


class Broken:
    """A process group with a defect."""

    def __init__(self, inner: torch.distributed.ProcessGroup) -> None:
        self.inner = inner

    def allreduce(self, *_: object) -> None:
        raise RuntimeError("the network library has a defect")

    allgather = allreduce

    def broadcast(self, *arguments: object) -> object:
        return self.inner.broadcast(*arguments)


def beginning() -> str:
    """A word for the buffers and the generator, as a pass finds them."""
    state = [torch.get_rng_state(), *(buffer.double() for buffer in net.buffers())]
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in state)).hexdigest()


def break_exchange() -> None:
    group = job._loop.workers.averaging._group  # type: ignore[union-attr]
    device = torch.device("cpu")
    if group is not None and not isinstance(group._backend(device), Broken):
        group._backends[device] = Broken(group._backend(device))


job = elastic.init(batch_size=10, seed=5)
generator = torch.Generator().manual_seed(1)
count = options["samples"]
x, y = (torch.randn(count, size, generator=generator).double() for size in (8, 1))
data = torch.utils.data.TensorDataset(x, y, torch.arange(count))
net = Net(17 if options["unlike"] == "wider" and worker == 1 else 16).double()
net.heads[0].bias.requires_grad_(not (options["unlike"] == "frozen" and worker == 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
stopping = elastic.EarlyStopping(patience=2)
job.register(stopping=stopping)
model, optimizer, loader = job.prepare(net, optimizer, data, find_unused_parameters=options["unused"])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
job.register(scheduler)
steps: list[None] = []
weights = list(net.parameters())
optimizer.register_step_post_hook(lambda *_: steps.append(None))
out = Path(options["out"])
seen = (out / f"seen-{os.getpid()}.jsonl").open("a")
passes = 0
for epoch in job.epochs(options["epochs"]):
    began = passes
    leaves = options["leaves"] if epoch == 0 else None
    for x, y, index in chain(islice(loader, leaves), loader) if leaves else loader:
        passes += 1
        if options["broken"] and options["broken"][0] == worker and passes >= options["broken"][1]:
            break_exchange()
        row = {"epoch": epoch, "worker": worker, "index": index.tolist(), "began": beginning()}
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x, len(steps) % 2), y)
        if options["die"] == [worker, passes]:
            os.kill(os.getpid(), signal.SIGKILL)
        if options["by_hand"]:
            for one, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                one.grad = gradient
        else:
            loss.backward()
        optimizer.step()
        job.log(loss=loss * float("nan") if options["nan"] else loss)
        seen.write(json.dumps(row | {"steps": len(steps)}) + "\n")
        seen.flush()
        if passes - began == options["breaks"] and job.sync_gradients is not None:  # it knows of micro-steps
            break
    if options["decays"]:
        scheduler.step()
    if options["nan"]:
        agreed = job.agree(float("nan") if job.rank == 0 else 1.0)
        assert agreed != agreed
        job.log(metric=agreed)
        if stopping.reached(agreed):
            break
rate = optimizer.param_groups[0]["lr"]
(out / f"rate-{worker}").write_text(f"{rate} {scheduler.last_epoch}")
if job.rank == 0:
    torch.save({"model": net.state_dict(), "lr": rate}, out / "final.pt")
