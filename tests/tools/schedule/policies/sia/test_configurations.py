import pytest

from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.policies.sia import configurations as sia
from tests.builders import mixed_cluster


def gpus(*nodes: int) -> sia.GpuType:
    return sia.gpu_types(node_states(mixed_cluster(gpu=nodes, other=(2,))))["gpu"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param((2,), [(1, 1), (1, 2)], id="A of section 3.3"),
        pytest.param((4,), [(1, 1), (1, 2), (1, 4)], id="B of section 3.3"),
        pytest.param((4, 4, 4), [(1, 1), (1, 2), (1, 4), (2, 8), (3, 12)], id="whole nodes beyond one"),
        pytest.param((6, 6), [(1, 1), (1, 2), (1, 4), (1, 6), (2, 12)], id="of no power of two"),
        pytest.param((8, 4, 8), [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16)], id="smaller ones are not whole"),
    ],
)
def test_configurations_are_parts_of_a_node_and_whole_nodes(nodes, expected):
    assert [(one.nodes, one.gpus) for one in gpus(*nodes).configurations] == expected


def test_configurations_are_placeable_within_the_limits_of_jobs() -> None:
    assert [limit.gpus for limit in gpus(4, 4).limits] == [8]

    # Twelve GPUs have room for two such jobs, not for three.
    kind = gpus(6, 6)
    (four,) = (limit for limit in kind.limits if limit.least == 4)
    assert four.gpus == 8
    assert [kind.counted(one, four) for one in kind.configurations] == [0, 0, 4, 4, 8]
    # A job gets what lies within its limits.
    three = gpus(4, 4, 4)
    for sizes, each, expected in (
        (range(2, 10), 1, [2, 4, 8]),
        ((2, 3, 12), 1, [2, 12]),
        (range(2, 13, 2), 2, [2, 4, 8, 12]),
        (range(8, 13, 8), 8, [8]),  # a replica of eight is on two nodes
        (range(3, 13, 3), 3, [3]),  # no node of four is whole replicas
    ):
        assert [one.gpus for one in three.for_job(sizes, each)] == expected

    assert gpus(4, 4).for_job(range(3, 4), 1) == (sia.Configuration(1, 3, "gpu", listed=False),)
    assert gpus(4, 4).for_job(range(6, 8), 1) == (sia.Configuration(2, 6, "gpu", listed=False),)
    assert gpus(4, 4).for_job(range(9, 10), 1) == ()


def test_small_jobs_make_room_and_odd_sizes_take_what_remains() -> None:
    # Each node has a job of one GPU; the one on the first has the same cost as that on the second.
    seats = [
        sia.Seat(name, sia.Configuration(1, count, "gpu"), node)
        for name, count, node in (("a", 1, (("gpu-0", 1),)), ("b", 1, (("gpu-1", 1),)), ("c", 4, ()))
    ]
    assert sia.place(gpus(4, 4), seats) == {"a": (("gpu-1", 1),), "b": (("gpu-1", 1),), "c": (("gpu-0", 4),)}
    # A job of an odd size takes what remains.
    odd = sia.Configuration(1, 3, "gpu", listed=False)
    four, one = (sia.Configuration(1, count, "gpu") for count in (4, 1))
    b = sia.Seat("b", four, (("gpu-1", 4),))
    seats = [sia.Seat("a", odd, (("gpu-0", 3),)), b, sia.Seat("c", one, ())]
    assert sia.place(gpus(4, 4), seats)["c"] == (("gpu-0", 1),)
    seats = [sia.Seat("a", odd, (("gpu-0", 2), ("gpu-1", 1))), sia.Seat("b", four, ())]
    assert sia.place(gpus(4, 4), seats) == {"a": (("gpu-1", 3),), "b": (("gpu-0", 4),)}
