"""Closures given to ``optimizer.step``: run where they train the whole step, refused where they would not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pliant.schemas.errors import UsageError

Closure = Callable[[], Any]


class StepVoidError(Exception):
    """A worker was lost while a closure ran: the optimizer must not use the gradients."""


def checked(closure: Closure, *, accumulates: bool, workers: int, failed: Callable[[], bool]) -> Closure:
    """The closure, for one step of an optimizer.

    :param accumulates: whether the step has several micro-steps.
    :param failed: whether the step's gradients are void.
    :raises UsageError: it would train the last micro-step only. Later, when several workers would run it
        again: each of them decides that by the loss of its own samples.
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
