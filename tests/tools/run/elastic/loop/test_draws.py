"""Draws of the script, alike on all workers, and those inside of models, each worker's own."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from pliant.tools.run.elastic.loop.draws import OwnDraws

pytestmark = pytest.mark.torch


def drawn(rank: int, workers: int = 2) -> tuple[list[float], list[float]]:
    """What the script draws around two calls of a model and a batch that is read, and what these draw."""
    torch.manual_seed(3)
    net = nn.Dropout(0.5)
    draws = OwnDraws([net], torch.device("cpu"))
    draws.follow(1, 0, rank, workers)
    script, inside = [torch.rand(1).item()], list[float]()
    for _ in range(2):
        inside += net(torch.ones(16)).tolist()
        script.append(torch.rand(1).item())
    with draws.reading():
        inside.append(torch.rand(1).item())
    script.append(torch.rand(1).item())
    return script, inside


def test_scripts_draw_alike_and_models_do_not() -> None:
    (first, own), (second, other) = drawn(0), drawn(1)
    assert first == second
    assert own != other
    assert own[:16] != own[16:32], "the worker's own state goes on"
    alone, plain = drawn(0, workers=1)
    torch.manual_seed(3)
    net = nn.Dropout(0.5)
    expected = [torch.rand(1).item()]
    for _ in range(2):
        assert plain[:16] == net(torch.ones(16)).tolist()
        plain = plain[16:]
        expected.append(torch.rand(1).item())
    assert alone[:3] == expected, "one worker draws as plain Python does"


def test_rank_0_gives_its_generators() -> None:
    sent: list[torch.Tensor] = []

    def record(tensors: Sequence[torch.Tensor]) -> None:
        sent.extend(one.clone() for one in tensors)

    def replay(tensors: Sequence[torch.Tensor]) -> None:
        for one, given in zip(tensors, sent, strict=True):
            one.copy_(given)

    def numbers() -> tuple[float, float, float, float]:
        return torch.rand(1).item(), np.random.normal(), random.gauss(0, 1), random.random()  # noqa: NPY002

    draws = OwnDraws([], torch.device("cpu"))
    draws.follow(1, 0, 0, 2)
    numbers()  # of two normal numbers that are made at once, one waits
    draws.share(record, scripts=True)
    expected = numbers()
    draws.share(replay, scripts=True)
    assert numbers() == expected
