"""FSDP2 with torch.distributed.checkpoint, resized by a relaunch: the state is cut for the new size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.training import check, recipe
from tests.tools.run.site import Site

pytestmark = pytest.mark.torch

AROUND = """
import pathlib
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if "RANK" not in os.environ:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
data = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
shards = min(REPLICA, workers)
mesh = init_device_mesh("cpu", (workers // shards, shards), mesh_dim_names=("replicas", "shards"))
fully_shard(model, mesh=mesh if workers > shards else mesh["shards"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def save(step):
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"step-{step}")
    if rank == 0:
        pathlib.Path("newest").write_text(str(step))
    dist.barrier()


def load_newest():
    if not os.path.exists("newest"):
        return 0
    step = int(pathlib.Path("newest").read_text())
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"step-{step}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return step


def train_one_step(step):
    batch = data[torch.arange(step * 8, step * 8 + 8) % 96].chunk(workers)[rank]
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    after_step(step + 1)
    return loss


steps = STEPS
"""
AFTER = """
whole = [each.detach().full_tensor() for each in model.parameters()]
if rank == 0:
    torch.save(whole, "weights.pt")
dist.destroy_process_group()
"""


def test_a_resized_sharded_model_trains_the_same(site: Site) -> None:
    check(site, "REPLICA = 10**6" + AROUND + recipe("FSDP2") + AFTER)


def test_resized_groups_of_two_workers_train_the_same(tmp_path: Path) -> None:
    """Each group holds a whole model, cut over its workers (HSDP)."""
    site = Site(tmp_path, slots=4)
    check(site, "REPLICA = 2" + AROUND + recipe("FSDP2") + AFTER, replica=2)
