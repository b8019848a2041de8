"""A training script that hands its loop to a sweep, as the elastic library does.

Usage: wired_by_hand.py [MEGABYTES_PER_SAMPLE [CRASH_ABOVE_LOCAL_BATCH]]
"""

import os
import sys
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pliant.tools.profile.measuring import worker as measure

WIDTH = int(sys.argv[1]) * 250_000 if len(sys.argv) > 1 else 16
CRASH_ABOVE = int(sys.argv[2]) if len(sys.argv) > 2 else None


def read(lists: Iterable[list[int]]) -> Iterator[torch.Tensor]:
    for indices in lists:
        if CRASH_ABOVE is not None and len(indices) > CRASH_ABOVE:
            raise KeyError(indices[0])
        yield torch.full((len(indices), WIDTH), 1.0)


model: nn.Module = nn.Linear(1, 100)
if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
request = measure.request_from_env()
assert request is not None
sweep = measure.Sweep(request, model, 512, read)
for x in sweep:
    model(x.mean(1, keepdim=True)).square().mean().backward()
    if sweep.boundary:
        optimizer.step()
        optimizer.zero_grad()
raise AssertionError("a sweep ends the script")
