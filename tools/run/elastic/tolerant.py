"""A process group that keeps its errors to itself where an exception would end the author's backward pass."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.futures import Future

from pliant.tools.run.elastic.gradients import at_end_of_backward

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
        self._task: int | None = None
        """The backward pass at whose end all that is awaited will be through."""
        self._awaited: list[tuple[dist.Work, Future[list[torch.Tensor]], list[torch.Tensor]]] = []

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

    def at_end_of_backward(self, work: dist.Work, tensors: list[torch.Tensor]) -> Future[list[torch.Tensor]]:
        """The tensors, once the backward pass has reached every parameter and then waited for the exchange.

        That is when DDP needs them. A callback when the exchange is through would run in a thread of gloo,
        which costs more than the exchange itself where models are small.
        """
        future: Future[list[torch.Tensor]] = Future()
        task = torch._C._current_graph_task_id()
        if task < 0:
            work.wait()
            future.set_result(tensors)
            return future
        if task != self._task:
            # a pass within another one (activation checkpointing) may be the one after which DDP takes all
            self._task = task
            at_end_of_backward(self._wait)
        self._awaited.append((work, future, tensors))
        return future

    def _wait(self) -> None:
        self._task = None
        awaited, self._awaited = self._awaited, []
        for work, future, tensors in awaited:
            work.wait()
            future.set_result(tensors)

    def leave(self) -> None:
        """Let go of the group inside."""
        self._inner = None
        self._awaited.clear()

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
        """The tensors, at the end of the backward pass, which waits for the exchange."""
        return self._group.at_end_of_backward(self, self._tensors)
