"""The process group of the workers that train together: formed over files, and given up again.

On CPU slots gloo connects over a :class:`FolderStore`, and stops waiting for a worker that died when a newer
plan is in force; then a FileStore takes its place for all that comes later. On GPUs NCCL keeps the store that
it is formed with, so that is the FileStore from the beginning. NCCL's communicator is made at once
(``device_id``) and used once: what fails, fails here, where no training has been touched, and not in a
backward pass.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from pliant.schemas.file_io.files import probe_room
from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.membership.connections import Connections
from pliant.tools.run.elastic.membership.folder_store import FolderStore, shared_store
from pliant.tools.run.elastic.membership.interface import stay_on_this_machine

_log = logging.getLogger("pliant")
COLLECTIVE: Final = timedelta(minutes=30)
"""How long a worker waits for the others in a collective operation: rank 0 alone may validate that long. One
that died is noticed at once, by its connection."""
HANGS: Final = timedelta(minutes=10)
"""How long NCCL may take before a worker counts as stuck in it."""
STORE_BYTES: Final = 1 << 18
"""More than the addresses of all workers take in a FileStore."""
_STUCK: Final = 1
_SETTLE_S: Final = 0.1


class ProcessGroup:
    """The process group of one generation after the other, and the stores that it needs while it lives."""

    def __init__(self, context: Context, backend: str | None) -> None:
        self._context = context
        self._backend = backend or default_backend(context)
        self._stores: tuple[dist.Store, ...] = ()
        self._own: Path | None = None
        self._connections = Connections()

    def check_room(self, folder: Path) -> None:
        """Look whether a disk takes what the group writes to its store while it forms, outside of Python.

        :raises ServiceMissingError: it does not: workers would wait for half a record, and could not stop.
        """
        if self._backend != "gloo":
            probe_room(folder, STORE_BYTES)

    def form(self, folder: Path, called_away: Callable[[], bool], limit: timedelta) -> None:
        """Connect with the workers that have met in a folder.

        :param called_away: breaks off the wait for the others, on CPU slots.
        :param limit: how long they may take; all of them have come.
        :raises RuntimeError: a worker did not connect.
        """
        store, self._own = shared_store(folder, str(self._context.rank))
        store.set_timeout(limit)
        if self._backend == "gloo":
            self._connect_by_files(folder, called_away, limit, store)
        else:
            self._connect_device(limit, store)
        store.set_timeout(COLLECTIVE)

    def break_off(self) -> None:
        """End what is exchanged with the others, on CPU slots, in an error. Any thread may call it."""
        self._connections.close()

    def leave(self) -> None:
        """Give up the process group, if there is one, also where the script still refers to it."""
        self._connections.close()
        leave()
        if self._own is not None:
            self._own.unlink(missing_ok=True)
        self._stores, self._own = (), None

    def _connect_by_files(
        self, folder: Path, called_away: Callable[[], bool], limit: timedelta, store: dist.Store
    ) -> None:
        connecting = True
        files = FolderStore(folder, lambda: connecting and called_away())
        self._stores = (files, store)
        self._init(files, limit)
        connecting = False
        group = dist.group.WORLD
        assert group is not None  # noqa: S101 made just above
        backend, _ = _world.pg_map[group]
        _world.pg_map[group] = backend, dist.PrefixStore(f"{group.group_name}/", store)
        _set_pg_timeout(COLLECTIVE)

    def _connect_device(self, limit: timedelta, store: dist.Store) -> None:
        device = self._context.device
        self._stores = (store,)
        with _end_if_stuck(HANGS):
            self._init(store, limit, device if "nccl" in self._backend else None)
            # before the first operation: NCCL ends the process when one takes longer
            _set_pg_timeout(COLLECTIVE)
            _exchange(device, limit)

    def _init(self, store: dist.Store, limit: timedelta, device: torch.device | None = None) -> None:
        rank, size = self._context.rank, self._context.world_size
        hook = sys.excepthook
        with self._connections.opened():
            dist.init_process_group(
                self._backend, store=store, rank=rank, world_size=size, timeout=limit, device_id=device
            )
        # PyTorch puts one of its own around it each time, which names the rank that this worker has by then
        sys.excepthook = hook


def _exchange(device: torch.device, limit: timedelta) -> None:
    """The first operation of a communicator on its device, which shows that it works."""
    work = dist.all_reduce(torch.zeros(1, device=device), async_op=True)
    assert work is not None  # noqa: S101 it is asynchronous
    work.wait(limit)


def default_backend(context: Context) -> str:
    """Gloo on CPU slots; on GPUs gloo for what lies in main memory and NCCL for what lies on the device."""
    return "cpu:gloo,cuda:nccl" if context.device.type == "cuda" else "gloo"


def join_plainly(context: Context, backend: str | None) -> None:
    """Form the process group of workers that torchrun alone has started; does nothing for one worker."""
    if context.world_size > 1:
        leave_at_exit()
        stay_on_this_machine()
        dist.init_process_group(backend or default_backend(context))


def leave_at_exit() -> None:
    """Give up the process group when the interpreter ends, after all that is registered for then later on.

    A gloo thread may still be freeing its last operation, for which it needs the interpreter lock; were the
    interpreter gone by then, the process would abort. The model keeps that thread from being joined.
    """
    atexit.register(_leave_slowly)


def _leave_slowly() -> None:
    leave()
    time.sleep(_SETTLE_S)


def leave() -> None:
    """Give up the process group, or what is left of one that did not form.

    PyTorch numbers groups, and workers only find each other under the same number. It forgets the number of
    a group that is destroyed, but not of one that failed to form, which may have formed elsewhere.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    _world.group_count = 0


@contextlib.contextmanager
def _end_if_stuck(limit: timedelta) -> Iterator[None]:
    """End the process where a library does not come back: nothing else can break it off."""
    timer = threading.Timer(limit.total_seconds(), _end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end() -> None:
    _log.error("forming the process group hangs in a library: this worker ends")
    os._exit(_STUCK)
