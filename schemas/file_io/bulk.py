"""Make many records at once without paying for garbage that is not there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MANY: Final = 50_000
"""New objects between two looks of the cycle collector; Python's own number suits small programs."""


@contextmanager
def garbage_collection_paused(*, to_the_end: bool = False) -> Iterator[None]:
    """Keep the cycle collector from scanning records while they are made.

    Records hold no cycles, and scanning the growing pile of them triples the time of a large file.
    ``to_the_end``: the process ends soon, and what there is by then is not scanned afterwards either.
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
    """Keep the cycle collector from scanning what exists already: large inputs that stay to the end.

    New objects are collected as ever, but looked at after more of them have come.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_MANY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
