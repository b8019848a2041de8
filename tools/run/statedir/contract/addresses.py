"""Which addresses workers may meet at: their connections are not authenticated, so private ones only."""

from __future__ import annotations

import ipaddress

from pliant.schemas.errors import UsageError


def is_private(address: str) -> bool:
    """Whether an IP address belongs to one machine or to a private network, and names one place in it.

    No address to listen on everywhere, none of a group, and none of the range that providers share among
    their customers (100.64.0.0/10).

    :raises ValueError: it is not an IP address.
    """
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    everybody = found.is_unspecified or found.is_multicast or found.is_global
    return found.is_private and not everybody


def refuse_public(address: str) -> None:
    """Accept an IP address that workers may listen on.

    :raises UsageError: it is not private, or not an IP address.
    """
    try:
        private = is_private(address)
    except ValueError:
        raise UsageError(f"{address!r} is not an IP address") from None
    if not private:
        raise UsageError(
            f"{address} is not a loopback or private address: the workers' connections are not authenticated"
        )
