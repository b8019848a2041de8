"""A sharded model (FSDP2) that is resized by a relaunch: it saves when asked to, and goes on at any size.

The weights of every layer are cut over all workers. ``torch.distributed.checkpoint`` saves the pieces, and
cuts them again for the number of workers that load them. Two folders take turns, so that one is always whole.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

from pliant.tools.run.progress import TrainingProgress


def samples(step: int, batch: int, width: int) -> Tensor:
    """The global batch of a step, the same on every worker and at every size."""
    return torch.randn(batch, width, generator=torch.Generator().manual_seed(step))


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All workers call it together."""
    path = folder / f"step-{step}"
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
    if dist.get_rank() == 0:
        newest = folder / "newest.tmp"
        newest.write_text(str(step))
        newest.replace(folder / "newest")  # from now on it counts
        for old in folder.glob("step-*"):
            if old != path:
                shutil.rmtree(old)
    dist.barrier()


def load_newest(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step of the newest checkpoint, whose weights are cut for the present number of workers."""
    if not (folder / "newest").exists():
        return 0
    step = int((folder / "newest").read_text())
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder / f"step-{step}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step over all workers")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()

    if "RANK" not in os.environ:  # plain python, without torchrun
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    is_cuda = torch.cuda.is_available()
    if is_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if is_cuda else "gloo")
    device = torch.device("cuda" if is_cuda else "cpu")

    torch.manual_seed(0)
    layers = [nn.Linear(args.width, args.width) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]).to(device)
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step = load_newest(args.folder, model, optimizer)
    progress = TrainingProgress(global_batch=args.batch)
    while step < args.steps:
        own = samples(step, args.batch, args.width).chunk(dist.get_world_size())[dist.get_rank()].to(device)
        optimizer.zero_grad()
        loss = mse_loss(model(own), own.roll(1, dims=1))
        loss.backward()
        optimizer.step()
        step += 1
        must_leave = progress.step(step, loss=loss)  # the same answer on all ranks
        if must_leave or step % args.every == 0 or step == args.steps:
            save(args.folder, step, model, optimizer)
            progress.saved(step)
        if must_leave:
            progress.leave()  # sys.exit() takes the interpreter down, for seconds
    progress.done()
    if dist.get_rank() == 0:
        print(f"{step} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
