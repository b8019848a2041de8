"""A training under ``pliant verify``: the same calls, a small part of the data, and a record of each step.

What differs between numbers of workers by design would hide all else, so it is taken out: dropout is off,
batch normalization uses its running statistics and leaves them as they are, and what a data set draws at
random depends on the number of the sample.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import MethodType
from typing import Any, Final, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from pliant.tools.run.elastic.context import Context, WorkerContext
from pliant.tools.run.elastic.job import ElasticJob
from pliant.tools.run.elastic.loop.batches import MicroBatch, read_at_once, tensors_in
from pliant.tools.run.elastic.loop.loaders import ElasticLoader, ElasticStream, is_stream
from pliant.tools.run.elastic.loop.loop import TrainingLoop
from pliant.tools.run.elastic.membership.membership import Membership
from pliant.tools.run.elastic.state.training import (
    Mean,
    Training,
    generator_states,
    map_leaves,
    restore_generators,
    seed_everything,
)
from pliant.tools.run.statedir.contract.recording import (
    ENV_RECORDING,
    RecordedScript,
    RecordedStep,
    RecordingOrder,
    RunFolder,
)

_CHECK_INTERVAL_S: Final = 0.01
_LAST_DIGIT: Final = 2.0**-23
"""Relative size of the last digit of float32."""
_DROPOUTS: Final = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class RecordedTraining(Training):
    """Hands its steps and epochs to a recorder."""

    recorder: Recorder

    def step_done(self, samples: int, losses: Mean) -> None:
        epoch, first = self.counters.epoch, self.counters.epoch_samples
        super().step_done(samples, losses)
        self.recorder.step_done(self, epoch, first, samples, losses)

    def epoch_done(self) -> None:
        self.recorder.mark(self)
        super().epoch_done()


class RecordedJob(ElasticJob):
    """One job whose script is verified."""

    trained_as = RecordedTraining

    def __init__(
        self,
        context: Context,
        membership: Membership | None,
        batch_size: int | None,
        seed: int | None,
        *others: Any,
        **named: Any,
    ) -> None:
        folder = RunFolder(Path(os.environ[ENV_RECORDING]))
        order = RecordingOrder.model_validate_json(folder.order.read_bytes())
        if order.double:
            torch.set_default_dtype(torch.float64)
        if order.seed is not None and membership is None:
            seed_everything(seed := order.seed)
        super().__init__(context, membership, order.batch or batch_size, seed, *others, **named)
        attempt, worker = 0, context.rank
        if isinstance(context, WorkerContext):
            attempt, worker = context.plan.attempt, context.worker
        self.recorder = Recorder(folder, order, attempt, worker)

    def prepare(self, *objects: Any, **named: Any) -> tuple[Any, ...]:
        recorder = self.recorder
        for one in (*objects, *named.values()):
            if isinstance(one, nn.Module):
                recorder.change(one)
        prepared = super().prepare(*objects, **named)
        for one in prepared:
            if isinstance(one, ElasticLoader | ElasticStream):
                one.observed = recorder.batches
        if isinstance(self._loop, TrainingLoop):
            split = self._loop.workers.split
            script = RecordedScript(split.global_batch, split.accum, recorder.dropouts, recorder.norms)
            recorder.folder.script.write_text(json.dumps(asdict(script)))
        return prepared

    def register(self, *objects: Any, **named: Any) -> None:
        for one in (*objects, *named.values()):
            if isinstance(one, nn.Module) and self.recorder.order.double:
                _double(one)
        super().register(*objects, **named)

    def epochs(self, count: int) -> Iterator[int]:
        return super().epochs(min(count, self.recorder.order.epochs))

    def steps(self, count: int) -> Iterator[int]:
        order = self.recorder.order
        return super().steps(min(count, order.epochs * order.steps))

    def batch_indices(self, below: int | None = None) -> torch.Tensor:
        return cast("torch.Tensor", self._seen(super().batch_indices(below)))

    def draw(self, make: Callable[[int, torch.Generator], Any]) -> Any:
        return self._seen(super().draw(make))

    def _seen(self, drawn: Any) -> Any:
        if isinstance(self._loop, TrainingLoop):
            self.recorder.see(self._loop.body.micro, drawn)
        return drawn

    def _source(self, dataset: Any, *others: Any, **named: Any) -> Any:
        if dataset is not None and not is_stream(dataset) and read_at_once(dataset) is None:
            dataset = SeededSamples(dataset)
        source = super()._source(dataset, *others, **named)
        plan, order = self._context.plan, self.recorder.order
        batch = self._batch_size if plan is None else plan.global_batch
        if source is None or batch is None:
            return source
        return replace(source, most=order.samples or order.steps * batch - batch // 2)

    def _training(self, *arguments: Any) -> Training:
        training = super()._training(*arguments)
        assert isinstance(training, RecordedTraining)  # noqa: S101 trained_as says so
        training.recorder = self.recorder
        atexit.register(self.recorder.mark, training)
        return training


class Recorder:
    """Writes what one worker does."""

    def __init__(self, folder: RunFolder, order: RecordingOrder, attempt: int, worker: int) -> None:
        self.folder, self.order = folder, order
        self._attempt, self._worker = attempt, worker
        # Layers that were switched off.
        self.dropouts = self.norms = 0
        # By place in the order of the epoch, digests of what this worker got for that sample.
        self._rows: dict[int, set[str]] = {}
        # As it was when the loop body got the batch.
        self._generator: torch.Tensor | None = None

    def change(self, model: nn.Module) -> None:
        """Take out of a model what differs by design, and set its precision."""
        for module in model.modules():
            if isinstance(module, _DROPOUTS):
                self.dropouts, module.p = self.dropouts + (module.p > 0), 0.0
            elif isinstance(module, nn.RNNBase | nn.MultiheadAttention):
                self.dropouts, module.dropout = self.dropouts + (module.dropout > 0), 0.0
            elif isinstance(module, _BATCH_NORMS) and module.running_mean is not None:
                self.norms += 1
                module.forward = MethodType(_normalized_as_in_evaluation, module)  # type: ignore[method-assign]
        if self.order.double:
            _double(model)
        if self.order.moved:
            _move(model)

    def batches(self, passes: Iterator[tuple[MicroBatch, Any]]) -> Iterator[tuple[MicroBatch, Any]]:
        """The same, in the precision of the run."""
        for micro, batch in passes:
            given = map_leaves(batch, _doubled) if self.order.double else batch
            self.see(micro, given)
            self._generator = torch.get_rng_state()
            yield micro, given

    def see(self, micro: MicroBatch, values: Any) -> None:
        """Note what this worker has for each sample of a micro-batch; the same again changes nothing."""
        tensors = [one.detach().cpu() for one in tensors_in(values)]
        rows = [one for one in tensors if one.dim() and len(one) == micro.samples]
        for row in range(micro.samples):
            values = b"".join(_bytes_of(one[row]) for one in rows)
            digest = hashlib.blake2b(values, digest_size=8).hexdigest() if rows else ""
            self._rows.setdefault(micro.start + row, set()).add(digest)

    def step_done(self, training: Training, epoch: int, first: int, samples: int, losses: Mean) -> None:
        """Write the step, and wait if the run has an appointment here."""
        number, before = training.counters.step, self._generator
        whole = range(first, first + samples)
        rows = {place: "".join(sorted(seen)) for place, seen in self._rows.items() if place in whole}
        rates = [float(group["lr"]) for one in training.optimizers.values() for group in one.param_groups]
        draws = before is not None and not torch.equal(before, torch.get_rng_state())
        loss, counted = float(losses.total), losses.samples
        self._rows, self._generator = {}, None
        done = RecordedStep(number, epoch, first, samples, loss, counted, rates, rows, draws)
        with self.folder.steps(self._attempt, self._worker).open("a") as file:
            file.write(done.line())
        time.sleep(self.order.pause_s)
        if number in self.order.holds:
            self.folder.held(number, self._worker).touch()
            while not self.folder.go(number).exists():
                time.sleep(_CHECK_INTERVAL_S)

    def mark(self, training: Training) -> None:
        """Write the weights, once for each step: parameters, buffers and those of registered models."""
        path = self.folder.weights(self._attempt, self._worker, training.counters.step)
        if path.exists():
            return
        models = {name: one for name, one in training.helpers.items() if isinstance(one, nn.Module)}
        states = {"": training.model.state_dict()}
        states |= {f"{name}: ": one.state_dict() for name, one in models.items()}
        arrays = {
            f"{prefix}{name}": _array(value)
            for prefix, state in states.items()
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
        }
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)


class SeededSamples(Dataset[Any]):
    """A data set whose random draws depend on the number of the sample alone; else it is the same."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        with _seeded(int(index)):
            return self._samples[index]

    def __getattr__(self, name: str) -> Any:
        if name == "_samples":  # asked for before it is set, by what makes copies
            raise AttributeError(name)
        return getattr(self._samples, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_samples":
            super().__setattr__(name, value)
        else:
            setattr(self._samples, name, value)


@contextmanager
def _seeded(number: int) -> Iterator[None]:
    states = generator_states()
    seed_everything(number)
    try:
        yield
    finally:
        restore_generators(states)


def _normalized_as_in_evaluation(module: nn.BatchNorm1d, values: torch.Tensor) -> torch.Tensor:
    return nn.functional.batch_norm(
        values, module.running_mean, module.running_var, module.weight, module.bias, False, 0.0, module.eps
    )


@torch.no_grad()
def _move(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        signs = torch.randint(2, parameter.shape, generator=generator).mul_(2).sub_(1).to(parameter.device)
        parameter.mul_(1 + _LAST_DIGIT * signs)


def _double(model: nn.Module) -> None:
    """Turn a model into float64; it takes float32, too, as an evaluation may give it."""
    model.double()
    model.register_forward_pre_hook(
        lambda _, given, named: (map_leaves(given, _doubled), map_leaves(named, _doubled)), with_kwargs=True
    )


def _doubled(value: Any) -> Any:
    is_single = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_single else value


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Type and values of a tensor on the CPU."""
    values = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype).encode() + values


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return values.detach().double().cpu().numpy()
