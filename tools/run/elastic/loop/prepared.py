"""What a script gives ``job.prepare``: models, optimizers and a dataset, in any order, by name or without.

Optimizers, schedulers and scalers then act once per step, though each micro-step's pass calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from types import MethodType
from typing import Any, Final, Self
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils.hooks import RemovableHandle

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.state.training import Models, Stateful

_WHOLE: Final = "; every worker has a whole copy of the model"
_WRAPPERS: Final = (
    ("torch.nn.parallel.distributed.", "DistributedDataParallel: job.prepare makes it"),
    ("torch.nn.parallel.data_parallel.", "DataParallel: each worker has one device"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel.", f"FullyShardedDataParallel{_WHOLE}"),
    ("torch.distributed.fsdp.FSDPModule", f"fully_shard{_WHOLE}"),
    ("accelerate.", "Accelerator: job.prepare takes the place of its prepare"),
    ("deepspeed.", f"deepspeed.initialize{_WHOLE}"),
)
"""Beginnings of the qualified names of wrappers, and what to leave out for each."""
_OWN: Final = "the library decides it, leave it out"
_OF_LOADERS: Final = {
    "batch_size": "give it to elastic.init, for all workers together",
    "batch_sampler": "give its sampler, and elastic.init the batch_size",
    "generator": "elastic.init(seed=…) fixes the order",
    "pin_memory": "batches are pinned where workers train on GPUs, leave it out",
    "worker_init_fn": "loading processes are seeded by the job's seed, leave it out",
    **dict.fromkeys(
        ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context", "in_order"), _OWN
    ),
    "pin_memory_device": _OWN,
}
"""Arguments of a DataLoader that ``job.prepare`` does not have, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The objects by kind and name; a name is "model", "optimizer", "optimizer-2" … if none was given."""

    order: tuple[tuple[str, str], ...]
    """Kind and name of each, as they were given."""
    models: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    dataset: Any = None

    @classmethod
    def sorted_out(cls, objects: Sequence[Any], named: Mapping[str, Any], device: torch.device) -> Self:
        """:raises UsageError: there is no model or no optimizer, or an object of another kind."""
        for name in named.keys() & _OF_LOADERS.keys():
            if not isinstance(named[name], nn.Module | Optimizer):
                raise UsageError(f"job.prepare takes no {name}: {_OF_LOADERS[name]}")
        order: list[tuple[str, str]] = []
        by_kind: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "dataset": {}}
        seen = Counter[str]()
        for own, one in [*(("", one) for one in objects), *named.items()]:
            kind = _kind(own, one)
            seen[kind] += not own
            name = own or (kind if seen[kind] == 1 else f"{kind}-{seen[kind]}")
            by_kind[kind][name] = one.to(device) if kind == "model" else one
            order.append((kind, name))
        for kind in ("model", "optimizer"):
            if not by_kind[kind]:
                raise UsageError(f"job.prepare got no {kind}: call job.prepare(model, optimizer, dataset)")
        if any(
            isinstance(one, UninitializedParameter)
            for model in by_kind["model"].values()
            for one in model.parameters()
        ):
            raise UsageError("a lazy module has no shape yet: call the model once before job.prepare")
        if len(by_kind["dataset"]) > 1:
            raise UsageError("job.prepare got several datasets: evaluate with a DataLoader")
        return cls(
            tuple(order),
            by_kind["model"],
            by_kind["optimizer"],
            next(iter(by_kind["dataset"].values()), None),
        )

    @property
    def together(self) -> nn.Module:
        """The only model itself, or all of them."""
        return next(iter(self.models.values())) if len(self.models) == 1 else Models(self.models)

    def in_order(self, models: Mapping[str, nn.Module], loader: object) -> tuple[Any, ...]:
        """What ``job.prepare`` returns."""
        made = {"model": models, "optimizer": self.optimizers}
        return tuple(made[kind][name] if kind in made else loader for kind, name in self.order)


def _kind(name: str, one: object) -> str:
    if wrapper := _wrapper(one):
        raise UsageError(f"the elastic library connects the workers: leave out {wrapper}")
    if isinstance(one, nn.Module):
        return "model"
    if isinstance(one, Optimizer):
        return "optimizer"
    if isinstance(one, Stateful) and not hasattr(one, "__iter__") and not hasattr(one, "__getitem__"):
        raise UsageError(f"{name or type(one).__name__}: register this object (job.register)")
    return "dataset"


def _wrapper(one: object) -> str:
    """What else has connected an object to other workers, and what to do instead; empty if nothing has."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(one).__mro__]
    return next((text for sign, text in _WRAPPERS if any(kind.startswith(sign) for kind in kinds)), "")


Closure = Callable[[], Any]

_PER_STEP: Final = ("unscale_", "step", "update")
_PER_STEP_OR_EPOCH: Final[tuple[tuple[type, str], ...]] = (
    (LRScheduler, "step"),
    (ReduceLROnPlateau, "step"),
    (AveragedModel, "update_parameters"),
)


class StepVoidError(Exception):
    """A worker was lost while a closure ran: the optimizer must not use the gradients."""


def checked(
    closure: Closure,
    *,
    accumulates: bool,
    workers: int,
    failed: Callable[[], bool],
    whole: Callable[[], None] = lambda: None,
) -> Closure:
    """The closure, for one step of an optimizer.

    :param failed: whether the step's gradients are void.
    :param whole: called when it has made the gradients.
    :raises UsageError: it is called again, which several workers would each decide by the loss of their own
        samples, and which would find the gradients of the last micro-step only.
    """
    evaluated = False

    def run() -> Any:
        nonlocal evaluated
        if evaluated and (workers > 1 or accumulates):
            who = f"{workers} workers cannot do alike" if workers > 1 else "goes with no micro-steps"
            raise UsageError(
                f"this optimizer runs its closure several times a step, which {who}: give the job one worker "
                'whose GPU takes the batch ("gpus": {"max": 1}), or use another optimizer'
            )
        evaluated = True
        loss = closure()
        if failed():
            raise StepVoidError
        whole()
        return loss

    return run


