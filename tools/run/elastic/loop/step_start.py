"""What a step that is void gives back: buffers, PyTorch's generator, gradients that outlive a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from pliant.tools.run.elastic.torch_internals import writes_of

_LARGE_BYTES: Final = 1 << 16


@dataclass(slots=True)
class _Held:
    """A buffer of a module, and the values that it held.

    A large buffer that no step writes (a causal mask) is copied once. PyTorch does not count writes through
    ``.data``, NumPy or its own batch normalization. So the count is trusted only if the first step that left
    it unchanged left the values unchanged, too; otherwise each step copies the buffer, as it does small ones.
    """

    owner: nn.Module
    name: str
    buffer: torch.Tensor
    values: torch.Tensor
    writes: int
    constant: bool | None = None
    """Whether steps that leave the count unchanged leave the values, too; None if not known yet."""

    def is_current(self, buffer: torch.Tensor) -> bool:
        if self.buffer is not buffer or not self._looks_untouched():
            return False
        if self.constant is None:
            self.constant = torch.equal(buffer, self.values)
        return self.constant

    @torch.no_grad()
    def restore(self) -> None:
        owned = getattr(self.owner, self.name, None) is self.buffer
        if owned and self.constant and self._looks_untouched():
            return
        whole = self.buffer.shape == self.values.shape
        setattr(self.owner, self.name, self.buffer.copy_(self.values) if whole else self.values)

    def _looks_untouched(self) -> bool:
        return self.writes >= 0 and self.writes == _writes(self.buffer)


class StepStart:
    """The buffers of a model (running statistics) and PyTorch's generator, as they were when a step began.

    The generators of NumPy and Python are not kept: reading their states takes too long for small steps, and
    forward passes seldom draw from them.
    """

    def __init__(self) -> None:
        self.watches = False
        self._owners: list[nn.Module] = []
        self._held: dict[tuple[nn.Module, str], _Held] = {}
        self._generator: torch.Tensor | None = None
        # Those that the step adds to, by parameter.
        self.gradients: dict[str, torch.Tensor] = {}

    def watch(self, model: nn.Module | None) -> None:
        """Keep the start of each step of this model from now on; None if no step can be void."""
        self.watches = model is not None
        modules = () if model is None else model.modules()
        self._owners = [module for module in modules if any(True for _ in _buffers(module))]
        self._held = {}

    def note(self, gradients: Mapping[str, torch.Tensor] | None = None) -> None:
        """:param gradients: those that the step adds to."""
        if self.watches:
            self.gradients = {name: one.clone() for name, one in (gradients or {}).items()}
            # what torch.get_rng_state does, without its wrapper, which takes longer
            self._generator = torch.default_generator.get_state()
            self._held = {
                (owner, name): self._noted(owner, name, buffer)
                for owner in self._owners
                for name, buffer in _buffers(owner)
            }

    def restore_buffers(self) -> None:
        """The step is void, and its workers may pass on their state next."""
        for held in self._held.values():
            held.restore()

    def restore_generator(self) -> None:
        """The step is trained again here."""
        if self._generator is not None:
            torch.default_generator.set_state(self._generator)

    def _noted(self, owner: nn.Module, name: str, buffer: torch.Tensor) -> _Held:
        held = self._held.get((owner, name))
        if held is not None and held.is_current(buffer):
            return held
        values = buffer.detach().clone()
        known = held.constant if held is not None and held.buffer is buffer else None
        return _Held(owner, name, buffer, values, _writes(buffer), known)


def _buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return module.named_buffers(recurse=False, remove_duplicate=False)


def _writes(buffer: torch.Tensor) -> int:
    """PyTorch's count of the writes to a large buffer; -1 if it is small, or nothing is counted."""
    size = buffer.numel() * buffer.itemsize
    if size < _LARGE_BYTES or buffer.is_inference() or buffer.layout != torch.strided:
        return -1
    return writes_of(buffer)
