"""How often a change of workers makes ``torch.compile`` compile a model again, on a worker that stays.

Another number of workers gives each another number of samples. The compiler takes the first number that it
sees for the only one; at the second it compiles once more, for all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.training_job import running
from pliant.tools.run.service.executor import Executor

SIZES: Final = (2, 1) * 4
BATCH: Final = 24
SCRIPT: Final = """
import pathlib
import torch
from torch import nn
from pliant.tools.run import elastic

graphs = []


def counting(graph, inputs):
    graphs.append(graph)
    pathlib.Path(f"graphs-{job.rank}").write_text("%d" % len(graphs))
    return graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


job = elastic.init(batch_size=24, seed=0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
model, optimizer = job.prepare(net, optimizer)
model = torch.compile(model, backend=counting)
for step in job.steps(10**9):
    x = job.draw(lambda count, generator: torch.randn(count, 8, generator=generator))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def figures(sizes: Sequence[int] = SIZES) -> Sequence[Figure]:
    """:param sizes: numbers of workers, one change after the other; the job starts on one."""
    counts = []
    with running(Executor, SCRIPT, "", BATCH) as job:
        for size in (1, *sizes):
            job.go_to(size)
            counts.append(int((job.folder / "graphs-0").read_text()))
        job.give(0)
        job.ends()
    return [
        Figure("compile_recompiles_per_change", (counts[-1] - counts[0]) / len(sizes), "graphs", 0.0),
        Figure("compile_recompiles_after_first_change", float(counts[-1] - counts[1]), "graphs", 0.0),
    ]
