"""The state of a training: all that is trained or counted, and how a checkpoint or another worker gets it.

:class:`Training` holds it. :class:`TrainingCounters` say where training is, and :class:`Cursor` compares how
far workers are. Scripts change which parameters are trained and how an optimizer groups them
(:class:`ParameterGroups`), so both are state: a worker that is relaunched, or joins, begins at the script's
first line.

A state that is saved or passed on loads again, and loading it executes nothing. It may hold what
``torch.load(weights_only=True)`` takes: tensors, numbers, text, bytes, None, dictionaries (``OrderedDict``
and ``Counter`` included), lists, tuples and sets of them, and the classes that the author allows by
``torch.serialization.add_safe_globals``. NumPy's numbers become Python's.
"""

from __future__ import annotations

import io
import json
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import wraps
from itertools import zip_longest
from types import MethodType
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.serialization import get_unsafe_globals_in_checkpoint

from pliant.schemas.errors import BadInputError, UsageError

_log = logging.getLogger("pliant")

DOUBLING_STEPS: Final = 10
"""Optimizer steps in which a rising learning rate may double."""
_SHORT: Final = 1024
"""Bytes of one exchange of rank 0's value, with its length."""
_LENGTH: Final = 8
MAPPINGS: Final = (dict, OrderedDict)
SEQUENCES: Final = (list, tuple)


class EpochPhase(IntEnum):
    """How far an epoch is, the same on all workers but for one operation."""

    PENDING = 0
    """Before its first step: the workers have yet to agree to begin it."""
    STEPS = 1
    """Between two of its steps."""
    COMPLETE = 2
    """After its steps and the script's code after them; the loss over all workers is missing."""


class Models(nn.ModuleDict):
    """Several models that a job trains, by name: one module for all that goes by parameter."""


def each_model(model: nn.Module) -> list[nn.Module]:
    return list(model.values()) if isinstance(model, Models) else [model]


