"""Which connections belong to a process group, and what ends them, on sockets that stand for gloo's."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack
from pathlib import Path

from pliant.tools.run.elastic.membership.process_group import SILENCE_S, Connections
from pliant.tools.run.statedir.contract.presence import Presence, life
from tests.tools.run.elastic.nursery import CONTEXT

ASKING = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)


class Device:
    """What gloo opens: a listening socket and a connection, polled by one epoll instance."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own = socket.create_connection(self.listener.getsockname())
        self.other, _ = self.listener.accept()
        for one in (self.listener, self.own):
            self.epoll.register(one)

    def close(self) -> None:
        for one in (self.own, self.other, self.listener, self.epoll):
            one.close()


def is_over(device: Device) -> bool:
    """Whether the other side has seen the end of the connection."""
    device.other.setblocking(False)
    try:
        return device.other.recv(1) == b""
    except BlockingIOError:
        return False


def test_only_what_was_opened_while_the_group_formed_is_ended() -> None:
    with ExitStack() as over:
        earlier, connections = Device(), Connections()
        over.callback(earlier.close)
        with connections.opened():
            formed = Device()
            over.callback(formed.close)
        later = Device()
        over.callback(later.close)
        connections.close()
        assert [is_over(one) for one in (earlier, formed, later)] == [False, True, False]
        assert formed.listener.fileno() >= 0


def test_a_group_that_gets_the_descriptors_of_one_that_is_freed_meanwhile_is_known() -> None:
    with ExitStack() as over:
        earlier, connections = Device(), Connections()
        before = earlier.epoll.fileno()
        with connections.opened():
            earlier.close()
            formed = Device()
            over.callback(formed.close)
        assert formed.epoll.fileno() == before
        connections.close()
        assert is_over(formed)


def test_a_worker_that_ends_its_connections_still_lives_for_the_others(tmp_path: Path) -> None:
    presence, connections = Presence(tmp_path / "presence"), Connections()
    presence.begin()
    with ExitStack() as over, CONTEXT.Pool(1) as other:
        over.callback(presence.end)
        with connections.opened():
            formed = Device()
            over.callback(formed.close)
        connections.close()
        assert is_over(formed)
        assert other.apply(life, (tmp_path / "presence",)) == "alive"


def test_a_connection_to_a_host_that_does_not_answer_is_given_up_by_the_system() -> None:
    """Gloo itself would wait for half an hour."""
    with ExitStack() as over:
        connections = Connections()
        with connections.opened():
            formed = Device()
            over.callback(formed.close)
        assert formed.own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        asks = [formed.own.getsockopt(socket.IPPROTO_TCP, option) for option in ASKING]
        assert asks[0] + asks[1] * asks[2] == SILENCE_S
        assert formed.own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * SILENCE_S
        assert formed.listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
