"""All-reduce times are measured once for a cluster and used for every job after that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.cli.profile import profile
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_profile, write_cluster, write_jobs, write_profile
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.measuring.run import AllReduceCache, cluster_label
from tests.builders import cluster, job, mixed_cluster
from tests.tools.profile.measuring.machine import Machine
from tests.tools.profile.rows_builder import reduce, step

CPUS = cluster(4, slots="cpu", gpu_type="cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    from pliant.tools.profile.measuring import run as sweep

    made, measure = Machine(), sweep.measure

    def measured(*arguments: Any, **named: Any) -> sweep.MeasuredProfile:
        return measure(*arguments, **named, start=made)

    monkeypatch.setattr(sweep, "measure", measured)
    return made


def measured(folder: Path, nodes: Cluster = CPUS, **options: Any) -> tuple[ProfileRow, ...]:
    """The all-reduce rows of a profile measured on a cluster."""
    jobs, machines, out = folder / "jobs.jsonl", folder / "cluster.json", folder / "profile.parquet"
    write_jobs([job("a", model="net", command=("train.py",), batch=8)], jobs)
    write_cluster(nodes, machines)
    profile(str(jobs), cluster=str(machines), output=str(out), **options)
    return tuple(row for row in read_profile(out).rows if row.kind == "allreduce")


def test_the_first_profile_measures_and_the_second_one_uses_that(machine, tmp_path, capsys) -> None:
    first = measured(tmp_path, allreduce=True)
    assert machine.reduced_on == [2, 4]
    assert read_profile(tmp_path / "allreduce.parquet").rows == first
    capsys.readouterr()
    assert measured(tmp_path, allreduce=True) == first
    assert machine.reduced_on == [2, 4]
    stderr = capsys.readouterr().err
    assert "allreduce.parquet, measured 20" in stderr
    assert "UTC on the cluster of n0 4 × cpu (cpu slots)" in stderr
    # Times of another cluster are refused before anything is measured.
    refused = r"on the cluster of n0 4 × cpu .*, not on the cluster of n0 to n1"
    with pytest.raises(BadInputError, match=refused):
        measured(tmp_path, cluster(4, 4, slots="cpu", gpu_type="cpu"), allreduce=True)
    assert machine.reduced_on == [2, 4]
    machine.allreduce_s = 0.005
    fresh = measured(tmp_path, refresh=True)
    assert {row.step_seconds for row in fresh} == {0.005}
    assert {row.step_seconds for row in measured(tmp_path, allreduce=True)} == {0.005}


def test_a_named_file_serves_profiles_in_any_folder(machine: Machine, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        measured(tmp_path / name, allreduce_file=str(tmp_path / "ours.parquet"))
    assert machine.reduced_on == [2, 4]


def test_times_of_one_gpu_type_do_not_stand_for_another(machine, tmp_path):
    both = mixed_cluster(old=(2,), new=(4,)).model_copy(update={"slots": "cpu"})
    old = reduce(2, 10_000_000, 0.5, gpu_type="old")
    kept = tmp_path / "allreduce.parquet"
    AllReduceCache.of(Profile((old,)), cluster_label(both)).write(kept)
    found = measured(tmp_path, both, allreduce=True)
    assert machine.reduced_on == [2, 4]
    assert {row.gpu_type for row in found} == {"old", "new"}
    assert read_profile(kept).rows == found
    assert measured(tmp_path, both, allreduce=True) == found
    assert machine.reduced_on == [2, 4], "both are known now"
    machine.allreduce_s = 0.005
    fresh = measured(tmp_path, both, refresh=True)
    assert old in fresh
    assert {row.step_seconds for row in fresh if row != old} == {0.005}
    assert fresh == tuple(row for row in read_profile(kept).rows if row.kind == "allreduce")


def test_clusters_differ_by_nodes_slots_and_types(tmp_path: Path) -> None:
    others = cluster(2, 2, 2), cluster(4), cluster(2, 2, slots="cpu"), cluster(2, 2, gpu_type="p100")
    assert len({cluster_label(each) for each in (None, cluster(2, 2), *others)}) == 6
    assert cluster_label(cluster(2, 2)) == "the cluster of n0 to n1, each 2 × gpu (gpu slots)"
    # A profile of jobs is no file of all reduce times.
    path = tmp_path / "profile.parquet"
    write_profile(Profile((step(1, 8, 0.1), reduce(2, 10, 0.1))), path)
    with pytest.raises(BadInputError, match="is not a file of all-reduce times"):
        AllReduceCache.read(path, "this cluster")