class Training:
    """Model, optimizers, registered helpers and counters of one job on one worker."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Mapping[str, Optimizer],
        helpers: dict[str, Stateful],
        lr_scale: float = 1.0,
        *,
        seed: int = 0,
    ) -> None:
        """:param model: several are in :class:`Models`.
        :param optimizer: one, or several by name.
        :param seed: of the order of the samples.
        """
        self.model = model
        self.optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
        self._groups = {name: ParameterGroups(model, one) for name, one in self.optimizers.items()}
        self.helpers = helpers
        self.seed = seed
        self.counters = TrainingCounters()
        self.phase = EpochPhase.STEPS
        # The current global batch, and the step at which it was set or the attempt began.
        self.batch: tuple[int | None, int] = None, 0
        # This worker's loss of the epoch, as far as it is not yet in `common_loss`.
        self.own_loss = Mean()
        # The loss of the epoch over all workers.
        self.common_loss = Mean()
        # Parts of the step under way whose optimizers have stepped: a GAN's step has two.
        self.parts = 0
        # The worker waits for rank 0's value in the middle of a step.
        self.asking = False
        # Rank 0's values that all workers know, since the last step.
        self.agreed: list[Any] = []
        # Those of the step before.
        self.agreed_before: list[Any] = []
        self._lr_scale = self._wanted_scale = lr_scale
        self._is_scaled = False
        # What knows which gradients the next step adds to.
        self.gradients: GradientKeeper | None = None
        # Called where the losses of all workers meet.
        self.meets: Callable[[], None] = lambda: None
        # The state that was taken in the middle of an epoch, until the epoch goes on.
        self._again: Mapping[str, Any] | None = None

    def capture(self) -> dict[str, Any]:
        """The whole state as tensors and plain values, for ``torch.save``."""
        return {**self.shared(), "generators": generator_states()}

    def shared(self) -> dict[str, Any]:
        """What is the same on all workers."""
        return {
            "model": self.model.state_dict(),
            "trained": {name: parameter.requires_grad for name, parameter in self.model.named_parameters()},
            "optimizers": {
                name: {"groups": self._groups[name].names(), "state": plain(one.state_dict())}
                for name, one in self.optimizers.items()
            },
            "helpers": {name: plain(helper.state_dict()) for name, helper in self.helpers.items()},
            "counters": self.counters.as_dict(),
            "gradients": {} if self.gradients is None else self.gradients.kept(),
            "lr_scale": self._lr_scale,
            "seed": self.seed,
            "parts": self.parts,
            "agreed": (tuple(self.agreed_before), tuple(self.agreed)),
            "epoch_loss": (float(self.common_loss.total), self.common_loss.samples),
        }

    def check_averaged(self) -> None:
        """:raises UsageError: an optimizer has parameters that are not the model's."""
        _refuse_training(self.helpers, self.model, self.optimizers.values())
        for groups in self._groups.values():
            groups.check()

    def resume(self, saved: Mapping[str, Any]) -> None:
        self.restore(saved)
        restore_generators(saved["generators"])

    def restore_again(self) -> None:
        """The epoch goes on: the script's code before its loop over the batches has run again.

        It ran when the epoch began, and its effect is in the state already: a schedule's step at the top of
        an epoch, for example, or numbers that were drawn there.
        """
        saved, self._again = self._again, None
        if saved is not None and saved["counters"] == self.counters.as_dict():
            self._restore_objects(saved)
            restore_generators(saved["generators"])

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from the state that all workers share.

        It includes the factor on the learning rate, not the plan's: this worker may have started with a plan
        that the others never followed. The plan that all follow sets it afterwards.
        """
        self._restore_objects(saved)
        self._lr_scale, self.seed = saved["lr_scale"], saved["seed"]
        self.parts = saved["parts"]
        self.agreed_before, self.agreed = map(list, saved["agreed"])
        self.counters = TrainingCounters.from_dict(saved["counters"])
        self.common_loss = Mean(*saved["epoch_loss"])
        if self.gradients is not None:
            self.gradients.restore(saved.get("gradients", {}))
        self._again = saved if self.counters.epoch_samples and "generators" in saved else None

    def _restore_objects(self, saved: Mapping[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(saved["trained"].get(name, parameter.requires_grad))
        for name, optimizer in self.optimizers.items():
            kept = saved["optimizers"][name]
            self._groups[name].restore(kept["groups"], kept["state"]["param_groups"])
            optimizer.load_state_dict(kept["state"])
        self._restore_helpers(saved["helpers"])
        # making and loading a scheduler changes learning rates: the saved ones count
        for name, optimizer in self.optimizers.items():
            groups = saved["optimizers"][name]["state"]["param_groups"]
            for group, settings in zip(optimizer.param_groups, groups, strict=True):
                group.update({name: value for name, value in settings.items() if name != "params"})

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.counters.epoch, self.counters.step, self.phase, len(self.agreed), self.parts)

    def forget_restored(self) -> None:
        """The script's code before its loop over the batches does not run again."""
        self._again = None

    def pack(self) -> dict[str, Any]:
        """What a worker with an older state, or none, receives."""
        return {
            "training": self.capture(),
            "model": outline(self.model),
            "phase": int(self.phase),
            "batch": self.batch,
            "asking": self.asking,
        }

    def unpack(self, pack: Mapping[str, Any]) -> None:
        """Take the state of a worker that is further.

        :raises UsageError: this worker's model is not that of the other one.
        """
        check_same(self.model, pack["model"])
        self.restore(pack["training"])
        self.phase, (batch, since) = EpochPhase(pack["phase"]), pack["batch"]
        self.batch = batch, since

    def set_batch(self, global_batch: int) -> None:
        if self.batch[0] != global_batch:
            self.batch = global_batch, self.counters.step

    def set_lr_scale(self, scale: float) -> None:
        """Set the factor on the author's learning rate: it falls at once and rises step by step.

        Each doubling takes ``DOUBLING_STEPS`` optimizer steps: momentum does not fit a sudden rise.
        """
        self._wanted_scale = scale
        self._lr_scale = min(scale, self._lr_scale)

    def scaled_lr(self) -> AbstractContextManager[None]:
        """Multiply the author's learning rates by the factor while the optimizer makes its step.

        Schedulers set and read learning rates between two steps, so none of them sees the factor.
        """
        return nullcontext() if self._lr_scale == 1.0 or self._is_scaled else self._scaled()

    @contextmanager
    def _scaled(self) -> Iterator[None]:
        optimizers = self.optimizers.values()
        groups = [group for one in optimizers for group in one.param_groups if "lr" in group]
        rates, self._is_scaled = [group["lr"] for group in groups], True
        try:
            for group in groups:
                group["lr"] = group["lr"] * self._lr_scale
            yield
        finally:
            self._is_scaled = False
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def gather_loss(self, world_size: int) -> None:
        """Add the loss of all workers to ``common_loss``; they call this together."""
        self.common_loss.include(self.own_loss.over_all_workers(world_size))
        self.own_loss = Mean()
        self.meets()

    def agree(self, value: Any, world_size: int, *, adds: bool = False) -> None:
        """Append rank 0's value to ``agreed`` on all workers, which call this together; others pass None.

        :param adds: the sums of the numbers in the workers' lists instead.
        """
        if world_size > 1:
            value = _sums(value) if adds else _of_rank_0(value)
        self.agreed.append(value)

    def step_done(self, samples: int, losses: Mean) -> None:
        self.own_loss.include(losses)
        self.counters.advance(samples)
        self.parts, self.agreed_before, self.agreed = 0, self.agreed, []
        if self._lr_scale < self._wanted_scale:
            self._lr_scale = min(self._wanted_scale, self._lr_scale * 2 ** (1 / DOUBLING_STEPS))

    def epoch_done(self) -> None:
        self.counters.next_epoch()
        self.own_loss, self.common_loss = Mean(), Mean()
        self.agreed_before, self.agreed = self.agreed, []

    def modules(self) -> list[nn.Module]:
        """The model, and the registered modules, as averages of weights."""
        return [self.model, *(one for one in self.helpers.values() if isinstance(one, nn.Module))]

    def _restore_helpers(self, saved: Mapping[str, Any]) -> None:
        for name in sorted(saved.keys() ^ self.helpers.keys()):
            where = "the checkpoint only" if name in saved else "the script only"
            _log.warning("registered object %s is in %s: its state is not restored", name, where)
        for name in sorted(saved.keys() & self.helpers.keys()):
            self.helpers[name].load_state_dict({**saved[name]})  # some take things out of it


