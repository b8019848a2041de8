"""What joins gets all of the state, bit by bit, in few rounds."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.elastic.state import transfer
from pliant.tools.run.elastic.state.training import Mean, Training
from pliant.tools.run.elastic.state.transfer import broadcast_state
from tests.tools.run.elastic.state.test_storable import hostile


class Wire:
    """One direction between two workers."""

    def __init__(self) -> None:
        self.sent: deque[torch.Tensor] = deque()

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self.sent.append(tensor.clone())

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        result = self.sent.popleft()
        assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)
        tensor.copy_(result)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    made = Wire()
    monkeypatch.setattr(transfer.dist, "send", made.send)
    monkeypatch.setattr(transfer.dist, "recv", made.recv)
    yield made
    assert not made.sent


@dataclass
class Best:
    """A class of an author's own."""

    weights: torch.Tensor
    value: float


def given_to_another(state: Any) -> Any:
    broadcast_state(state, [True, False], 0)
    return broadcast_state(None, [True, False], 1)


def training(seed: int) -> Training:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(600, 600), nn.BatchNorm1d(600), nn.Linear(600, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    helpers: dict[str, Any] = {
        "schedule": OneCycleLR(optimizer, 0.2, total_steps=50),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
        "average": AveragedModel(model),
    }
    made = Training(model, optimizer, helpers)
    for _ in range(seed):
        loss = model(torch.randn(4, 600)).square().mean()
        helpers["scaler"].scale(loss).backward()
        helpers["scaler"].step(optimizer)
        helpers["scaler"].update()
        helpers["schedule"].step()
        helpers["average"].update_parameters(model)
        made.step_done(4, Mean(loss.item(), 4))
    return made


def leaves(state: Any) -> Any:
    """The same with tensors as lists, which can be compared."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: leaves(value) for key, value in state.items()}
    return [leaves(one) for one in state] if isinstance(state, list | tuple) else state


def test_everything_that_is_registered_travels(wire: Wire) -> None:
    one, other = training(3), training(1)
    one.gather_loss(1)
    other.restore(given_to_another(one.shared()))
    assert leaves(other.shared()) == leaves(one.shared())
    assert other.counters == one.counters
    assert other.helpers["scaler"].get_scale() == one.helpers["scaler"].get_scale() == 16.0  # type: ignore[attr-defined]
    rates = []
    for each in (one, other):
        each.optimizers["optimizer"].step()
        each.helpers["schedule"].step()  # type: ignore[attr-defined]
        rates.append(each.optimizers["optimizer"].param_groups[0]["lr"])
    assert rates[0] == rates[1]


def test_tensors_of_every_kind_arrive_as_they_were(wire: Wire) -> None:
    state = {
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7),
        "bits": torch.tensor([True, False]),
        "turned": torch.arange(6).reshape(2, 3).t(),
        "part": torch.arange(12.0)[1::3],
        "repeated": torch.ones(1, 3).expand(4, 3),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "eighth": torch.ones(5).to(torch.float8_e5m2).view(torch.uint8),
        "complex": torch.tensor([1 + 2j, 3j]),
        "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
        "sparse": torch.eye(3).to_sparse(),
        "parameter": nn.Parameter(torch.ones(2)),
        "big": torch.randn(transfer.CHUNK_BYTES // 2),
    }
    module, words, best = nn.BatchNorm1d(3).state_dict(), ["a", (1, None)], Best(torch.arange(3.0), 0.5)
    with torch.serialization.safe_globals([Best]):
        arrived = given_to_another({"tensors": state, "module": module, "words": words, "best": best})
        alone = given_to_another({"best": best})["best"]
    torch.testing.assert_close(arrived["tensors"], state, rtol=0, atol=0)
    assert arrived["module"]._metadata == module._metadata  # type: ignore[attr-defined]
    assert arrived["words"] == words
    for each in (arrived["best"], alone):  # its tensors travel in the outline
        assert (each.weights.tolist(), each.value) == ([0.0, 1.0, 2.0], 0.5)


def test_a_broadcast_gives_the_state_to_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GPUs do it, in main memory: each rank in turn, those that take after the one that gives."""
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(transfer.dist, "broadcast", lambda tensor, src: sent.append(tensor.clone()))
    monkeypatch.setattr(transfer, "SLICE_BYTES", 3 << 20)
    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float16)
    sizes = (3, 0, 1 << 18, 5, (1 << 20) + 7, 300_001, 2, 1 << 21, 1)
    state: dict[str, Any] = {
        str(number): torch.randn(size).to(kinds[number % len(kinds)]) for number, size in enumerate(sizes)
    }
    state["step"] = 7
    has = [False, True, True, False]
    assert transfer.broadcast(state, has, 1, transfer.CPU) is state
    assert max(len(one) for one in sent) == transfer.SLICE_BYTES
    for rank in (0, 2, 3):
        rest = deque(sent)
        monkeypatch.setattr(transfer.dist, "broadcast", lambda tensor, src, rest=rest: into(tensor, rest))
        taken = transfer.broadcast("own" if has[rank] else None, has, rank, transfer.CPU)
        assert not rest
        if has[rank]:
            assert taken == "own"
        else:
            torch.testing.assert_close(taken, state, rtol=0, atol=0, equal_nan=True)
    monkeypatch.setattr(transfer.dist, "broadcast", None)
    assert transfer.broadcast("own", [True, True], 0, transfer.CPU) == "own", "nothing is sent"


