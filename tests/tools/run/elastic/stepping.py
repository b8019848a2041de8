"""Training scripts without a loader, or with several models or optimizers, as the option ``kind`` names them.

The tests start it as workers. Options come as JSON.
"""

import json
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from pliant.tools.run import elastic

options = {
    "out": ".",
    "kind": "inner",  # a loop over the micro-steps; "passes": each is a pass; the others: see below
    "stop_at": None,  # after this number of steps
    "step_s": 0.0,
    "die": None,  # [worker, step, place]: it kills itself there
    "micro": None,  # samples of a micro-step
    **json.loads(sys.argv[1]),
}
kind = options["kind"]
out = Path(options["out"])
worker = int(os.environ.get("PLIANT_WORKER", "-1"))
generator = torch.Generator().manual_seed(1)
X, Y = (torch.randn(47, size, generator=generator).double() for size in (8, 1))


def net(*sizes):
    layers = [one for a, b in pairwise(sizes) for one in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).double()


def may_die(step, place):
    if options["die"] == [worker, step, place]:
        os.kill(os.getpid(), signal.SIGKILL)


def score(model):
    with torch.no_grad():
        return {"loss": nn.functional.mse_loss(model(X), Y).item(), "worker": float(worker)}


def asked(step, place, model):
    """Rank 0's evaluation, on every worker."""
    may_die(step, place)
    result = job.agree(lambda: score(model))
    with (out / f"agreed-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([step, place, result["loss"]]) + "\n")


def saved(models, step):
    if job.rank == 0:
        state = {name: value for name, one in models.items() for name, value in prefixed(name, one)}
        torch.save({"model": state, "step": step}, out / "final.pt")


def prefixed(name, model):
    return [(f"{name}.{key}", value) for key, value in model.state_dict().items()]


def by_steps(inner):
    model = net(8, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = {"steps": 0}
    model, optimizer = job.prepare(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.9)
    job.register(scheduler, seen=seen)
    for step in job.steps(options["stop_at"] or 1_000_000):
        if step % 3 == 0:
            asked(step, "top", model)
        for _ in job.micro_steps() if inner else range(1):
            ix = job.batch_indices(len(X))
            shift = job.draw(lambda count, drawn: torch.rand(count, 1, generator=drawn)).double()
            loss = nn.functional.mse_loss(model(X[ix]) + shift, Y[ix])
            may_die(step, "mid")
            loss.backward()
        optimizer.step()
        if step % 4 == 0:
            asked(step, "end", model)
        scheduler.step()
        optimizer.zero_grad()
        if job.sync_gradients:
            seen["steps"] = step + 1
        time.sleep(options["step_s"])
    assert seen["steps"] == options["stop_at"]
    saved({"net": model}, step)


def adversarial(batches, painter, critic, first, second):
    """Alternating steps: a critic of what is real, and a painter that it is to like."""
    for step, real in batches:
        noise = job.draw(lambda count, drawn: torch.randn(count, 4, generator=drawn)).double()
        critic.zero_grad()
        like = nn.functional.softplus
        like(-critic(real)).mean().backward()
        fake = painter(noise)
        like(critic(fake.detach())).mean().backward()
        may_die(step, "first")
        first.step()
        painter.zero_grad()
        loss = like(-critic(fake)).mean()
        may_die(step, "second")
        loss.backward()
        second.step()
        job.log(loss=loss)
        time.sleep(options["step_s"])
        if step + 1 == options["stop_at"] and job.sync_gradients:
            return


def pair():
    painter, critic = net(4, 16, 8), net(8, 16, 1)
    first = torch.optim.Adam(critic.parameters(), lr=0.01)
    second = torch.optim.SGD(painter.parameters(), lr=0.05, momentum=0.9)
    return {"painter": painter, "critic": critic, "first": first, "second": second}


def gan(by_steps):
    given = pair()
    if by_steps:
        painter, critic, first, second = job.prepare(**given)
        steps = job.steps(options["stop_at"] or 1_000_000)
        batches = ((step, X[job.batch_indices(len(X))]) for step in steps)
        adversarial(batches, painter, critic, first, second)
    else:
        data = torch.utils.data.TensorDataset(X)
        painter, critic, first, second, loader = job.prepare(**given, data=data, drop_last=True)
        for epoch in job.epochs(1_000_000):
            batches = ((4 * epoch + loader.steps_done, x) for (x,) in loader)
            adversarial(batches, painter, critic, first, second)
            if 4 * (epoch + 1) >= (options["stop_at"] or 10**9):
                break
    saved({"painter": painter, "critic": critic}, options["stop_at"])


def gan_inner():
    """Turns with a loop over the micro-steps each."""
    painter, critic, first, second = job.prepare(**pair())
    like = nn.functional.softplus
    for step in job.steps(options["stop_at"] or 1_000_000):
        critic.zero_grad()
        for _ in job.micro_steps():
            noise = job.draw(lambda count, drawn: torch.randn(count, 4, generator=drawn)).double()
            like(-critic(X[job.batch_indices(len(X))])).mean().backward()
            like(critic(painter(noise).detach())).mean().backward()
        first.step()
        painter.zero_grad()
        for _ in job.micro_steps():
            noise = job.draw(lambda count, drawn: torch.randn(count, 4, generator=drawn)).double()
            loss = like(-critic(painter(noise))).mean()
            may_die(step, "second")
            loss.backward()
        second.step()
        time.sleep(options["step_s"])
    saved({"painter": painter, "critic": critic}, options["stop_at"])


def closure():
    model = net(8, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = job.prepare(model, optimizer)
    for _ in job.steps(options["stop_at"] or 1_000_000):
        ix = job.batch_indices(len(X))

        def loss(ix=ix):
            optimizer.zero_grad()
            result = nn.functional.mse_loss(model(X[ix]), Y[ix])
            result.backward()
            return result

        job.log(loss=optimizer.step(loss))
        time.sleep(options["step_s"])
    saved({"net": model}, options["stop_at"])


def muon():
    model = net(8, 16, 16, 1)
    matrices = [one for one in model.parameters() if one.ndim == 2]
    others = [one for one in model.parameters() if one.ndim != 2]
    first, second = torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(others, lr=0.01)
    model, first, second = job.prepare(model, first, second)
    for step in job.steps(options["stop_at"] or 1_000_000):
        ix = job.batch_indices() * 7 % len(X)
        nn.functional.mse_loss(model(X[ix]), Y[ix]).backward()
        may_die(step, "mid")
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(options["step_s"])
    saved({"net": model}, step)


class Stream(torch.utils.data.IterableDataset):
    """Sample after sample, from where it is."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < len(X):
            self.at += 1
            with (out / f"read-{os.getpid()}").open("a") as file:
                file.write(f"{self.at}\n")
            yield X[self.at - 1], Y[self.at - 1]
        self.at = 0


class StatefulStream(Stream):
    """It can say where it is."""

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.RNNCell(8, 4), nn.Linear(4, 1)

    def forward(self, x, hidden):
        hidden = self.cell(x, hidden)
        return self.head(hidden), hidden


def by_epochs(model, data, carries=False):
    """Over a loader; rows of a batch may go on from where those of the one before have ended."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, data)
    hidden = job.carried(lambda rows: torch.zeros(rows, 4).double()) if carries else None
    steps = 0
    for _ in job.epochs(1_000_000):
        for x, y in loader:
            optimizer.zero_grad()
            if carries:
                predicted, hidden.value = model(x, hidden.value)
            else:
                predicted = model(x)
            nn.functional.mse_loss(predicted, y).backward()
            optimizer.step()
            time.sleep(options["step_s"])
            steps += job.sync_gradients
            if steps == options["stop_at"]:
                break
        if steps == options["stop_at"]:
            break
    saved({"net": model}, steps)


def thawing(grows):
    """Layers that are frozen and unfrozen; they come as groups of the optimizer, or were there before."""
    model = net(8, 16, 16, 1)
    first, second, last = model[0], model[2], model[4]
    for layer in (first, second):
        layer.requires_grad_(False)
    optimizer = torch.optim.Adam(last.parameters() if grows else model.parameters(), lr=0.01)
    model, optimizer = job.prepare(model, optimizer)
    for step in job.steps(options["stop_at"] or 1_000_000):
        for thaws_at, layer, more in ((8, second, {"lr": 0.02}), (25, first, {})):
            if step >= thaws_at and not layer.weight.requires_grad:
                layer.requires_grad_(True)
                if grows:
                    optimizer.add_param_group({"params": layer.parameters(), **more})
        last.requires_grad_(step < 40)
        ix = job.batch_indices(len(X))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(X[ix]), Y[ix]).backward()
        optimizer.step()
        time.sleep(options["step_s"])
    saved({"net": model}, step)


job = elastic.init(batch_size=10, seed=5, micro_batch_size=options["micro"])
match kind:
    case "inner" | "passes":
        by_steps(inner=kind == "inner")
    case "gan" | "gan steps":
        gan(by_steps=kind == "gan steps")
    case "stream":
        by_epochs(net(8, 16, 1), Stream())
    case "stateful stream":
        by_epochs(net(8, 16, 1), StatefulStream())
    case "carried":
        by_epochs(Recurrent().double(), torch.utils.data.TensorDataset(X, Y), carries=True)
    case "thaw" | "thaw groups":
        thawing(grows=kind == "thaw groups")
    case "gan inner":
        gan_inner()
    case "closure":
        closure()
    case "muon":
        muon()
