"""Addresses of nodes, some of which are not known yet."""

from __future__ import annotations

import socket

import pytest

from pliant.schemas.cluster import Node
from pliant.schemas.errors import BadInputError
from pliant.tools.run.backends.slurm import backend
from pliant.tools.run.backends.slurm.backend import Addresses


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | int]:
    """What names lead to: an address, or the number of an error."""
    found: dict[str, str | int] = {}

    def look_up(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        answer = found.get(name, socket.EAI_NONAME)
        if isinstance(answer, int):
            raise socket.gaierror(answer, "it is said why")
        return [(0, 0, 0, "", (answer, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(backend, "NAME_AGAIN_S", 0.0)
    return found


def test_a_node_that_gets_its_name_later_is_down_until_then(known: dict[str, str | int]) -> None:
    """As one in a cloud that has not been powered up."""
    found, node = Addresses(), Node(name="n1", gpus=1)
    assert found.look_up(node, None) == "its address n1 is not known on this machine"
    assert found.of("n1") == "n1"
    known["n1"] = "10.0.0.2"
    assert (found.look_up(node, None), found.of("n1")) == ("", "10.0.0.2")


@pytest.mark.parametrize("answer", ["8.8.8.8", socket.EAI_AGAIN])
def test_an_address_that_is_public_or_cannot_be_looked_up_ends_the_run(
    known: dict[str, str | int], answer: str | int
) -> None:
    known["n1"] = answer
    with pytest.raises(BadInputError, match="n1"):
        Addresses().look_up(Node(name="n1", gpus=1), None)