def into(tensor: torch.Tensor, rest: deque[torch.Tensor]) -> None:
    result = rest.popleft()
    assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)
    tensor.copy_(result)


@given(st.lists(st.integers(0, 5 * transfer.CHUNK_BYTES), max_size=12))
def test_buckets_hold_every_byte_once_in_order(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "SLICE_BYTES", 2 * transfer.CHUNK_BYTES)
        result = list(transfer._buckets(sizes))
    parts = [part for bucket in result for part in bucket]
    assert parts == sorted(parts)
    for number, size in enumerate(sizes):
        own = [(start, end) for one, start, end in parts if one == number]
        assert [start for start, _ in own] == [0, *(end for _, end in own)][: len(own)]
        assert sum(end - start for start, end in own) == size
    assert all(sum(end - start for _, start, end in one) <= 2 * transfer.CHUNK_BYTES for one in result)


def test_what_others_would_not_load_is_refused_by_its_place(wire: Wire) -> None:
    state = {"helpers": {"average": [torch.ones(2), {"best": Best(torch.ones(2), 1.0)}]}}
    with pytest.raises(UsageError, match=r"Best at helpers\.average\.1\.best: keep .*add_safe_globals"):
        broadcast_state(state, [True, False], 0)
    with pytest.raises(UsageError, match="meta device"):
        broadcast_state({"a": torch.ones(2, device="meta")}, [True, False], 0)


def announced(wire: Wire, body: bytes, total: int) -> None:
    """Something that is not a worker of ours sends this."""
    wire.sent.append(torch.tensor([len(body), total]))
    wire.sent.append(torch.frombuffer(bytearray(body), dtype=torch.uint8))


def test_hostile_bytes_execute_nothing(wire: Wire, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    announced(wire, hostile(trace)["torch"], 0)
    with pytest.raises(UsageError, match="the state from worker 0"):
        broadcast_state(None, [True, False], 1)
    assert not trace.exists()


@pytest.mark.parametrize("shape", [(1 << 40,), (3,), (0, 1 << 62), ()])
def test_no_tensor_is_made_that_was_not_announced(wire: Wire, shape: tuple[int, ...]) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.empty(shape, device="meta"), "b": torch.empty(2, device="meta")}, buffer)
    announced(wire, buffer.getvalue(), 16)
    with pytest.raises(BadInputError, match="not of the size that was announced"):
        broadcast_state(None, [True, False], 1)
    for sizes in ((-1, 0), (0, -1), (1 << 62, 0), (8, 1 << 62)):
        wire.sent.append(torch.tensor(sizes))
        with pytest.raises(BadInputError, match=r"the state from worker 0: .* bytes are announced"):
            broadcast_state(None, [True, False], 1)


@given(st.lists(st.booleans(), min_size=1, max_size=9).filter(any))
def test_all_have_it_after_as_many_rounds_as_doublings(has: list[bool]) -> None:
    """Every rank follows the same schedule: gifts and takings match, and a giver has what it gives."""
    gifts: dict[int, list[tuple[str, int]]] = {}
    for rank in range(len(has)):
        mine: list[tuple[str, int]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                transfer, "_give", lambda state, send, _, mine=mine: mine.append(("to", send.keywords["dst"]))
            )
            patch.setattr(
                transfer, "_take", lambda giver, *_, mine=mine: mine.append(("from", giver)) or "state"
            )
            broadcast_state("it" if has[rank] else None, has, rank)
        gifts[rank] = mine
    for rank, mine in gifts.items():
        taken = [giver for word, giver in mine if word == "from"]
        assert len(taken) == (not has[rank])
        assert all(("to", rank) in gifts[giver] for giver in taken)
        assert mine[: len(taken)] == [("from", giver) for giver in taken], "it gives what it has"
    longest = max(len(mine) for mine in gifts.values())
    assert sum(has) * 2**longest >= len(has)
    assert longest <= (len(has) - 1).bit_length()
