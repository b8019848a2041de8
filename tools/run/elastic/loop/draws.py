"""What workers draw: alike in the script, each its own inside of models and while samples are read.

A script that seeds every process alike may add noise to weights or gradients, or draw new weights: all
workers must draw the same. Dropout and augmentation must differ by worker, as their samples do. So a worker
has two states of PyTorch's generator, and the second one is in force while a model is called or a batch is
read. One worker has only the first, as plain Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from pliant.tools.run.elastic.state.training import mixed_seed

_LOOKS: Final = 3
"""Calls after which a model that has drawn nothing is called without a change of states."""
_WORDS: Final = 624
"""Words of the state of NumPy's Mersenne twister."""


class OwnDraws:
    """The second state of the generator, of one worker among several."""

    def __init__(self, models: Iterable[nn.Module], device: torch.device) -> None:
        self._models, self._device = list(models), device
        self._hooks: list[Any] = []
        self._own: torch.Tensor | None = None
        self._outer: torch.Tensor | None = None
        self._depth = self._looks = 0

    def follow(self, seed: int, step: int, rank: int, workers: int) -> None:
        """The workers have changed, or an epoch begins."""
        self._own = None
        if workers > 1:
            generator = torch.Generator(self._device)
            self._own = generator.manual_seed(mixed_seed(seed, step, rank)).get_state()
        self._looks = _LOOKS
        self._unhook()
        if self._own is not None:
            for model in self._models:
                self._hooks += [
                    model.register_forward_pre_hook(self._enter),
                    model.register_forward_hook(self._leave, always_call=True),
                ]

    def share(self, broadcast: Callable[[Sequence[torch.Tensor]], object], *, scripts: bool) -> None:
        """Give all workers the generators of rank 0, in case some have drawn for more samples than others.

        :param scripts: also those of NumPy and Python.
        """
        if self._own is None:
            return
        state = self._generator.get_state()
        numbers = torch.from_numpy(_script_states()) if scripts else None
        broadcast([state] if numbers is None else [state, numbers])
        self._generator.set_state(state)
        if numbers is not None:
            _set_script_states(numbers.numpy())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While samples are read."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self, *_: Any) -> None:
        if self._own is None or torch.compiler.is_compiling():
            return
        self._depth += 1
        if self._depth == 1:
            generator = self._generator
            self._outer = generator.get_state()
            generator.set_state(self._own)

    def _leave(self, *_: Any) -> None:
        if self._own is None or self._outer is None or torch.compiler.is_compiling():
            return
        self._depth -= 1
        if self._depth:
            return
        generator = self._generator
        own, self._own = self._own, generator.get_state()
        generator.set_state(self._outer)
        self._outer = None
        if self._looks:
            self._looks = _LOOKS if not torch.equal(own, self._own) else self._looks - 1
            if not self._looks:
                self._unhook()

    @property
    def _generator(self) -> torch.Generator:
        if self._device.type == "cuda":
            return torch.cuda.default_generators[self._device.index or 0]
        return torch.default_generator

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


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
