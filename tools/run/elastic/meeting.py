"""Where the workers of a plan meet: rank 0 opens a store, the others find its address in a file.

The store is not authenticated, so it listens on the members' own network only, and its keys carry the plan's
secret. One machine: the loopback address. Everything here can be broken off by a newer plan.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

import psutil
import torch.distributed as dist

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.io import atomic_write
from pliant.tools.run.addresses import refuse_public
from pliant.tools.run.elastic.setting import Orders, Setting
from pliant.tools.run.plan import Plan

LOOPBACK: Final = "127.0.0.1"
COLLECTIVE: Final = timedelta(minutes=30)
"""How long a worker waits for the others in a collective operation: rank 0 alone may validate that long. One
that died is noticed at once, by its connection."""
_POLL_S: Final = 0.02
_SETTLE_S: Final = 0.1


def join(setting: Setting, backend: str | None, check: Callable[[], None]) -> None:
    """Form the process group; does nothing for one worker.

    ``check`` is called while waiting and may raise to break it off. Backend: gloo on CPU slots; on GPUs gloo
    for what lies in main memory and NCCL for what lies on the device.

    :raises ServiceMissingError: the workers did not all come in time.
    :raises UsageError: the address of this worker must not be listened on.
    """
    if setting.world_size == 1:
        return
    atexit.register(leave)
    chosen = backend or ("cpu:gloo,cuda:nccl" if setting.device.type == "cuda" else "gloo")
    if setting.orders is None:
        dist.init_process_group(chosen)
        return
    dist.init_process_group(
        chosen,
        store=_meet(setting.orders, check),
        rank=setting.rank,
        world_size=setting.world_size,
        timeout=COLLECTIVE,
    )


def leave() -> None:
    """Give up the process group, as the last thing before the interpreter ends.

    A gloo thread may still be freeing its last operation, for which it needs the interpreter lock; were the
    interpreter gone by then, the process would abort. The model keeps that thread from being joined.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    time.sleep(_SETTLE_S)


def _meet(orders: Orders, check: Callable[[], None]) -> dist.Store:
    """A store that every worker of the generation has reached."""
    address = own_address(orders.plan, orders.rank)
    _use_interface(address)
    limit = timedelta(seconds=orders.plan.timeout_s)
    store: dist.Store = _open(orders, address, limit) if orders.rank == 0 else _find(orders, limit, check)
    shared = dist.PrefixStore(f"{orders.plan.token}/{orders.plan.generation}", store)
    shared.set(f"here/{orders.rank}", "1")
    for rank, member in enumerate(orders.plan.members):
        here = partial(shared.check, [f"here/{rank}"])
        _wait(here, orders.plan, f"worker {rank} ({member.slot}) did not come", check)
    return shared


def own_address(plan: Plan, rank: int) -> str:
    """The IP address that this worker may listen on.

    :raises UsageError: it cannot be looked up, or is public.
    """
    if len({member.node for member in plan.members}) == 1:
        return LOOPBACK
    name = plan.members[rank].address
    try:
        address = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise UsageError(f"address {name!r} of slot {plan.members[rank].slot}: {error}") from error
    refuse_public(str(address))
    return str(address)


def _open(orders: Orders, address: str, limit: timedelta) -> dist.TCPStore:
    """The store itself, on a free port of this address alone; its place is then made known."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(len(orders.plan.members) + 16)
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=limit,
            master_listen_fd=listener.detach(),
        )
    orders.attempt.path.mkdir(parents=True, exist_ok=True)
    atomic_write(orders.attempt.store, f"{address} {port}\n".encode())
    return store


def _find(orders: Orders, limit: timedelta, check: Callable[[], None]) -> dist.TCPStore:
    path = orders.attempt.store
    _wait(path.exists, orders.plan, f"{path} was not written by worker 0", check)
    address, port = path.read_text().split()
    return dist.TCPStore(address, int(port), is_master=False, timeout=limit)


def _wait(ready: Callable[[], bool], plan: Plan, problem: str, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + plan.timeout_s
    while not ready():
        check()
        if time.monotonic() > deadline:
            raise ServiceMissingError(
                f"job {plan.job}, generation {plan.generation}: {problem} within {plan.timeout_s:g} s"
            )
        time.sleep(_POLL_S)


def _use_interface(address: str) -> None:
    """Keep the collectives on the interface of this address, unless the user has chosen one."""
    for name, found in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in found):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
            return
