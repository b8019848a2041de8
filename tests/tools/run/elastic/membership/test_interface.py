"""What the connections of a job are kept on."""

from __future__ import annotations

import os

import psutil
import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.membership import interface
from pliant.tools.run.elastic.membership.interface import stay_on_this_machine, use_interface

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class TestInterface:
    """What the connections of a job are kept on."""

    @pytest.fixture(autouse=True)
    def _unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interface, "_chosen_here", {})
        for name in VARIABLES:
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)

    def test_it_is_that_of_the_job_s_address_and_no_other_of_a_similar_name(self) -> None:
        use_interface("127.0.0.1")
        loopback = os.environ["GLOO_SOCKET_IFNAME"]
        assert any(entry.address == "127.0.0.1" for entry in psutil.net_if_addrs()[loopback])
        assert os.environ["NCCL_SOCKET_IFNAME"] == f"={loopback}"

    def test_a_name_of_this_machine_that_means_the_loopback_interface_is_understood(self) -> None:
        use_interface("127.0.1.1")
        assert os.environ["NCCL_SOCKET_IFNAME"] == f"={os.environ['GLOO_SOCKET_IFNAME']}"

    @pytest.mark.parametrize(("here", "interfaces"), [("2", 2), ("1", 0)])
    def test_workers_that_torchrun_alone_has_started_on_one_machine_stay_there(
        self, monkeypatch: pytest.MonkeyPatch, here: str, interfaces: int
    ) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
        monkeypatch.setenv("WORLD_SIZE", "2")
        stay_on_this_machine()
        assert len(set(VARIABLES) & os.environ.keys()) == interfaces

    def test_the_user_s_choice_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in VARIABLES:
            monkeypatch.setenv(name, "ib0")
        use_interface("203.0.113.7")
        assert [os.environ[name] for name in VARIABLES] == ["ib0", "ib0"]

    def test_an_address_of_another_machine_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"203\.0\.113\.7 is not an address of this"):
            use_interface("203.0.113.7")
