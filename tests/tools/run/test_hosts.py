"""One job on several hosts, which share a folder, and no loopback, process table or names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.parts.hosts import Host, HostsBackend, NoHostsError, hosts
from benchmarks.parts.training_job import TrainingJob, running
from pliant.schemas.event import Event
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.statedir.contract.plan import WorkerOutcome
from tests.tools.run.elastic.gang import SCRIPT, Gang
from tests.tools.run.elastic.test_in_place import same_weights_as_alone

pytestmark = pytest.mark.torch
BATCH = 10


@pytest.fixture
def there() -> Iterator[tuple[Host, ...]]:
    with ExitStack() as made:
        try:
            found = made.enter_context(hosts(3))
        except NoHostsError as error:
            pytest.skip(f"no network namespaces: {error}")
        yield found


class Site:
    """A job that trains until it is stopped, and the hosts that it can have."""

    def __init__(self, training: TrainingJob, backend: HostsBackend) -> None:
        self.training, self.backend = training, backend

    @property
    def on(self) -> list[str]:
        return [member.node for member in self.training.gang.plan.members]

    def goes_to(self, workers: int) -> str | None:
        """Give it that number of hosts; how it got there."""
        return cast("str | None", (self.training.go_to(workers).detail or {}).get("mechanism"))

    def loses_one(self) -> None:
        """Wait until it trains on a single host, by no order of anybody."""
        event: Event = self.training.until(lambda event: event.gpus == 1)
        assert (event.detail or {}).get("lost") is True

    def outcome_of(self, worker: int) -> WorkerOutcome:
        """How a worker ends, which it does alone."""
        path = self.training.gang.handle.files.outcome(worker)
        self.training.wait(path.exists)
        found = WorkerOutcome.read(path)
        assert found is not None
        return found

    def stop(self) -> Gang:
        """Let it save and leave; what the checks of trained weights need to know of it."""
        folder = self.training.gang.files
        self.training.give(0)
        self.training.ends()
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
        yield Site(training, backends[0])


def test_a_job_on_three_hosts_goes_on_without_a_lost_one(
    site: Site, there: tuple[Host, ...], tmp_path: Path
) -> None:
    assert [site.goes_to(workers) for workers in (1, 3, 2)] == [None, "in place", "in place"]
    assert site.on == ["n0", "n1"]

    there[1].cut_off()  # no connection ends by that; it shares the folder still, and its worker lives
    site.loses_one()
    ended = site.outcome_of(1)
    assert ended.outcome == "cut_off"
    assert ended.message == "n1/0: cut off from the other workers of the job"

    there[1].reconnect()  # a worker was started there again, or several, one after the other
    assert site.goes_to(2) == "in place"
    job, last = site.training.gang.handle, site.training.gang.plan.workers[1]
    site.backend.die(job, "n1")  # as without power: it answers nothing, and its locks are held
    site.loses_one()
    assert site.training.gang.busy >= {Slot("n1", 0)}, "nothing there can be ended, so nothing is started"

    site.backend.revive(job, "n1")
    assert site.outcome_of(last).outcome == "left"
    assert same_weights_as_alone(site.stop(), tmp_path)["step"] > 4


PLAIN = """
import sys, torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
sys.exit(int(total) - 2)
"""


def test_a_rigid_job_spans_hosts_without_names(there: tuple[Host, ...]) -> None:
    def opened(jobs: Path) -> HostsBackend:
        return HostsBackend(there, jobs)

    with running(Executor, PLAIN, "", BATCH, opened, elastic="none", gpus={"requested": 2}) as training:
        training.give(2)
        training.ends()
