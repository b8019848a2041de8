"""Objects that act once per optimizer step, although the loop body calls them in every micro-step."""

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


class StepVoidError(Exception):
    """A worker was lost while a closure ran: the optimizer must not use the gradients."""


def checked(closure: Closure, *, accumulates: bool, workers: int, failed: Callable[[], bool]) -> Closure:
    """The closure, for one step of an optimizer.

    :param accumulates: whether the step has several micro-steps.
    :param failed: whether the step's gradients are void.
    :raises UsageError: it would train the last micro-step only. The returned closure raises it when several
        workers would run it again: each decides that by the loss of its own samples.
    """
    if accumulates:
        raise UsageError(
            "optimizer.step(closure) would train the last micro-step only: "
            "call backward in the loop body, and optimizer.step() without a closure"
        )
    evaluated = False

    def run() -> Any:
        nonlocal evaluated
        if evaluated and workers > 1:
            raise UsageError(
                f"this optimizer runs its closure several times a step, which {workers} workers cannot do "
                'alike: give the job one worker ("gpus": {"max": 1}), or use another optimizer'
            )
        evaluated = True
        loss = closure()
        if failed():
            raise StepVoidError
        return loss

    return run


_PER_STEP: Final = ("unscale_", "step", "update")
_PER_STEP_OR_EPOCH: Final[tuple[tuple[type, str], ...]] = (
    (LRScheduler, "step"),
    (ReduceLROnPlateau, "step"),
    (AveragedModel, "update_parameters"),
)


def guard_optimizer(
    optimizer: Optimizer,
    names: Iterable[str],
    quiet: Callable[[], bool],
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
    checked: Callable[[Closure], Closure] = lambda closure: closure,
) -> None:
    """Make the named methods of an optimizer do nothing while ``quiet()``; else they act within ``around()``.

    A closure that they are given is ``checked``. The instance is changed, not its class, so it stays what
    schedulers and scalers expect. (A scheduler that was made before has put its own ``step`` into the
    instance; that is called inside.)
    """
    for name in names:
        guarded = _guarded(getattr(optimizer, name), quiet, around, checked)
        setattr(optimizer, name, MethodType(guarded, optimizer))


def _guarded(
    inner: Callable[..., Any],
    quiet: Callable[[], bool],
    around: Callable[[], AbstractContextManager[None]],
    checked: Callable[[Closure], Closure],
) -> Callable[..., Any]:
    @wraps(inner)
    def guarded(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            args = tuple(checked(value) if callable(value) else value for value in args)
            kwargs = {name: checked(value) if callable(value) else value for name, value in kwargs.items()}
        if quiet():
            return None
        try:
            with around():
                return inner(*args, **kwargs)
        except StepVoidError:
            return None

    return guarded


def guard_helper(
    helper: object, quiet: Callable[[], bool], after_loop: Callable[[], bool] = lambda: False
) -> None:
    """Make the per-step methods of a scheduler, a scaler or an averaged model do nothing while ``quiet()``.

    ``after_loop()``: the quiet step was left by ``break``. A scheduler or an averaged model that acts then
    does so for the epoch; a scaler acts for the step.

    The class is changed to a subclass of the same name, because attributes of the instance would end up in a
    scheduler's state dictionary. Other objects stay as they are.
    """
    kind = type(helper)
    names = _PER_STEP if isinstance(helper, GradScaler) else ()
    methods = {name: _unless(quiet, getattr(kind, name)) for name in names}
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
