"""A training script that compiles its model before or after ``job.prepare``."""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from pliant.tools.run import elastic

options = {
    "out": ".",
    "when": "after",
    "backend": "aot_eager",
    "epochs": 3,
    "hold_in": [],
    **json.loads(sys.argv[1]),
}
job = elastic.init(batch_size=10, seed=5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


net = Net().double()
compiled_frames = []


def counting(graph, inputs):
    """A backend that notes what it compiles."""
    compiled_frames.append(graph)
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


backend = counting if options["backend"] == "counting" else options["backend"]
data = torch.utils.data.TensorDataset(
    *(torch.randn(40, n, generator=torch.Generator().manual_seed(n)) for n in (8, 1))
)
model = torch.compile(net, backend=backend) if options["when"] == "before" else net
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
model, optimizer, loader = job.prepare(model, optimizer, data)
if options["when"] == "after":
    model = torch.compile(model, backend=backend)
if options["when"] == "in place":
    model.compile(backend=backend)
out = Path(options["out"])
for epoch in job.epochs(options["epochs"]):
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x.double()), y.double())
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        if epoch in options["hold_in"] and number == 0:
            (out / f"holds-{epoch}-{job.rank}").touch()
            while not (out / f"go-{epoch}").exists():
                time.sleep(0.01)
(out / f"graphs-{job.rank}").write_text(f"{len(compiled_frames)}")
if job.rank == 0:
    torch.save({"model": net.state_dict(), "lr": optimizer.param_groups[0]["lr"]}, out / "final.pt")
