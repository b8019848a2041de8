"""A process group that keeps its errors to itself where an exception would end the author's backward pass."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch.futures import Future

from pliant.tools.run.elastic.loop.gradients import at_end_of_backward

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
        self._inner: Any = inner._get_backend(torch.device("cpu"))
        """What the group inside would hand all this to, by way of PyTorch's dispatcher."""
        self._task: int | None = None
        """The backward pass at whose end all that is awaited will be through."""
        self._awaited: list[dist.Work] = []
        self._answers: list[_Sum] = []
        """To each all-reduce of a backward pass, in order: the next pass has the same ones."""

    def getBackendName(self) -> str:  # noqa: N802 the name that C++ calls
        """Not that of the group inside: from a name PyTorch infers a class."""
        return "tolerant"

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """As that of the group inside, if it goes well."""
        answer = self._answer(len(self._awaited), tensors[0])
        if self.error is None and self._inner is not None:
            try:
                work = self._inner.allreduce(tensors, *options)
            except RuntimeError as error:
                self.error = self.error or error
            else:
                self._expect(work)
        return answer

    def broadcast(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """As that of the group inside; waits for its end.

        :raises RuntimeError: it has failed.
        """
        if self._inner is None:
            raise RuntimeError("this worker has left its process group")
        try:
            work: dist.Work = self._inner.broadcast(tensors, *options)
            work.wait()
        except RuntimeError as error:
            self.error = self.error or error
            raise
        return work

    def _expect(self, work: dist.Work) -> None:
        """An all-reduce has begun: wait for it once the backward pass has reached every parameter.

        That is when DDP needs it. A callback when the exchange is through would run in a thread of gloo,
        which costs more than the exchange itself where models are small.
        """
        task = torch._C._current_graph_task_id()
        if task != self._task:
            # a pass within another one (activation checkpointing) may be the one after which DDP takes all
            self._task = task
            if task >= 0:
                # it comes before DDP's own, which reads the sums: that is asked for after the last bucket
                at_end_of_backward(self.wait)
        self._awaited.append(work)
        if task < 0:
            self.wait()

    def wait(self) -> None:
        """Wait for the end of every all-reduce that has begun."""
        self._task = None
        awaited, self._awaited = self._awaited, []
        for work in awaited:
            try:
                work.wait()
            except RuntimeError as error:
                self.error = self.error or error

    def _answer(self, place: int, tensor: torch.Tensor) -> _Sum:
        """What DDP gets for an all-reduce: what it got for it in the pass before, making one costs more.

        :param place: number of all-reduces of the pass before it.
        """
        answers = self._answers
        if place >= len(answers) or answers[place].tensor is not tensor:
            answers[place:] = [_Sum(self, tensor)]  # those after it were of other buckets, too
        return answers[place]

    def leave(self) -> None:
        """Let go of the group inside."""
        self._inner = None
        self._awaited.clear()
        self._answers.clear()


class _Sum(dist.Work):
    """What a tolerant group answers to an all-reduce of a tensor, each time."""

    def __init__(self, group: TolerantGroup, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = tensor
        self._group = weakref.ref(group)  # with a cycle the group would outlive its workers
        # set as C++ would set it, by what torch.jit.fork calls: no thread. One that Python sets holds a
        # Python object, of which C++ makes a pickle to find the tensor
        self._future: Any = torch._C.fork(lambda: tensor)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait for its end and that of all before it, which the group inside limits."""
        del timeout
        if (group := self._group()) is not None:
            group.wait()
        return True

    def get_future(self) -> Future[torch.Tensor]:
        """The tensor, set at once: before DDP reads it the backward pass waits for the exchange."""
        return cast("Future[torch.Tensor]", self._future)
