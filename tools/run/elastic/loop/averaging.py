"""Sums over the workers of a job, and the buckets in which gradients travel.

:class:`TolerantGroup` adds up tensors and survives the loss of a worker. :class:`Averaging` turns the
gradients of each worker into their mean. It knows nothing of forward passes: it is told which gradients have
changed, and exchanges these.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.membership.rendezvous import EXCHANGING_MODULES
from pliant.tools.run.elastic.membership.switch_step import world
from pliant.tools.run.elastic.torch_internals import backend_of, copy_all

EXCHANGING_MODULES.add(__file__)  # its groups wait for gloo themselves, for example for buffers
_GATHERED_BYTES: Final = 1 << 18
"""Largest tensor, on all workers together, whose all-gather costs less than gloo's all-reduce."""
_FIRST_BUCKET_BYTES: Final = 1 << 20
"""Size of the bucket that is sent first, which must not wait for long."""
_BUCKET_BYTES: Final = 25 << 20
"""Size of the other buckets, as DistributedDataParallel has it."""


class _Summation:
    """The sum of a tensor over two or more workers, in place; it may be made again and again.

    Gloo's all-reduce cuts a tensor up and sends the pieces around the workers, which pays for large ones. Of
    a small tensor each worker gets the others' by one all-gather, with half the messages, and adds them in
    the order of their ranks: so all get the same bits.
    """

    def __init__(self, tensor: torch.Tensor, workers: int) -> None:
        self.tensor = tensor
        self._sent = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
        is_small = is_plain and workers * tensor.nbytes <= _GATHERED_BYTES
        # By rank, the tensor of each worker; none if the tensor is not gathered.
        self._gathered = [torch.empty_like(self._sent) for _ in range(workers)] if is_small else []

    def begin(self, backend: Any) -> dist.Work:
        """Start the exchange, whose end :meth:`complete` follows."""
        work: dist.Work = (
            backend.allgather([self._gathered], [self._sent])
            if self._gathered
            else backend.allreduce([self._sent])
        )
        return work

    @torch.no_grad()
    def complete(self) -> None:
        """To be called once the exchange has succeeded."""
        if self._gathered:
            first, second, *others = self._gathered
            torch.add(first, second, out=self._sent)
            for other in others:
                self._sent.add_(other)


class TolerantGroup:
    """The group of all workers. Where it tolerates the loss of one, an exchange that fails ends quietly.

    So do all after it; their results are meaningless. ``error`` is the first error: later ones follow from
    it. Where it does not (GPUs, plain torchrun), the error is raised.
    """

    def __init__(self, inner: dist.ProcessGroup, *, tolerates: bool = True) -> None:
        self.workers = inner.size()
        self.error: RuntimeError | None = None
        # Seconds that this worker has waited for exchanges.
        self.waited_s = 0.0
        self.tolerates = tolerates
        self._inner: dist.ProcessGroup | None = inner
        # the backend itself: calls skip PyTorch's dispatcher
        self._backends: dict[torch.device, Any] = {}

    def begin(self, summation: _Summation) -> dist.Work | None:
        """Start an exchange, if none has failed."""
        if self.error is not None or self._inner is None:
            return None
        try:
            return summation.begin(self._backend(summation.tensor.device))
        except RuntimeError as error:
            self._fail(error)
            return None

    def end(self, begun: Iterable[tuple[_Summation, dist.Work | None]]) -> bool:
        """Wait for exchanges; False if one has failed."""
        began_s = time.monotonic()
        for summation, work in begun:
            try:
                if work is not None:
                    work.wait()
            except RuntimeError as error:
                self._fail(error)
            else:
                if work is not None and self.error is None:
                    summation.complete()
        self.waited_s += time.monotonic() - began_s
        return self.error is None

    def add_up(self, tensor: torch.Tensor) -> bool:
        """The sum over the workers, in place; False if it has failed."""
        summation = _Summation(tensor, self.workers)
        return self.end([(summation, self.begin(summation))])

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Rank 0's tensors on all workers, in place; False if it has failed."""
        if self.error is not None or self._inner is None:
            return False
        began_s = time.monotonic()
        try:
            for tensor in tensors:
                self._backend(tensor.device).broadcast([tensor]).wait()
        except RuntimeError as error:
            self._fail(error)
        self.waited_s += time.monotonic() - began_s
        return self.error is None

    def leave(self) -> None:
        self._inner = None
        self._backends.clear()

    def _backend(self, device: torch.device) -> Any:
        if device not in self._backends:
            assert self._inner is not None  # noqa: S101 its callers have looked
            self._backends[device] = backend_of(self._inner, device)
        return self._backends[device]

    def _fail(self, error: RuntimeError) -> None:
        if not self.tolerates:
            raise error
        self.error = self.error or error


