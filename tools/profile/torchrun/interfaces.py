"""The network interface that the workers of a job exchange data over, and the variables that say so."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Final

import psutil

from pliant.schemas.errors import UsageError

VARIABLES: Final = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""And how they name an interface: without "=", NCCL takes all whose names begin like this."""
LOOPBACK: Final = "127.0.0.1"


def interface_of(address: str) -> str | None:
    """The interface of this machine that has an IP address; None: none has, or it is a name."""
    wanted = LOOPBACK if _is_loopback(address) and ":" not in address else address
    for name, found in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == wanted for entry in found):
            return name
    return None


def refuse_loopback(address: str, chosen: Mapping[str, str] = os.environ) -> None:
    """Accept the user's choice of an interface for a worker that others reach at an address.

    Workers of several hosts that listen on their loopback interfaces each call themselves, or another one on
    their own host, and wait for the others until a limit ends them.

    :raises UsageError: it is the loopback interface, and the address is not.
    """
    if _is_loopback(address):
        return
    for variable in VARIABLES:
        name = chosen.get(variable, "")
        if name and name.removeprefix("=") == interface_of(LOOPBACK):
            raise UsageError(
                f"{variable} is {name}, the loopback interface, where workers on other hosts do not reach "
                f"this one: unset it, or name the interface of {address}"
            )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name
