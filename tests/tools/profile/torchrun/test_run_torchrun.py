"""What torchrun's workers learn of the network of their job."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import psutil
import pytest

from pliant.tools.profile.torchrun.run_torchrun import run, stay_on_interface

pytestmark = pytest.mark.torch
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SEVERAL = ("--nnodes=2", "--node-rank=1", "--rdzv-backend=static", "--local-addr=10.0.0.2", "--", "train.py")
ONE = ("--nnodes=1", "--rdzv-backend=one-node", "--local-addr=10.0.0.2", "--", "--rdzv-backend", "static")


@pytest.fixture(autouse=True)
def _two_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "lo": [SimpleNamespace(address="127.0.0.1")],
        "eth0": [SimpleNamespace(address="192.168.0.2")],
        "ib0": [SimpleNamespace(address="fe80::1%ib0"), SimpleNamespace(address="10.0.0.2")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_on_several_nodes_it_is_the_interface_of_the_node_s_own_address() -> None:
    stay_on_interface(SEVERAL)
    assert [os.environ[name] for name in VARIABLES] == ["ib0", "=ib0"]


@pytest.mark.parametrize("words", [ONE, (*SEVERAL[:3], "--local-addr=10.0.0.3")])
def test_on_one_node_and_at_an_unknown_address_nothing_is_said(words: tuple[str, ...]) -> None:
    stay_on_interface(words)
    assert not os.environ.keys() & set(VARIABLES)


def test_what_the_job_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    stay_on_interface(SEVERAL)
    assert [os.environ[name] for name in VARIABLES] == ["eth0", "=ib0"]


def test_the_loopback_interface_is_refused_on_several_nodes_before_anything_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    stay_on_interface(ONE)
    monkeypatch.setattr(sys, "argv", ["run_torchrun.py", *SEVERAL])
    assert run() == 1
    assert "unset it, or name the interface of 10.0.0.2" in capsys.readouterr().err