class _Bucket:
    """Gradients that travel together: their numbers one after the other, then one flag each.

    A flag counts the workers whose gradient has changed. A parameter that no worker's backward pass has
    reached keeps its gradient, or has none, as on one worker.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], workers: int) -> None:
        self.parameters = parameters
        first, count = parameters[0], sum(one.numel() for one in parameters)
        self._flat = torch.zeros(count + len(parameters), dtype=first.dtype, device=first.device)
        self._flags = self._flat[count:]
        ends = torch.tensor([one.numel() for one in parameters]).cumsum(0).tolist()
        self._views = [
            self._flat[end - one.numel() : end].view(one.shape)
            for one, end in zip(parameters, ends, strict=True)
        ]
        self._share = 1.0 / workers
        self.summation = _Summation(self._flat, workers)
        self.changed: set[nn.Parameter] = set()
        self.is_sent = False

    @property
    def whole(self) -> bool:
        """Whether every gradient has changed here."""
        return len(self.changed) == len(self.parameters)

    @torch.no_grad()
    def pack(self) -> None:
        if self.whole:
            copy_all(self._views, self._gradients())
            self._flags.fill_(1)
        else:
            self._flat.zero_()
            for index, one in enumerate(self.parameters):
                if one.grad is not None:
                    self._views[index].copy_(one.grad)
                self._flags[index] = float(one in self.changed)
        self._flat.mul_(self._share)

    @torch.no_grad()
    def unpack(self) -> None:
        if self.whole:
            copy_all(self._gradients(), self._views)
            return
        flags = self._flags.real if self._flags.is_complex() else self._flags
        for one, view, flag in zip(self.parameters, self._views, flags.tolist(), strict=True):
            if flag and one.grad is None:
                one.grad = view.clone()
            elif flag and one.grad is not None:
                one.grad.copy_(view)

    def _gradients(self) -> list[torch.Tensor]:
        return [one.grad for one in self.parameters if one.grad is not None]

    def mark(self) -> None:
        for one in self.parameters:
            if one.grad is not None:
                mark(one.grad)


class _SparseBucket(_Bucket):
    """The gradient of an embedding with ``sparse=True``, which travels alone."""

    def __init__(self, parameters: Sequence[nn.Parameter], workers: int) -> None:
        self.parameters = parameters
        self._share, self._workers = 1.0 / workers, workers
        self.changed, self.is_sent = set(), False

    def pack(self) -> None:
        (one,) = self.parameters
        none = torch.sparse_coo_tensor(
            torch.empty((1, 0), dtype=torch.int64),
            torch.empty((0, *one.shape[1:]), dtype=one.dtype),
            one.shape,
            check_invariants=False,  # as is the default, but PyTorch wants it said
        ).to(one.device)
        gradient = none if one.grad is None else one.grad
        self.summation = _Summation(
            (gradient.to_sparse(1).coalesce() * self._share).coalesce(), self._workers
        )

    def unpack(self) -> None:
        (one,) = self.parameters
        if one.grad is not None or len(self.summation.tensor.coalesce().values()):
            one.grad = self.summation.tensor


def mark(gradient: torch.Tensor) -> None:
    """Note that a gradient is that of all workers, however it is changed in place later."""
    gradient.of_all_workers = True  # type: ignore[attr-defined]


def unmark(gradient: torch.Tensor) -> None:
    if is_marked(gradient):
        del gradient.of_all_workers  # type: ignore[attr-defined]


def is_marked(gradient: torch.Tensor) -> bool:
    return hasattr(gradient, "of_all_workers")


class _Unit:
    """The buckets of one model, which are exchanged together, in a fixed order on all workers."""

    def __init__(self, model: nn.Module, workers: int) -> None:
        self.parameters = list(model.parameters())
        self.sparse = {
            one.weight
            for one in model.modules()
            if isinstance(one, nn.Embedding | nn.EmbeddingBag) and one.sparse
        }
        self._workers = workers
        self.buckets: list[_Bucket] = []
        self.place: dict[torch.Tensor, _Bucket] = {}
        # Number of the bucket whose exchange begins next.
        self.next = 0
        self.add([one for one in self.parameters if one.requires_grad])

    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make buckets for parameters, the last of them first: gradients arrive in about this order."""
        for bucket in _buckets(reversed(list(parameters)), self.sparse, self._workers):
            self.buckets.append(bucket)
            self.place.update(dict.fromkeys(bucket.parameters, bucket))


