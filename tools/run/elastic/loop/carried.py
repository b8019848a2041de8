"""What a training carries from batch to batch, row by row: the hidden state of a recurrent net."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import Rows, tensors_in, to_device
from pliant.tools.run.elastic.state.training import mapped


class HasRows(Protocol):
    """What a training says of its pass, and does with all workers."""

    @property
    def device(self) -> torch.device: ...

    def rows(self) -> Rows: ...

    def add_up(self, tensors: Sequence[torch.Tensor]) -> bool:
        """The sums over the workers, in place; False if a worker was lost."""
        ...


class Carried:
    """What each row of a batch hands on to the same row of the next batch. Made by ``job.carried``.

    Every worker holds the rows of the whole batch as they were when the last step ended: they are exchanged
    with each step. So a worker that joins, another division of the rows, a step that is tried again and a
    checkpoint all find what one process would have found.
    """

    def __init__(self, make: Callable[[int], Any], dim: int, training: Callable[[], HasRows]) -> None:
        self._make, self._dim, self._training = make, dim, training
        self._kept: Any = None
        """Of all rows, at the end of the last step; None at the start of an epoch."""
        self._found: Any = None
        """Of all rows, in a step that may not be counted yet."""
        self._found_in = self._epoch = -1
        """The step; the epoch of what is kept, or found later."""
        self._partial: tuple[tuple[int, int], Any] | None = None
        """Of this worker's rows, the others zero, with the step and the division."""

    @property
    def value(self) -> Any:
        """For the rows of this worker's micro-batch: without a history, and its own to change.

        What ``make`` gives in the first step of an epoch, and where the global batch has changed.
        """
        training = self._training()
        rows = training.rows()
        self._keep(rows)
        if self._kept is None or self._epoch != rows.epoch or self._size(self._kept) != rows.batch:
            return to_device(self._make(rows.count), training.device)
        own = mapped(self._kept, lambda one: one.narrow(self._dim, rows.start, rows.count).clone())
        return to_device(own, training.device)

    @value.setter
    def value(self, found: Any) -> None:
        """:raises UsageError: it has other rows than the batch, or the optimizer has stepped before."""
        training = self._training()
        rows = training.rows()
        self._keep(rows)
        if rows.after_optimizer:
            raise UsageError("job.carried: set its value before optimizer.step(), which may be tried again")
        if (size := self._size(found)) != rows.count:
            raise UsageError(
                f"job.carried: {size} rows along dimension {self._dim}, and this worker has {rows.count}"
            )
        if not rows.counts:
            return
        key = rows.step, rows.division
        if self._partial is None or self._partial[0] != key:
            self._partial = key, mapped(found, lambda one: self._empty(one, rows.batch))
        whole = self._partial[1]
        for into, one in zip(tensors_in(whole), tensors_in(found), strict=True):
            if rows.samples:
                into.narrow(self._dim, rows.start, rows.count).copy_(one.detach())
        if rows.last:
            self._partial = None
            if training.add_up(list(tensors_in(whole))):
                self._found, self._found_in, self._epoch = whole, rows.step, rows.epoch

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self._kept, "found": self._found, "step": self._found_in, "epoch": self._epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._kept, self._found = state_dict["kept"], state_dict["found"]
        self._found_in, self._epoch = state_dict["step"], state_dict["epoch"]
        self._partial = None

    def _keep(self, rows: Rows) -> None:
        """A step is over when the next one is under way."""
        if self._found is not None and rows.step > self._found_in:
            self._kept, self._found = self._found, None

    def _size(self, values: Any) -> int:
        sizes = {one.size(self._dim) for one in tensors_in(values)}
        if len(sizes) != 1:
            raise UsageError(f"job.carried: its tensors have {sorted(sizes)} rows, expected one number")
        return sizes.pop()

    def _empty(self, like: torch.Tensor, rows: int) -> torch.Tensor:
        shape = list(like.shape)
        shape[self._dim] = rows
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
