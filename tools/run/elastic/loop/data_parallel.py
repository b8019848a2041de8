"""The model as the author's script holds it while the workers around it come and go.

A process group that keeps its errors to itself where an exception would end the author's backward pass.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from pliant.tools.run.elastic.loop.gradients import Gradients, at_end_of_backward
from pliant.tools.run.elastic.membership.vote import world

_not_compiled: Final = torch._disable_dynamo  # that of torch.compiler would import the compiler at once
"""For what ``torch.compile`` is not to look into: it is about workers, which come and go."""
_left_out_of_compiling: Final = torch._disable_dynamo(recursive=False)
"""The same, but what is called in it is compiled: the author's model."""


class Averaging:
    """Gradients averaged over the workers of one generation after the other.

    Where a worker is lost in the middle of a step, the step's gradients are void: ``error`` says so, the
    backward pass ends as if nothing had happened, and the author's loop never sees an exception. On GPUs a
    lost worker is not survived in place, and the exception is the author's to see.
    """

    def __init__(self, gradients: Gradients | None = None, *, find_unused_parameters: bool = False) -> None:
        """:param gradients: of the model, to be weighed; None: all workers have equal shares."""
        self.ddp: DistributedDataParallel | None = None
        self._gradients, self._find_unused = gradients, find_unused_parameters
        self._group: TolerantGroup | None = None
        self._device = torch.device("cpu")
        self.training: Callable[[], None] = lambda: None
        """Called before the model is, where gradients are recorded."""

    @property
    def error(self) -> RuntimeError | None:
        """What made the step's gradients void."""
        return None if self._group is None else self._group.error

    @property
    def failed(self) -> bool:
        """Whether the step's gradients are void."""
        return self._group is not None and self._group.error is not None

    def void(self, error: RuntimeError) -> None:
        """The step's gradients are void: a worker was lost."""
        if self._group is None:
            raise error
        self._group.error = self._group.error or error

    def begin(self, module: nn.Module, device: torch.device) -> None:
        """Average from now on over the process group, whose workers have the same state."""
        self._device = device
        self._group = None if device.type == "cuda" else TolerantGroup(world())
        self._wrap(module, init_sync=False)

    def begin_plainly(self, module: nn.Module, device: torch.device) -> None:
        """Average over the process group of torchrun's workers, which get rank 0's weights."""
        self._device = device
        self._wrap(module, init_sync=True)

    def follow_trained(self) -> None:
        """Average what is trained now: the author may have frozen or unfrozen parameters.

        All workers do it at the same place.
        """
        if self._gradients is None or not self._gradients.trained_differ():
            return
        if self.ddp is not None:
            module = self.ddp.module
            self._unwrap()
            self._wrap(module, init_sync=False)
        self._gradients.follow(self.ddp)

    def end(self) -> None:
        """Average no more. All that holds on to the process group is let go of."""
        self._unwrap()
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _wrap(self, module: nn.Module, *, init_sync: bool) -> None:
        self.ddp = _Tolerant(
            module,
            [self._device] if self._device.type == "cuda" else None,
            process_group=self._group,
            find_unused_parameters=self._find_unused,
            init_sync=init_sync,
        )
        self.ddp.averaging = self

    def _unwrap(self) -> None:
        if self.ddp is not None:
            # at once, without waiting for the garbage collector: sockets hang on it
            del self.ddp.reducer, self.ddp.logger
            self.ddp = None

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Averaging:
        """What a copy of the model gets: it averages nothing."""
        return Averaging(find_unused_parameters=self._find_unused)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled model leaves its workers behind, too."""
        return Averaging, ()


class ElasticDataParallel(nn.Module):
    """One worker's copy of the author's model; ``module`` is the model itself.

    Attributes that it does not have are the model's. Where gradients are not recorded (validation), it takes
    part in no collective operation.
    """

    def __init__(self, module: nn.Module, averaging: Averaging) -> None:
        super().__init__()
        self.module = module
        self.averaging = averaging

    @_left_out_of_compiling
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The model's own."""
        return self._now()(*inputs, **named)

    @_not_compiled
    def _now(self) -> nn.Module:
        """What the model is at the moment, alone or among the other workers."""
        if not torch.is_grad_enabled():
            return self.module
        self.averaging.training()
        self.averaging.follow_trained()
        ddp = self.averaging.ddp
        return self.module if ddp is None or self.averaging.failed else ddp

    def no_sync(self) -> AbstractContextManager[None]:
        """As that of DistributedDataParallel."""
        ddp = self.averaging.ddp
        return contextlib.nullcontext() if ddp is None else ddp.no_sync()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class _Tolerant(DistributedDataParallel):
    """Survives the loss of a worker in what it exchanges before the forward pass."""

    averaging: Averaging

    @_left_out_of_compiling
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    @_not_compiled
    def _post_forward(self, output: Any) -> Any:
        return super()._post_forward(output)  # type: ignore[no-untyped-call]

    @_not_compiled
    def _pre_forward(self, *inputs: Any, **named: Any) -> Any:
        try:
            return super()._pre_forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError:
            if not self.averaging.failed:
                raise
            return inputs, named


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
