"""Gradients of workers that are threads, averaged however a script makes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop import averaging as module
from pliant.tools.run.elastic.loop.averaging import Averaging, TolerantGroup
from pliant.tools.run.elastic.loop.batches import BatchSplit, micro_batches
from pliant.tools.run.elastic.loop.gradients import Gradients, NoSync

pytestmark = pytest.mark.torch

LARGE = 1 << 16
ROWS = 8


class Group:
    """A process group of two whose exchanges go well until they are to fail; the other worker has zeros."""

    def __init__(self) -> None:
        self.fails_at: str | None = None
        self.begun = 0

    def size(self) -> int:
        return 2

    def _get_backend(self, device: torch.device) -> Group:
        return self

    def allreduce(self, tensors: list[torch.Tensor]) -> Group:
        self.begun += 1
        if self.fails_at == "begin":
            raise RuntimeError("at its begin")
        return self

    broadcast = allreduce

    def allgather(self, gathered: list[list[torch.Tensor]], tensors: list[torch.Tensor]) -> Group:
        own, other = gathered[0]
        own.copy_(tensors[0].detach())
        other.zero_()
        return self.allreduce(tensors)

    def wait(self) -> bool:
        if self.fails_at == "wait":
            raise RuntimeError("at its end")
        return True


@pytest.mark.parametrize("fails_at", ["begin", "wait"])
@pytest.mark.parametrize("act", ["add_up", "broadcast"])
def test_a_failed_exchange_ends_quietly_and_no_other_begins(fails_at: str, act: str) -> None:
    inner, tensor = Group(), torch.ones(3)
    group = TolerantGroup(inner)  # type: ignore[arg-type]
    assert group.add_up(tensor)
    assert group.broadcast([tensor])
    inner.fails_at = fails_at
    assert not (group.add_up(tensor) if act == "add_up" else group.broadcast([tensor]))
    assert "at its" in str(group.error)
    first, begun = group.error, inner.begun
    assert not group.add_up(tensor)
    assert not group.broadcast([tensor])
    assert (group.error, inner.begun) == (first, begun)
    raising = TolerantGroup(inner, tolerates=False)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="at its"):
        raising.add_up(tensor)


class OfThread:
    """One of several workers that are threads, connected by gloo."""

    def __init__(self, store: dist.Store, rank: int, workers: int) -> None:
        self._backend = dist.ProcessGroupGloo(store, rank, workers, timedelta(seconds=60))

    def size(self) -> int:
        return self._backend.size()

    def _get_backend(self, device: torch.device) -> dist.ProcessGroupGloo:
        return self._backend


def together(work: Callable[[TolerantGroup, int], Any], workers: int = 2) -> list[Any]:
    store = dist.HashStore()

    def run(rank: int) -> Any:
        return work(TolerantGroup(OfThread(store, rank, workers)), rank)  # type: ignore[arg-type]

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(run, range(workers)))


def summed(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """What workers that each have one of the tensors find to be their sum."""

    def work(group: TolerantGroup, rank: int) -> torch.Tensor:
        result = tensors[rank].clone()
        assert group.add_up(result), group.error
        return result

    return together(work, len(tensors))


def test_tensors_are_added_up_the_same_for_all_workers() -> None:
    """In the order of ranks: in any other one the one is lost among the large numbers."""
    for workers, numbers in ((2, 7), (2, LARGE), (3, LARGE)):
        tensors = [torch.arange(numbers) * 10**rank for rank in range(workers)]
        for result in summed(*tensors):
            assert torch.equal(result, sum(tensors[1:], tensors[0]))
    for result in summed(*(torch.full((7,), value) for value in (1e8, -1e8, 1.0))):
        assert result.tolist() == [1.0] * 7
    complex_ones = torch.ones(2, dtype=torch.complex64)
    for result in summed(complex_ones, 1j * complex_ones):
        assert result.tolist() == [1 + 1j] * 2
    columns = torch.arange(6.0).reshape(2, 3).T
    for result in summed(columns, columns):
        assert torch.equal(result, 2 * columns)


class Net(nn.Module):
    """Two layers, one that no loss needs, an embedding with sparse gradients, and a complex factor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.unused = (nn.Linear(4, 4).double() for _ in range(3))
        self.table = nn.Embedding(5, 4, sparse=True).double()
        self.factor = nn.Parameter(torch.ones(4, dtype=torch.complex128))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.first(x).tanh()
        return hidden

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.table(x[:, 0].abs().long() % 5)
        return ((self.second(self.encode(x)) + rows) * self.factor).abs().square().mean()


