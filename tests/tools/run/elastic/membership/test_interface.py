"""What the connections of a job are kept on."""

from __future__ import annotations

import os
import socket
from functools import partial

import psutil
import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.profile.torchrun import start
from pliant.tools.run.elastic.membership import process_group
from pliant.tools.run.elastic.membership.process_group import (
    lasting_address,
    own_address,
    stay_on_this_machine,
    use_interface,
)
from pliant.tools.run.statedir.contract.plan import ENV_ADDRESS, Plan
from tests.tools.run.elastic.gang import plan as plan_of

Patch = pytest.MonkeyPatch

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
plan = partial(plan_of, apart=True)


class TestInterface:
    @pytest.fixture(autouse=True)
    def _unset(self, monkeypatch: Patch) -> None:
        monkeypatch.setattr(process_group, "_chosen_here", {})
        for name in VARIABLES:
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)

    def test_it_is_that_of_the_job_s_address(self) -> None:
        for address in ("127.0.0.1", "127.0.1.1"):  # the latter may be this machine's name
            use_interface(address)
            loopback = os.environ["GLOO_SOCKET_IFNAME"]
            assert any(entry.address == "127.0.0.1" for entry in psutil.net_if_addrs()[loopback])
            assert os.environ["NCCL_SOCKET_IFNAME"] == f"={loopback}", "no other of a similar name"

    @pytest.mark.parametrize(("here", "interfaces"), [("2", 2), ("1", 0)])
    def test_workers_of_one_machine_stay_there(self, monkeypatch: Patch, here: str, interfaces: int) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
        monkeypatch.setenv("WORLD_SIZE", "2")
        stay_on_this_machine()
        assert len(set(VARIABLES) & os.environ.keys()) == interfaces

    def test_the_user_s_choice_stays(self, monkeypatch: Patch) -> None:
        for name in VARIABLES:
            monkeypatch.setenv(name, "ib0")
        use_interface("203.0.113.7")
        assert [os.environ[name] for name in VARIABLES] == ["ib0", "ib0"]

    @pytest.mark.parametrize("choice", [{"GLOO_SOCKET_IFNAME": "lo"}, {"NCCL_SOCKET_IFNAME": "=lo"}])
    def test_a_chosen_loopback_interface_is_refused_between_hosts(
        self, monkeypatch: Patch, choice: dict[str, str]
    ) -> None:
        """They would connect to themselves, fail, and meet in round after round."""
        monkeypatch.setattr(start, "interface_of", {"127.0.0.1": "lo", "10.0.0.2": "eth0"}.get)
        for name, value in choice.items():
            monkeypatch.setenv(name, value)
        use_interface("127.0.0.1")
        with pytest.raises(UsageError, match=f"{next(iter(choice))} is .*lo, the loopback interface"):
            use_interface("10.0.0.2")

    def test_nccl_gets_the_interface_that_other_nodes_reach(self, monkeypatch: Patch) -> None:
        known = {"127.0.0.1": "lo", "10.0.0.2": "eth0"}.get
        monkeypatch.setattr(start, "interface_of", known)
        monkeypatch.setattr(process_group, "interface_of", known)
        monkeypatch.setenv(ENV_ADDRESS, "10.0.0.2")
        alone, several = plan_of(), plan()
        use_interface(own_address(alone, 0), lasting_address(alone, 0))
        assert [os.environ[name] for name in VARIABLES] == ["lo", "=eth0"]
        use_interface(own_address(several, 0), lasting_address(several, 0))
        assert [os.environ[name] for name in VARIABLES] == ["eth0", "=eth0"]
        monkeypatch.setenv(ENV_ADDRESS, "127.0.0.1")
        assert lasting_address(alone, 0) is None

    def test_an_address_of_another_machine_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"203\.0\.113\.7 is not an address of this"):
            use_interface("203.0.113.7")


def at(*addresses: str) -> Plan:
    """A plan of a worker on each of these nodes."""
    pairs = zip(plan(workers=range(len(addresses))).members, addresses, strict=True)
    return plan(members=tuple({**member.model_dump(), "address": address} for member, address in pairs))


class TestAddresses:
    def test_workers_of_one_machine_use_the_loopback_interface(self) -> None:
        assert own_address(plan_of(), 0) == "127.0.0.1"
        assert own_address(at("127.0.0.1", "127.0.0.1"), 1) == "127.0.0.1"
        assert process_group._reached_from("127.0.0.1") == "127.0.0.1"

    def test_no_name_service_is_asked(self, monkeypatch: Patch) -> None:
        """On a host in the middle of an outage that would take a minute, or say something else."""
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was looked up"))
        monkeypatch.setattr(socket, "gethostname", lambda: pytest.fail("the host's name was asked for"))
        assert [own_address(plan(), rank) for rank in range(2)] == ["10.0.0.0", "10.0.0.1"]

    def test_a_loopback_address_is_replaced_by_one_others_reach(self, monkeypatch: Patch) -> None:
        """Debian writes it into /etc/hosts, and a launcher there into the plan."""
        monkeypatch.setattr(process_group, "_reached_from", {"10.0.0.1": "10.0.0.7"}.__getitem__)
        assert own_address(at("127.0.1.1", "10.0.0.1"), 0) == "10.0.0.7"

    @pytest.mark.parametrize("address", ["8.8.8.8", "100.64.0.1"])
    def test_a_public_address_is_refused(self, address: str, monkeypatch: Patch) -> None:
        with pytest.raises(UsageError, match="not a loopback or private address"):
            own_address(at(address, "10.0.0.1"), 0)
        monkeypatch.setenv(ENV_ADDRESS, address)
        with pytest.raises(UsageError, match=f"{address} is not a loopback or private address"):
            own_address(plan(), 0)

    def test_what_only_the_node_knows_goes_before_the_plan(self, monkeypatch: Patch) -> None:
        monkeypatch.setenv(ENV_ADDRESS, "10.9.9.9")
        assert own_address(plan(), 0) == "10.9.9.9"
