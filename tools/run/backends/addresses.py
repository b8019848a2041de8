"""Where workers of the local backend meet: at addresses of this machine that strangers do not reach."""

from __future__ import annotations

import errno
import secrets
import socket
from typing import Final

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.statedir.contract.addresses import refuse_public

LOOPBACK: Final = "127.0.0.1"
_SELDOM_USED: Final = range(20_000, 30_000)
"""Ports that systems give to no process by themselves; a job that finds its port taken is tried again."""


def check_own(node: str, address: str) -> str:
    """The address, if it is a loopback or private one of this machine.

    :raises BadInputError: it is public, another machine's, or a name that is not known here.
    """
    for found in _resolve(node, address):
        try:
            refuse_public(found)
        except UsageError as error:
            raise _bad(f"node {node}: {error}") from error
        try:
            free_port(found)
        except OSError:
            raise _bad(
                f"node {node} has the address {address}, which is not one of this machine: "
                "the local backend starts everything here"
            ) from None
    return address


def _resolve(node: str, address: str) -> list[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(address, None)})
    except OSError:
        raise _bad(f"the address {address} of node {node} is not known on this machine") from None


def free_port(address: str) -> int:
    """A port of this machine that is free at the moment.

    :raises OSError: it has no such address.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.bind(place)
        return int(probe.getsockname()[1])


def port_to_meet_at(address: str) -> int:
    """A port that is free on the machine of that address, or most likely is, where it is another one.

    :raises OSError: none is free here.
    """
    try:
        return free_port(address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    return _SELDOM_USED.start + secrets.randbelow(len(_SELDOM_USED))


def _bad(message: str) -> BadInputError:
    return BadInputError.one("cluster", message, pointer="/nodes")
