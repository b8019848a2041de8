"""Whether trainings by Accelerate, Lightning and transformers go on at the right sample after a start.

Each trial has a length of its data, a global batch, a batch per worker and an accumulation of its own, drawn
at random. One training reads all its epochs. Another one is asked to stop after some step and goes on with
another batch per worker, as on another number of workers. The samples of their steps must be the same, and so
must the samples and the batch that the callback reports. Nothing is learned: the model has one weight.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.parts.figure import Figure
from pliant.tools.run.progress import ENV_BATCH, ENV_PROGRESS, ENV_STOP

TRIALS: Final = 1000
"""Of each library."""
LIBRARIES: Final = ("accelerate", "lightning", "transformers")
_MOST_SAMPLES: Final = 120


@dataclass(frozen=True, slots=True)
class Shape:
    """One training: how much there is to read, and in which portions."""

    size: int
    batch: int
    per_worker: int
    epochs: int = 2

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.size // self.batch)


class Samples(Dataset[Any]):
    """Numbers, which note that they were read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Weight(nn.Module):
    """A model that notes which samples it was given."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen = seen

    def forward(self, x: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        self.seen += [int(each) for each in x.flatten()]
        return {"loss": (self.weight * x).mean()}

    def num_parameters(self, **_: Any) -> int:
        return 1


Training = Callable[[Shape, Path, list[int]], None]
"""Trains until its end, or until it is asked to stop, and notes the samples."""


def accelerate(shape: Shape, folder: Path, seen: list[int]) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from pliant.integrations.accelerate import RelaunchedTraining

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True)
    model = Weight(seen)
    training = RelaunchedTraining(accelerator, folder / "checkpoints", per_worker_batch=shape.per_worker)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    loader = DataLoader(Samples(shape.size), shape.per_worker)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = training.resume()
    while step < shape.steps:
        for x in training.remaining(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(x)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                _stop(step)
                training.step(step)
    training.done()


def lightning(shape: Shape, folder: Path, seen: list[int]) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from pliant.integrations.lightning import PliantCallback

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Weight(seen)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.model(batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.0)

        def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            super().optimizer_step(*args, **kwargs)
            _stop(self.trainer.global_step + 1)

    pliant = PliantCallback(folder / "checkpoints")
    trainer = Trainer(
        callbacks=[pliant],
        accelerator="cpu",
        devices=1,
        max_epochs=shape.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), DataLoader(Samples(shape.size), shape.per_worker), ckpt_path=pliant.checkpoint)


def transformers(shape: Shape, folder: Path, seen: list[int]) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from pliant.integrations.transformers import PliantCallback, newest_checkpoint

    class Stop(TrainerCallback):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            _stop(state.global_step + 1)

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    args = TrainingArguments(
        str(folder / "checkpoints"),
        per_device_train_batch_size=shape.per_worker,
        num_train_epochs=shape.epochs,
        learning_rate=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_strategy="no",
    )
    trainer = InOrder(
        Weight(seen),
        args,
        data_collator=lambda samples: {"x": torch.stack(samples)},
        train_dataset=Samples(shape.size),
        callbacks=[PliantCallback(), Stop()],
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))


_RUN: Final[dict[str, Training]] = {
    "accelerate": accelerate,
    "lightning": lightning,
    "transformers": transformers,
}
_stop: Callable[[int], None] = print
"""Called with the number of a step when its optimizer has made it."""


def trained(
    library: str, shape: Shape, folder: Path, stop_at: int | None
) -> tuple[list[int], dict[str, Any]]:
    """The samples that a start trains, in order, and its last report."""
    global _stop
    progress, stop = folder / "progress.json", folder / "stop"
    stop.write_text("")
    (folder / "plan.json").write_text(
        json.dumps({"job": "a", "attempt": 1, "generation": 1, "progress_s": 0})
    )
    env = {ENV_PROGRESS: str(progress), ENV_STOP: str(stop), ENV_BATCH: str(shape.batch)}

    def request_stop(step: int) -> None:
        if step == stop_at:
            stop.write_text("asked")

    _stop, seen = request_stop, list[int]()
    with mock.patch.dict(os.environ, env), _quiet(), contextlib.suppress(SystemExit):
        _RUN[library](shape, folder, seen)
    return seen, json.loads(progress.read_text())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def wrong(library: str, shape: Shape, then: Shape, stop_at: int) -> str:
    """What is not as it should be in one trial; empty if nothing is."""
    whole = [number for _ in range(shape.epochs) for number in range(shape.size)]
    in_epoch = -(-shape.size // shape.batch)
    epochs, steps = divmod(stop_at, in_epoch)
    reached = epochs * shape.size + min(steps * shape.batch, shape.size)
    with tempfile.TemporaryDirectory() as name:
        first, said = trained(library, shape, Path(name), stop_at)
        if stop_at == shape.steps:
            return "" if first == whole else f"{len(first)} of {len(whole)} samples"
        if first != whole[:reached]:
            return f"{len(first)} samples before the stop, not {reached}"
        if (said["samples_done"], said["global_batch"]) != (reached, shape.batch):
            return f"reported are {said['samples_done']} samples in batches of {said['global_batch']}"
        rest, said = trained(library, then, Path(name), None)
    if rest != whole[reached:]:
        left = whole[reached:]
        return f"it goes on with {len(rest)} samples from {rest[:1]}, not with {len(left)} from {left[:1]}"
    if said["samples_done"] != len(whole) or said.get("ended") != "done":
        return f"reported are {said['samples_done']} samples of {len(whole)}"
    return ""


def drawn(random_: random.Random) -> tuple[Shape, Shape, int]:
    """A shape, that of the next start, and the step after which it comes."""
    per_worker = random_.choice((1, 2, 3, 4, 5, 8))
    batch = per_worker * random_.choice((1, 2, 3, 4, 6, 8))
    shape = Shape(random_.randint(1, _MOST_SAMPLES), batch, per_worker, random_.choice((1, 2, 3)))
    other = random_.choice([size for size in range(1, batch + 1) if batch % size == 0])
    return shape, replace(shape, per_worker=other), random_.randint(1, shape.steps)


def figures(trials: int = TRIALS) -> list[Figure]:
    """How many of the trials of the three libraries are wrong."""
    failed: list[str] = []
    for library in LIBRARIES:
        draws = random.Random(f"positions of {library}")  # noqa: S311 not for secrets
        for _ in range(trials):
            trial = drawn(draws)
            if problem := wrong(library, *trial):
                failed.append(f"{library}: {trial}: {problem}")
    for each in failed[:5]:
        print(each)
    return [Figure("integration_positions_wrong", float(len(failed)), "trials", 0.0)]
