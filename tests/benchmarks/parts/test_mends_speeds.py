from __future__ import annotations

import pytest

from benchmarks.parts.mends_speeds import (
    faster_and_smaller,
    jobs_left_behind,
    part_of,
    slower_sizes_given,
)
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.rates import Speeds
from tests.builders import cluster, curves, job

PLACES = {
    (("n0", 4),): None,
    (("n0", 4), ("n1", 2)): (4,),
    (("n0", 2), ("n1", 1)): (2,),
    (("n0", 1),): None,
}


def test_nothing_is_counted_on_one_instance() -> None:
    assert (jobs_left_behind(1), slower_sizes_given(1)) == (0, 0)


@pytest.mark.parametrize("place", PLACES)
def test_an_allocation_counts_where_fewer_of_its_gpus_are_faster(place: tuple[tuple[str, int], ...]) -> None:
    speeds = Speeds(curves(m={1: 10.0, 2: 20.0, 3: 15.0, 4: 30.0, 6: 25.0}), node_states(cluster(4, 4)))
    spec = job(gpus=6, low=1, model="m", batch=64)
    assert faster_and_smaller(spec, place, 64, speeds) == PLACES[place]


def test_a_part_of_a_place_is_on_few_nodes() -> None:
    assert [part_of((4, 2, 1), gpus) for gpus in (1, 4, 5, 7)] == [(1,), (4,), (4, 1), (4, 2, 1)]
