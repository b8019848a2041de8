"""Which network interface the workers of a job exchange data over: their connections are not authenticated.

Gloo listens on the first address of an interface; so does NCCL, for its bootstrap and for data between nodes.
NCCL reads its variable once in a process: workers that have used it on one machine do not move to another
interface when a later generation spans several, and need a relaunch.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Final

from pliant.schemas.errors import UsageError
from pliant.tools.profile.torchrun.interfaces import LOOPBACK, VARIABLES, interface_of, refuse_loopback
from pliant.tools.run.statedir.contract.addresses import refuse_public
from pliant.tools.run.statedir.contract.plan import ENV_ADDRESS, Member, Plan

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
