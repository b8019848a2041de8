"""Whom workers do not reach over the job's network, and who has to go for the others to go on."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from pliant.tools.run.elastic.membership.rendezvous import Door, DoorAddress, cut_off, unreached

HERE = "127.0.0.1"


def test_an_open_door_is_reached_though_nobody_accepts_there() -> None:
    with ExitStack() as opened:
        doors = {rank: opened.enter_context(Door(HERE)).place for rank in range(3)}
        for _ in range(3):
            assert unreached(doors) == []


def test_a_door_that_is_closed_is_not_reached() -> None:
    with Door(HERE) as open_one, Door(HERE) as other:
        closed = other.place
    with Door(HERE) as open_one:
        assert unreached({1: open_one.place, 2: closed}) == [2]


def test_a_door_where_nothing_answers_is_given_up_after_the_limit() -> None:
    """As where packets are dropped: a queue that is full answers no one, either."""
    with socket.create_server((HERE, 0), backlog=0) as full, ExitStack() as filling:
        place = DoorAddress(HERE, full.getsockname()[1])
        for _ in range(3):
            one = filling.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((place.address, place.port))
        with Door(HERE) as open_one:
            assert unreached({1: place, 2: open_one.place}, limit_s=0.2) == [1]


def test_a_place_is_written_as_it_is_read() -> None:
    for address in (HERE, "fd00::1"):
        assert DoorAddress.parse(str(DoorAddress(address, 4711))) == DoorAddress(address, 4711)


@pytest.mark.parametrize(
    ("missed", "gone"),
    [
        ({0: [], 1: [], 2: []}, []),
        ({0: [2], 1: [2], 2: [0, 1]}, [2]),
        ({0: [1, 2], 1: [0], 2: [0]}, [0]),
        ({0: [1], 1: [0]}, [1]),
        ({0: [1], 1: []}, [1]),
        ({0: [2, 3], 1: [2, 3], 2: [0, 1], 3: [0, 1]}, [2, 3]),
        ({0: [1, 2, 3], 1: [0, 2, 3], 2: [0, 1], 3: [0, 1]}, [0, 1]),
    ],
)
def test_as_few_go_as_it_takes_and_of_equals_the_last(missed: dict[int, list[int]], gone: list[int]) -> None:
    assert cut_off(missed) == gone
