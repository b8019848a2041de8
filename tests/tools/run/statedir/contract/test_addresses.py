from __future__ import annotations

import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.run.statedir.contract.folders import refuse_public


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "192.168.0.7", "::1", "fd00::1", "fe80::1%eth0"]
)
def test_workers_may_meet_on_this_machine_or_in_a_private_network(address: str) -> None:
    refuse_public(address)


EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - refused
STRANGERS = ("8.8.8.8", "224.0.0.1", "239.1.1.1", "ff02::1", "100.64.0.1", "::ffff:8.8.8.8")


@pytest.mark.parametrize("address", [*EVERYWHERE, *STRANGERS])
def test_an_address_that_strangers_reach_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="not a loopback or private address"):
        refuse_public(address)


def test_a_name_is_no_address() -> None:
    with pytest.raises(UsageError, match="not an IP address"):
        refuse_public("localhost")
