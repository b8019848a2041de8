"""transformers: a job that uses ``Trainer``, resized by a relaunch.

    from pliant.integrations.transformers import PliantCallback, newest_checkpoint

    trainer = Trainer(…, callbacks=[PliantCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

The callback reports each step, lets the Trainer save and end when the job is asked to stop, and acknowledges
every save. If the job states ``batch.size``, it sets ``gradient_accumulation_steps`` such that the batch of a
step stays the same on any number of GPUs. The Trainer itself leaves out the samples that were trained.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pliant.tools.run.progress import TrainingProgress


class PliantCallback(TrainerCallback):
    """Reports to pliant, and saves when the job is asked to stop."""

    def __init__(self) -> None:
        self._progress: TrainingProgress | None = None
        self._loss: float | None = None
        self._leaves = False

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        progress = TrainingProgress(world_size=args.world_size, main=args.process_index == 0)
        args.gradient_accumulation_steps = progress.accumulate(
            args.train_batch_size, args.gradient_accumulation_steps
        )
        self._progress = progress

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._progress is not None and self._progress.measurement is not None:
            self._progress.measurement.parameters = kwargs["model"].num_parameters(only_trainable=True)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self._loss = (logs or {}).get("loss", self._loss)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._progress is None:
            return
        epoch = int(state.epoch or 0)
        self._leaves = self._progress.step(state.global_step, loss=self._loss, epoch=epoch)
        if self._leaves:
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._progress is not None:
            self._progress.saved(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """:raises SystemExit: the job was asked to stop: what follows the training is not for now."""
        if self._leaves:
            sys.exit()
        if self._progress is not None:
            self._progress.done()


def newest_checkpoint(folder: str | Path | None) -> str | None:
    """The newest complete checkpoint of a Trainer's ``output_dir``. Returns None if there is none.

    The Trainer writes ``trainer_state.json`` last.
    """
    found = {
        int(path.parent.name.rpartition("-")[2]): path.parent
        for path in Path(folder or ".").glob("checkpoint-*/trainer_state.json")
        if path.parent.name.rpartition("-")[2].isdecimal()
    }
    return str(found[max(found)]) if found else None
