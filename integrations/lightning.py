"""Lightning: a job that uses ``Trainer``, resized by a relaunch.

    from pliant.integrations.lightning import PliantCallback

    pliant = PliantCallback("checkpoints")
    trainer = Trainer(…, callbacks=[pliant], strategy="ddp", devices=local_workers(), num_nodes=nodes())
    trainer.fit(model, ckpt_path=pliant.checkpoint)

The callback reports each step, saves and ends the training when the job is asked to stop, and acknowledges
the save. If the job states ``batch.size``, it sets ``accumulate_grad_batches`` such that the batch of a step
stays the same on any number of GPUs; it reports the batch that steps do train, and warns where that is
another one (manual optimization, a schedule of the accumulation).

Lightning counts the batches of one worker, which are others with another number of workers, and begins an
interrupted epoch at its first sample. So the callback sets these counts by the samples that are trained, and
skips these samples. With ``strategy="ddp"`` the order of the samples is then that of an uninterrupted
training, on one worker, too.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import RandomSampler

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
        # What the checkpoint says of the epoch under way.
        self._trained: dict[str, int] | None = None
        # Samples of one worker in one batch.
        self._per_worker = 1
        # Steps when the last one was seen to end, and batches since then.
        self._seen = self._batches = 0
        self._leaves = False

    @property
    def checkpoint(self) -> str | None:
        """The newest checkpoint. Returns None if there is none."""
        by_step = {int(path.stem.rpartition("-")[2]): path for path in self._folder.glob(_NAME.format("*"))}
        return str(by_step[max(by_step)]) if by_step else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        progress = TrainingProgress(world_size=trainer.world_size, main=trainer.is_global_zero)
        progress.listen()  # at SIGTERM, Lightning would leave without a save
        self._set_batch(trainer, progress)
        if progress.measurement is not None:
            trained = (each for each in pl_module.parameters() if each.requires_grad)
            progress.measurement.parameters = sum(each.numel() for each in trained)
        self._progress, self._seen, self._batches = progress, trainer.global_step, 0
        if self._trained is not None:
            self._go_on_after(trainer, progress, self._trained)
            self._trained = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        progress, step = self._progress, trainer.global_step
        self._batches += 1
        if progress is None or self._leaves or step == self._seen:
            return
        if not trainer.fit_loop.epoch_loop._num_ready_batches_reached():  # the last step may be a smaller one
            progress.trains(self._batches * self._together(trainer), f" with {self._per_worker} samples each")
        self._seen, self._batches = step, 0
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._leaves = progress.step(
            step,
            loss=loss if isinstance(loss, torch.Tensor) else None,
            epoch=trainer.current_epoch,
            samples=self._samples(trainer),
        )
        if self._leaves or (self._every is not None and step % self._every == 0):
            self._save(trainer, progress)
        if self._leaves:  # not by should_stop: Lightning would end the epoch first, its validation included
            trainer.strategy.barrier("pliant")
            sys.exit()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._progress is not None and not self._leaves:
            self._progress.done()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._progress is None and not trainer.global_step and trainer.is_global_zero:
            print("pliant: nothing was trained: the Trainer has made no step", file=sys.stderr)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        current = trainer.fit_loop.epoch_loop.batch_progress.current
        checkpoint["pliant"] = {"samples_in_epoch": current.ready * self._together(trainer)}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._trained = checkpoint.get("pliant")

    def _set_batch(self, trainer: Trainer, progress: TrainingProgress) -> None:
        """Keep the job's batch by accumulation, as far as that has an effect."""
        batches = [_batch_of(loader) for loader in _loaders(trainer)]
        known = list(dict.fromkeys(batch for batch in batches if batch is not None))
        self._per_worker = known[0] if known else 1
        if len(known) != 1 or None in batches:
            sizes = ", ".join("unknown" if batch is None else str(batch) for batch in batches)
            progress.warn(
                f"the job's batch cannot be kept for certain: the loaders have batches of {sizes} samples, "
                f"and {self._per_worker} count"
            )
        if trainer.lightning_module.automatic_optimization:
            trainer.accumulate_grad_batches = progress.accumulate(
                self._per_worker, trainer.accumulate_grad_batches
            )

    def _together(self, trainer: Trainer) -> int:
        """Samples of a batch over all workers."""
        return self._per_worker * int(trainer.world_size)

    def _samples(self, trainer: Trainer) -> int | None:
        """Trained so far. Returns None if the data has no length."""
        batches, in_epoch = trainer.num_training_batches, trainer.fit_loop.epoch_loop.batch_progress.current
        if not math.isfinite(batches):
            return None
        epoch, first = int(batches) * self._together(trainer), _loaders(trainer)[0]
        if hasattr(first, "dataset") and len(first) == batches:  # else it ends earlier, or begins again
            epoch = min(epoch, len(first.dataset))
        return int(trainer.current_epoch) * epoch + min(int(in_epoch.ready) * self._together(trainer), epoch)

    def _save(self, trainer: Trainer, progress: TrainingProgress) -> None:
        step, before = trainer.global_step, self.checkpoint
        trainer.save_checkpoint(self._folder / _NAME.format(step))
        progress.saved(step, samples=self._samples(trainer))
        if trainer.is_global_zero and before is not None and before != self.checkpoint:
            Path(before).unlink(missing_ok=True)

    def _go_on_after(self, trainer: Trainer, progress: TrainingProgress, trained: dict[str, int]) -> None:
        """Put the counters of an interrupted epoch, and its data, behind the samples that are trained."""
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        current, total = loop.batch_progress.current, loop.batch_progress.total
        if fetcher is None or not current.ready > 0 or current.completed == current.ready:
            return
        batches: float
        if "samples_in_epoch" in trained:
            batches = trained["samples_in_epoch"] // self._together(trainer)
        else:  # a checkpoint of an earlier version
            batches = trained["steps_in_epoch"] * trainer.accumulate_grad_batches
        whole = trainer.num_training_batches
        is_over = loop.batch_progress.is_last_batch and math.isfinite(whole)
        batches = int(whole) if is_over else min(batches, whole)
        more = batches - current.ready
        for counts in (current, total):
            counts.ready += more
            counts.started += more
            counts.processed += more
            counts.completed += more
        if is_over:
            return
        for loader in _loaders(trainer):
            _set_sampler_epoch(loader, trainer.fit_loop.epoch_progress.current.processed)
            if isinstance(getattr(loader, "sampler", None), RandomSampler):
                progress.warn(
                    "after a start the loader draws another order: samples come twice in this epoch, or not "
                    'at all; give the Trainer strategy="ddp", on one worker, too'
                )
        iter(fetcher)  # an iterator that draws the order of this epoch
        for _ in range(batches):
            next(fetcher)
        fetcher.fetched, fetcher.done = 0, False


def _loaders(trainer: Trainer) -> list[Any]:
    """Each training loader, as it is in force; a Trainer may have several."""
    combined = trainer.fit_loop._combined_loader
    return [] if combined is None else list(combined.flattened)


def _batch_of(loader: Any) -> int | None:
    """Samples of a loader's batch. Returns None if it does not say."""
    batch = getattr(loader, "batch_size", None)
    if batch is None:
        batch = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return batch


def local_workers() -> int:
    """``devices`` for a Trainer: the workers that torchrun started on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def nodes() -> int:
    """``num_nodes`` for a Trainer."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))