def _sums(values: Sequence[float]) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


def _of_rank_0(value: Any) -> Any:
    """Rank 0's value, as JSON: one all-reduce if it is short."""
    own = b"" if value is None else json.dumps(value).encode()
    value_bytes = torch.zeros(_SHORT, dtype=torch.uint8)
    if own:
        head = len(own).to_bytes(_LENGTH, "little") + own[: _SHORT - _LENGTH]
        value_bytes[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    dist.all_reduce(value_bytes)
    data = value_bytes.numpy().tobytes()
    length = int.from_bytes(data[:_LENGTH], "little")
    if length > _SHORT - _LENGTH:
        value_bytes = torch.zeros(length, dtype=torch.uint8)
        if own:
            value_bytes[:] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        dist.all_reduce(value_bytes)
        return json.loads(value_bytes.numpy().tobytes())
    return json.loads(data[_LENGTH : _LENGTH + length])


class ParameterGroups:
    """The parameter groups of an optimizer, by the names of their parameters in the model.

    Groups that the script had added are restored before it adds them again; that second call does nothing.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._averaged = frozenset[Tensor](model.parameters())
        # Restored groups that the script is expected to add again.
        self._ahead: list[set[Tensor]] = []
        optimizer.add_param_group = MethodType(self._adding(optimizer.add_param_group), optimizer)  # type: ignore[method-assign]

    def check(self) -> None:
        """:raises UsageError: the optimizer trains parameters that are not the model's."""
        groups = self._optimizer.param_groups
        _refuse_strangers((one for group in groups for one in group["params"]), self._averaged)

    def names(self) -> list[list[str]] | None:
        """The parameters of each group. Returns None if some are not the model's: those are not restored."""
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        groups = [group["params"] for group in self._optimizer.param_groups]
        if not all(parameter in names for group in groups for parameter in group):
            return None
        return [[names[parameter] for parameter in group] for group in groups]

    def restore(self, saved: Sequence[Sequence[str]] | None, kept: Sequence[Mapping[str, Any]]) -> None:
        """Add the groups that the optimizer does not have yet.

        :param saved: the parameters of each group; ``kept``: its settings.
        """
        here = self.names()
        if saved is None or here is None or here != [list(names) for names in saved[: len(here)]]:
            return
        parameters = dict(self._model.named_parameters())
        for names, settings in list(zip(saved, kept, strict=True))[len(here) :]:
            added = [parameters[name] for name in names]
            own = {name: value for name, value in settings.items() if name not in {"params", "param_names"}}
            given = settings.get("param_names")
            self._optimizer.add_param_group(
                {**own, "params": added if given is None else list(zip(given, added, strict=True))}
            )
            self._ahead.append(set(added))

    def _adding(self, inner: Any) -> Any:
        @wraps(inner)
        def add(_: Optimizer, group: dict[str, Any]) -> None:
            given = group["params"]
            listed = [given] if isinstance(given, Tensor) else list(given)
            parameters = {one[1] if isinstance(one, tuple) else one for one in listed}
            if parameters in self._ahead:
                self._ahead.remove(parameters)
            else:
                _refuse_strangers(parameters, self._averaged)
                inner({**group, "params": listed})

        return add


def _refuse_training(
    helpers: Mapping[str, object], model: nn.Module, optimizers: Collection[Optimizer]
) -> None:
    """Refuse registered optimizers at once, and registered modules as soon as a gradient reaches them.

    Each worker would train them for itself. Frozen and averaged models get no gradients.

    :raises UsageError: an optimizer is registered that is not the job's own.
    """
    averaged = set[Tensor](model.parameters())
    for name, helper in helpers.items():
        if isinstance(helper, Optimizer) and not any(helper is one for one in optimizers):
            raise UsageError(
                f"registered object {name} is an optimizer, which would train each worker for itself: "
                "give it to job.prepare, with the model and the other optimizers"
            )
        if isinstance(helper, nn.Module):
            for parameter in helper.parameters():
                if parameter not in averaged:
                    _refuse_gradients(name, parameter)


def _refuse_strangers(optimized: Iterable[Tensor], averaged: Set[Tensor]) -> None:
    """:param averaged: the parameters that the model had when ``job.prepare`` was called.

    :raises UsageError: the optimizer has others, which would not be averaged.
    """
    if strangers := [one for one in optimized if one not in averaged]:
        raise UsageError(
            f"the optimizer has {len(strangers)} parameters that no model for job.prepare had: "
            "each worker would train them for itself; give job.prepare every model that is trained"
        )


def _refuse_gradients(name: str, parameter: nn.Parameter) -> None:
    was_trained = parameter.requires_grad

    def refuse(_: Tensor) -> None:
        raise UsageError(
            f"registered object {name} gets gradients, which would train each worker for itself: give it to "
            "job.prepare, or call it under torch.no_grad() if it is not trained"
        )

    parameter.requires_grad_()  # hooks are for what is trained; it may be unfrozen later
    parameter.register_post_accumulate_grad_hook(refuse)
    parameter.requires_grad_(was_trained)


def outline(model: nn.Module) -> list[list[Any]]:
    """Name, type and shape of each parameter: workers that average gradients must agree on these."""
    return [[name, str(one.dtype), list(one.shape)] for name, one in model.named_parameters()]


def check_same(model: nn.Module, other: list[list[Any]]) -> None:
    """Refuse to train with workers whose model differs: gradients would be mixed up, or PyTorch would abort.

    :param other: the outline of their model.
    :raises UsageError: it is not that of this worker's model.
    """
    for number, (here, there) in enumerate(zip_longest(outline(model), other)):
        if here != there:
            raise UsageError(
                "the model differs from that of the other workers: parameter "
                f"{number} is {_in_words(here)} here, {_in_words(there)} there"
            )


def _in_words(parameter: list[Any] | None) -> str:
    if parameter is None:
        return "missing"
    name, kind, shape = parameter
    return f"{name} ({kind.removeprefix('torch.')}, {' x '.join(map(str, shape)) or 'a number'})"


class GradientKeeper(Protocol):
    """Knows the gradients that the next step adds to."""

    def kept(self) -> dict[str, Tensor]: ...

    def restore(self, kept: Mapping[str, Tensor]) -> None: ...


@runtime_checkable
class Stateful(Protocol):
    """Anything that can hand out its state, tensors and plain values, and take it back."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


@dataclass(slots=True)
class TrainingCounters:
    """Where training is."""

    epoch: int = 0
    epoch_samples: int = 0
    """Samples of the epoch's order that are trained, from its start."""
    step: int = 0
    samples_done: int = 0
    """Samples that are trained, over all epochs."""

    def advance(self, samples: int) -> None:
        self.epoch_samples += samples
        self.samples_done += samples
        self.step += 1

    def next_epoch(self) -> None:
        self.epoch += 1
        self.epoch_samples = 0

    def copy(self) -> TrainingCounters:
        return replace(self)

    def as_dict(self) -> dict[str, int]:
        return {
            "epoch": self.epoch,
            "cursor": self.epoch_samples,
            "step": self.step,
            "samples_done": self.samples_done,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, int]) -> Self:
        return cls(saved["epoch"], saved["cursor"], saved["step"], saved["samples_done"])


