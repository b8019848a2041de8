"""A look at the losses of the first steps: is one a mean over something else than samples?

Cross entropy with ``ignore_index`` or class weights is a mean over the targets that count. Where their number
is not in proportion to the samples, shares weighted by samples train something else: a script has to say what
its loss is a mean of (``job.weigh``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, cast

import torch

from pliant.tools.run.elastic.torch_internals import target_weight as weight_of_node

_MOST_NODES: Final = 200


class LossWatch:
    """While it is open, ``Tensor.backward`` first looks at how its loss was made."""

    def __init__(self, counted: Callable[[float], None]) -> None:
        """:param counted: gets the weight of the targets that a loss is a mean of."""
        self._counted = counted
        self._plain: Any = None

    def open(self) -> None:
        if self._plain is not None:
            return
        plain: Any = torch.Tensor.backward
        self._plain = plain

        @wraps(plain)
        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            weight = target_weight(loss)
            if weight is not None:
                self._counted(weight)
            return plain(loss, *args, **kwargs)

        torch.Tensor.backward = cast("Any", backward)  # type: ignore[method-assign]

    def close(self) -> None:
        if self._plain is not None:
            torch.Tensor.backward = self._plain  # type: ignore[method-assign]
            self._plain = None


def target_weight(loss: torch.Tensor) -> float | None:
    """The weight of the targets of the one cross entropy in a loss that is a mean; None if there is none."""
    nodes, weights = [loss.grad_fn], list[float]()
    for _, node in zip(range(_MOST_NODES), nodes, strict=False):
        if node is None:
            continue
        weight = weight_of_node(node)
        if weight is not None:
            weights += [] if math.isnan(weight) else [weight]
            continue
        nodes += [before for before, _ in node.next_functions]
    return weights[0] if len(weights) == 1 else None
