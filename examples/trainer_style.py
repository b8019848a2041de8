"""An elastic loop in the style of Hugging Face's Trainer: arguments, dictionary batches, outputs with a loss.

It depends on PyTorch alone. The task is made up: which of two letters is more frequent in a line of letters,
where every fourth answer is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from pliant.tools.run import elastic

LETTERS, LENGTH = 12, 31


@dataclass(frozen=True, slots=True)
class TrainingArguments:
    """What the author decides; who trains it where is the plan's."""

    num_train_epochs: int
    per_device_train_batch_size: int
    """The most samples in one forward and backward pass."""
    gradient_accumulation_steps: int
    learning_rate: float = 3e-3
    warmup_ratio: float = 0.1
    max_grad_norm: float = 1.0
    early_stopping_patience: int = 2
    """Epochs without a better evaluation after which training ends."""
    seed: int = 42
    output: str | None = None

    @property
    def train_batch_size(self) -> int:
        """Samples per optimizer step over all workers."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps


@dataclass(frozen=True, slots=True)
class Output:
    """What a model of this style returns."""

    loss: Tensor
    logits: Tensor


class Lines(Dataset[dict[str, Tensor]]):
    """Lines of letters; the label tells whether letter 1 occurs in it more often than letter 0."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.letters = torch.randint(LETTERS, (count, LENGTH), generator=generator)
        right = (self.letters == 1).sum(1) > (self.letters == 0).sum(1)
        self.labels = (right ^ (torch.rand(count, generator=generator) < 0.25)).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.letters[index], "labels": self.labels[index]}


class Reader(nn.Module):
    """Mean of the letters' embeddings, and two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(LETTERS, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 2))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Output:
        """The loss is a mean over the samples."""
        logits: Tensor = self.head(self.letter(input_ids).mean(1))
        return Output(nn.functional.cross_entropy(logits, labels), logits)


class EarlyStopping:
    """Patience that survives: it remembers by epoch, so that an epoch reported twice counts once."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.losses: dict[int, float] = {}

    def is_over(self, epoch: int, loss: float) -> bool:
        """Whether the best epoch lies ``patience`` epochs back."""
        self.losses[epoch] = loss
        best = min(self.losses, key=lambda number: self.losses[number])
        return epoch - best >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint, and for workers that join."""
        return {"losses": dict(self.losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.losses = dict(state["losses"])


class Trainer:
    """Trains a model by its arguments, on however many workers there are."""

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        train_dataset: Dataset[dict[str, Tensor]],
        eval_dataset: Dataset[dict[str, Tensor]],
    ) -> None:
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset

    def train(self) -> None:
        """Every epoch: all steps, then an evaluation, which may end the training."""
        args = self.args
        job = elastic.init(batch_size=args.train_batch_size, seed=args.seed)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        model, optimizer, loader = job.prepare(self.model, optimizer, self.train_dataset)
        scheduler = self.create_scheduler(optimizer, args.num_train_epochs * len(loader))
        stopping = EarlyStopping(args.early_stopping_patience)
        job.register(scheduler, stopping=stopping)
        for epoch in job.epochs(args.num_train_epochs):
            model.train()
            for inputs in loader:
                optimizer.zero_grad()
                job.log(loss=self.training_step(model, inputs))
                nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                scheduler.step()
            loss = self.evaluate(job.device)
            job.log(metric=loss)
            if job.rank == 0:
                print(f"epoch {epoch}: evaluation loss {loss:.4f}", flush=True)
            if stopping.is_over(epoch, loss):
                break
        if job.rank == 0 and args.output:
            torch.save(self.model.state_dict(), args.output)

    def create_scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
        """A linear rise to the learning rate, and a linear fall to nothing."""
        rise = max(1, round(self.args.warmup_ratio * steps))
        return LambdaLR(optimizer, lambda step: min((step + 1) / rise, max(0.0, 1 - step / steps)))

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Gradients of the whole batch, of no more samples at a time than fit; returns its loss."""
        count = len(inputs["labels"])
        loss = torch.zeros((), device=inputs["labels"].device)
        for part, is_last in self._parts(inputs, count):
            with contextlib.nullcontext() if is_last else no_sync(model):
                scaled = model(**part).loss * (len(part["labels"]) / count)
                scaled.backward()
            loss += scaled.detach()
        return loss

    def _parts(self, inputs: dict[str, Tensor], count: int) -> Iterator[tuple[dict[str, Tensor], bool]]:
        size = self.args.per_device_train_batch_size
        for start in range(0, count, size):
            part = {name: value[start : start + size] for name, value in inputs.items()}
            yield part, start + size >= count

    @torch.no_grad()
    def evaluate(self, device: torch.device) -> float:
        """Mean loss over all of the evaluation data; every worker computes it, and finds the same."""
        self.model.eval()
        total = samples = 0.0
        for inputs in DataLoader(self.eval_dataset, 256):
            found = self.model(**{name: value.to(device) for name, value in inputs.items()})
            total += found.loss.item() * len(inputs["labels"])
            samples += len(inputs["labels"])
        return total / samples


def no_sync(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """The model's own, where there are other workers to synchronise with."""
    make = getattr(model, "no_sync", contextlib.nullcontext)
    context: contextlib.AbstractContextManager[None] = make()
    return context


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--size", type=int, default=8192, help="lines in the data set")
    parser.add_argument("--batch", type=int, default=32, help="samples at a time on one worker")
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--out", help="file for the weights")
    words = parser.parse_args()
    args = TrainingArguments(
        words.epochs,
        words.batch,
        words.accumulation,
        early_stopping_patience=words.patience,
        output=words.out,
    )
    Trainer(Reader(words.width), args, Lines(words.size, seed=1), Lines(1024, seed=2)).train()


if __name__ == "__main__":
    main()
