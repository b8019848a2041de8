"""Which datasets are taken, and how batches reach the device."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.data_loader import DataSource, to_device


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
