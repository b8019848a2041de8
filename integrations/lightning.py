"""Lightning: a job that uses ``Trainer``, resized by a relaunch.

    from pliant.integrations.lightning import PliantCallback

    pliant = PliantCallback("checkpoints")
    trainer = Trainer(…, callbacks=[pliant], strategy="ddp", devices=local_workers(), num_nodes=nodes())
    trainer.fit(model, ckpt_path=pliant.checkpoint)

The callback reports each step, saves and ends the training when the job is asked to stop, and acknowledges
the save. If the job states ``batch.size``, it sets ``accumulate_grad_batches`` such that the batch of a step
stays the same on any number of GPUs.

Lightning counts the batches of one worker, which are others with another number of workers, and begins an
interrupted epoch at its first sample. So the callback sets these counts by the steps that are done, and skips
the samples of those steps. With ``strategy="ddp"`` the order of the samples is then that of an uninterrupted
training, on one worker, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from pliant.tools.run.progress import TrainingProgress

_NAME = "pliant-step-{}.ckpt"


class PliantCallback(Callback):
    """Reports to pliant, and saves when the job is asked to stop.

    :param folder: for its own checkpoints, of which the newest is kept.
    :param every_n_steps: also save after this number of steps, for the case that a worker is lost.
    """

    def __init__(self, folder: str | Path, every_n_steps: int | None = None) -> None:
        self._folder, self._every = Path(folder), every_n_steps
        self._progress: TrainingProgress | None = None
        self._steps_in_epoch: int | None = None
        self._leaves = False

    @property
    def checkpoint(self) -> str | None:
        """The newest checkpoint. Returns None if there is none."""
        found = {int(path.stem.rpartition("-")[2]): path for path in self._folder.glob(_NAME.format("*"))}
        return str(found[max(found)]) if found else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        progress = TrainingProgress(world_size=trainer.world_size, main=trainer.is_global_zero)
        progress.listen()  # at SIGTERM, Lightning would leave without a save
        batch = getattr(trainer.train_dataloader, "batch_size", None)
        if batch is not None:
            trainer.accumulate_grad_batches = progress.accumulate(batch, trainer.accumulate_grad_batches)
        if progress.measurement is not None:
            trained = (each for each in pl_module.parameters() if each.requires_grad)
            progress.measurement.parameters = sum(each.numel() for each in trained)
        self._progress = progress
        if self._steps_in_epoch is not None:
            self._go_on_after(trainer, self._steps_in_epoch * trainer.accumulate_grad_batches)
            self._steps_in_epoch = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        progress = self._progress
        if progress is None or self._leaves or not self._ends_step(trainer, batch_idx):
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        step = trainer.global_step
        self._leaves = progress.step(
            step, loss=loss if isinstance(loss, torch.Tensor) else None, epoch=trainer.current_epoch
        )
        if self._leaves or (self._every is not None and step % self._every == 0):
            self._save(trainer, progress)
        if self._leaves:  # not by should_stop: Lightning would end the epoch first, its validation included
            trainer.strategy.barrier("pliant")
            sys.exit()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._progress is not None and not self._leaves:
            self._progress.done()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        current = trainer.fit_loop.epoch_loop.batch_progress.current
        checkpoint["pliant"] = {"steps_in_epoch": -(-current.ready // trainer.accumulate_grad_batches)}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._steps_in_epoch = checkpoint.get("pliant", {}).get("steps_in_epoch")

    @staticmethod
    def _ends_step(trainer: Trainer, batch_idx: int) -> bool:
        done, every = batch_idx + 1, int(trainer.accumulate_grad_batches)
        return bool(done == trainer.num_training_batches) or done % every == 0

    def _save(self, trainer: Trainer, progress: TrainingProgress) -> None:
        step, before = trainer.global_step, self.checkpoint
        trainer.save_checkpoint(self._folder / _NAME.format(step))
        progress.saved(step)
        if trainer.is_global_zero and before is not None and before != self.checkpoint:
            Path(before).unlink(missing_ok=True)

    @staticmethod
    def _go_on_after(trainer: Trainer, batches: int) -> None:
        """Put the counters of an interrupted epoch, and its data, behind this number of batches."""
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        current, total = loop.batch_progress.current, loop.batch_progress.total
        if fetcher is None or not current.ready > 0 or current.completed == current.ready:
            return
        batches = min(batches, int(trainer.num_training_batches))
        more = batches - current.ready
        for counts in (current, total):
            counts.ready += more
            counts.started += more
            counts.processed += more
            counts.completed += more
        for _ in range(batches):
            next(fetcher)
        fetcher.fetched, fetcher.done = 0, False


def local_workers() -> int:
    """``devices`` for a Trainer: the workers that torchrun started on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def nodes() -> int:
    """``num_nodes`` for a Trainer."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))
