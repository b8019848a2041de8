from collections.abc import Mapping

import numpy as np
import pytest

from pliant.tools.schedule.policies.multi_resource.dorm import DormRule
from pliant.tools.schedule.policies.multi_resource.fleet import (
    Active,
    Bid,
    Fleet,
    PlacedWorkers,
    Servers,
    dominant_share,
)
from pliant.tools.schedule.policies.multi_resource.rules import by_arrival, by_dominant_share

NO_PS = np.zeros((0, 2))


def job(
    name: str,
    requested: int = 1,
    demand: tuple[float, float] = (1.0, 1.0),
    work: int = 100,
    worth: float = 10.0,
    held: tuple[int, ...] | None = None,
) -> Active:
    """A job without PS; of like ones the first by name arrived first."""
    bid = Bid(name, ord(name) - 97, work, 50, np.array(demand), np.zeros(2), np.full(200, worth))
    placed = None if held is None else PlacedWorkers(np.array(held), np.zeros(0, dtype=np.int64))
    return Active(bid, work, requested, placed)


def sizes(holdings: Mapping[str, PlacedWorkers]) -> dict[str, int]:
    return {name: placed.size for name, placed in holdings.items()}


def test_workers_are_placed_by_drf_and_dorm_as_in_the_papers() -> None:
    fleet = Fleet(Servers(("cpu", "gb"), np.array([[4.0, 9.0], [1.0, 9.0], [4.0, 9.0]]), NO_PS))
    places = [fleet.in_turn(job(name).bid, count) for name, count in (("a", 4), ("b", 1), ("c", 3))]
    assert [place.workers.tolist() for place in places if place] == [[2, 1, 1], [0, 0, 1], [2, 0, 1]]
    assert fleet.in_turn(job("d").bid, 2) is None
    assert fleet.in_turn(job("d").bid, 1) is not None

    servers = Servers(("cpu", "gb"), np.array([[4.0, 9.0]]), NO_PS)
    assert sizes(by_arrival([job("a", 5), job("b", 2)], servers)) == {"b": 2}

    # 9 CPUs and 18 GB; tasks of 1 CPU and 4 GB, and of 3 CPUs and 1 GB: three of one, two of the other.
    servers = Servers(("cpu", "gb"), np.array([[9.0, 18.0]]), NO_PS)
    result = by_dominant_share([job("a", demand=(1, 4)), job("b", demand=(3, 1))], servers)
    assert sizes(result) == {"a": 3, "b": 2}

    servers = Servers(("cpu", "gb"), np.array([[10.0, 10.0]]), np.array([[4.0, 10.0]]))
    bid = Bid("a", 0, 9, 9, np.ones(2), np.ones(2), np.ones(9), 1.0, 2.0)
    assert dominant_share(bid, 3, servers) == pytest.approx(2 / 4), "two PS of four places, three of ten"
    # Ten jobs hold one worker each; one of them may be adjusted, and fairness lets it have two more.
    servers = Servers(("cpu", "gb"), np.array([[20.0, 90.0]]), NO_PS)
    jobs = [job(name, held=(1,)) for name in "abcdefghij"]
    before = sizes(by_dominant_share(jobs, servers))
    assert set(before.values()) == {2}
    result = sizes(DormRule(servers, fairness=0.5).holdings(jobs))
    assert sum(count != 1 for count in result.values()) == 1
    assert sizes(DormRule(servers, fairness=0.5, adjusted=1.0).holdings(jobs)) != result
