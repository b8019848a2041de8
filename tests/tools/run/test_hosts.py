"""One job on several hosts, which share a folder, and no loopback, process table or names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.parts.hosts import Host, HostsBackend, NoHostsError, hosts
from benchmarks.parts.training_job import TrainingJob, running
from pliant.tools.run.service.allocation.slots import Slot
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.statedir.contract.outcome import WorkerOutcome
from tests.tools.run.elastic.gang import SCRIPT, Gang
from tests.tools.run.elastic.test_in_place import same_weights_as_alone

pytestmark = pytest.mark.torch
BATCH = 10


@pytest.fixture
def there() -> Iterator[tuple[Host, ...]]:
    """Three hosts."""
    if "PLIANT_TEST_HOSTS" not in os.environ:
        pytest.skip("has hung beside other tests: set PLIANT_TEST_HOSTS to test over network namespaces")
    with ExitStack() as made:
        try:
            found = made.enter_context(hosts(3))
        except NoHostsError as error:
            pytest.skip(f"no network namespaces: {error}")
        yield found


class Site:
    """A job that trains until it is stopped, and the hosts that it can have."""

    def __init__(self, training: TrainingJob, backend: HostsBackend, folder: Path) -> None:
        self.training, self.backend, self._folder = training, backend, folder

    @property
    def on(self) -> list[str]:
        """The hosts that it trains on."""
        return [member.node for member in self.training.gang.plan.members]

    def stop(self) -> Gang:
        """Let it save and leave; what the checks of trained weights need to know of it."""
        folder = self.training.gang.files
        self.training.give(0)
        while self.training.executor.gangs:
            self.training.turn()
        return cast("Gang", SimpleNamespace(dir=folder))


@pytest.fixture
def site(there: tuple[Host, ...], tmp_path: Path) -> Iterator[Site]:
    options: dict[str, Any] = {
        "out": str(tmp_path),
        "schedule": "epoch",
        "clip": True,
        "epochs": 100_000,
        "step_s": 0.05,
    }
    backends: list[HostsBackend] = []

    def opened(jobs: Path) -> HostsBackend:
        backends.append(HostsBackend(there, jobs))
        return backends[-1]

    with running(Executor, SCRIPT.read_text(), json.dumps(options), BATCH, opened) as training:
        yield Site(training, backends[0], tmp_path)


def test_a_job_grows_over_three_hosts_shrinks_and_goes_on_without_one_that_is_cut_off(
    site: Site, there: tuple[Host, ...], tmp_path: Path
) -> None:
    changes = [site.training.go_to(workers) for workers in (1, 2, 3, 2)]
    found = [(event.detail or {}).get("mechanism") for event in changes]
    assert found == [None, "in place", "in place", "in place"]
    assert site.on == ["n0", "n1"]
    there[1].cut_off()  # no connection ends by that; it shares the folder still, and its worker lives
    event = site.training.until(lambda event: event.gpus == 1)
    assert (event.detail or {}).get("lost") is True
    outcome = WorkerOutcome.read(site.training.gang.handle.files.outcome(1))
    assert outcome is not None
    assert outcome.outcome == "cut_off"
    assert outcome.message == "n1/0: cut off from the other workers of the job"
    assert same_weights_as_alone(site.stop(), tmp_path, seed=0)["step"] > 4


def test_a_host_that_stands_still_is_left_behind_and_harms_nothing_when_it_comes_back(
    site: Site, there: tuple[Host, ...], tmp_path: Path
) -> None:
    """As without power: it answers nothing, its locks are held, and nothing on it can be ended."""
    site.training.go_to(2)
    gang = site.training.gang
    site.backend.die(gang.handle, "n1")
    event = site.training.until(lambda event: event.gpus == 1)
    assert (event.detail or {}).get("lost") is True
    assert gang.busy >= {Slot("n1", 0)}, "nothing else is started there"
    assert site.on == ["n0"]
    site.backend.revive(gang.handle, "n1")
    left = gang.handle.files.outcome(1)
    site.training.until(lambda _event: left.exists())
    assert [WorkerOutcome.read(left)] == [WorkerOutcome(outcome="left")]
    assert same_weights_as_alone(site.stop(), tmp_path, seed=0)["step"] > 4


PLAIN = """
import sys, torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
sys.exit(int(total) - 2)
"""


def test_a_job_that_is_not_elastic_spans_hosts_that_do_not_know_each_other_s_names(
    there: tuple[Host, ...],
) -> None:
    def opened(jobs: Path) -> HostsBackend:
        return HostsBackend(there, jobs)

    with running(Executor, PLAIN, "", BATCH, opened, elastic="none", gpus={"requested": 2}) as training:
        training.give(2)
        while training.executor.gangs or training.executor.targets:
            training.turn()
