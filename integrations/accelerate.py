"""Accelerate: a loop of one's own around an ``Accelerator``, resized by a relaunch.

    from pliant.integrations.accelerate import RelaunchedTraining

    training = RelaunchedTraining(accelerator, "checkpoints", per_worker_batch=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = training.resume()                        # after accelerator.prepare; 0 at the first start
    while step < steps:
        for x, y in training.remaining(loader):     # the batches of the epoch that are left
            with accelerator.accumulate(model):
                …
            if accelerator.sync_gradients:
                step += 1
                training.step(step, loss=loss)      # asked to stop, it saves and ends the script
                if step == steps:
                    break
    training.done()

If the job states ``batch.size``, the Accelerator's ``gradient_accumulation_steps`` is set such that the batch
of a step stays the same on any number of GPUs.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import SeedableRandomSampler, get_sampler
from torch.utils.data import RandomSampler

from pliant.tools.run.progress import TrainingProgress


class RelaunchedTraining:
    """Reports to pliant, and saves the Accelerator's state when the job is asked to stop.

    An epoch ends with a step, which may be smaller than the others, as Accelerate has it by default. So where
    a training is in its epoch is counted, not computed from the number of steps.

    :param folder: for its checkpoints, of which the newest is kept.
    :param per_worker_batch: samples of one worker in one micro-step; what the loader says comes first.
    :param every_n_steps: also save after this number of steps, for the case that a worker is lost.
    :raises ValueError: steps go on from one epoch into the next.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        folder: str | Path,
        *,
        per_worker_batch: int = 1,
        every_n_steps: int | None = None,
    ) -> None:
        if not accelerator.gradient_state.sync_with_dataloader:
            raise ValueError(
                "RelaunchedTraining needs an Accelerator with sync_with_dataloader=True, the default: "
                "without it the gradients of an epoch's last batches would be lost at a stop"
            )
        self._accelerator, self._folder, self._every = accelerator, Path(folder), every_n_steps
        self._progress = TrainingProgress(
            world_size=accelerator.num_processes, main=accelerator.is_main_process
        )
        self._own_steps, self._per_worker = accelerator.gradient_accumulation_steps, per_worker_batch
        accelerator.gradient_accumulation_steps = self._progress.accumulate(per_worker_batch, self._own_steps)
        # Steps and epochs that are done, and samples of the epoch under way.
        self._step = self._epoch = self._in_epoch = 0
        # The checkpoint is one that says nothing of the epoch.
        self._by_steps = False
        # Samples of an epoch, if the loader says how many.
        self._size: int | None = None
        self._loader: Any = None
        self._skip_in_full, accelerator.skip_first_batches = accelerator.skip_first_batches, self._skip

    @property
    def stopping(self) -> bool:
        """The job was asked to stop: a step that follows soon saves and ends the script."""
        return self._progress.stopping

    def resume(self) -> int:
        """Load the newest checkpoint; returns the steps that are done."""
        saved = self._saved()
        if not saved:
            return 0
        self._step, folder = saved[-1]
        self._accelerator.load_state(str(folder))
        # it counts micro-steps, which were others on another number of workers
        self._accelerator.step = self._step * self._accelerator.gradient_accumulation_steps
        if text := (folder / "complete").read_text():
            where = json.loads(text)
            self._epoch, self._in_epoch = where["epoch"], where["samples"]
        else:
            self._by_steps = True
        return self._step

    def remaining(self, loader: Any) -> Any:
        """The prepared loader without the batches of the epoch that are trained; ask for it once an epoch."""
        accelerator, micro = self._accelerator, _samples_of(loader)
        if micro is not None and micro != self._per_worker * accelerator.num_processes:
            self._per_worker = micro // accelerator.num_processes
            accelerator.gradient_accumulation_steps = self._progress.accumulate(
                self._per_worker, self._own_steps
            )
        accelerator.step, self._loader = 0, loader
        with suppress(TypeError):  # a stream has no length
            batches = len(loader)
            dropped = micro if getattr(loader, "_drop_last", False) else None
            self._size = loader.total_dataset_length if dropped is None else batches * dropped
            if self._by_steps:
                per_epoch = -(-batches // accelerator.gradient_accumulation_steps)
                self._epoch, steps = divmod(self._step, per_epoch)
                self._in_epoch, self._by_steps = steps * self._progress.global_batch, False
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self._epoch)
        trained = self._trained_batches(loader)
        if not trained:
            return loader
        sampler = get_sampler(loader)
        if isinstance(sampler, RandomSampler) and not isinstance(sampler, SeedableRandomSampler):
            self._progress.warn(
                "after a start the loader draws another order: samples of this epoch come twice or not at "
                "all; give the Accelerator DataLoaderConfiguration(use_seedable_sampler=True)"
            )
        return self._skip_in_full(loader, trained)

    def step(self, step: int, *, loss: Any = None, epoch: int | None = None) -> None:
        """A step is done.

        :raises SystemExit: with code 0, after a save, where the job was asked to stop.
        """
        state, progress = self._accelerator.gradient_state, self._progress
        if (micro := _samples_of(state.active_dataloader)) is not None:
            progress.trains(micro * self._accelerator.gradient_accumulation_steps)
        self._step, self._in_epoch = step, self._in_epoch + progress.global_batch
        if state.end_of_dataloader:
            self._epoch, self._in_epoch = self._epoch + 1, 0
        leaves = progress.step(
            step, loss=loss, epoch=self._epoch if epoch is None else epoch, samples=self._samples()
        )
        if leaves or (self._every is not None and step % self._every == 0):
            self.save(step)
        if leaves:
            sys.exit()

    def save(self, step: int) -> None:
        """Save the Accelerator's state; all workers call it."""
        began_s, before = time.monotonic(), self._saved()
        folder = self._folder / f"step-{step}"
        self._accelerator.save_state(str(folder))
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            where = {"epoch": self._epoch, "samples": self._in_epoch}
            (folder / "complete").write_text(json.dumps(where))
            for number, path in before:
                if number != step:
                    shutil.rmtree(path, ignore_errors=True)
        self._progress.saved(step, seconds=time.monotonic() - began_s, samples=self._samples())

    def done(self) -> None:
        """The training is complete: the job is not started again."""
        self._progress.done()

    def _skip(self, loader: Any, num_batches: int = 0) -> Any:
        """``accelerator.skip_first_batches``, which loops that compute the place in their epoch call."""
        if self._loader not in (None, loader):
            return self._skip_in_full(loader, num_batches)
        remaining, trained = self.remaining(loader), self._trained_batches(loader)
        if trained != num_batches:
            self._progress.warn(
                f"the loop asks to leave out {num_batches} batches of an epoch with {trained} trained ones: "
                f"{trained} are left out; write `for … in training.remaining(loader)`"
            )
        return remaining

    def _trained_batches(self, loader: Any) -> int:
        """Of the epoch, on each worker."""
        return self._in_epoch // (_samples_of(loader) or self._per_worker * self._accelerator.num_processes)

    def _samples(self) -> int | None:
        """Trained so far, as far as the loader says how many an epoch has."""
        return None if self._size is None else self._epoch * self._size + min(self._in_epoch, self._size)

    def _saved(self) -> list[tuple[int, Path]]:
        folders = self._folder.glob("step-*/complete")
        return sorted((int(path.parent.name.rpartition("-")[2]), path.parent) for path in folders)


def _samples_of(loader: Any) -> int | None:
    """Samples of a micro-step over all workers. Returns None if a prepared loader does not say."""
    with suppress(AttributeError, TypeError):
        return int(loader.total_batch_size)
    return None
