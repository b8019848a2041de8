"""Accelerate: a loop of one's own around an ``Accelerator``, resized by a relaunch.

    from pliant.integrations.accelerate import RelaunchedTraining

    training = RelaunchedTraining(accelerator, "checkpoints", per_worker_batch=8)
    step = training.resume()                        # after accelerator.prepare; 0 at the first start
    for batch in batches_after(step):
        with accelerator.accumulate(model):
            …
        if accelerator.sync_gradients:
            step += 1
            training.step(step, loss=loss)          # asked to stop, it saves and ends the script
    training.done()

If the job states ``batch.size``, the Accelerator's ``gradient_accumulation_steps`` is set such that the batch
of a step stays the same on any number of GPUs.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from pliant.tools.run.progress import TrainingProgress


class RelaunchedTraining:
    """Reports to pliant, and saves the Accelerator's state when the job is asked to stop.

    :param folder: for its checkpoints, of which the newest is kept.
    :param per_worker_batch: samples of one worker in one micro-step.
    :param every_n_steps: also save after this number of steps, for the case that a worker is lost.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        folder: str | Path,
        *,
        per_worker_batch: int = 1,
        every_n_steps: int | None = None,
    ) -> None:
        self._accelerator, self._folder, self._every = accelerator, Path(folder), every_n_steps
        self._progress = TrainingProgress(
            world_size=accelerator.num_processes, main=accelerator.is_main_process
        )
        accelerator.gradient_accumulation_steps = self._progress.accumulate(
            per_worker_batch, accelerator.gradient_accumulation_steps
        )

    @property
    def stopping(self) -> bool:
        """The job was asked to stop: a step that follows soon saves and ends the script."""
        return self._progress.stopping

    def resume(self) -> int:
        """Load the newest checkpoint; returns the steps that are done."""
        saved = self._saved()
        if not saved:
            return 0
        step, folder = saved[-1]
        self._accelerator.load_state(str(folder))
        # it counts micro-steps, which were others on another number of workers
        self._accelerator.step = step * self._accelerator.gradient_accumulation_steps
        return step

    def step(self, step: int, *, loss: Any = None, epoch: int | None = None) -> None:
        """A step is done.

        :raises SystemExit: with code 0, after a save, where the job was asked to stop.
        """
        leaves = self._progress.step(step, loss=loss, epoch=epoch)
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
            (folder / "complete").touch()
            for number, path in before:
                if number != step:
                    shutil.rmtree(path, ignore_errors=True)
        self._progress.saved(step, seconds=time.monotonic() - began_s)

    def done(self) -> None:
        """The training is complete: the job is not started again."""
        self._progress.done()

    def _saved(self) -> list[tuple[int, Path]]:
        found = self._folder.glob("step-*/complete")
        return sorted((int(path.parent.name.rpartition("-")[2]), path.parent) for path in found)
