"""Which samples go where, for every split that hypothesis can find, and how they reach the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from pliant.schemas.errors import UsageError
from pliant.tools.profile.throughput import shares
from pliant.tools.run import elastic
from pliant.tools.run.elastic.loop.batches import (
    BatchSplit,
    Carried,
    DataSource,
    MicroBatch,
    Rows,
    epoch_order,
    micro_batches,
    read_at_once,
    to_device,
)

splits = st.builds(
    BatchSplit,
    global_batch=st.integers(1, 40),
    workers=st.integers(1, 8),
    accum=st.integers(1, 5),
    drop_last=st.booleans(),
)


def steps_of(size: int, trained: int, split: BatchSplit, rank: int) -> list[list[MicroBatch]]:
    """The micro-batches of one worker, by step."""
    result: list[list[MicroBatch]] = [[]]
    for micro in micro_batches(size, trained, split, rank):
        result[-1].append(micro)
        if micro.last:
            result.append([])
    assert result.pop() == []
    return result


def samples_of(steps: list[list[MicroBatch]]) -> list[list[int]]:
    return [[i for m in step for i in range(m.start, m.start + m.samples)] for step in steps]


def test_shares_and_weights_by_example() -> None:
    first = [samples_of(steps_of(47, 0, BatchSplit(10, 3), rank))[0] for rank in range(3)]
    assert first == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    (step,) = steps_of(7, 0, BatchSplit(10, 1, accum=2), 0)
    assert [(m.start, m.samples, m.last, m.weight) for m in step] == [
        (0, 4, False, 4 / 7),
        (4, 3, True, 3 / 7),
    ]
    (step,) = steps_of(2, 0, BatchSplit(9, 3), 2)
    assert [(m.samples, m.weight, m.loaded) for m in step] == [(0, 0.0, slice(0, 1))], "it pads with one"
    assert {m.weight for m in micro_batches(40, 0, BatchSplit(10, 2), 1)} == {1.0}


@given(size=st.integers(1, 120), trained=st.integers(0, 120), split=splits)
def test_every_step_trains_the_next_samples_once(size: int, trained: int, split: BatchSplit) -> None:
    by_rank = [samples_of(steps_of(size, trained, split, rank)) for rank in range(split.workers)]
    assert len({len(steps) for steps in by_rank}) == 1
    for steps in zip(*by_rank, strict=True):
        whole = [index for share in steps for index in share]
        assert whole == list(range(trained, trained + len(whole)))
        assert max(len(share) for share in steps) - min(len(share) for share in steps) <= 1
        trained += len(whole)
    left = max(0, size - trained)
    assert left == 0 or (split.drop_last and left < split.global_batch)


@given(size=st.integers(1, 120), split=splits)
def test_the_micro_steps_agree_and_weigh_one_in_all(size: int, split: BatchSplit) -> None:
    assert split.steps_per_epoch(size) == len(steps_of(size, 0, split, 0))
    by_rank = [list(micro_batches(size, 0, split, rank)) for rank in range(split.workers)]
    total = 0.0
    for together in zip(*by_rank, strict=True):
        assert len({(m.last, m.step_samples) for m in together}) == 1
        assert all(0 <= m.loaded.start < m.loaded.stop <= size for m in together)
        total += sum(m.weight for m in together) / split.workers
        if together[0].last:
            assert total == pytest.approx(1.0)
            total = 0.0


@given(size=st.integers(1, 120), first=splits, second=splits, stop=st.integers(0, 10))
def test_a_resize_loses_and_repeats_nothing(
    size: int, first: BatchSplit, second: BatchSplit, stop: int
) -> None:
    before = steps_of(size, 0, first, 0)[:stop]
    trained = sum(step[-1].step_samples for step in before)
    after = [samples_of(steps_of(size, trained, second, rank)) for rank in range(second.workers)]
    rest = sorted(index for steps in after for step in steps for index in step)
    assert rest == list(range(trained, trained + len(rest)))


def test_the_order_is_a_permutation_fixed_by_seed_and_epoch() -> None:
    order = epoch_order(100, epoch=3, seed=7)
    assert sorted(order.tolist()) == list(range(100))
    assert order.tolist() == epoch_order(100, epoch=3, seed=7).tolist()
    assert order.tolist() != epoch_order(100, epoch=4, seed=7).tolist()
    assert order.tolist() != epoch_order(100, epoch=3, seed=8).tolist()
    assert epoch_order(5, epoch=3, seed=7, shuffle=False).tolist() == [0, 1, 2, 3, 4]


BATCHES = [[3, 1], [0, 7, 7], [5]]


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


def test_a_dataset_without_length_or_samples_is_refused() -> None:
    for samples, message in ((iter([1]), "expected a dataset"), ([], "list has no samples")):
        with pytest.raises(UsageError, match=message):
            DataSource(samples, torch.device("cpu")).size  # type: ignore[arg-type]  # noqa: B018


def test_samplers_draw_alike_on_all_workers() -> None:
    weights = torch.arange(1, 9).float()
    drawn = []
    for worker in (1, 2):
        torch.manual_seed(worker)
        source = DataSource(range(8), torch.device("cpu"), sampler=WeightedRandomSampler(weights, 20))  # type: ignore[arg-type]
        before = torch.get_rng_state()
        drawn.append([source.order(20, epoch, 5, shuffle=True).tolist() for epoch in (0, 1, 0)])
        assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1]
    found = (source.size, len(drawn[0][0]), drawn[0][0] == drawn[0][2], drawn[0][0] == drawn[0][1])
    assert found == (20, 20, True, False)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (DistributedSampler(range(8), 2, 0), "leave out DistributedSampler: each worker gets its share"),  # type: ignore[arg-type]
        (BatchSampler(range(8), 2, drop_last=False), "BatchSampler gives batches: give its sampler"),
        (iter(range(8)), "range_iterator has no length"),
    ],
)
def test_a_sampler_that_divides_or_has_no_length_is_refused(sampler: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DataSource(range(8), torch.device("cpu"), sampler=sampler).size  # type: ignore[arg-type]  # noqa: B018


def test_batches_of_any_nesting_reach_the_device() -> None:
    batch = {"a": [torch.ones(2), "name"], "b": (torch.ones(1), Pair(torch.ones(1), 3))}
    moved = to_device(batch, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"][1].x.device.type == "meta"
    assert (moved["a"][1], moved["b"][1].y) == ("name", 3)


def tensors() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(8, 3, 2, 2, generator=generator)
    return TensorDataset(images, torch.arange(8), torch.rand(8, generator=generator) > 0.5)


class Counted(TensorDataset):
    """Looks like a dataset of tensors, and gives something else."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor + 1 for tensor in super().__getitem__(index))


