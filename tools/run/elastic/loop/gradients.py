"""The gradients of a step, and the models as the author's script holds them.

The gradients are weighted, collected over micro-steps and averaged over the workers. The result is the mean
over the global batch, however it is divided. :class:`Gradients` weighs and collects on one worker.
:class:`Averaging` averages over the workers, which come and go, and :class:`ElasticDataParallel` is the model
as the author's script holds it. A worker that is lost in the middle of a step makes the step void:
:class:`TolerantGroup` keeps the error from the author's backward pass, and :class:`StepStart` restores what
the forward pass has changed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import MicroBatch
from pliant.tools.run.elastic.membership.agreement import world
from pliant.tools.run.elastic.membership.rendezvous import EXCHANGING_MODULES

EXCHANGING_MODULES.add(__file__)  # its groups wait for gloo themselves, for example for buffers
_not_compiled: Final = torch._disable_dynamo  # that of torch.compiler would import the compiler at once
"""For what ``torch.compile`` must not look into: it is about workers, which come and go."""
_left_out_of_compiling: Final = torch._disable_dynamo(recursive=False)
"""The same, but what is called inside is compiled: the author's model."""
_NO_LIMIT: Final = timedelta(milliseconds=-1)
_LARGE_BYTES: Final = 1 << 16
_GATHERED_BYTES: Final = 1 << 18
"""Of a tensor on all workers together: up to here an all-gather costs less than gloo's all-reduce."""


class Gradients:
    """Weighs and collects the gradients of a job's models.

    The weight of a micro-batch multiplies every gradient as it arrives at its parameter. If all shares are
    equal, the weights are 1 and there are no hooks. With accumulation, gradients of earlier micro-steps are
    kept aside and added in the last one before it is reduced. The loop body never sees a partial sum, so
    zeroing and clipping in every pass do no harm. Skipped batches count as zero.

    Where several optimizers take turns in a step, only the gradients of the part that is ``selected`` are
    collected: the others are of a pass that is repeated for them.
    """

    def __init__(self, model: nn.Module, *, accumulates: bool = False) -> None:
        self._all = list(model.parameters())
        self._trained: list[bool] = []
        """Of each parameter, whether it is trained."""
        self._accumulates = False
        self._ddps: tuple[DistributedDataParallel, ...] = ()
        self._weight = 1.0
        self.selected = True
        self._last = True
        self._joining = False
        self._aside: dict[torch.Tensor, torch.Tensor] = {}
        self._weighing: list[RemovableHandle] = []
        self._collecting: list[RemovableHandle] = []
        self.bind((), accumulates=accumulates)

    def bind(self, ddps: Iterable[DistributedDataParallel], *, accumulates: bool) -> None:
        """:param ddps: what averages over the workers from now on; none for one worker."""
        self.forget()
        self._accumulates = accumulates
        self.follow(ddps)

    def trained_differ(self) -> bool:
        """Whether the author has frozen or unfrozen parameters since the last :meth:`follow`."""
        return self._trained != [parameter.requires_grad for parameter in self._all]

    def follow(self, ddps: Iterable[DistributedDataParallel]) -> None:
        """Weigh and collect what is trained now; a step may be under way."""
        self._ddps = tuple(ddps)
        self._trained = [parameter.requires_grad for parameter in self._all]
        for ddp in self._ddps:
            ddp.require_backward_grad_sync = self._last
        for handle in self._collecting:
            handle.remove()
        self._collecting = [
            parameter.register_post_accumulate_grad_hook(self._collect)
            for parameter in self._parameters()
            if self._accumulates
        ]
        self._hook(self._weigh if self._weighing else None)

    def begin(self, micro: MicroBatch) -> None:
        self._weight, self._last = micro.weight, micro.last
        self._joining = False
        # setting an attribute of a module takes as long as a small layer
        for ddp in self._ddps:
            if ddp.require_backward_grad_sync != micro.last:
                ddp.require_backward_grad_sync = micro.last
        if (micro.weight != 1.0) != bool(self._weighing):
            self._hook(self._weigh if micro.weight != 1.0 else None)

    def join_rest(self) -> None:
        """Give parameters that the last micro-batch did not reach their gradients of earlier ones.

        :raises UsageError: there are several workers, which would have to reduce them.
        """
        if self._aside and self._ddps:
            raise UsageError(
                f"{len(self._aside)} parameters had gradients in earlier micro-steps but not in the last: "
                "with several workers and accumulation every micro-batch must reach the same parameters"
            )
        if self._aside:
            self._join()

    def _join(self) -> None:
        self._joining = False
        for parameter, gradient in self._aside.items():
            parameter.grad = gradient
        self._aside.clear()

    def forget(self) -> None:
        self._aside.clear()

    def _hook(self, hook: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        for handle in self._weighing:
            handle.remove()
        self._weighing = (
            [] if hook is None else [parameter.register_hook(hook) for parameter in self._parameters()]
        )

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._all if parameter.requires_grad]

    def _weigh(self, gradient: torch.Tensor) -> torch.Tensor:
        # zero times infinity is not zero
        return gradient * self._weight if self._weight else torch.zeros_like(gradient)

    def _collect(self, parameter: torch.Tensor) -> None:
        if not self.selected:
            return
        before = self._aside.pop(parameter, None)
        if before is not None and parameter.grad is not None:
            parameter.grad.add_(before)
        if not self._last and parameter.grad is not None:
            self._aside[parameter] = parameter.grad
            parameter.grad = None
        if self._last and not self._ddps and not self._joining:
            # before the loop body goes on to unscale or clip
            self._joining = True
            at_end_of_backward(self._join)


