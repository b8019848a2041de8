import pytest

from pliant.schemas.cluster import Cluster, Sharing
from pliant.schemas.errors import BadInputError
from pliant.tools.schedule.assumptions import (
    RowTrust,
    demands_unlimited,
    nothing_to_resize,
    order_assumed,
    refuse,
    sharing_assumed,
    speeds_assumed,
    speeds_doubted,
)
from pliant.tools.schedule.policies.ares.policy import Ares
from pliant.tools.schedule.policies.fair_share import FairShare
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.lucid import Lucid
from pliant.tools.schedule.policies.srtf import Srtf
from tests.builders import cluster, job


def mixed(**fields: object) -> Cluster:
    nodes = [{"name": "n0", "gpus": 2, "gpu_type": "old"}, {"name": "n1", "gpus": 2, "gpu_type": "new"}]
    return Cluster.model_validate({"nodes": tuple(nodes), **fields})


def texts(*args: object) -> list[str]:
    return [assumption.text for assumption in speeds_assumed(*args)]  # type: ignore[arg-type]


def test_without_profile_every_gpu_trains_one_sample_per_second() -> None:
    found = "no profile: every GPU is taken to train 1 sample per second"
    assert texts({"net"}, cluster(2), None) == [found]
    fast = mixed(speeds={"new": 2.0})
    assert texts({"net"}, fast, None) == [f"{found}, times its type's relative speed"]
    # A type that the profile lacks is named with its stand in.
    measured = [(model, "old") for model in ("a", "b", "c", "d", "unused")]
    lacks = 'the profile lacks GPU type "new" for "a", "b", "c" and 1 more: it is taken to be'
    assert texts({"a", "b", "c", "d"}, mixed(), measured) == [f'{lacks} as fast as "old"']
    fast = mixed(speeds={"new": 3.0, "old": 2.0})
    assert texts({"a", "b", "c", "d"}, fast, measured) == [f'{lacks} 1.5 times as fast as "old"']
    # Of several types the one with most rows stands in, as in the throughput model.
    found = texts({"net"}, mixed(speeds={"new": 2.0}), [("net", "old"), ("net", "rare"), ("net", "old")])
    assert found == [f'{lacks.partition("for")[0]}for "net": it is taken to be 2 times as fast as "old"']
    # A profile that has every type leaves nothing open.
    assert texts({"net"}, mixed(), [("net", "old"), ("net", "new"), ("other", "old")]) == []
    # A node without GPUs needs no speed.
    nodes = ({"name": "n0", "gpus": 2, "gpu_type": "old"}, {"name": "n1", "gpus": 0, "gpu_type": "new"})
    assert texts({"net"}, Cluster.model_validate({"nodes": nodes}), [("net", "old")]) == []


def test_strict_names_every_assumption_and_pairs_are_assumed() -> None:
    refuse([])
    measured = [("a", "x"), ("b", "y"), ("b", "y")]
    with pytest.raises(BadInputError) as caught:
        refuse(speeds_assumed({"a", "b"}, cluster(2, gpu_type="z"), measured))
    assert str(caught.value).splitlines() == [
        '--strict: the profile lacks GPU type "z" for "a": it is taken to be as fast as "x"',
        '--strict: the profile lacks GPU type "z" for "b": it is taken to be as fast as "y"',
    ]
    # Where a policy packs the speed of pairs is assumed.
    nodes = cluster(4)
    together = nodes.model_copy(update={"sharing": Sharing(unmeasured="together", speed=0.8)})
    (found,) = sharing_assumed(together, Lucid)
    text = "any two jobs fit one GPU; each keeps 0.8 of its speed where the pair was not measured"
    assert (found.kind, found.text) == ("sharing", text)
    assert not sharing_assumed(together, Fifo)
    assert not sharing_assumed(nodes, Lucid), "none share"
    assert not sharing_assumed(together.model_copy(update={"backend": "slurm"}), Lucid)


def test_rows_that_cannot_be_trusted_are_named() -> None:
    shares = [("net", 0.02), ("net", None), ("net", 0.4), ("other", 0.9), ("third", 0.11), ("third", 0.1)]
    (found,) = speeds_doubted({"net", "third"}, [RowTrust(*each) for each in shares])
    assert found.kind == "busy_profile"
    assert found.text == (
        '2 of 5 rows of the profile ("net", "third") are of a busy machine: for up to 40% of the time '
        "others held cores that the workers needed; measure them again when it is quiet"
    )
    assert speeds_doubted({"net"}, [RowTrust("net", 0.1), RowTrust("net")]) == []
    # Rows that took longer another time are named whatever the system counts.
    rows = [RowTrust("net", None, 0.77), RowTrust("net", 0.0, 0.1), RowTrust("net", 0.6, 0.9)]
    _, found = speeds_doubted({"net"}, rows)
    assert found.text == (
        '1 of 3 rows of the profile ("net") took up to 77% longer when measured another time; measure them '
        "again when the machine is quiet"
    )
    # A model that misses the rows of its own profile is named.
    errors = [-0.35, 0.77, 0.02, None]
    (found,) = speeds_doubted({"net"}, [RowTrust("net", model_error=error) for error in errors])
    assert found.text == (
        'the throughput model is 35% off in the median of 3 rows of the profile held out ("net"): expect '
        "predictions to be, too"
    )
    assert not speeds_doubted({"net"}, [RowTrust("net", model_error=-0.1)])


def test_policies_say_where_they_fall_back() -> None:
    rigid, elastic = job("a"), job("b", low=1, high=2)
    found = nothing_to_resize([rigid], FairShare)
    text = "gives each what it requested, first come, first served, as fifo does"
    assert [each.text for each in found] == [f'no job is elastic: policy "fair-share" {text}']
    refuse(found)
    assert nothing_to_resize([rigid, elastic], FairShare) == []
    assert nothing_to_resize([rigid], Fifo) == []
    # A policy that goes by work says where it cannot.
    jobs = [job("a", work={"iterations": 5}), job("b", gpu_seconds=5.0), job("c")]
    (found,) = order_assumed(jobs, Srtf, profiled=False)
    assert (
        found.text == 'no profile says how long the work of job "a" takes: policy "srtf" goes by submission'
    )
    (shared,) = order_assumed(jobs, Ares, profiled=False)
    assert shared.text.endswith('"ares" gives such jobs equal shares of its pool, whichever came first')
    assert order_assumed(jobs, Srtf, profiled=True) == []
    assert order_assumed(jobs, Fifo, profiled=False) == []
    assert order_assumed(jobs[1:], Srtf, profiled=False) == []


def test_a_demand_that_no_node_can_limit_is_said() -> None:
    demands = {"cpus": 2, "memory": 1e9}, {"licenses": 1}
    jobs = [job(name, resources={"worker": each}) for name, each in zip("ab", demands, strict=True)]
    found = [each.text for each in demands_unlimited(jobs, cluster(2))]
    assert found[0].startswith("no node states cpus, which 1 job demands: it limits nothing; did you mean")
    assert found[1:] == ["no node states licenses, which 1 job demands: it limits nothing"]
    nodes = [{"name": "n", "gpus": 2, "resources": {"licenses": 4, "cpus": 1}}]
    assert demands_unlimited(jobs, Cluster.model_validate({"nodes": tuple(nodes)})) == []
