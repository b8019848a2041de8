from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from pliant.schemas.job import Utility
from pliant.tools.schedule.policies.multi_resource.dorm import DormRule
from pliant.tools.schedule.policies.multi_resource.fleet import (
    Active,
    Bid,
    Fleet,
    PlacedWorkers,
    Servers,
    dominant_share,
)
from pliant.tools.schedule.policies.multi_resource.rules import (
    Losses,
    Prospect,
    WorthStep,
    by_arrival,
    by_dominant_share,
)

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


def test_jobs_lose_as_much_by_delay_of_steps_as_of_other_shapes() -> None:
    """Steps are looked at all at once; a job costs itself nothing, and one that never falls loses nothing."""
    rng = np.random.default_rng(4)

    def made(shape: Literal["step", "sigmoid", "constant"]) -> Prospect:
        utility = Utility(shape=shape, value=float(rng.integers(1, 9)), target=50.0, decay=0.1)
        since_s = float(rng.integers(0, 40))
        step = WorthStep(utility.value, since_s, 50.0) if shape == "step" else None
        duration_s = float(rng.integers(1, 40))
        return Prospect(duration_s, lambda late_s: utility.worth(since_s + late_s), shape != "constant", step)

    jobs = [made(shape) for shape in ("step", "sigmoid", "constant") for _ in range(8)]
    result, stepless = Losses(), Losses([replace(each, step=None) for each in jobs])
    for each in jobs:
        result.add(each)
    for delay in (*jobs, made("step")):
        others = [each for each in jobs if each is not delay]
        lost = [each.worth(each.duration) - each.worth(each.duration + delay.duration) for each in others]
        assert result.by(delay) == pytest.approx(sum(lost))
        assert result.by(made("step")) > 0
    new = made("step")
    assert result.by(new) == stepless.by(new)
    assert Losses().by(new) == 0
