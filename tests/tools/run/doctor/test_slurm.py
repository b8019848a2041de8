"""Slurm as a doctor sees it: recorded, missing, silent, and real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run import discovery
from pliant.tools.run.doctor import checks as looked_at
from pliant.tools.run.doctor.checks import Site, examine, guarded, worst
from pliant.tools.run.doctor.checks import slurm as checks_of
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.doctor.looked import found, not_ok

RECORDED = Path(__file__).parents[1] / "backends/slurm/recorded"


def of(*names: str, gpus: int = 4, partition: str | None = None) -> Site:
    nodes = tuple({"name": name, "gpus": gpus} for name in names)
    options = {} if partition is None else {"partition": partition}
    return Site(
        "slurm", cluster=Cluster.model_validate({"nodes": nodes, "backend": "slurm", "slurm": options})
    )


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm that says what one of 22.05 said."""

    def ask(argv: Sequence[str], **_more: float) -> str:
        if argv[-1] == "--version":
            return "slurm-wlm 22.05.8\n"
        name = "config" if argv[-1] == "config" else f"{argv[-1]}s"
        return (RECORDED / f"22.05-{name}.txt").read_text()

    def no_topology(argv: Sequence[str], **_more: float) -> str:
        raise ServiceMissingError(f"{argv[0]}: topology/default plugin loaded")

    monkeypatch.setattr(looked_at, "ask", ask)
    monkeypatch.setattr(discovery, "ask", no_topology)
    monkeypatch.setattr(looked_at.shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("recorded")
def test_nodes_out_of_service_are_warnings_with_the_reason() -> None:
    texts = found(checks_of(of("n0", "n1", "n3")))
    assert texts == [
        "ok: slurm-wlm 22.05.8 has all commands that are needed; sacct is not",
        "ok: partition main starts jobs",
        "warning: n1 is out of service (cooling); mend it, then: scontrol update nodename=n1 state=resume",
        "ok: 2 of 3 nodes in service",
    ]


@pytest.mark.usefixtures("recorded")
def test_a_cluster_file_that_does_not_fit_is_a_problem() -> None:
    texts = not_ok(checks_of(of("n0", "n9", gpus=8, partition="big")))
    again = "make the file again: pliant cluster discover --backend slurm"
    assert texts == [
        'problem: Slurm has no partition "big", it has: main; name one in the cluster file: slurm.partition',
        f'problem: Slurm has no node "n9"; {again}',
        f"problem: nodes with fewer GPUs than the cluster file says: n0 (4 of 8); {again}",
    ]


@pytest.mark.usefixtures("recorded")
def test_no_node_in_service_is_a_problem() -> None:
    assert (
        found(checks_of(of("n1", "n2")))[-1]
        == "problem: 0 of 2 nodes in service; no job can start; see sinfo -R"
    )


@pytest.mark.usefixtures("recorded")
def test_without_a_cluster_file_all_nodes_are_looked_at() -> None:
    assert found(checks_of(Site("slurm")))[-1] == "ok: 2 of 4 nodes in service"
    assert list(checks_of(Site("local"))) == []


@pytest.mark.usefixtures("recorded")
def test_jobs_of_their_own_need_gpus_that_are_given_out_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    site = replace(of("n0"), backend="slurm-jobs")
    assert not_ok(checks_of(site)) == []
    monkeypatch.setattr(looked_at.parsing, "settings", lambda _text: {"SelectType": "select/linear"})
    (text,) = not_ok(checks_of(site))
    assert text.startswith(
        "problem: select/linear does not give out GPUs by task, which backend slurm-jobs needs"
    )


def test_commands_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked_at.shutil, "which", lambda name: None if name.startswith("s") else name)
    (text,) = found(checks_of(Site("slurm")))
    assert text.startswith(
        "problem: not found: sbatch, srun, squeue, scancel, scontrol, sinfo; run on a host"
    )


@pytest.mark.usefixtures("recorded")
def test_a_controller_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(argv: Sequence[str], **_more: float) -> str:
        if argv[-1] == "--version":
            return "slurm 19.05.3\n"
        raise ServiceMissingError("scontrol: Unable to contact slurm controller (connect failure)")

    monkeypatch.setattr(looked_at, "ask", ask)
    first, second = found(guarded("Slurm", checks_of, of("n0")))
    assert first == "warning: slurm 19.05.3 is older than any that was tried; use 20.11 or newer"
    assert second.startswith(
        "problem: scontrol: Unable to contact slurm controller (connect failure); start slurmctld"
    )


def test_a_real_slurm_is_well(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    checks = [check for check in examine(backend="slurm") if check.area == "Slurm"]
    assert worst(checks) == "ok"
    assert found(checks)[-1] == "ok: 4 of 4 nodes in service"


@pytest.mark.usefixtures("recorded")
def test_levels_that_slurm_knows_and_the_cluster_file_does_not_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = (RECORDED / "22.05-topology.txt").read_text()
    monkeypatch.setattr(discovery, "ask", lambda _argv, **_more: topology)
    (said,) = [text for text in not_ok(checks_of(of("n0", "n1", "n2", "n3"))) if "levels" in text]
    assert said.startswith("warning: Slurm knows levels of the network that the cluster file does not name")
