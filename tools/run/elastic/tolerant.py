"""A process group that keeps its errors to itself where an exception would end the author's backward pass."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.futures import Future

_NO_LIMIT: Final = timedelta(milliseconds=-1)


class TolerantGroup(dist.ProcessGroup):
    """What DistributedDataParallel exchanges, through the group of all workers.

    An all-reduce that fails ends as if nothing had happened, and so do all after it: gradients, and what
    tells which parameters were used, are exchanged by C++ from within the backward pass. Their results mean
    nothing then. A broadcast (buffers, the order of buckets) belongs to the forward pass; it raises.

    The first error is in ``error``: what fails after it fails because of it.
    """

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self.error: RuntimeError | None = None
        self._inner: dist.ProcessGroup | None = inner

    def getBackendName(self) -> str:  # noqa: N802 the name that C++ calls
        """Not that of the group inside: from a name PyTorch infers a class."""
        return "tolerant"

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """As that of the group inside, if it goes well."""
        work: dist.Work | None = None
        if self.error is None and self._inner is not None:
            try:
                work = self._inner.allreduce(tensors, *options)
            except RuntimeError as error:
                self.note(error)
        return _TolerantWork(self, work, tensors)

    def broadcast(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """As that of the group inside; waits for its end.

        :raises RuntimeError: it has failed.
        """
        if self._inner is None:
            raise RuntimeError("this worker has left its process group")
        try:
            work = self._inner.broadcast(tensors, *options)
            work.wait()
        except RuntimeError as error:
            self.note(error)
            raise
        return work

    def leave(self) -> None:
        """Let go of the group inside."""
        self._inner = None

    def note(self, error: RuntimeError) -> None:
        """An operation has failed."""
        self.error = self.error or error


class _TolerantWork(dist.Work):
    """An all-reduce of a tolerant group. Without ``work`` it has not begun."""

    def __init__(self, group: TolerantGroup, work: dist.Work | None, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._group, self._work, self._tensors = group, work, tensors

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait for its end, which the group limits."""
        del timeout
        if self._work is not None:
            try:
                self._work.wait()
            except RuntimeError as error:
                self._group.note(error)
        return True

    def get_future(self) -> Future[list[torch.Tensor]]:
        """The tensors, at its end."""
        if self._work is not None:
            return self._work.get_future().then(self._taken)
        future: Future[list[torch.Tensor]] = Future()
        future.set_result(self._tensors)
        return future

    def _taken(self, done: Future[Any]) -> list[torch.Tensor]:
        try:
            done.value()
        except RuntimeError as error:
            self._group.note(error)
        return self._tensors
