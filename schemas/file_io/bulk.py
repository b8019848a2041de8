"""Spare large inputs the garbage collector, which would find nothing in them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MANY: Final = 50_000
"""New objects between two looks of the cycle collector; Python's own number suits small programs."""


@contextmanager
def garbage_collection_paused(*, to_the_end: bool = False) -> Iterator[None]:
    """No garbage collection while records are made: they hold no cycles, and it triples the time.

    :param to_the_end: the process ends soon: what it has by then is not scanned afterwards either.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if to_the_end:
            gc.freeze()
        if was_on:
            gc.enable()


@contextmanager
def spared_by_garbage_collection() -> Iterator[None]:
    """Garbage collection looks at new objects only, and less often: large inputs stay to the end."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_MANY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
