"""The process group of the workers that train together: formed over files, and given up again.

On CPU slots gloo connects over a :class:`FolderStore`, and stops waiting for a worker that died when a newer
plan is in force; then a FileStore (:func:`shared_store`) takes its place for all that comes later. On GPUs
NCCL keeps the store that it is formed with, so that is the FileStore from the beginning. NCCL's communicator
is made at once (``device_id``) and used once: what fails, fails here, where no training has been touched, and
not in a backward pass. :class:`Connections` closes what gloo has opened, :func:`lost_peer` tells a lost
worker from other errors, and :func:`own_address` says which network interface the workers use.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import ipaddress
import logging
import os
import re
import secrets
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import torch
import torch.distributed as dist

from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.files import probe_room
from pliant.tools.profile.torchrun.start import LOOPBACK, VARIABLES, interface_of, refuse_loopback
from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.membership.switch_step import RateLimiter
from pliant.tools.run.elastic.torch_internals import (
    groups_in_use,
    number_groups_anew,
    replace_store,
    set_group_timeout,
)
from pliant.tools.run.statedir.contract.folders import is_there, refresh_folder, refuse_public
from pliant.tools.run.statedir.contract.plan import ENV_ADDRESS, Member, Plan

COLLECTIVE_TIMEOUT: Final = timedelta(minutes=30)
"""Longest wait for the others in a collective operation: rank 0 alone may validate that long. A worker that
died is noticed at once, by its connection."""
NCCL_TIMEOUT: Final = timedelta(minutes=10)
"""Longest time in NCCL before a worker counts as stuck in it."""
STORE_BYTES: Final = 1 << 18
"""Room in a FileStore: more than the addresses of all workers take."""
POLL_INTERVAL_S: Final = 0.003
SERVER_POLL_INTERVAL_S: Final = 0.05
"""Seconds between two requests to the file server for a key that this host does not see."""
KEEPALIVE_TIMEOUT_S: Final = 9.0
"""Seconds without an answer after which a host is dead, or cut off."""
_STUCK: Final = 1
_SETTLE_S: Final = 0.1
_FREEING_S: Final = 5.0
_in_use: list[tuple[dist.Store, ...]] = []
"""Stores of groups that are not freed: C++ may still call them."""
_STORE_TIMEOUT: Final = timedelta(seconds=10)
_STORE: Final = "store"
_PROCESS: Final = Path("/proc/self")
_EPOLL: Final = "anon_inode:[eventpoll]"
_WATCHED: Final = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)
_CUT_OFF: Final = ("closed by peer", "reset by peer", "broken pipe", "connection refused", "timed out")
_LIBRARIES: Final = ("gloo", "nccl")
_ANY_PORT: Final = 9
_READ_ONCE: Final = "NCCL_SOCKET_IFNAME"
_chosen_here: Final = dict[str, str]()
"""Interfaces that this process has chosen itself, not its user."""
_log = logging.getLogger("pliant")


class ProcessGroup:
    """The process group of each generation in turn."""

    def __init__(self, context: Context, backend: str | None) -> None:
        self._context = context
        self._backend = backend or default_backend(context)
        self._stores: tuple[dist.Store, ...] = ()
        self._own: Path | None = None
        self._connections = Connections()

    def check_room(self, folder: Path) -> None:
        """Check that the disk has room for what C++ writes to the store while the group forms.

        :raises ServiceMissingError: it has not; workers would wait for half a record and could not stop.
        """
        if self._backend != "gloo":
            probe_room(folder, STORE_BYTES)

    def form(self, folder: Path, is_superseded: Callable[[], bool], limit: timedelta) -> None:
        """Connect with the workers that have met in a folder.

        :param is_superseded: breaks off the wait for the others, on CPU slots.
        :param limit: how long connecting may take; all workers are there.
        :raises RuntimeError: a worker did not connect.
        """
        store, self._own = shared_store(folder, str(self._context.rank))
        store.set_timeout(limit)
        if self._backend == "gloo":
            self._connect_by_files(folder, is_superseded, limit, store)
        else:
            self._connect_device(limit, store)
        store.set_timeout(COLLECTIVE_TIMEOUT)

    def break_off(self) -> None:
        """Let exchanges end in an error, on CPU slots. Any thread may call it."""
        self._connections.close()

    def leave(self) -> None:
        """Give up the process group, if there is one, even if the script still refers to it."""
        self._connections.close()
        if not leave():
            _in_use.append(self._stores)
        if self._own is not None:
            self._own.unlink(missing_ok=True)
        self._stores, self._own = (), None

    def _connect_by_files(
        self, folder: Path, is_superseded: Callable[[], bool], limit: timedelta, store: dist.Store
    ) -> None:
        connecting = True
        files = FolderStore(folder, lambda: connecting and is_superseded())
        self._stores = (files, store)
        self._init(files, limit)
        connecting = False
        group = dist.group.WORLD
        assert group is not None  # noqa: S101 made just above
        replace_store(group, store)
        set_group_timeout(COLLECTIVE_TIMEOUT)

    def _connect_device(self, limit: timedelta, store: dist.Store) -> None:
        device = self._context.device
        self._stores = (store,)
        with _end_if_stuck(NCCL_TIMEOUT):
            self._init(store, limit, device if "nccl" in self._backend else None)
            # before the first operation: NCCL ends the process when one takes longer
            set_group_timeout(COLLECTIVE_TIMEOUT)
            _exchange(device, limit)

    def _init(self, store: dist.Store, limit: timedelta, device: torch.device | None = None) -> None:
        rank, size = self._context.rank, self._context.world_size
        hook = sys.excepthook
        with self._connections.opened():
            dist.init_process_group(
                self._backend, store=store, rank=rank, world_size=size, timeout=limit, device_id=device
            )
        # PyTorch wraps it each time in one of its own, which names the rank that this worker has by then
        sys.excepthook = hook


def _exchange(device: torch.device, limit: timedelta) -> None:
    """The first operation shows that a communicator works."""
    work = dist.all_reduce(torch.zeros(1, device=device), async_op=True)
    assert work is not None  # noqa: S101 it is asynchronous
    work.wait(limit)


def default_backend(context: Context) -> str:
    return "cpu:gloo,cuda:nccl" if context.device.type == "cuda" else "gloo"


def join_torchrun_group(context: Context, backend: str | None) -> None:
    """Form the process group of workers that plain torchrun has started, if there are several."""
    if context.world_size > 1:
        leave_at_exit()
        stay_on_this_machine()
        dist.init_process_group(backend or default_backend(context))


def leave_at_exit() -> None:
    """Give up the process group when the interpreter ends, after whatever is registered later for its end.

    A gloo thread may still be freeing its last operation, for which it needs the interpreter lock: without an
    interpreter the process would abort.
    """
    atexit.register(_leave_slowly)


def _leave_slowly() -> None:
    leave()
    time.sleep(_SETTLE_S)


def leave() -> bool:
    """Give up the process group, or what is left of one that did not form. Returns whether it is freed.

    A group that failed to form here may have formed elsewhere.
    """
    freed = True
    if dist.is_initialized():
        groups = groups_in_use()
        dist.destroy_process_group()
        freed = _freed(groups)
    number_groups_anew()
    return freed


def _freed(groups: list[dist.ProcessGroup]) -> bool:
    """Free groups, whose destructors wait for their last operations. Returns False if they still do.

    Gloo (PyTorch 2.13) forgets an operation whose first write fails. Then that takes as long as the timeout
    of the group: a thread of its own waits, and the end of the process does not.
    """
    thread = threading.Thread(target=groups.clear, name="pliant-freeing", daemon=True)
    thread.start()
    thread.join(_FREEING_S)
    if thread.is_alive():
        _log.debug("an operation of the former process group does not end: the job goes on without it")
    return not thread.is_alive()


@contextmanager
def _end_if_stuck(limit: timedelta) -> Iterator[None]:
    """End the process if a library does not return: nothing else can break it off."""
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


def lost_peer(error: BaseException) -> bool:
    """Whether an error comes from the exchange between workers: another worker's end may cause it."""
    return isinstance(error, RuntimeError) and _mentions(error, (*_CUT_OFF, *_LIBRARIES))


