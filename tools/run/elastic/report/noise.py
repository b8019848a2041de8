"""The gradient noise scale of a job while it trains, from gradients that are there anyway."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import nn

EVERY: Final = 10
"""The steps from one measured pair to the next."""
_SMOOTHING: Final = 0.1


class NoiseMeter:
    """Estimates φ = tr Σ / |G|², in samples: how large a batch must be for noise and signal to be equal.

    Two successive steps have gradients g, h of nearly the same weights, each a mean over a batch of B, so
    E[g · h] = |G|² and E|g - h|² = 2 tr Σ / B. Both are smoothed over pairs. It looks when a step is
    complete: a script that drops its gradients before that is not measured, and clipping blurs it. Holds one
    copy of the gradients for one step in :data:`EVERY`. A pair that is not finite (an overflow in mixed
    precision) is left out.
    """

    def __init__(self) -> None:
        self._before: list[torch.Tensor] | None = None
        self._signal = 0.0
        self._noise = 0.0
        self._pairs = 0

    @property
    def noise_scale(self) -> float | None:
        """φ; None while there is no pair, or noise alone."""
        found = self._noise / self._signal if self._signal > 0 else math.inf
        return found if math.isfinite(found) else None

    def look(self, model: nn.Module, step: int, batch: int) -> None:
        """A step is complete; it trained ``batch`` samples."""
        turn = step % EVERY
        if turn == 0:
            self._before = [gradient.clone() for gradient in _gradients(model)]
        elif turn == 1 and self._before is not None:
            before, self._before = self._before, None
            after = _gradients(model)
            if before and [one.shape for one in before] == [one.shape for one in after]:
                self._compare(before, after, batch)

    def forget(self) -> None:
        """The batch has changed: no pair reaches over that."""
        self._before = None

    def _compare(self, before: list[torch.Tensor], after: list[torch.Tensor], batch: int) -> None:
        pairs = list(zip(before, after, strict=True))
        signal = math.fsum(_dot(g, h) for g, h in pairs)
        spread = math.fsum(_dot(d, d) for d in (g.sub_(h) for g, h in pairs))
        noise = batch * spread / 2
        if not math.isfinite(signal + noise):
            return
        self._pairs += 1
        part = max(_SMOOTHING, 1 / self._pairs)
        self._signal += part * (signal - self._signal)
        self._noise += part * (noise - self._noise)


def _dot(one: torch.Tensor, other: torch.Tensor) -> float:
    """Their inner product, in their own precision: a noise scale needs few digits."""
    if one.dtype in (torch.float16, torch.bfloat16):
        one, other = one.float(), other.float()
    if one.is_sparse:
        return float((one * other).sum())
    return float(torch.dot(one.flatten(), other.flatten()))


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.detach() for parameter in model.parameters() if parameter.grad is not None]
