"""What workers draw: alike in the script, each its own inside of models and while samples are read.

A script that seeds every process alike may add noise to weights or gradients, or draw new weights: all
workers must draw the same. Dropout and augmentation must differ by worker, as their samples do. So a worker
has two states of PyTorch's generator, and the second one is in force while a model is called or a batch is
read. One worker has only the first, as plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from pliant.tools.run.elastic.state.training import mixed_seed

_LOOKS: Final = 3
"""Calls after which a model that has drawn nothing is called without a change of states."""


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