def cut_off(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and _mentions(error, _CUT_OFF)


def _mentions(error: BaseException, signs: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in signs)


def released(error: RuntimeError) -> RuntimeError:
    """The error with its traceback, but without the variables in it: they keep connections open."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    return error


class FolderStore(dist.Store):
    """A store of one file a key, for the time until a process group is formed.

    A key is there as a whole or not at all, whichever worker is killed and when. Waiting can be broken
    off. C++ calls the methods and does not keep the store alive: hold a reference as long as the group lives.
    ``statedir/contract/__init__.py`` says what the folder must offer to workers on several hosts.

    :param folder: it exists, and is for this generation and this round alone.
    :param is_superseded: asked while waiting; True, or an exception, breaks the wait off.
    """

    def __init__(self, folder: Path, is_superseded: Callable[[], bool]) -> None:
        super().__init__()
        self._folder, self._is_superseded = folder, is_superseded
        self._asks = RateLimiter(SERVER_POLL_INTERVAL_S)

    def set(self, key: str, value: Any) -> None:
        publish_file(self._path(key), value.encode() if isinstance(value, str) else bytes(value))

    def set_once(self, key: str, value: str) -> None:
        """Set a key unless it has a value: of several workers the first one decides.

        :raises FileNotFoundError: the folder is gone, the meeting is over.
        """
        path = self._path(key)
        unseen = _draft_of(path, value.encode())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(unseen, path)
        finally:
            unseen.unlink(missing_ok=True)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._path(key).read_bytes()

    def add(self, key: str, value: int) -> int:
        """Add to the number that the key holds, from 0; returns the sum."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            refresh_folder(self._folder)
            path = self._path(key)
            total = value + (int(path.read_bytes()) if is_there(path) else 0)
            self.set(key, str(total))
        return total

    def check(self, keys: list[str]) -> bool:
        if all(is_there(self._path(key)) for key in keys):
            return True
        if not self._asks.is_due():
            return False
        refresh_folder(self._folder)
        return all(is_there(self._path(key)) for key in keys)

    def wait(self, keys: list[str], timeout: timedelta = _STORE_TIMEOUT) -> None:
        """:raises RuntimeError: called away, or the time is over."""
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if self._is_superseded() or time.monotonic() > deadline:
                raise RuntimeError("gloo: a worker did not connect")
            pause()

    def _path(self, key: str) -> Path:
        return self._folder / f"key-{quote(key, safe='')}"


def shared_store(folder: Path, name: str) -> tuple[dist.FileStore, Path]:
    """PyTorch's FileStore for all workers that name this folder, and the path to remove before it is freed.

    Everything after the process group has formed uses it: NCCL, groups that a script makes, a script's own
    use of the default store. It is C++, so a background thread needs no interpreter. What else to know:

    - All keys are in one file, appended by four writes under ``flock``. A worker that is killed between them,
      or a full disk, leaves half a record; then every reader spins inside C++ and cannot be interrupted. So
      workers do not meet over it.
    - It also writes when it is made and freed, to count its users. To survive a kill there, each worker makes
      it on a file of its own. The first of these becomes the shared file, and the others give their name to
      it. A store whose name is gone writes nothing when it is freed.
    - It holds the interpreter lock while it is made, and releases it while it waits.
    - It looks for a key every 10 ms, for 300 s unless ``set_timeout`` says otherwise (0: indefinitely),
      whatever the timeout of the group that asks.
    - Told the number of its users, it deletes the file once as many have freed it, though more may come.
      Without a number it never does: the folder is removed when the next generation trains.
    - A lock is freed when its holder dies. On NFS ``flock`` is a lock of the server; mounts with
      ``local_lock=flock`` keep it to one host and break the store.

    :param name: unique to this user.
    :raises OSError: for example, the folder is gone.
    """
    own, shared = folder / f"{_STORE}-{name}", folder / _STORE
    # PyTorch would wait for a folder that is gone, with the interpreter lock
    own.touch(mode=0o600)
    store = dist.FileStore(str(own))
    with contextlib.suppress(FileExistsError):
        os.link(own, shared)
    another = own.with_suffix(".new")
    os.link(shared, another)
    another.replace(own)
    return store, own


def publish_file(path: Path, value: bytes) -> None:
    """Replace a file that only living processes need: nothing is forced to disk; only its owner reads it."""
    _draft_of(path, value).replace(path)


def pause() -> None:
    time.sleep(POLL_INTERVAL_S)


def _draft_of(path: Path, value: bytes) -> Path:
    """A file beside ``path`` with the value, under a name of its own on all hosts."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        made.touch(mode=0o600)
        made.write_bytes(value)
    except OSError:
        # on a full disk: repeated tries must not leave a file each time
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
        raise
    return made


class Connections:
    """The connections that gloo has opened for a process group, closed while something still refers to it.

    Gloo closes them only when the group and every operation of it are freed; ``shutdown`` and ``abort`` do
    nothing (PyTorch 2.13). A script that keeps the group in a variable would leave the others waiting.

    Gloo polls its connections and its listening socket with an epoll instance of its own, so what it has
    opened is known from the epoll instances that appear while a group forms. Where the system does not say
    what an epoll instance watches, nothing is closed early.

    A host that loses its power or its network ends no connection. The system does, if asked to: it gives up
    after :data:`KEEPALIVE_TIMEOUT_S` without a sign of life. The other host's system answers by itself, so a
    worker that computes or stands still has all the time it needs.
    """

    def __init__(self) -> None:
        self._inodes: frozenset[int] = frozenset()

    @contextmanager
    def opened(self) -> Iterator[None]:
        before = _connected()
        yield
        # by inode: the descriptors of a group that is freed meanwhile may serve the new one
        self._inodes = _connected() - before
        _for_each(self._inodes, _end_when_silent)

    def close(self) -> None:
        """End the connections: waiting on them ends in an error, here and in the other workers.

        The descriptors remain gloo's, which frees them later. Any thread may call it.
        """
        inodes, self._inodes = self._inodes, frozenset()
        _for_each(inodes, lambda connection: connection.shutdown(socket.SHUT_RDWR))


def _for_each(inodes: frozenset[int], act: Callable[[socket.socket], None]) -> None:
    for number, _ in _descriptors() if inodes else ():
        with _duplicated(number) as connection:
            if connection is not None and os.fstat(connection.fileno()).st_ino in inodes:
                act(connection)


def _end_when_silent(connection: socket.socket) -> None:
    """Let the system end a connection to a host that gives no sign of life.

    Unanswered data needs a limit of its own: the system does not ask while it has data to send.
    """
    every_s = int(KEEPALIVE_TIMEOUT_S / 3)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", every_s),
        ("TCP_KEEPINTVL", every_s),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", int(1000 * KEEPALIVE_TIMEOUT_S)),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _descriptors() -> Iterator[tuple[int, str]]:
    with contextlib.suppress(OSError):
        for name in os.listdir(_PROCESS / "fd"):
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(_PROCESS / "fd" / name)


def _connected() -> frozenset[int]:
    """Inodes of the connections watched by those epoll instances that also watch a listening socket."""
    watched = [_sockets(number) for number, kind in _descriptors() if kind == _EPOLL]
    return frozenset(inode for inodes, listens in watched if listens for inode in inodes)


def _sockets(epoll: int) -> tuple[set[int], bool]:
    """Inodes of the connections that an epoll instance watches, and whether it watches a listening socket."""
    inodes, listens = set(), False
    with contextlib.suppress(OSError):
        for number in map(int, _WATCHED.findall((_PROCESS / "fdinfo" / str(epoll)).read_text())):
            with _duplicated(number) as connection:
                if connection is None:
                    continue
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listens = True
                else:
                    inodes.add(os.fstat(connection.fileno()).st_ino)
    return inodes, listens


@contextmanager
def _duplicated(number: int) -> Iterator[socket.socket | None]:
    """The socket behind a descriptor, by a copy that gloo cannot close; None if it is not a socket.

    Other files are not duplicated: closing the copy would free the locks that this process holds on them,
    its presence among them.
    """
    try:
        copy = os.dup(number) if stat.S_ISSOCK(os.fstat(number).st_mode) else -1
    except OSError:
        copy = -1
    try:
        connection = socket.socket(fileno=copy) if copy >= 0 else None
    except OSError:
        os.close(copy)
        connection = None
    try:
        with contextlib.suppress(OSError):  # closed by the other side meanwhile
            yield connection
    finally:
        if connection is not None:
            connection.close()


def own_address(plan: Plan, rank: int) -> str:
    """The IP address that this worker may listen on: the loopback interface if all are on one machine.

    Connections between workers are not authenticated. NCCL reads its variable once in a process, so workers
    that have used it on one machine need a relaunch when a later generation spans several.

    On several nodes it is the plan's address, unless only the node itself knew it. A literal address is used
    without asking a name service. A machine's own name often means its loopback interface, which others do
    not reach; then it is the address from which this machine reaches another node of the plan.

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
    try:
        return str(ipaddress.ip_address(member.address))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(member.address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"address {member.address!r} of slot {member.slot}: {error}") from error


def _reached_from(address: str) -> str:
    """The source address of packets to another address; none is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as towards:
            towards.connect((address, _ANY_PORT))
            return str(towards.getsockname()[0])
    except OSError as error:
        raise UsageError(f"this machine knows no way to {address}: {error}") from error


def lasting_address(plan: Plan, rank: int) -> str | None:
    """The address at which other nodes reach this worker, whether the plan has others yet or not.

    Returns None if it is not known, or public.
    """
    try:
        address = os.environ.get(ENV_ADDRESS) or _looked_up(plan.members[rank])
        refuse_public(address)
    except UsageError:
        return None
    return None if ipaddress.ip_address(address).is_loopback else address


def use_interface(address: str, lasting: str | None = None) -> None:
    """Keep the collectives of this process on the interface of this address, unless the user chose another.

    :param lasting: the address for NCCL, which reads its variable once: workers that a later plan adds on
        other nodes must reach it, too. By default ``address``.
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
            if name != _READ_ONCE:
                chosen_interface = interface
            elif name not in _chosen_here:
                chosen_interface = (lasting and interface_of(lasting)) or interface
            else:
                continue
            os.environ[name] = _chosen_here[name] = VARIABLES[name].format(chosen_interface)


def stay_on_this_machine() -> None:
    """Use the loopback interface where torchrun says that all workers are here."""
    here, all_workers = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if here is not None and here == all_workers:
        use_interface(LOOPBACK)
