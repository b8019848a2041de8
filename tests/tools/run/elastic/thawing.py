"""A training script that freezes and unfreezes its layers; tests start it as workers. Options are JSON."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from pliant.tools.run import elastic

options = {"out": ".", "step_s": 0.0, "hold_at": None, "grow": True, **json.loads(sys.argv[1])}
EPOCHS, SAMPLES, THAW_AT = 4, 47, 11
out = Path(options["out"])

job = elastic.init(batch_size=10, seed=5)
torch.manual_seed(2)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).double()
first, second, last = net[0], net[2], net[4]
first.requires_grad_(False)
second.requires_grad_(False)
given = list(last.parameters()) if options["grow"] else list(net.parameters())
optimizer = torch.optim.Adam(given, lr=0.01)
generator = torch.Generator().manual_seed(1)
x, y = (torch.randn(SAMPLES, size, generator=generator).double() for size in (8, 1))
model, optimizer, loader = job.prepare(net, optimizer, torch.utils.data.TensorDataset(x, y))
passes = 0
for epoch in job.epochs(EPOCHS):
    if epoch == 1:
        second.requires_grad_(True)
        if options["grow"]:
            optimizer.add_param_group({"params": second.parameters(), "lr": 0.02})
    if epoch == 3:
        last.requires_grad_(False)
    for x, y in loader:
        taken = int(optimizer.state[last.weight].get("step", 0))
        if taken == THAW_AT and not first.weight.requires_grad:
            first.requires_grad_(True)
            if options["grow"]:
                optimizer.add_param_group({"params": first.parameters()})
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        passes += 1
        time.sleep(options["step_s"])
        while passes == options["hold_at"] and not (out / "go").exists():
            time.sleep(0.01)
if job.rank == 0:
    torch.save(
        {"model": net.state_dict(), "lr": [group["lr"] for group in optimizer.param_groups]}, out / "final.pt"
    )
(out / f"weights-{os.getpid()}").write_text(str(sum(float(value.sum()) for value in net.parameters())))
