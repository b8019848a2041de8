"""What a resize by a relaunch takes over a plain start of the same size, and the lines that it needs.

A small network trains under torchrun on CPU slots with DistributedDataParallel and saves its own checkpoints.
A plain start is the time from the decision to the first step; a resize is that, too, and includes the save,
the end of the old workers and the load. The two take turns. The lines are those that a script for ``Trainer``
of transformers, or of Lightning, has more than before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

from benchmarks.parts import training_job
from benchmarks.parts.added_lines import added
from benchmarks.parts.figure import Figure
from benchmarks.parts.training_job import TrainingJob, running
from pliant.tools.run.service.executor import Executor

ROUNDS: Final = 5
LIMIT: Final = 1.3
LINES_LIMIT: Final = 3
CHANGES: Final = ((2, 1), (1, 2))
"""Numbers of workers: the size that is started and the one that it is resized to."""
SCRIPT: Final = """
import os, torch
import torch.distributed as dist
from pliant.tools.run.progress import TrainingProgress

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
step = 0
if os.path.exists("saved.pt"):
    state = torch.load("saved.pt")
    step = state["step"]
    model.load_state_dict(state["model"])
replica = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
progress = TrainingProgress(8)
while True:
    optimizer.zero_grad()
    loss = replica(torch.randn(8 // dist.get_world_size(), 64)).square().mean()
    loss.backward()
    optimizer.step()
    step += 1
    if progress.step(step, loss=loss):
        if dist.get_rank() == 0:
            torch.save({"step": step, "model": model.state_dict()}, "saved.pt")
        dist.barrier()
        progress.saved(step)
        progress.leave()
"""
TRAINER: Final = (
    """
from transformers import Trainer, TrainingArguments
trainer = Trainer(model, args, train_dataset=data)
trainer.train()
""",
    """
from transformers import Trainer, TrainingArguments
from pliant.integrations.transformers import PliantCallback, newest_checkpoint
trainer = Trainer(model, args, train_dataset=data, callbacks=[PliantCallback()])
trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))
""",
)
LIGHTNING: Final = (
    """
from lightning.pytorch import Trainer
trainer = Trainer(strategy="ddp", devices=devices)
trainer.fit(model, loader)
""",
    """
from lightning.pytorch import Trainer
from pliant.integrations.lightning import PliantCallback
trainer = Trainer(strategy="ddp", devices=devices, callbacks=[pliant := PliantCallback("out")])
trainer.fit(model, loader, ckpt_path=pliant.checkpoint)
""",
)


def figures(rounds: int = ROUNDS, changes: Sequence[tuple[int, int]] = CHANGES) -> Sequence[Figure]:
    """:param rounds: how often each size is started, and resized to."""
    starts: dict[int, list[float]] = {}
    resizes: dict[int, list[float]] = {}
    with running(Executor, SCRIPT, "", 8, resize="relaunch") as job:
        for first, second in (*changes * rounds, *_not_started(changes)):
            (job.folder / "saved.pt").unlink(missing_ok=True)
            starts.setdefault(first, []).append(_takes(job, first))
            if second is not None:
                resizes.setdefault(second, []).append(_takes(job, second))
            job.give(0)
            job.ends()
    ratio = fmean(median(resizes[size]) / median(starts[size]) for size in resizes)
    return [
        Figure("relaunch_resize_over_start", ratio, "ratio", LIMIT),
        Figure("relaunch_resize_s", fmean(map(median, resizes.values())), "s"),
        Figure("added_lines_trainer", added(*TRAINER), "lines", LINES_LIMIT),
        Figure("added_lines_lightning", added(*LIGHTNING), "lines", LINES_LIMIT),
    ]


def _not_started(changes: Sequence[tuple[int, int]]) -> list[tuple[int, None]]:
    """Sizes that are resized to alone; they are started once, too."""
    return [(size, None) for size in {second for _, second in changes} - {first for first, _ in changes}]


def _takes(job: TrainingJob, workers: int) -> float:
    """Seconds from the decision to the end of the first step on that number of workers."""
    began_s = time.time()
    job.give(workers)
    event = job.until(lambda event: (event.detail or {}).get("workers") == workers)
    took_s = event.time - began_s
    job.train_for(training_job.SETTLE_S)
    return took_s
