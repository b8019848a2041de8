"""Ports that workers of a job meet at, on this machine and on others."""

from __future__ import annotations

import errno
import socket

import pytest

from pliant.tools.run.backends import protocol as addresses
from pliant.tools.run.backends.protocol import free_port, port_to_meet_at

ELSEWHERE = "203.0.113.7"


def test_on_this_machine_a_port_to_meet_at_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = port_to_meet_at("127.0.0.1")
    with socket.create_server(("127.0.0.1", port)):
        pass

    def none_left(_address: str) -> int:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(addresses, "free_port", none_left)
    with pytest.raises(OSError, match="in use"):
        port_to_meet_at("127.0.0.1")


def test_elsewhere_it_is_one_that_no_system_gives_itself() -> None:
    """That machine cannot be asked; two jobs that begin there at a time are unlikely to get the same."""
    with pytest.raises(OSError, match=r"."):
        free_port(ELSEWHERE)
    result = {port_to_meet_at(ELSEWHERE) for _ in range(20)}
    assert len(result) > 10
    assert all(20_000 <= port < 30_000 for port in result)
