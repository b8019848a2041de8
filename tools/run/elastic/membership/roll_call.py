"""Whether workers that have met in a folder also reach each other over the job's network.

A host may share the folder and be cut off from the others all the same: its files say that its workers live,
and no connection to them can be made. So before workers of several hosts form a group, each opens a door and
knocks at those of all others. A door is a socket that listens and accepts nothing: the system completes a
connection by itself, which shows that the way is free. Nothing is sent, and nothing is learnt from a knock.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

REACH_S: Final = 3.0
"""For a connection to be completed: two tries, where the first packet is lost."""
_WAITING: Final = 1024
"""Connections that a door completes."""
_UNDER_WAY: Final = frozenset((errno.EINPROGRESS, errno.EWOULDBLOCK))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a door is."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address} {self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """A place as it is written in a file."""
        address, _, port = text.partition(" ")
        return cls(address, int(port))


class Door:
    """A worker's own one, as long as it is open.

    :raises OSError: this machine has no such address, at the moment.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.create_server((address, 0), family=_family(address), backlog=_WAITING)
        self.place = Place(address, int(self._socket.getsockname()[1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def unreached(doors: Mapping[int, Place], limit_s: float = REACH_S) -> list[int]:
    """The workers whose doors cannot be reached from here within the time."""
    missing: set[int] = set()
    deadline_s = time.monotonic() + limit_s
    with selectors.DefaultSelector() as waiting:
        for worker, place in doors.items():
            knock = socket.socket(_family(place.address), socket.SOCK_STREAM)
            knock.setblocking(False)
            code = knock.connect_ex((place.address, place.port))
            if code in _UNDER_WAY:
                waiting.register(knock, selectors.EVENT_WRITE, worker)
                continue
            knock.close()
            if code:
                missing.add(worker)
        while waiting.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                knock = _socket(key)
                if knock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    missing.add(key.data)
                waiting.unregister(knock)
                knock.close()
        for key in list(waiting.get_map().values()):
            missing.add(key.data)
            _socket(key).close()
    return sorted(missing)


def cut_off(missed: Mapping[int, Collection[int]]) -> list[int]:
    """The workers that have to go, so that all that are left reach each other: as few as it seems to take.

    :param missed: by worker, those that it did not reach. Of equals the one of the highest rank goes.
    """
    apart = {frozenset((one, other)) for one, others in missed.items() for other in others}
    gone: list[int] = []
    while apart:
        gone.append(max(missed, key=lambda one: (_of(one, apart), one)))
        apart = {pair for pair in apart if gone[-1] not in pair}
    return sorted(gone)


def _of(one: int, pairs: Iterable[frozenset[int]]) -> int:
    return sum(one in pair for pair in pairs)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _socket(key: selectors.SelectorKey) -> socket.socket:
    found = key.fileobj
    assert isinstance(found, socket.socket)  # noqa: S101 no other was registered
    return found
