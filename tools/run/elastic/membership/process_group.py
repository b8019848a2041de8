"""The process group of the workers that train together: formed over files, and given up again.

On CPU slots gloo connects over a :class:`FolderStore`, and stops waiting for a worker that died when a newer
plan is in force; then a FileStore takes its place for all that comes later. On GPUs NCCL keeps the store that
it is formed with, so that is the FileStore from the beginning. NCCL's communicator is made at once
(``device_id``) and used once: what fails, fails here, where no training has been touched, and not in a
backward pass.

Closing the connections of a gloo process group while something still refers to it.

Gloo closes them only when the group and every operation of it are freed; ``shutdown`` and ``abort`` do
nothing (PyTorch 2.13). A script that keeps the group in a variable, or an error that remembers an operation,
would leave the other workers waiting for this one as if it were still there.

Gloo polls its connections, and the socket that it listens on, with an epoll instance of its own. So what it
has opened is known from those that appear while a group forms. Where the system does not say what an epoll
instance watches, nothing is known and nothing is closed early.

A host that loses its power, or its network, ends no connection either. The system does, if it is asked to:
it asks the other host for a sign of life every few seconds, and gives up after :data:`SILENCE_S`. That host's
system answers by itself, so a worker that computes, or stands still, has all the time it needs.

Which network interface the workers of a job exchange data over: their connections are not authenticated.

Gloo listens on the first address of an interface; so does NCCL, for its bootstrap and for data between nodes.
NCCL reads its variable once in a process: workers that have used it on one machine do not move to another
interface when a later generation spans several, and need a relaunch.
"""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import logging
import os
import re
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.files import probe_room
from pliant.tools.profile.torchrun.start import LOOPBACK, VARIABLES, interface_of, refuse_loopback
from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.membership.plan_watch import FolderStore, shared_store
from pliant.tools.run.statedir.contract.folders import refuse_public
from pliant.tools.run.statedir.contract.plan import ENV_ADDRESS, Member, Plan

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


SILENCE_S: Final = 9.0
"""A host that does not answer for so long is dead, or cut off."""
_PROCESS: Final = Path("/proc/self")
_EPOLL: Final = "anon_inode:[eventpoll]"
_WATCHED: Final = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)