def at_end_of_backward(action: Callable[[], None]) -> None:
    """Call ``action`` when the current backward pass has reached every parameter."""
    engine: Any = torch.autograd.Variable._execution_engine  # no public way
    engine.queue_callback(action)


class Averaging:
    """Averages gradients over the workers, one generation after the other.

    If a worker is lost in the middle of a step, ``error`` says so and the author's loop sees no exception. On
    GPUs the loss of a worker is not survived in place, and the exception reaches the author's code.
    """

    def __init__(self, gradients: Gradients | None = None, *, find_unused_parameters: bool = False) -> None:
        """:param gradients: of the model, to be weighed; None if all workers have equal shares."""
        self.ddps: dict[nn.Module, DistributedDataParallel] = {}
        """By model; one that has nothing to train has none."""
        self.idle = False
        """The pass under way exchanges nothing with other workers: it does not count."""
        self._models: tuple[nn.Module, ...] = ()
        self._gradients, self._find_unused = gradients, find_unused_parameters
        self._group: TolerantGroup | None = None
        self._device = torch.device("cpu")
        self.training: Callable[[], None] = lambda: None
        """Called before the model is, where gradients are recorded."""

    @property
    def error(self) -> RuntimeError | None:
        """The error that made the step's gradients void."""
        return None if self._group is None else self._group.error

    @property
    def failed(self) -> bool:
        return self._group is not None and self._group.error is not None

    def take_waited_s(self) -> float | None:
        """Seconds that this worker has waited for exchanges since the last call.

        Returns None if that is not known: on GPUs the device waits, not this process.
        """
        if self._group is None:
            return None if self.begun else 0.0
        waited_s, self._group.waited_s = self._group.waited_s, 0.0
        return waited_s

    @property
    def begun(self) -> bool:
        return bool(self._models)

    def void(self, error: RuntimeError) -> None:
        if self._group is None:
            raise error
        self._group.error = self._group.error or error

    def add_up(self, tensors: Iterable[torch.Tensor]) -> bool:
        """The sums over the workers, in place; False if a worker was lost."""
        if not self.begun:
            return True
        for tensor in tensors:
            if self._group is None:
                dist.all_reduce(tensor)
            elif not self._group.add_up(tensor):
                return False
        return True

    def begin(self, models: Iterable[nn.Module], device: torch.device) -> None:
        """Average from now on over the process group, whose workers have the same state."""
        self._device, self._models = device, tuple(models)
        self._group = None if device.type == "cuda" else TolerantGroup(world())
        self._wrap(init_sync=False)

    def begin_plainly(self, models: Iterable[nn.Module], device: torch.device) -> None:
        """Average over the process group of plain torchrun's workers, which get rank 0's weights."""
        self._device, self._models = device, tuple(models)
        self._wrap(init_sync=True)

    def follow_trained(self) -> None:
        """Average what is trained now: the author may have frozen or unfrozen parameters.

        All workers do so at the same place.
        """
        if self._gradients is None or not self._gradients.trained_differ():
            return
        if self._models:
            self._unwrap()
            self._wrap(init_sync=False)
        self._gradients.follow(self.ddps.values())

    def end(self) -> None:
        """Stop averaging, and let go of everything that refers to the process group."""
        self._unwrap()
        self._models = ()
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _wrap(self, *, init_sync: bool) -> None:
        for model in self._models:
            if not any(parameter.requires_grad for parameter in model.parameters()):
                continue
            ddp = self.ddps[model] = _Tolerant(
                model,
                [self._device] if self._device.type == "cuda" else None,
                process_group=self._group,
                find_unused_parameters=self._find_unused,
                init_sync=init_sync,
            )
            ddp.averaging = self

    def _unwrap(self) -> None:
        for ddp in self.ddps.values():
            # at once, not by the garbage collector: they keep sockets open
            del ddp.reducer, ddp.logger
        self.ddps.clear()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Averaging:
        """A copy of the model averages nothing."""
        return Averaging(find_unused_parameters=self._find_unused)

    def __reduce__(self) -> tuple[Any, ...]:
        """Neither does a pickled model."""
        return Averaging, ()


