"""Which datasets are taken, how samples become batches, and how these reach the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import DataSource, read_at_once, to_device

BATCHES = [[3, 1], [0, 7, 7], [5]]


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


def test_a_dataset_without_length_or_samples_is_refused() -> None:
    for samples in (iter([1]), []):
        with pytest.raises(UsageError, match="expected a dataset"):
            DataSource(samples, torch.device("cpu")).size  # type: ignore[arg-type]  # noqa: B018


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


def test_an_author_s_own_way_of_making_batches_gets_single_samples() -> None:
    found = loaded(tensors(), collate_fn=lambda samples: [int(label) for _, label, _ in samples])
    assert found == BATCHES