def data() -> torch.Tensor:
    return torch.randn(ROWS, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


Body = Callable[[Net, torch.Tensor], object]


def submodules(net: Net, x: torch.Tensor) -> None:
    net.second(net.encode(x)).square().mean().backward()


def several_passes(net: Net, x: torch.Tensor) -> None:
    net.loss(x).backward()
    loss = net.encode(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def by_hand(net: Net, x: torch.Tensor) -> None:
    named = [net.first.weight, net.second.weight, net.table.weight]
    for one, gradient in zip(named, torch.autograd.grad(net.loss(x), named), strict=True):
        one.grad = gradient


def unfrozen(net: Net, x: torch.Tensor) -> None:
    """The workers have met while a layer was frozen."""
    net.second.requires_grad_(True)
    net.loss(x).backward()
    net.first.requires_grad_(False)
    net.loss(x).backward()


def checkpointed(net: Net, x: torch.Tensor) -> None:
    """Backward passes within one, of which the first reaches parameters before and after them."""
    hidden = checkpoint(net.encode, x.requires_grad_(), use_reentrant=True)
    checkpoint(net.second, hidden, use_reentrant=True).square().mean().backward()


def in_parts(net: Net, x: torch.Tensor) -> None:
    """Of no more than three rows, which are two parts on one worker and one on another."""
    no_sync: Any = net.no_sync
    starts = range(0, len(x), 3)
    for start in starts:
        part = x[start : start + 3]
        with nullcontext() if start == starts[-1] else no_sync():
            (net.loss(part) * len(part) / len(x)).backward()


def never_synced(net: Net, x: torch.Tensor) -> None:
    no_sync: Any = net.no_sync
    with no_sync():
        net.loss(x).backward()


def whole(net: Net, x: torch.Tensor) -> None:
    net.loss(x).backward()


BODIES: dict[str, Body] = {
    one.__name__: one
    for one in (whole, submodules, several_passes, by_hand, unfrozen, checkpointed, in_parts, never_synced)
}


def gradients_of(net: Net) -> dict[str, torch.Tensor]:
    return {name: one.grad.to_dense() for name, one in net.named_parameters() if one.grad is not None}


@pytest.fixture(params=[1 << 20, 64], ids=["one bucket", "small buckets"])
def _buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_BUCKET_BYTES", request.param)
    monkeypatch.setattr(module, "_BUCKET_BYTES", request.param)


@pytest.mark.usefixtures("_buckets")
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_those_of_the_whole_batch(name: str, workers: int) -> None:
    """However they come about; what no worker reaches has none."""
    body, frozen = BODIES[name], name == "unfrozen"
    alone = Net()
    alone.no_sync = NoSync()  # type: ignore[assignment]
    body(alone, data())
    copies = [copy.deepcopy(Net()) for _ in range(workers)]

    def work(group: TolerantGroup, rank: int) -> dict[str, torch.Tensor]:
        net, averaging = copies[rank], Averaging()
        net.second.requires_grad_(not frozen)
        averaging._begin([net], group)
        held = Gradients([net], averaging)
        held.bind(accumulates=False)
        net.no_sync = NoSync(held)  # type: ignore[assignment]
        held.begin_step()
        (micro,) = micro_batches(ROWS, 0, BatchSplit(ROWS, workers), rank)
        held.begin(micro)
        body(net, data()[micro.loaded])
        held.before_optimizer()
        assert averaging.error is None
        return gradients_of(net)

    for result in together(work, workers):
        torch.testing.assert_close(result, gradients_of(alone), rtol=1e-12, atol=1e-14)


def test_shared_weights_in_a_reentrant_checkpoint_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bucket is on its way when they get another gradient."""
    monkeypatch.setattr(module, "_FIRST_BUCKET_BYTES", 1)
    monkeypatch.setattr(module, "_BUCKET_BYTES", 1)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    averaging = Averaging()
    averaging._begin([net], TolerantGroup(Group()))  # type: ignore[arg-type]
    held = Gradients([net], averaging)
    held.bind(accumulates=False)
    hidden = checkpoint(net, torch.ones(2, 4, requires_grad=True), use_reentrant=True)
    with pytest.raises(UsageError, match="use_reentrant=False"):
        net(hidden).sum().backward()