class ElasticDataParallel(nn.Module):
    """The author's model on one worker; ``module`` is the model itself.

    Attributes that it lacks are the model's, and so are the names in its state: a script finds the same ones
    however it was started. While gradients are not recorded (validation), it takes part in no collective
    operation.
    """

    def __init__(self, module: nn.Module, averaging: Averaging) -> None:
        super().__init__()
        self.module = module
        self.averaging = averaging  # the last of its own attributes
        self.register_load_state_dict_pre_hook(_with_module)  # type: ignore[no-untyped-call]

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        return self.module.state_dict(*arguments, **named)

    def named_parameters(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*arguments, **named)

    def named_buffers(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.module.named_buffers(*arguments, **named)

    def named_modules(self, *arguments: Any, **named: Any) -> Any:
        return self.module.named_modules(*arguments, **named)

    @_left_out_of_compiling
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._now()(*inputs, **named)

    @_not_compiled
    def _now(self) -> nn.Module:
        """What to call at the moment: the model alone, or among the other workers."""
        # the attribute would take several calls
        module: nn.Module = self._modules["module"]  # type: ignore[assignment]
        if not torch.is_grad_enabled():
            return module
        averaging = self.averaging
        averaging.training()
        averaging.follow_trained()
        ddp = averaging.ddps.get(module)
        return module if ddp is None or averaging.idle or averaging.failed else ddp

    def __setattr__(self, name: str, value: Any) -> None:
        own = "averaging" not in self.__dict__ or name in self.__dict__ or name.startswith("_")
        if own or name == "module":
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    def __getitem__(self, key: Any) -> Any:
        return cast("Any", self.module)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(cast("Any", self.module))

    def no_sync(self) -> AbstractContextManager[None]:
        """As in DistributedDataParallel."""
        ddp = self.averaging.ddps.get(self.module)
        return nullcontext() if ddp is None else ddp.no_sync()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def _with_module(_: nn.Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
    """PyTorch loads a state by the names of attributes, of which ``module`` is one."""
    del others
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}module.{name[len(prefix) :]}"] = state.pop(name)


class _Tolerant(DistributedDataParallel):
    """Survives the loss of a worker in an exchange before the forward pass."""

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


class _Summation:
    """The sum of a tensor over two or more workers, in place; it may be made again and again.

    Gloo's all-reduce cuts a tensor up and sends the pieces around the workers, which pays for large ones. Of
    a small tensor each worker gets the others' by one all-gather, with half the messages, and adds them in
    the order of their ranks: so all get the same bits.
    """

    def __init__(self, tensor: torch.Tensor, workers: int) -> None:
        self.tensor = tensor
        can_be_gathered = tensor.layout is torch.strided and not tensor.is_complex()
        is_small = can_be_gathered and workers * tensor.nbytes <= _GATHERED_BYTES
        self._gathered = [torch.empty_like(tensor) for _ in range(workers)] if is_small else []
        """By rank, the tensor of each worker; none if the tensor is not gathered."""

    def begin(self, backend: Any) -> dist.Work:
        """Start the exchange, whose end :meth:`complete` follows."""
        work: dist.Work = (
            backend.allgather([self._gathered], [self.tensor])
            if self._gathered
            else backend.allreduce([self.tensor])
        )
        return work

    @torch.no_grad()
    def complete(self) -> None:
        """To be called once the exchange has succeeded."""
        if self._gathered:
            first, second, *others = self._gathered
            torch.add(first, second, out=self.tensor)
            for other in others:
                self.tensor.add_(other)


class TolerantGroup(dist.ProcessGroup):
    """The group of all workers, as DistributedDataParallel uses it: its all-reduces are sums.

    An all-reduce that fails ends as if nothing had happened, and so do all after it, because C++ calls them
    from within the backward pass (for gradients, and for which parameters were used). Their results are
    meaningless then. A broadcast (buffers, the order of buckets) belongs to the forward pass; it raises.

    ``error`` is the first error: later ones follow from it.
    """

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self.error: RuntimeError | None = None
        self.waited_s = 0.0
        """Seconds that this worker has waited for exchanges."""
        self._inner: Any = inner._get_backend(torch.device("cpu"))
        """The backend itself: calls skip PyTorch's dispatcher."""
        self._task: int | None = None
        """The backward pass at whose end everything awaited will be through."""
        self._awaited: list[tuple[_Summation, dist.Work]] = []
        self._answers: list[_Sum] = []
        """For each all-reduce of a backward pass, in order: the next pass has the same ones."""

    def getBackendName(self) -> str:  # noqa: N802 the name that C++ calls
        """Not the backend's: PyTorch infers a class from the name."""
        return "tolerant"

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        del options  # DDP asks for sums only
        answer = self._answer(len(self._awaited), tensors[0])
        if self.error is None and self._inner is not None:
            try:
                work = answer.summation.begin(self._inner)
            except RuntimeError as error:
                self.error = self.error or error
            else:
                self._expect(answer.summation, work)
        return answer

    def broadcast(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:  # type: ignore[override]
        """Waits for its end.

        :raises RuntimeError: it has failed.
        """
        if self._inner is None:
            raise RuntimeError("this worker has left its process group")
        began_s = time.monotonic()
        try:
            work: dist.Work = self._inner.broadcast(tensors, *options)
            work.wait()
        except RuntimeError as error:
            self.error = self.error or error
            raise
        self.waited_s += time.monotonic() - began_s
        return work

    def add_up(self, tensor: torch.Tensor) -> bool:
        """The sum over the workers, in place and outside of a backward pass; False if it has failed."""
        if self.error is None and self._inner is not None:
            began_s, summation = time.monotonic(), _Summation(tensor, self.size())
            try:
                summation.begin(self._inner).wait()
            except RuntimeError as error:
                self.error = self.error or error
            else:
                summation.complete()
            self.waited_s += time.monotonic() - began_s
        return self.error is None

    def _expect(self, summation: _Summation, work: dist.Work) -> None:
        """Wait for an all-reduce once the backward pass has reached every parameter: then DDP needs it.

        A callback of the exchange would run in a thread of gloo, which costs more than a small exchange.
        """
        task = torch._C._current_graph_task_id()
        if task != self._task:
            # a pass within another one (activation checkpointing) may be the one after which DDP takes all
            self._task = task
            if task >= 0:
                # runs before DDP's own callback, which reads the sums: DDP queues it after the last bucket
                at_end_of_backward(self.wait)
        self._awaited.append((summation, work))
        if task < 0:
            self.wait()

    def wait(self) -> None:
        self._task = None
        awaited, self._awaited = self._awaited, []
        began_s = time.monotonic()
        for summation, work in awaited:
            try:
                work.wait()
            except RuntimeError as error:
                self.error = self.error or error
            else:
                summation.complete()
        self.waited_s += time.monotonic() - began_s

    def _answer(self, place: int, tensor: torch.Tensor) -> _Sum:
        """DDP's handle of an all-reduce: reused from the pass before, because making one is expensive.

        :param place: how many all-reduces of the pass come before it.
        """
        answers = self._answers
        if place >= len(answers) or answers[place].summation.tensor is not tensor:
            answers[place:] = [_Sum(self, tensor)]  # later ones were for other buckets, too
        return answers[place]

    def leave(self) -> None:
        self._inner = None
        self._awaited.clear()
        self._answers.clear()


class _Sum(dist.Work):
    """A tolerant group's handle of an all-reduce."""

    def __init__(self, group: TolerantGroup, tensor: torch.Tensor) -> None:
        super().__init__()
        self.summation = _Summation(tensor, group.size())
        self._group = weakref.ref(group)  # with a cycle the group would outlive its workers
        # set as C++ would set it, by what torch.jit.fork calls, without a thread. A future that Python sets
        # holds a Python object, which C++ pickles to find the tensor
        self._future: Any = torch._C.fork(lambda: tensor)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        del timeout  # the group limits the time
        if (group := self._group()) is not None:
            group.wait()
        return True

    def get_future(self) -> Future[torch.Tensor]:
        """The tensor, set at once: the backward pass waits for the exchange before DDP reads it."""
        return cast("Future[torch.Tensor]", self._future)


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
    def put_back(self) -> None:
        owned = self.owner._buffers.get(self.name) is self.buffer
        if owned and self.constant and self._looks_untouched():
            return
        whole = self.buffer.shape == self.values.shape
        self.owner._buffers[self.name] = self.buffer.copy_(self.values) if whole else self.values

    def _looks_untouched(self) -> bool:
        return self.writes >= 0 and self.writes == _writes(self.buffer)


class StepStart:
    """The buffers of a model (running statistics) and PyTorch's generator, as they were when a step began.

    The generators of NumPy and Python are not kept: reading their states takes too long for small steps, and
    forward passes seldom draw from them.
    """

    def __init__(self) -> None:
        self._watches = False
        self._owners: list[nn.Module] = []
        self._held: dict[tuple[nn.Module, str], _Held] = {}
        self._generator: torch.Tensor | None = None

    def watch(self, model: nn.Module | None) -> None:
        """Keep the start of each step of this model from now on; None if no step can be void."""
        self._watches = model is not None
        self._owners = [] if model is None else [module for module in model.modules() if module._buffers]
        self._held = {}

    def note(self) -> None:
        if self._watches:
            # what torch.get_rng_state does, without its wrapper, which takes longer
            self._generator = torch.default_generator.get_state()
            self._held = {
                (owner, name): self._noted(owner, name, buffer)
                for owner in self._owners
                for name, buffer in owner._buffers.items()
                if buffer is not None
            }

    def put_back_buffers(self) -> None:
        """The step is void, and its workers may pass on their state next."""
        for held in self._held.values():
            held.put_back()

    def put_back_generator(self) -> None:
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


def _writes(buffer: torch.Tensor) -> int:
    """PyTorch's count of the writes to a large buffer; -1 if it is small, or nothing is counted."""
    size = buffer.numel() * buffer.itemsize
    if size < _LARGE_BYTES or buffer.is_inference() or buffer.layout != torch.strided:
        return -1
    return buffer._version
