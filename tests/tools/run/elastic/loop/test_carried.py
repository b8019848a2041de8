"""What a training carries from batch to batch: rows find what was handed to them, however divided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from pliant.schemas.errors import UsageError
from pliant.tools.profile.throughput import shares
from pliant.tools.run import elastic
from pliant.tools.run.elastic.loop.batches import Carried, Rows

pytestmark = pytest.mark.torch
BATCH = 6


class Worker:
    """A training of which the test says where it is."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.at = Rows(0, 1, 1, 1, 0, 0, 0, last=True, counts=True, after_optimizer=False)
        self.added: list[torch.Tensor] | None = []
        """What it gave for the sum; None if a worker was lost."""
        self.carried = Carried(lambda rows: torch.zeros(2, rows), 1, lambda: self)

    def rows(self) -> Rows:
        return self.at

    def add_up(self, tensors: Sequence[torch.Tensor]) -> bool:
        if self.added is None:
            return False
        self.added = list(tensors)
        return True


def micro_steps(workers: int, accum: int) -> Iterator[tuple[int, int, int, bool]]:
    """(worker, start, rows, whether they are its last)."""
    start = 0
    for worker, share in enumerate(shares(BATCH, workers)):
        cuts = shares(share, accum)
        for index, count in enumerate(cuts):
            yield worker, start if count else 0, count, index == len(cuts) - 1
            start += count


def step(
    workers: list[Worker], number: int, accum: int, epoch: int = 0, *, lost: bool = False
) -> list[float]:
    """One step that adds 1 + its own row's number to each row; what its rows found before."""
    before = [0.0] * BATCH
    for one, start, count, last in micro_steps(len(workers), accum):
        worker = workers[one]
        worker.added = None if lost else []
        where = (start, max(1, count), count, BATCH, number, epoch, len(workers), last)
        worker.at = Rows(*where, counts=True, after_optimizer=False)
        result = worker.carried.value
        for row in range(count):
            before[start + row] = float(result[0, row])
        worker.carried.value = result + 1 + torch.arange(start, start + max(1, count))
    if not lost:
        total = sum(worker.added[0] for worker in workers if worker.added)
        for worker in workers:
            assert worker.added
            worker.added[0].copy_(total)
    return before


def joined(worker: Worker) -> Worker:
    new = Worker()
    new.carried.load_state_dict(worker.carried.state_dict())
    return new


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 3), st.booleans(), st.booleans()), min_size=1, max_size=6
    )
)
def test_rows_find_their_own_whoever_has_trained_them(plans: list[tuple[int, int, bool, bool]]) -> None:
    workers = [Worker()]
    for number, (size, accum, lost, again) in enumerate(plans):
        workers = [workers[0], *(joined(workers[0]) for _ in range(size - 1))]
        if lost:
            step(workers, number, accum, lost=True)
        if again:
            workers = [joined(workers[-1]), *workers[:-1]]
        assert step(workers, number, accum) == [number * (1.0 + row) for row in range(BATCH)]


def test_each_epoch_and_each_batch_size_begin_with_nothing() -> None:
    worker = Worker()
    step([worker], 0, 1)
    step([worker], 1, 1)
    assert step([worker], 2, 1, epoch=1) == [0.0] * BATCH
    assert step([worker], 3, 1, epoch=1) == [1.0 + row for row in range(BATCH)]
    before = worker.carried.state_dict()
    worker.at = replace(worker.at, counts=False)
    worker.carried.value = torch.ones(2, BATCH)
    assert worker.carried.state_dict() == before, "what does not count changes nothing"
    worker.at = replace(worker.at, counts=True, batch=4, count=4, samples=4, step=4)
    assert worker.carried.value.tolist() == [[0.0] * 4] * 2


def test_other_rows_than_those_of_the_batch_are_refused() -> None:
    worker = Worker()
    worker.at = replace(worker.at, count=3)
    with pytest.raises(UsageError, match="2 rows along dimension 1, and this worker has 3"):
        worker.carried.value = torch.ones(3, 2)
    with pytest.raises(UsageError, match=r"its tensors have \[2, 3\] rows, expected one number"):
        worker.carried.value = torch.ones(3, 2), torch.ones(2, 3)


def test_a_carried_value_is_set_before_the_optimizer_steps() -> None:
    job = elastic.init(batch_size=2)
    net = torch.nn.Linear(1, 1)
    data = TensorDataset(torch.zeros(4, 1))
    net, optimizer, loader = job.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), data)
    hidden = job.carried(lambda rows: torch.zeros(rows, 1))
    for _ in job.epochs(1):
        with pytest.raises(UsageError, match="register objects before the first epoch or step"):
            job.carried(lambda rows: torch.zeros(rows, 1))
        for (x,) in loader:
            hidden.value = net(x).detach() + hidden.value
            net(x).mean().backward()
            optimizer.step()
            with pytest.raises(UsageError, match=r"set its value before optimizer\.step\(\)"):
                hidden.value = x
        with pytest.raises(UsageError, match=r"in the loop over job\.steps, or over the loader"):
            hidden.value  # noqa: B018
        break