def guard_optimizer(
    optimizer: Optimizer,
    names: Iterable[str],
    quiet: Callable[[], bool],
    around: Callable[[Optimizer], AbstractContextManager[None]] = lambda _: nullcontext(),
    checked: Callable[[Closure], Closure] = lambda closure: closure,
    *,
    called: Callable[[Optimizer], None] = lambda _: None,
    zeroed: Callable[[Iterable[torch.Tensor]], None] = lambda _: None,
) -> None:
    """Make the named methods of an optimizer do nothing while ``quiet()``; else they act within
    ``around(optimizer)``.

    A closure that they are given is ``checked``, and called also while ``quiet()``: its backward pass is that
    of the micro-step. ``called(optimizer)`` follows each call, ``zeroed(parameters)`` comes before
    ``zero_grad``. The instance is changed, not its class, so it stays what schedulers and scalers expect; the
    ``step`` that an earlier scheduler has put into it is called inside.
    """

    def guarded(inner: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(inner)
        def act(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs:
                args = tuple(map(own, args))
                kwargs = {name: own(value) for name, value in kwargs.items()}
            try:
                if quiet():
                    closure = next(filter(callable, (*args, *kwargs.values())), None)
                    return None if closure is None else closure()
                with around(optimizer):
                    return inner(*args, **kwargs)
            except StepVoidError:
                return None
            finally:
                called(optimizer)

        return act

    def zero(_: Optimizer, *args: Any, **kwargs: Any) -> None:
        zeroed(one for group in optimizer.param_groups for one in group["params"])
        zero_grad(*args, **kwargs)

    def own(value: Any) -> Any:
        return checked(value) if callable(value) else value

    zero_grad = optimizer.zero_grad
    optimizer.zero_grad = MethodType(wraps(zero_grad)(zero), optimizer)  # type: ignore[method-assign]
    for name in names:
        setattr(optimizer, name, MethodType(guarded(getattr(optimizer, name)), optimizer))


def inner_optimizers(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers, and those that they hold and call, as SAM and Lookahead do."""
    result = list(optimizers)
    for optimizer in result:
        result += [
            one for one in vars(optimizer).values() if isinstance(one, Optimizer) and one not in result
        ]
    return result


def watch_others(
    optimizers: Iterable[Optimizer],
    models: Iterable[nn.Module],
    step: Callable[[], int],
    warn: Callable[[str], None],
) -> RemovableHandle:
    """Refuse the step of an optimizer that ``job.prepare`` did not get and that trains its models.

    It would also step in micro-steps that end no step, and its state would be in no checkpoint. One that
    trains something else in several steps is a warning: an optimizer of one step may look for an input.

    :param step: steps of the training so far.
    """
    known = WeakSet(inner_optimizers(optimizers))
    trained = {parameter for model in models for parameter in model.parameters()}
    first_steps, named = WeakKeyDictionary[Optimizer, int](), WeakSet[Optimizer]()

    def check(optimizer: Optimizer, *_: Any) -> None:
        if optimizer in known:
            return
        name = type(optimizer).__name__
        if not trained.isdisjoint(one for group in optimizer.param_groups for one in group["params"]):
            raise UsageError(
                f"{name}, which job.prepare did not get, trains its models: make every optimizer before "
                "job.prepare and give it there"
            )
        if first_steps.setdefault(optimizer, step()) != step() and optimizer not in named:
            named.add(optimizer)
            warn(
                f"{name}, which job.prepare did not get, trains a model of its own: each worker trains "
                "another one, and no checkpoint holds it. Give both to job.prepare"
            )

    return register_optimizer_step_pre_hook(check)


def guard_helper(
    helper: object,
    quiet: Callable[[], bool],
    after_loop: Callable[[], bool] = lambda: False,
    called: Callable[[Optimizer], None] = lambda _: None,
) -> None:
    """Make the per-step methods of a scheduler, a scaler or an averaged model do nothing while ``quiet()``.

    The class becomes a subclass of the same name, because attributes of the instance would end up in a
    scheduler's state dictionary. Other objects stay as they are.

    :param after_loop: whether the quiet step was left by ``break``. A scheduler or an averaged model that
        acts then does so for the epoch; a scaler acts for the step.
    :param called: follows each ``step`` of a scaler, which may leave out that of the optimizer.
    """
    kind = type(helper)
    names = _PER_STEP if isinstance(helper, GradScaler) else ()
    methods = {name: _unless(quiet, getattr(kind, name)) for name in names}
    if "step" in methods:
        methods["step"] = _followed(methods["step"], called)
    for known, name in _PER_STEP_OR_EPOCH:
        if isinstance(helper, known):
            methods[name] = _unless(lambda: quiet() and not after_loop(), getattr(kind, name))
    if methods:
        helper.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})


def _unless(quiet: Callable[[], bool], method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def guarded(self: object, *args: Any, **kwargs: Any) -> Any:
        return None if quiet() else method(self, *args, **kwargs)

    return guarded


def _followed(method: Callable[..., Any], called: Callable[[Optimizer], None]) -> Callable[..., Any]:
    @wraps(method)
    def followed(self: object, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = method(self, optimizer, *args, **kwargs)
        called(optimizer)
        return result

    return followed