class Connections:
    """The sockets of one process group after the other."""

    def __init__(self) -> None:
        self._inodes: frozenset[int] = frozenset()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Remember what gloo opens meanwhile."""
        before = _connected()
        yield
        # not by descriptors: those of a group that is freed meanwhile may serve the new one
        self._inodes = _connected() - before
        _for_each(self._inodes, _end_when_silent)

    def close(self) -> None:
        """End the connections: waiting for them ends in an error, here and in the other workers.

        The descriptors stay gloo's, which frees them in its own time. Any thread may call it.
        """
        inodes, self._inodes = self._inodes, frozenset()
        _for_each(inodes, lambda found: found.shutdown(socket.SHUT_RDWR))


def _for_each(inodes: frozenset[int], act: Callable[[socket.socket], None]) -> None:
    """Do something with each of the sockets that is still open."""
    for number, _ in _descriptors() if inodes else ():
        with _borrowed(number) as found:
            if found is not None and os.fstat(found.fileno()).st_ino in inodes:
                act(found)


def _end_when_silent(connection: socket.socket) -> None:
    """Let the system end a connection to a host that gives no sign of life.

    A limit on unanswered data has to be set as well: the system does not ask while it has any to send.
    """
    every_s = int(SILENCE_S / 3)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", every_s),
        ("TCP_KEEPINTVL", every_s),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", int(1000 * SILENCE_S)),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _descriptors() -> Iterator[tuple[int, str]]:
    """What is open, and what it is."""
    with contextlib.suppress(OSError):
        for name in os.listdir(_PROCESS / "fd"):
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(_PROCESS / "fd" / name)


def _connected() -> frozenset[int]:
    """The inodes of the connections that epoll instances watch which also listen for others."""
    found = [_sockets(number) for number, kind in _descriptors() if kind == _EPOLL]
    return frozenset(inode for inodes, listens in found if listens for inode in inodes)


def _sockets(epoll: int) -> tuple[set[int], bool]:
    """The inodes of the connections that an epoll instance watches, and whether it listens for others."""
    inodes, listens = set(), False
    with contextlib.suppress(OSError):
        for number in map(int, _WATCHED.findall((_PROCESS / "fdinfo" / str(epoll)).read_text())):
            with _borrowed(number) as found:
                if found is None:
                    continue
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listens = True
                else:
                    inodes.add(os.fstat(found.fileno()).st_ino)
    return inodes, listens


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket | None]:
    """A socket, by a descriptor that stays its own if gloo closes the other one; None: it is not one.

    Another file is not even duplicated: to close the copy would free the locks that this process holds on
    it, of which its presence is one.
    """
    try:
        copy = os.dup(number) if stat.S_ISSOCK(os.fstat(number).st_mode) else -1
    except OSError:
        copy = -1
    try:
        found = socket.socket(fileno=copy) if copy >= 0 else None
    except OSError:
        os.close(copy)
        found = None
    try:
        with contextlib.suppress(OSError):  # closed by the other side meanwhile
            yield found
    finally:
        if found is not None:
            found.close()


_ANY_PORT: Final = 9
_chosen_here: Final = dict[str, str]()
"""Interfaces that this process has chosen itself, not its user."""


def own_address(plan: Plan, rank: int) -> str:
    """The IP address that this worker may listen on: on one machine, that of the loopback interface.

    On several nodes it is what the plan says, unless only the node itself knew it. An address is taken as it
    is, without asking any name service. A machine's own name often means its loopback interface, where no
    other one reaches it; then it is the address that this machine reaches another node of the plan from.

    :raises UsageError: it cannot be looked up, or is public.
    """
    own = plan.members[rank]
    if len({member.node for member in plan.members}) == 1:
        return LOOPBACK
    if known_here := os.environ.get(ENV_ADDRESS):
        refuse_public(known_here)
        return known_here
    address = _looked_up(own)
    if ipaddress.ip_address(address).is_loopback:
        others = (_looked_up(member) for member in plan.members if member.node != own.node)
        away = next((other for other in others if not ipaddress.ip_address(other).is_loopback), None)
        address = address if away is None else _reached_from(away)
    refuse_public(address)
    return address


def _looked_up(member: Member) -> str:
    """The IP address of a member."""
    try:
        return str(ipaddress.ip_address(member.address))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(member.address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"address {member.address!r} of slot {member.slot}: {error}") from error


def _reached_from(address: str) -> str:
    """The own address that packets to another one would have; none is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as towards:
            towards.connect((address, _ANY_PORT))
            return str(towards.getsockname()[0])
    except OSError as error:
        raise UsageError(f"this machine knows no way to {address}: {error}") from error


def use_interface(address: str) -> None:
    """Keep the collectives of this process on the interface of this address, unless the user has chosen one.

    :raises UsageError: this machine has no such address, or the user's choice keeps other hosts out.
    """
    chosen = {name: os.environ.get(name) for name in VARIABLES}
    free = [name for name, value in chosen.items() if value in (None, _chosen_here.get(name))]
    refuse_loopback(address, {name: value for name, value in chosen.items() if value and name not in free})
    if free:
        interface = interface_of(address)
        if interface is None:
            raise UsageError(f"{address} is not an address of this machine; its workers need one to connect")
        for name in free:
            os.environ[name] = _chosen_here[name] = VARIABLES[name].format(interface)


def stay_on_this_machine() -> None:
    """Use the loopback interface where torchrun says that all workers are here."""
    here, all_workers = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if here is not None and here == all_workers:
        use_interface(LOOPBACK)
