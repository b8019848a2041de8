"""What a forward pass moves, put back where its step turns out to be void."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn


class _Buffer(NamedTuple):
    """A buffer of a module, and what it held."""

    owner: nn.Module
    name: str
    buffer: torch.Tensor
    held: torch.Tensor


class StepStart:
    """The buffers of a model (running statistics) and PyTorch's generator, as they were when a step began.

    The generators of NumPy and Python are left where they are: reading their states takes too long for small
    steps, and forward passes seldom draw from them.
    """

    def __init__(self) -> None:
        self._watches = False
        self._owners: list[nn.Module] = []
        self._buffers: list[_Buffer] = []
        self._generator: torch.Tensor | None = None

    def watch(self, model: nn.Module | None) -> None:
        """Note the steps of this model from now on; None: none of them can be void."""
        self._watches = model is not None
        self._owners = [] if model is None else [module for module in model.modules() if module._buffers]

    def note(self) -> None:
        """A step begins."""
        if self._watches:
            self._generator = torch.get_rng_state()
            self._buffers = [
                _Buffer(owner, name, buffer, buffer.detach().clone())
                for owner in self._owners
                for name, buffer in owner._buffers.items()
                if buffer is not None
            ]

    @torch.no_grad()
    def put_back_buffers(self) -> None:
        """The step is void, and its workers may hand on their state next."""
        for owner, name, buffer, held in self._buffers:
            whole = buffer.shape == held.shape
            owner._buffers[name] = buffer.copy_(held) if whole else held

    def put_back_generator(self) -> None:
        """The step is trained again here."""
        if self._generator is not None:
            torch.set_rng_state(self._generator)