@dataclass(slots=True)
class Mean:
    """A running mean, weighted by samples."""

    total: float | torch.Tensor = 0.0
    samples: float = 0
    """Number of samples, or of what else the values are means of."""

    def add(self, value: float | torch.Tensor, samples: float) -> None:
        """Count a value for a number of samples. A tensor stays on its device: nothing waits for a GPU."""
        if isinstance(value, torch.Tensor):
            value = value.detach().double() if value.is_cuda else value.item()
        if samples:
            self.total = self.total + value * samples
            self.samples += samples

    def include(self, other: Mean) -> None:
        self.total = self.total + other.total
        self.samples += other.samples

    def value(self) -> float | None:
        """Returns None if nothing was counted."""
        return float(self.total) / self.samples if self.samples else None

    def over_all_workers(self, world_size: int) -> Mean:
        """The mean over all workers, which call this together."""
        if world_size == 1:
            return self
        sums = torch.tensor([float(self.total), float(self.samples)], dtype=torch.float64)
        dist.all_reduce(sums)
        return Mean(float(sums[0]), float(sums[1]))


class Cursor(NamedTuple):
    """How far a worker is: where its next collective operation lies. The larger cursor is further.

    Workers differ by one operation at most, because none completes before all have begun it.
    """

    epoch: int
    step: int
    phase: int
    agreed: int = 0
    """Rank 0's values that the worker knows, since the last step."""
    parts: int = 0
    """Parts of the step whose optimizers have stepped."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The cursor that :func:`written` wrote; None for a worker that has no state yet."""
        return cls(*map(int, text.split())) if text != "-" else None


