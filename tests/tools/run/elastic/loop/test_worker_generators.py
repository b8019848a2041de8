"""Draws of scripts and models, weights that a step may write, and what a job prepares."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.data import DataLoader, TensorDataset

from pliant.schemas.errors import UsageError
from pliant.tools.run import elastic
from pliant.tools.run.elastic.loop.prepared import watch_others
from pliant.tools.run.elastic.loop.weights import StepWeights
from pliant.tools.run.elastic.loop.worker_generators import WorkerGenerators

pytestmark = pytest.mark.torch


def drawn(rank: int, workers: int = 2) -> tuple[list[float], list[float]]:
    """What the script draws around two calls of a model and a batch that is read, and what these draw."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 16))
    torch.manual_seed(3)
    draws = WorkerGenerators([net], torch.device("cpu"))
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
    WorkerGenerators([net], torch.device("cpu")).follow(1, 2)
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

    draws = WorkerGenerators([], torch.device("cpu"))
    draws.follow(0, 2)
    numbers()  # of two normal numbers that are made at once, one waits
    draws.share(record, scripts=True)
    expected = numbers()
    draws.share(replay, scripts=True)
    assert numbers() == expected


def test_a_pass_for_a_later_part_finds_the_weights_of_each_part() -> None:
    model = nn.Linear(1, 1, bias=False)
    weights = StepWeights(lambda: [model], takes_turns=False)
    groups = [{"params": [model.weight]}]

    def write(value: float) -> None:
        with torch.no_grad():
            model.weight.fill_(value)

    def finds(turn: int) -> list[float]:
        """In each part of a pass that goes through them again."""
        weights.begin_pass(turn, watched=False)
        values = [model.weight.item()]
        for part in range(1, turn + 1):
            weights.go_to(part)
            values.append(model.weight.item())
        return values

    weights.begin_step()
    write(0.0)
    weights.note(0, groups)
    write(1.0)
    assert [finds(1), finds(1)] == [[0.0, 1.0]] * 2, "for each micro-step"
    weights.note(1, groups)
    write(2.0)
    assert finds(2) == [0.0, 1.0, 2.0]
    weights.begin_pass(2, watched=False)
    assert model.weight.item() == 0.0
    weights.return_to_present()
    assert model.weight.item() == 2.0


def test_weights_may_be_written_by_what_ends_a_step_only() -> None:
    model = nn.Linear(2, 2)
    weights = StepWeights(lambda: [model], takes_turns=False)

    def writes(value: float) -> None:
        weights.begin_pass(0, watched=True)
        with torch.no_grad():
            model.weight.clamp_(-value, value)
        weights.check_untouched()

    writes(9.0)  # the same values again
    with pytest.raises(UsageError, match="changed in a micro-step"):
        writes(1e-3)
    for _ in range(9):  # later, the first write only makes it look
        weights.begin_pass(0, watched=True)
        weights.check_untouched()
    with pytest.raises(UsageError, match="changed in a micro-step"):
        writes(1e-4)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def data() -> TensorDataset:
    return TensorDataset(torch.zeros(10, 1))


def test_it_returns_what_it_is_given_in_the_same_order() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 2)
    first, second, samples = sgd(one), sgd(other), data()
    job = elastic.init(batch_size=4)
    result = job.prepare(first, painter=one, data=samples, critic=other, second=second)
    assert [id(result[at]) for at in (0, 1, 3, 4)] == [id(it) for it in (first, one, other, second)]
    loader: Any = result[2]
    assert (len(loader), len(loader.sampler), loader.dataset is samples) == (3, 10, True)
    loader.sampler.set_epoch(1)


class Sharded(FSDPModule, nn.Linear):
    def __new__(cls, *sizes: int) -> Any:
        return nn.Linear.__new__(cls)


Accelerated = type("AcceleratedOptimizer", (torch.optim.SGD,), {"__module__": "accelerate.optimizer"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda net: (nn.DataParallel(net), sgd(net)), "leave out DataParallel: each worker has one device"),
        (lambda net: (Sharded(1, 1), sgd(net)), "leave out fully_shard; every worker has a whole copy"),
        (lambda net: (net, Accelerated(net.parameters(), lr=0.1)), "leave out Accelerator: job.prepare"),
        (lambda net: (net, sgd(net), DataLoader(data(), 2)), "DataLoader gives batches: give job.prepare"),
        (lambda net: (net, data()), "job.prepare got no optimizer"),
        (lambda net: (net, sgd(net), data(), data()), "job.prepare got several datasets"),
        (lambda net: (net, sgd(net), torch.amp.GradScaler("cpu")), "GradScaler: register this object"),
    ],
    ids=["DataParallel", "fully_shard", "Accelerator", "DataLoader", "optimizer", "datasets", "scaler"],
)
def test_what_it_cannot_use_is_named_with_what_to_do_instead(given: Any, message: str) -> None:
    with pytest.raises(UsageError) as result:
        elastic.init(batch_size=4).prepare(*given(nn.Linear(1, 1)))
    assert message in str(result.value)


def test_a_dictionary_is_registered_as_it_is() -> None:
    best = {"loss": 1.0}
    job = elastic.init(batch_size=4)
    job.register(best=best)
    kept = job._helpers["best"]
    state = copy.deepcopy(kept.state_dict())
    best |= {"loss": 0.5, "epoch": 3}
    kept.load_state_dict(state)
    assert best == {"loss": 1.0}


def test_an_optimizer_of_an_unknown_model_is_named_once() -> None:
    known, steps, warnings = nn.Linear(1, 1), [0], list[str]()
    handle = watch_others([sgd(known)], [known], lambda: steps[0], warnings.append)
    try:
        other = sgd(nn.Linear(1, 1))
        for steps[0] in range(3):
            other.step()
            sgd(nn.Linear(1, 1)).step()  # it looks for an input of this step
        assert len(warnings) == 1
        assert "SGD, which job.prepare did not get, trains a model of its own" in warnings[0]
        with pytest.raises(UsageError, match="trains its models"):
            sgd(known).step()
    finally:
        handle.remove()
