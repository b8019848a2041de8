"""Optimizers, schedulers and scalers that act once per step, though each micro-step's pass calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import MethodType
from typing import Any, Final

from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from pliant.schemas.errors import UsageError

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
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
    checked: Callable[[Closure], Closure] = lambda closure: closure,
    *,
    called: Callable[[], None] = lambda: None,
) -> None:
    """Make the named methods of an optimizer do nothing while ``quiet()``; else they act within ``around()``.

    A closure that they are given is ``checked``, and called also while ``quiet()``: its backward pass is that
    of the micro-step. ``called()`` follows each call. The instance is changed, not
    its class, so it stays what schedulers and scalers expect; the ``step`` that an earlier scheduler has put
    into it is called inside.
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
                with around():
                    return inner(*args, **kwargs)
            except StepVoidError:
                return None
            finally:
                called()

        return act

    def own(value: Any) -> Any:
        return checked(value) if callable(value) else value

    for name in names:
        setattr(optimizer, name, MethodType(guarded(getattr(optimizer, name)), optimizer))


def guard_helper(
    helper: object,
    quiet: Callable[[], bool],
    after_loop: Callable[[], bool] = lambda: False,
    called: Callable[[], None] = lambda: None,
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


def _followed(method: Callable[..., Any], called: Callable[[], None]) -> Callable[..., Any]:
    @wraps(method)
    def followed(self: object, *args: Any, **kwargs: Any) -> Any:
        found = method(self, *args, **kwargs)
        called()
        return found

    return followed
