"""How long a job's other workers take to go on without a host that is dead, or cut off.

A job trains on two hosts, each a network namespace (parts/hosts.py). One of them stands still and drops every
packet, as without power, or drops its packets only. No connection ends, so only heartbeats can tell. The time
ends with the first step that the other worker trains alone, so it is a little more than until it is noticed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure, NotMeasurableError
from benchmarks.parts.hosts import Host, HostsBackend, NoHostsError, hosts
from benchmarks.parts.training_job import TrainingJob, running
from pliant.tools.run.service.executor import Executor

MEASURES: Final = ("tools/run/elastic", "tools/run/service")

BATCH: Final = 12
LIMIT_S: Final = 15.0
SCRIPT: Final = """
import time
import torch
from torch import nn
from pliant.tools.run import elastic

job = elastic.init(batch_size=12, seed=1)
data = torch.utils.data.TensorDataset(torch.randn(1200, 8), torch.randn(1200, 1))
model = nn.Linear(8, 1)
model, optimizer, loader = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001), data)
for epoch in job.epochs(100_000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        time.sleep(0.02)
"""


def figures() -> list[Figure]:
    """The time.

    :raises NotMeasurableError: no hosts can be made on this machine, or not by this user.
    """
    try:
        return [Figure("dead_node_noticed_s", noticed_s(), "s", LIMIT_S)]
    except NoHostsError as error:
        raise NotMeasurableError(str(error)) from error


def smallest() -> list[Figure]:
    """All of it: it has no smaller form."""
    return figures()


def noticed_s() -> float:
    """The longer of the two times, in seconds.

    :raises NoHostsError: no hosts can be made on this machine, or not by this user.
    """
    return max(dead_s(), cut_off_s())


def dead_s() -> float:
    """The second host stands still, and answers nothing."""
    with _training() as (training, backend, _):
        return _time_alone(training, lambda: backend.die(training.gang.handle, "n1"))


def cut_off_s() -> float:
    """The packets of the second host are dropped; it trains on, and shares the folder."""
    with _training() as (training, _, there):
        return _time_alone(training, there[1].cut_off)


def _time_alone(training: TrainingJob, happen: Callable[[], None]) -> float:
    training.go_to(2)
    began_s = time.monotonic()
    happen()
    training.until(lambda event: event.gpus == 1)
    return time.monotonic() - began_s


@contextlib.contextmanager
def _training() -> Iterator[tuple[TrainingJob, HostsBackend, tuple[Host, ...]]]:
    backends: list[HostsBackend] = []
    with hosts(2) as there:

        def opened(jobs: Path) -> HostsBackend:
            backends.append(HostsBackend(there, jobs))
            return backends[-1]

        with running(Executor, SCRIPT, "", BATCH, opened) as training:
            try:
                yield training, backends[0], there
            finally:
                for host in there:
                    backends[0].revive(training.gang.handle, host.name)