def written(cursor: Cursor | None) -> str:
    return "-" if cursor is None else " ".join(map(str, cursor))


def plain(state: Any) -> Any:
    """The state with NumPy's numbers as Python's; they come from arguments of schedulers, for example."""
    return map_leaves(state, lambda leaf: leaf.item() if isinstance(leaf, np.generic) else leaf)


def map_leaves(state: Any, leaf: Callable[[Any], Any]) -> Any:
    """A copy with ``leaf`` applied to whatever lies in its plain dictionaries, lists and tuples."""
    kind = type(state)
    if kind in MAPPINGS:
        made = kind((name, map_leaves(value, leaf)) for name, value in state.items())
        if kind is OrderedDict:
            made.__dict__.update(state.__dict__)  # modules keep the versions of their states there
        return made
    if kind in SEQUENCES:
        return kind(map_leaves(value, leaf) for value in state)
    return leaf(state)


def mixed_seed(*parts: int) -> int:
    """A 64-bit seed made from several non-negative numbers, such as a job's seed and an epoch."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def seed_everything(*parts: int) -> None:
    """Seed PyTorch, NumPy and Python from a job's seed and, where given, a step and a rank."""
    seed = mixed_seed(*parts)
    torch.manual_seed(seed)
    seed_scripts(seed)


