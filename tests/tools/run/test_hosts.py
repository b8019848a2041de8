"""One job on several hosts, which share a folder, and no loopback, process table or names."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.parts.hosts import Host, HostsBackend, NoHostsError, hosts
from benchmarks.parts.training_job import running
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.statedir.contract.plan import WorkerOutcome
from tests.tools.run.elastic.gang import ENDLESS, SCRIPT
from tests.tools.run.elastic.test_in_place import same_weights_as_alone

pytestmark = [pytest.mark.torch, pytest.mark.services]
BATCH = 10


@pytest.fixture
def there() -> Iterator[tuple[Host, ...]]:
    with ExitStack() as made:
        try:
            found = made.enter_context(hosts(3))
        except NoHostsError as error:
            pytest.skip(f"no network namespaces: {error}")
        yield found


def test_a_job_on_three_hosts_goes_on_without_a_lost_one(there: tuple[Host, ...], tmp_path: Path) -> None:
    options = {**ENDLESS, "out": str(tmp_path), "step_s": 0.05}
    backends: list[HostsBackend] = []

    def opened(jobs: Path) -> HostsBackend:
        backends.append(HostsBackend(there, jobs))
        return backends[-1]

    with running(Executor, SCRIPT.read_text(), json.dumps(options), BATCH, opened) as training:

        def goes_to(workers: int) -> object:
            return (training.go_to(workers).detail or {}).get("mechanism")

        def loses_one() -> None:
            """Wait until it trains on a single host, by no order of anybody."""
            event = training.until(lambda event: event.gpus == 1)
            assert (event.detail or {}).get("lost") is True

        def outcome_of(worker: int) -> WorkerOutcome:
            """How a worker ends, which it does alone."""
            path = training.gang.handle.files.outcome(worker)
            training.wait(path.exists)
            found = WorkerOutcome.read(path)
            assert found is not None
            return found

        assert [goes_to(workers) for workers in (1, 3, 2)] == [None, "in place", "in place"]
        assert [member.node for member in training.gang.plan.members] == ["n0", "n1"]

        there[1].cut_off()  # no connection ends by that; it shares the folder still, and its worker lives
        loses_one()
        ended = outcome_of(1)
        assert ended.outcome == "cut_off"
        assert ended.message == "n1/0: cut off from the other workers of the job"

        there[1].reconnect()  # a worker was started there again, or several, one after the other
        assert goes_to(2) == "in place"
        job, last = training.gang.handle, training.gang.plan.workers[1]
        backends[0].die(job, "n1")  # as without power: it answers nothing, and its locks are held
        loses_one()
        assert training.gang.busy >= {Slot("n1", 0)}, "nothing there can be ended, so nothing is started"

        backends[0].revive(job, "n1")
        assert outcome_of(last).outcome == "left"
        trained = SimpleNamespace(dir=training.gang.files)
        training.give(0)
        training.ends()
        assert same_weights_as_alone(trained, tmp_path)["step"] > 4


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
    rigid: dict[str, Any] = {"elastic": "none", "gpus": {"requested": 2}}
    with running(Executor, PLAIN, "", BATCH, lambda jobs: HostsBackend(there, jobs), **rigid) as training:
        training.give(2)
        training.ends()
