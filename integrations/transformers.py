"""transformers: a job that uses ``Trainer``, resized by a relaunch.

    from pliant.integrations.transformers import PliantCallback, newest_checkpoint

    trainer = Trainer(…, callbacks=[PliantCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

The callback reports each step, lets the Trainer save and end when the job is asked to stop, and acknowledges
every save. If the job states ``batch.size``, it sets ``gradient_accumulation_steps`` such that the batch of a
step stays the same on any number of GPUs. The Trainer itself leaves out the samples that were trained; the
callback warns where it leaves out others.
"""

from __future__ import annotations

import sys
from contextlib import suppress
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
        # Of an epoch, on one worker; None if the data has no length.
        self._batches: int | None = None
        # Samples of an epoch, and of a micro-step over all workers.
        self._size = self._micro = 0

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        progress = self._progress = self._begun(args)
        config = args.accelerator_config
        shares = args.world_size if getattr(config, "split_batches", False) else 1
        args.gradient_accumulation_steps = progress.accumulate(
            args.train_batch_size // shares, args.gradient_accumulation_steps
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take what is in force from the loader: a Trainer may make its own, and get this callback late."""
        progress = self._progress = self._progress or self._begun(args)
        if progress.measurement is not None:
            progress.measurement.parameters = kwargs["model"].num_parameters(only_trainable=True)
        loader = kwargs["train_dataloader"]
        self._micro = args.train_batch_size * args.world_size
        with suppress(AttributeError, TypeError):  # a loader of another kind does not say
            self._micro = loader.total_batch_size
        progress.trains(self._micro * args.gradient_accumulation_steps)
        with suppress(TypeError):  # a stream has no length
            self._batches = len(loader)
            dropped = getattr(loader, "_drop_last", False)
            self._size = self._batches * self._micro if dropped else len(loader.dataset)
        if state.global_step:
            self._check_position(args, state, progress)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let the loader draw the order of this epoch: with several workers that of the first one stays."""
        if hasattr(loader := kwargs["train_dataloader"], "set_epoch"):
            loader.set_epoch(int(state.epoch or 0))

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
        self._leaves = self._progress.step(
            state.global_step, loss=self._loss, epoch=int(state.epoch or 0), samples=self._samples(state)
        )
        if self._leaves:
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._progress is not None:
            self._progress.saved(state.global_step, samples=self._samples(state))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """:raises SystemExit: the job was asked to stop: what follows the training is not for now."""
        if self._leaves:
            sys.exit()
        if self._progress is not None:
            self._progress.done()

    @staticmethod
    def _begun(args: TrainingArguments) -> TrainingProgress:
        return TrainingProgress(world_size=args.world_size, main=args.process_index == 0)

    def _samples(self, state: TrainerState) -> int | None:
        """Trained so far. Returns None if the data has no length."""
        if self._batches is None:
            return None
        epochs, batches = divmod(round((state.epoch or 0) * self._batches), self._batches)
        return epochs * self._size + min(batches * self._micro, self._size)

    def _check_position(
        self, args: TrainingArguments, state: TrainerState, progress: TrainingProgress
    ) -> None:
        """Warn where the Trainer, which computes it from its steps, goes on at another place of the data."""
        if args.ignore_data_skip:
            progress.warn(
                "ignore_data_skip=True: the epoch begins again at its first sample after each start"
            )
        elif self._batches is not None and state.epoch is not None:
            per_epoch = -(-self._batches // args.gradient_accumulation_steps)
            epochs, steps = divmod(state.global_step, per_epoch)
            begins = epochs + min(1, steps / per_epoch)
            if abs(begins - state.epoch) * per_epoch >= 1:
                progress.warn(
                    f"on {args.world_size} workers an epoch has {per_epoch} steps, before it had others: the "
                    f"Trainer goes on at epoch {begins:.3f} of the data, and {state.epoch:.3f} are trained; "
                    "leave out dataloader_drop_last"
                )


def newest_checkpoint(folder: str | Path | None) -> str | None:
    """The newest complete checkpoint of a Trainer's ``output_dir``. Returns None if there is none.

    The Trainer writes ``trainer_state.json`` last.
    """
    by_step = {
        int(path.parent.name.rpartition("-")[2]): path.parent
        for path in Path(folder or ".").glob("checkpoint-*/trainer_state.json")
        if path.parent.name.rpartition("-")[2].isdecimal()
    }
    return str(by_step[max(by_step)]) if by_step else None