def seed_scripts(seed: int) -> None:
    """Seed NumPy and Python, which PyTorch does not: workers that are not seeded would all draw otherwise."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002, TID251 the author's transforms may draw from it


def generator_states() -> dict[str, Any]:
    kind, words, *rest = np.random.get_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    numpy_state = (kind, torch.from_numpy(np.asarray(words).astype(np.int64)), *rest)
    return {"torch": torch.get_rng_state(), "cuda": cuda, "numpy": numpy_state, "python": random.getstate()}


def restore_generators(states: Mapping[str, Any]) -> None:
    """Set all generators; those of GPUs only if the number of GPUs is the same."""
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, words, *rest = states["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])


def check_training(training: Training) -> None:
    """Refuse a training that could not be saved.

    :raises UsageError: an object's state holds more than tensors and plain values.
    """
    check_storable("the model", training.model.state_dict())
    for name, optimizer in training.optimizers.items():
        label = "the optimizer" if len(training.optimizers) == 1 else f"optimizer {name}"
        check_storable(label, optimizer.state_dict())
    for name, helper in training.helpers.items():
        check_storable(f"registered object {name}", helper.state_dict())


def check_storable(name: str, state: Any) -> None:
    """Refuse a state that could not be loaded again. Tensors are left out, so this is cheap.

    :param name: whose state it is.
    :raises UsageError: it holds objects of other classes, or cannot be pickled.
    """
    stand_in = torch.empty(0)
    hollow = map_leaves(plain(state), lambda leaf: stand_in if isinstance(leaf, torch.Tensor) else leaf)
    stored(hollow, name)


def stored(state: Any, name: str = "the job") -> bytes:
    """The state as ``torch.save`` writes it.

    :param name: whose state it is.
    :raises UsageError: it could not be loaded again.
    """
    buffer = io.BytesIO()
    store(state, buffer, name)
    refuse_unsafe(buffer, state, name)
    return buffer.getvalue()


def store(state: Any, file: Any, name: str = "the job") -> None:
    """Write a state to whatever has ``write`` and ``flush``.

    :raises UsageError: an object in it cannot be pickled.
    """
    try:
        torch.save(state, file)
    except Exception as error:  # an object's own pickling may raise anything
        raise UsageError(f"the state of {name} cannot be saved: {_first_line(error)}") from error


def refuse_unsafe(file: BinaryIO, state: Any, name: str = "the job") -> None:
    """Check that a state that was written will load again.

    :param state: what was written; it is asked where the trouble lies.
    :raises UsageError: it will not.
    """
    file.seek(0)
    if others := _unsafe_classes(file):
        raise UsageError(
            f"the state of {name} holds {others}{_place(state)}: keep it to tensors and plain values, "
            "or allow these by torch.serialization.add_safe_globals"
        )


def loaded(file: BinaryIO, source: str) -> dict[str, Any]:
    """The state that begins where ``file`` stands, with its tensors in main memory.

    :param source: where the bytes are from.
    :raises UsageError: the state holds objects of classes that are not allowed.
    :raises BadInputError: the bytes are not a state.
    """
    state: dict[str, Any] = {}
    try:
        start = file.tell()
        if not (others := _unsafe_classes(file)):
            file.seek(start)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a file may hold anything
        raise BadInputError.one(source, f"the state cannot be loaded: {_first_line(error)}") from error
    if others:
        raise UsageError(
            f"{source} holds {others}: these are not loaded unless the script allows them "
            "by torch.serialization.add_safe_globals"
        )
    return state


def _unsafe_classes(file: BinaryIO) -> str:
    return ", ".join(sorted(get_unsafe_globals_in_checkpoint(file)))


def _place(state: Any) -> str:
    """Where the first of these is in a state."""
    keys: list[str] = []
    rest = map_leaves(state, lambda leaf: None if isinstance(leaf, torch.Tensor) else leaf)
    while children := [(key, child) for key, child in _children(rest) if _holds_unsafe(child)]:
        key, rest = children[0]
        keys.append(str(key))
    return f" at {'.'.join(keys)}" if keys else ""


def _children(state: Any) -> Iterable[tuple[Any, Any]]:
    if type(state) in MAPPINGS:
        return list(state.items())
    return enumerate(state) if type(state) in SEQUENCES else ()


def _holds_unsafe(state: Any) -> bool:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return bool(_unsafe_classes(buffer))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
