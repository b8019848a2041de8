"""What workers draw: alike in the script, each its own inside of models and while samples are read.

A script that seeds every process alike may add noise to weights or gradients, or draw new weights: all
workers must draw the same. Dropout and augmentation must differ by worker, as their samples do. So while a
model in training, or a part of it that draws, is called, and while a batch is read, PyTorch's generators are
in a state that depends on the script's and on the worker. It is derived anew at each call, so that a part
that is computed again (activation checkpointing) draws the same again. One worker draws as plain Python does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import nn

_WORDS: Final = 624
"""Words of the state of NumPy's Mersenne twister."""
_SPREAD: Final = 0x9E3779B97F4A7C15
"""Odd factor that spreads ranks over the seeds."""


class WorkerGenerators:
    """Switches the generators of one worker among several."""

    def __init__(self, models: Iterable[nn.Module], device: torch.device) -> None:
        self._drawing = [module for model in models for module in _drawing(model)]
        self._device = device
        self._hooks: list[Any] = []
        # None for one worker alone.
        self._rank: int | None = None
        self._outer: list[torch.Tensor] = []
        self._depth = 0

    def follow(self, rank: int, workers: int) -> None:
        """The workers have changed."""
        self._rank = rank if workers > 1 else None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for module in self._drawing if workers > 1 else ():
            self._hooks += [
                module.register_forward_pre_hook(_Hook(self._enter_module)),
                module.register_forward_hook(_Hook(self._leave_module), always_call=True),
            ]

    def share(self, broadcast: Callable[[Sequence[torch.Tensor]], object], *, scripts: bool) -> None:
        """Give all workers the generators of rank 0, in case some have drawn for more samples than others.

        :param scripts: also those of NumPy and Python.
        """
        if self._rank is None:
            return
        states = [one.get_state() for one in self._generators]
        numbers = [torch.from_numpy(_script_states())] if scripts else []
        broadcast([*states, *numbers])
        for one, state in zip(self._generators, states, strict=True):
            one.set_state(state)
        for given in numbers:
            _set_script_states(given.numpy())

    @contextmanager
    def reading(self, seed: int, epoch: int, first: int) -> Iterator[None]:
        """While the samples from the place ``first`` of an epoch's order on are read, the same each time."""
        if self._rank is None:
            yield
            return
        states = [one.get_state() for one in self._generators]
        self._seed((seed * _SPREAD + epoch) * _SPREAD + first)
        try:
            yield
        finally:
            for one, state in zip(self._generators, states, strict=True):
                one.set_state(state)

    def _enter_module(self, module: nn.Module, *_: Any) -> None:
        if module.training and not torch.compiler.is_compiling():
            self._enter()

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        if module.training and not torch.compiler.is_compiling():
            self._leave()

    def _enter(self) -> None:
        if self._rank is None:
            return
        self._depth += 1
        if self._depth == 1:
            # drawn from the script's generator, which goes on by it on all workers alike
            number = int(torch.empty((), dtype=torch.int64).random_())
            self._outer = [one.get_state() for one in self._generators]
            self._seed(number + (self._rank + 1) * _SPREAD)

    def _seed(self, number: int) -> None:
        for one in self._generators:
            one.manual_seed(number % (1 << 63))

    def _leave(self) -> None:
        if self._rank is None or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            for one, state in zip(self._generators, self._outer, strict=True):
                one.set_state(state)

    @property
    def _generators(self) -> list[torch.Generator]:
        if self._device.type == "cuda":
            return [torch.default_generator, torch.cuda.default_generators[self._device.index or 0]]
        return [torch.default_generator]


class _Hook:
    """A hook of a module; a copy of the module has one that does nothing."""

    def __init__(self, act: Callable[..., None] | None = None) -> None:
        self._act = act

    def __call__(self, *arguments: Any) -> None:
        if self._act is not None:
            self._act(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, ()


def _drawing(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that may draw: PyTorch's that do, and the whole, if it has own code or those."""
    known = [module for module in model.modules() if _is_pytorchs(module) and _drops(module)]
    has_own_code = any(not _is_pytorchs(module) for module in model.modules())
    return list(dict.fromkeys([model, *known])) if known or has_own_code else []


def _is_pytorchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _drops(module: nn.Module) -> bool:
    if isinstance(module, nn.RReLU):
        return True
    part = getattr(module, "p", None) if type(module).__name__.endswith("Dropout") else None
    part = part if part is not None else getattr(module, "dropout", 0.0)
    return isinstance(part, int | float) and part > 0


def _script_states() -> np.ndarray[Any, np.dtype[np.float64]]:
    """The states of NumPy's and Python's generators as numbers."""
    _, words, *rest = np.random.get_state()  # noqa: NPY002 what scripts draw from
    _, internal, following = random.getstate()
    pending = [0.0, 0.0] if following is None else [1.0, following]
    return np.array([*words, *rest, *internal, *pending], dtype=np.float64)


def _set_script_states(numbers: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    words, (position, has_gauss, gauss), internal, (has_following, following) = np.split(
        numbers, [_WORDS, _WORDS + 3, len(numbers) - 2]
    )
    np.random.set_state(  # noqa: NPY002
        ("MT19937", words.astype(np.uint32), int(position), int(has_gauss), float(gauss))
    )
    random.setstate((3, tuple(map(int, internal)), float(following) if has_following else None))
