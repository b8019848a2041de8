"""What ``job.prepare`` takes and returns, and what a script finds on it however it was started."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, TensorDataset

from pliant.schemas.errors import UsageError
from pliant.tools.run import elastic
from pliant.tools.run.elastic.loop.prepared import watch_others

pytestmark = pytest.mark.torch


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


def test_an_optimizer_of_a_model_that_was_not_given_is_named_once() -> None:
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