def _buckets(
    parameters: Iterable[nn.Parameter], sparse: Collection[torch.Tensor], workers: int
) -> list[_Bucket]:
    """Buckets for parameters, in their order within those of one type and device.

    :param sparse: those whose gradients are.
    """
    buckets, kinds = list[_Bucket](), dict[tuple[torch.dtype, torch.device], list[nn.Parameter]]()
    for one in parameters:
        if one in sparse:
            buckets.append(_SparseBucket([one], workers))
        else:
            kinds.setdefault((one.dtype, one.device), []).append(one)
    return buckets + [_Bucket(part, workers) for alike in kinds.values() for part in _parts(alike)]


def _parts(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    part, held_bytes, most_bytes = list[nn.Parameter](), 0, _FIRST_BUCKET_BYTES
    for one in parameters:
        part.append(one)
        held_bytes += one.numel() * one.itemsize
        if held_bytes >= most_bytes:
            yield part
            part, held_bytes, most_bytes = [], 0, _BUCKET_BYTES
    if part:
        yield part


class Averaging:
    """Averages gradients over the workers, one generation after the other.

    If a worker is lost in the middle of a step, ``error`` says so and the author's loop sees no exception. On
    GPUs the loss of a worker is not survived in place, and the exception reaches the author's code.
    """

    def __init__(self) -> None:
        # The pass under way exchanges nothing with other workers: it does not count.
        self.idle = False
        self._group: TolerantGroup | None = None
        self._units: list[_Unit] = []
        # The models with buffers, which all workers have from rank 0.
        self._buffers: list[nn.Module] = []
        self._began: list[tuple[_Unit, _Bucket, dist.Work | None]] = []

    @property
    def begun(self) -> bool:
        return self._group is not None

    @property
    def error(self) -> RuntimeError | None:
        """The error that made the step's gradients void."""
        return None if self._group is None else self._group.error

    @property
    def failed(self) -> bool:
        return self._group is not None and self._group.error is not None

    @property
    def overlaps(self) -> bool:
        """Whether a bucket may be sent while the backward pass goes on to the next one."""
        # buckets of several models could be sent in another order by another worker
        return len(self._units) == 1 and len(self._units[0].buckets) > 1

    def take_waited_s(self) -> float | None:
        """Seconds that this worker has waited for exchanges since the last call.

        Returns None if that is not known: on GPUs the device waits, not this process.
        """
        group = self._group
        if group is None:
            return 0.0
        waited_s, group.waited_s = group.waited_s, 0.0
        return waited_s if group.tolerates else None

    def void(self, error: RuntimeError) -> None:
        if self._group is None or not self._group.tolerates:
            raise error
        self._group.error = self._group.error or error

    def add_up(self, tensors: Iterable[torch.Tensor]) -> bool:
        """The sums over the workers, in place; False if a worker was lost."""
        return self._group is None or all(self._group.add_up(tensor) for tensor in tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Rank 0's tensors on all workers, in place; False if a worker was lost."""
        return self._group is None or self._group.broadcast(tensors)

    def begin(self, models: Iterable[nn.Module], device: torch.device) -> None:
        """Average from now on over the process group, whose workers have the same state."""
        self._begin(models, TolerantGroup(world(), tolerates=device.type != "cuda"))

    def begin_torchrun(self, models: Iterable[nn.Module]) -> None:
        """Average over the process group of plain torchrun's workers, which get rank 0's weights."""
        models = list(models)
        group = TolerantGroup(world(), tolerates=False)
        self._begin(models, group)
        with torch.no_grad():
            group.broadcast([one for model in models for one in (*model.parameters(), *model.buffers())])

    def _begin(self, models: Iterable[nn.Module], group: TolerantGroup) -> None:
        self._group, models = group, list(models)
        self._units = [_Unit(model, group.workers) for model in models]
        self._buffers = [model for model in models if any(True for _ in model.buffers())]

    def end(self) -> None:
        """Stop averaging, and let go of everything that refers to the process group."""
        self._units, self._buffers, self._began = [], [], []
        if self._group is not None:
            self._group.leave()
            self._group = None

    def arrived(self, parameter: nn.Parameter) -> None:
        """A gradient has arrived in the backward pass under way: begin to send what is complete."""
        if self._group is None:
            return
        for unit in self._units:
            if (bucket := unit.place.get(parameter)) is not None:
                if bucket.is_sent:
                    raise UsageError(
                        "a parameter got gradients twice in one backward pass, as shared weights do under "
                        "re-entrant activation checkpointing: use checkpoint(..., use_reentrant=False)"
                    )
                bucket.changed.add(parameter)
                while unit.next < len(unit.buckets) and unit.buckets[unit.next].whole:
                    self._send(unit)
                return

    def exchange(self, changed: Sequence[nn.Parameter], *, buffers: bool) -> None:
        """Average the gradients that have changed on any worker; all workers call it together.

        The mean is linear: a gradient that was averaged before and has since been added to is exchanged as a
        whole.

        :param buffers: whether to take rank 0's buffers, too.
        """
        group = self._group
        if group is None:
            return
        for unit in self._units:
            mine = [one for one in changed if one in unit.place]
            for one in mine:
                unit.place[one].changed.add(one)
            if mine:
                while unit.next < len(unit.buckets):
                    self._send(unit)
        if any(not any(one in unit.place for unit in self._units) for one in changed):
            self._take_unfrozen(changed)
        began, self._began = self._began, []
        if group.end((bucket.summation, work) for _, bucket, work in began):
            for _, bucket, _ in began:
                bucket.unpack()
                bucket.mark()
        for unit, bucket, _ in began:
            bucket.changed.clear()
            bucket.is_sent, unit.next = False, 0
        if buffers and self._buffers:
            self._take_buffers(group)

    def _take_unfrozen(self, changed: Sequence[nn.Parameter]) -> None:
        """Make buckets for parameters that were frozen when the workers met, the same on all workers."""
        here = set(changed)
        for unit in self._units:
            new = [one for one in unit.parameters if one.requires_grad and one not in unit.place]
            unit.add(new)
            for one in new:
                if one in here:
                    unit.place[one].changed.add(one)
            while new and unit.next < len(unit.buckets):
                self._send(unit)

    def exchange_now(self, changed: Sequence[nn.Parameter], every: Sequence[nn.Parameter]) -> None:
        """Average gradients that no backward pass has brought, outside of their buckets.

        :param changed: those that this worker has; ``every``: all parameters, in the same order on all.
        """
        group, mine = self._group, set(changed)
        if group is None:
            return
        flags = torch.tensor([one in mine for one in every], dtype=torch.int32)
        if not group.add_up(flags):
            return
        sparse = {one for unit in self._units for one in unit.sparse}
        on_any = [one for one, count in zip(every, flags.tolist(), strict=True) if count]
        buckets, begun = _buckets(on_any, sparse, group.workers), []
        for bucket in buckets:
            bucket.changed.update(one for one in bucket.parameters if one in mine)
            bucket.pack()
            begun.append((bucket.summation, group.begin(bucket.summation)))
        if group.end(begun):
            for bucket in buckets:
                bucket.unpack()
                bucket.mark()

    def _send(self, unit: _Unit) -> None:
        assert self._group is not None  # noqa: S101 its callers have looked
        bucket = unit.buckets[unit.next]
        unit.next += 1
        bucket.is_sent = True
        bucket.pack()
        self._began.append((unit, bucket, self._group.begin(bucket.summation)))

    @torch.no_grad()
    def _take_buffers(self, group: TolerantGroup) -> None:
        buffers = [one for model in self._buffers for one in model.buffers() if one.numel()]
        alike: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for one in buffers:
            alike.setdefault((one.dtype, one.device), []).append(one)
        for some in alike.values():
            flat = torch.cat([one.detach().flatten() for one in some])
            if not group.broadcast([flat.view(torch.uint8)]):  # not every type can be sent
                return
            for one, part in zip(some, flat.split([one.numel() for one in some]), strict=True):
                one.copy_(part.view(one.shape))
