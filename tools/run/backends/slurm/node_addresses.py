"""At what the workers on other nodes reach a node, by the names of the machine that asks."""

from __future__ import annotations

import socket
import time
from typing import Final

from pliant.schemas.cluster import Node
from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.backends.slurm.parsing import SlurmNode
from pliant.tools.run.statedir.contract.addresses import refuse_public

AGAIN_S: Final = 60.0
"""Between two times that a name is looked up which is not known."""


class Addresses:
    """Addresses of nodes, each looked up until it is known."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._next_s: dict[str, float] = {}

    def of(self, node: str) -> str:
        """The address of a node, or its name while that is not known."""
        return self._known.get(node, node)

    def look_up(self, node: Node, found: SlurmNode | None) -> str:
        """Why the address of a node is not known: one in a cloud may get it later; empty: it is.

        :raises BadInputError: it is public, or names cannot be looked up at all.
        """
        if node.name in self._known:
            return ""
        name, now_s = node.address or (found.address if found is not None else node.name), time.monotonic()
        if now_s >= self._next_s.get(node.name, now_s):
            self._next_s[node.name] = now_s + AGAIN_S
            if (address := _address(node.name, name)) is not None:
                self._known[node.name] = address
                return ""
        return f"its address {name} is not known on this machine"


def _address(node: str, name: str) -> str | None:
    """What the workers on other nodes reach a node at; None: there is no such name.

    :raises BadInputError: it is public, or names cannot be looked up at all.
    """
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        refuse_public(address)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            return None
        raise _bad(f"the address {name} of node {node} cannot be looked up: {error.strerror}") from None
    except UsageError as error:
        raise _bad(f"node {node}: {error}") from error
    return address


def _bad(message: str) -> BadInputError:
    return BadInputError.one("cluster", message, pointer="/nodes")
