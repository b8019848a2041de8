"""Draws of the script, alike on all workers, and those inside of models, each worker's own."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pliant.tools.run.elastic.loop.draws import OwnDraws

pytestmark = pytest.mark.torch


def drawn(rank: int, workers: int = 2) -> tuple[list[float], list[float]]:
    """What the script draws around two calls of a model and a batch that is read, and what these draw."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 16))
    torch.manual_seed(3)
    draws = OwnDraws([net], torch.device("cpu"))
    draws.follow(rank, workers)
    script, inside = [torch.rand(1).item()], list[float]()
    for call in (net, net[0]):
        inside += (call(torch.ones(16)) != 0).tolist() if call is net[0] else call[0](torch.ones(16)).tolist()
        script.append(torch.rand(1).item())
    net.eval()
    if rank == 1:  # an evaluation by one worker alone
        net(torch.ones(16))
    with draws.reading(1, 0, 8 * rank):
        inside.append(torch.rand(1).item())
    script.append(torch.rand(1).item())
    return script, inside


def test_scripts_draw_alike_and_models_do_not():
    (first, own), (second, other) = drawn(0), drawn(1)
    assert first == second
    assert own != other
    torch.manual_seed(3)
    expected = [torch.rand(1).item()]
    alone, inside = drawn(0, workers=1)
    torch.manual_seed(3)
    torch.rand(1)
    assert inside[:16] == nn.Dropout(0.5)(torch.ones(16)).tolist()
    assert alone[0] == expected[0], "one worker draws as plain Python does"


def test_a_part_that_is_computed_again_draws_the_same_again():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    OwnDraws([net], torch.device("cpu")).follow(1, 2)
    masks: list[list[bool]] = []
    net[1].register_forward_hook(lambda _, __, output: masks.append((output != 0).flatten().tolist()))
    for _ in range(2):
        with set_checkpoint_early_stop(False):
            checkpoint(net, torch.ones(2, 8, requires_grad=True), use_reentrant=False).sum().backward()
    assert masks[0] == masks[1]
    assert masks[2] == masks[3] != masks[0]
    net[1]._forward_hooks.popitem()
    assert len(pickle.dumps(net)) < 10_000, "a copy has hooks that do nothing"


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
    draws.follow(0, 2)
    numbers()  # of two normal numbers that are made at once, one waits
    draws.share(record, scripts=True)
    expected = numbers()
    draws.share(replay, scripts=True)
    assert numbers() == expected
