"""Every test of the launcher ends with nothing left running and nothing half-written."""

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster
from pliant.tools.run.service import run as runner
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from pliant.tools.run.statedir.directory import StateDir
from tests.leftovers import DYING_S
from tests.tools.run.scripts import PlainBackend
from tests.tools.run.site import Site


def _described(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return repr(process)


def left_running(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            job = process.environ().get(ENV_JOB_DIR, "")
            if job.startswith(f"{folder}/") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _files_of_runs(folder: Path) -> Iterator[Path]:
    """All but those in the folders of jobs: a worker that is killed may die between two steps of a write."""
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in {"job", "jobs"}]
        yield from (Path(above, name) for name in names)


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    yield
    _, left = psutil.wait_procs(left_running(tmp_path.resolve()), timeout=DYING_S)
    commands = [_described(process) for process in left]
    for process in left:
        process.kill()
    assert commands == []
    # os.walk() passes over a folder that goes meanwhile: rounds that are over are removed in the background
    assert [file for file in _files_of_runs(tmp_path) if fnmatch.fnmatch(file.name, ".pliant-*.tmp")] == []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two CPU slots, in a cluster file, too."""
    found = Site(tmp_path)
    write_cluster(found.cluster, found.folder / "cluster.json")
    return found


@pytest.fixture
def plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of the service are started without torchrun, and it looks often."""

    def backend(name: str, nodes: Cluster, dirs: StateDir) -> PlainBackend:
        return PlainBackend(nodes, dirs.jobs)

    monkeypatch.setattr(runner, "open_backend", backend)
    monkeypatch.setattr(runner, "POLL_S", 0.01)