def loaded(dataset: Dataset[Any], **how: Any) -> list[Any]:
    return list(DataSource(dataset, torch.device("cpu"), **how).loader(BATCHES, torch.Generator()))


@pytest.mark.parametrize(
    "dataset", [tensors(), Subset(tensors(), [7, 6, 5, 4, 3, 2, 1, 0])], ids=["all", "part"]
)
def test_batches_read_at_once_are_those_of_single_samples(dataset: Dataset[Any]) -> None:
    assert read_at_once(dataset) is not None
    for ours, plain in zip(loaded(dataset), DataLoader(dataset, batch_sampler=BATCHES), strict=True):
        assert type(ours) is type(plain)
        for mine, expected in zip(ours, plain, strict=True):
            assert mine.dtype == expected.dtype
            assert mine.stride() == expected.stride()
            assert torch.equal(mine, expected)


@pytest.mark.parametrize(
    "dataset",
    [
        Counted(torch.arange(8.0)),
        Subset(Counted(torch.arange(8.0)), range(8)),
        TensorDataset(torch.rand(2, 8).T),
        TensorDataset(torch.arange(8.0).to_sparse()),
    ],
    ids=["own samples", "part of own samples", "rows that are not rows in memory", "sparse"],
)
def test_what_would_read_otherwise_is_read_sample_by_sample(dataset: Dataset[Any]) -> None:
    assert read_at_once(dataset) is None


def test_an_own_collate_fn_gets_single_samples() -> None:
    result = loaded(tensors(), collate_fn=lambda samples: [int(label) for _, label, _ in samples])
    assert result == BATCHES


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
