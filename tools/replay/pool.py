"""Worker processes for replays: none outlives its work, and Ctrl-C is the parent's alone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from pliant.schemas.errors import ServiceMissingError


@contextmanager
def worker_pool(workers: int, begin: Callable[[], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes that each call ``begin`` first; all are gone after the block, however it ends.

    :raises ServiceMissingError: a worker was killed and the block let that through.
    """
    before = set(active_children())
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(begin,)
    )
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(active_children()) - before:
            child.terminate()
        if isinstance(error, BrokenProcessPool):
            raise ServiceMissingError(
                "a worker process was killed: fewer --workers need less memory"
            ) from error
        raise
    pool.shutdown()


def _begin(begin: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if begin is not None:
        begin()
