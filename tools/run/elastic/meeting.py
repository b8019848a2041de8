"""Where the workers of a plan meet: its first one opens a store, the others find its address in a file.

The store is not authenticated, so it listens on the members' own network only, and its keys carry the plan's
secret. One machine: the loopback address. Whoever waits here can be called away by a newer plan.

A meeting ends with a verdict that is written once, by whoever comes first: the first worker, when all have
come, writes how far each of them is; any worker that sees a newer plan in force writes that. So either all
go on together or none does. Where a group does not form after all, the first worker calls the next round.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psutil
import torch.distributed as dist

from pliant.schemas.errors import UsageError
from pliant.tools.run.addresses import refuse_public
from pliant.tools.run.elastic.position import Position, written
from pliant.tools.run.elastic.setting import Orders
from pliant.tools.run.plan import Plan

LOOPBACK: Final = "127.0.0.1"
POLL_S: Final = 0.003
_ANSWER: Final = timedelta(seconds=10)
"""How long the store may take for an answer."""
_VERDICT: Final = "verdict"
_NEWER: Final = "newer"
_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_chosen_here: Final = dict[str, str]()
"""Interfaces that this process has chosen itself, not its user."""


class CalledAwayError(Exception):
    """A newer plan is in force."""


class Meeting:
    """One round of one generation.

    :param wait: called again and again while waiting; sleeps, may raise, and says whether a newer plan is
        in force.
    """

    def __init__(self, orders: Orders, number: int, wait: Callable[[], bool]) -> None:
        self._orders, self._number, self._wait = orders, number, wait
        self._address = own_address(orders.plan, orders.rank)
        self._seen = number
        use_interface(self._address)

    def attend(self, position: Position | None) -> tuple[dist.Store, list[Position | None]]:
        """Wait for the verdict: the store for the process group, and how far the workers are.

        :raises CalledAwayError: there will be no group of this plan.
        :raises RuntimeError: the store was lost; come again.
        """
        plan, rank = self._orders.plan, self._orders.rank
        store = self._open() if rank == 0 else self._find()
        shared = dist.PrefixStore(f"{plan.token}/{plan.generation}.{self._seen}", store)
        shared.set(f"here/{rank}", written(position))
        everybody = [f"here/{one}" for one in range(len(plan.members))]
        while not shared.check([_VERDICT]):
            if rank == 0 and shared.check(everybody):
                told = ",".join(shared.get(key).decode() for key in everybody)
                shared.compare_set(_VERDICT, "", told)
            elif self._wait():
                shared.compare_set(_VERDICT, "", _NEWER)
        verdict = shared.get(_VERDICT).decode()
        if verdict == _NEWER:
            raise CalledAwayError
        return dist.PrefixStore("group", shared), [Position.parse(text) for text in verdict.split(",")]

    @property
    def number(self) -> int:
        """The round that was attended: the first worker's."""
        return self._seen

    def _open(self) -> dist.TCPStore:
        """The store itself, on a free port of this address alone; its place is then made known."""
        address = self._address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((address, 0))
            listener.listen(len(self._orders.plan.members) + 16)
            port = listener.getsockname()[1]
            store = dist.TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=_ANSWER,
                master_listen_fd=listener.detach(),
            )
        place = self._orders.attempt.place(self._orders.plan.generation)
        make_known(place, f"{address} {port} {self._number}\n")
        return store

    def _find(self) -> dist.TCPStore:
        path = self._orders.attempt.place(self._orders.plan.generation)
        while True:
            try:
                address, port, number = path.read_text().split()
            except OSError:
                number = "-1"
            if int(number) >= self._number and _listens(address, int(port)):
                self._seen = int(number)
                return dist.TCPStore(address, int(port), is_master=False, timeout=_ANSWER)
            if self._wait():
                raise CalledAwayError


class Interruptible(dist.Store):
    """A store in which waiting for a worker that died ends when a newer plan is in force."""

    def __init__(self, inner: dist.Store, called_away: Callable[[], bool]) -> None:
        super().__init__()
        self._inner, self._called_away = inner, called_away

    def set(self, key: str, value: Any) -> None:
        """As that of the store inside."""
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        """As that of the store inside, once it has the key."""
        self.wait([key])
        return self._inner.get(key)

    def add(self, key: str, value: int) -> int:
        """As that of the store inside."""
        return self._inner.add(key, value)

    def check(self, keys: list[str]) -> bool:
        """As that of the store inside."""
        return self._inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = _ANSWER) -> None:
        """Wait for keys.

        :raises RuntimeError: a newer plan is in force, or the time is over.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._inner.check(keys):
            if self._called_away() or time.monotonic() > deadline:
                raise RuntimeError("gloo: a worker did not connect")
            pause()


def _listens(address: str, port: int) -> bool:
    """Whether somebody is there: a store's own attempt to connect would take its whole time to fail."""
    try:
        socket.create_connection((address, port), timeout=_ANSWER.total_seconds()).close()
    except OSError:
        return False
    return True


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


def use_interface(address: str) -> None:
    """Keep the collectives on the interface of this address, unless the user has chosen one."""
    for name, found in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in found):
            for variable in _INTERFACES:
                if os.environ.get(variable) == _chosen_here.get(variable):
                    os.environ[variable] = _chosen_here[variable] = name
            return


def make_known(path: Path, text: str) -> None:
    """Replace a file that matters to living processes only: nothing is forced to disk, nobody has to wait.

    Only its owner can read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.replace(path)


def pause() -> None:
    """The time between two looks."""
    time.sleep(POLL_S)
