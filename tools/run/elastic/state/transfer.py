"""The copy of the state that joining workers get.

:func:`broadcast_state` gives the state of the furthest workers to those that have none or an older one, over
the group's own connections, which are not authenticated. An outline comes first, stored and loaded by the
rule of checkpoints. Its tensors are on the meta device: they have a shape and no values. The values follow in
buckets, small tensors together and large ones in slices, and no more of them than were announced.

Between CPUs, workers that have the state pass it on in pairs, so n workers have it after log2(n) rounds.
Between GPUs one worker broadcasts: NCCL connects all workers once, and would connect each pair by itself. The
values stay on the GPUs then, and workers that have the state receive one bucket at a time and drop it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import psutil
import torch
import torch.distributed as dist

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.elastic.state.training import loaded, map_leaves, stored

CHUNK_BYTES: Final = 1 << 20
"""Size in bytes below which tensors travel together, up to as much."""
SLICE_BYTES: Final = 1 << 25
"""Size in bytes of the slices of larger tensors."""
CPU: Final = torch.device("cpu")
_LIFTED: Final = (torch.Tensor, torch.nn.Parameter)
_Exchange = Callable[[torch.Tensor], object]
"""Function that sends a tensor, or fills it with what the giver sends."""
_Part = tuple[int, int, int]
"""Part of a tensor: its number, its first byte, and the byte after its last."""


def broadcast_state(state: Any, has: Sequence[bool], rank: int, device: torch.device = CPU) -> Any:
    """The state, on every rank of the group; all ranks call this together.

    :param state: the state, if ``has[rank]``.
    :param has: by rank, which have it; at least one.
    :param device: what the workers train on. Tensors that are on it travel and arrive there.
    :raises UsageError: it holds what other workers would not load; the message says what and where.
    :raises BadInputError: what arrives is not a state, or not the one that was announced.
    :raises RuntimeError: a worker was lost.
    """
    return (_in_pairs if device.type == "cpu" else broadcast)(state, has, rank, device)


def _in_pairs(state: Any, has: Sequence[bool], rank: int, device: torch.device) -> Any:
    holders = [one for one, there in enumerate(has) if there]
    without = [one for one, there in enumerate(has) if not there]
    while without:
        served = without[: len(holders)]
        for giver, taker in zip(holders, served, strict=False):
            if rank == giver:
                _give(state, partial(dist.send, dst=taker), device)
            elif rank == taker:
                state = _take(giver, partial(dist.recv, src=giver), device)
        holders += served
        without = without[len(served) :]
    return state


def broadcast(state: Any, has: Sequence[bool], rank: int, device: torch.device) -> Any:
    """As :func:`broadcast_state`, from the first worker that has the state to all others at once."""
    if all(has):
        return state
    giver = has.index(True)
    exchange = partial(dist.broadcast, src=giver)
    if rank == giver:
        _give(state, exchange, device)
        return state
    received = _take(giver, exchange, device, keep=not has[rank])
    return state if has[rank] else received


def _give(state: Any, send: _Exchange, device: torch.device) -> None:
    tensors: list[torch.Tensor] = []
    body = stored(map_leaves(state, lambda leaf: _lift(leaf, tensors)))
    send(torch.tensor([len(body), _total_bytes(tensors)], device=device))
    send(torch.frombuffer(bytearray(body), dtype=torch.uint8).to(device))
    if tensors:
        send(torch.tensor([one.device.type == device.type for one in tensors], device=device))
    for parts in _buckets([_size(one) for one in tensors]):
        pieces = [_bytes(tensors[number])[start:end].to(device) for number, start, end in parts]
        send(torch.cat(pieces) if len(pieces) > 1 else pieces[0])


def _take(giver: int, receive: _Exchange, device: torch.device, *, keep: bool = True) -> Any:
    """:param keep: False for a worker that only takes part in a broadcast."""
    sizes = torch.zeros(2, dtype=torch.int64, device=device)
    receive(sizes)
    source = f"the state from worker {giver}"
    _check_fits(sizes.tolist(), source, device)
    body = torch.empty(int(sizes[0]), dtype=torch.uint8, device=device)
    receive(body)
    outline = loaded(io.BytesIO(body.cpu().numpy().tobytes()), source)
    announced: list[torch.Tensor] = []
    map_leaves(outline, lambda one: announced.append(one) if _is_announced(one) else None)
    if _total_bytes(announced) != int(sizes[1]):
        raise BadInputError.one(source, "its tensors are not of the size that was announced")
    on_device = torch.zeros(len(announced), dtype=torch.bool, device=device)
    if announced:
        receive(on_device)
    homes = [device if there else CPU for there in on_device.tolist()]
    rooms = [
        torch.empty(one.shape, dtype=one.dtype, device=home)
        for one, home in zip(announced if keep else (), homes, strict=keep)
    ]
    for parts in _buckets([_size(one) for one in announced]):
        _fill(rooms, parts, receive, device)
    filled = iter(rooms)
    return map_leaves(outline, lambda one: next(filled) if _is_announced(one) else one) if keep else None


def _fill(
    rooms: Sequence[torch.Tensor], parts: Sequence[_Part], receive: _Exchange, device: torch.device
) -> None:
    """Receive a bucket, into the tensors themselves where one of them takes all of it."""
    number, start, end = parts[0]
    if len(parts) == 1 and rooms and rooms[number].device.type == device.type:
        receive(_bytes(rooms[number])[start:end])
        return
    sizes = [end - start for _, start, end in parts]
    together = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    receive(together)
    for (number, start, end), piece in zip(parts if rooms else (), together.split(sizes), strict=bool(rooms)):
        _bytes(rooms[number])[start:end].copy_(piece)


def _check_fits(sizes: Sequence[int], source: str, device: torch.device) -> None:
    """Refuse absurd sizes before memory is taken for them."""
    there = psutil.virtual_memory().total
    if device.type == "cuda":
        there += torch.cuda.mem_get_info(device)[1]
    if min(sizes) < 0 or max(sizes) > there:
        announced = " and ".join(map(str, sizes))
        raise BadInputError.one(source, f"{announced} bytes are announced, and this machine has {there}")


def _lift(leaf: Any, tensors: list[torch.Tensor]) -> Any:
    """What stands for a plain tensor in the outline; anything else stays as it is."""
    if type(leaf) not in _LIFTED or leaf.layout != torch.strided or leaf.is_quantized:
        return leaf
    if leaf.is_meta:
        raise UsageError("the state of the job holds a tensor on the meta device, which has no values")
    tensors.append(leaf.detach().resolve_conj().resolve_neg().contiguous())
    return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")


def _is_announced(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_meta


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def _total_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(map(_size, tensors))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _buckets(sizes: Sequence[int]) -> Iterator[list[_Part]]:
    """What travels together: parts of tensors of these sizes, in bytes."""
    parts: list[_Part] = []
    held = 0
    for number, size in enumerate(sizes):
        if parts and held + size > CHUNK_BYTES:
            yield parts
            parts, held = [], 0
        for start in range(0, size, SLICE_BYTES):
            end = min(size, start + SLICE_BYTES)
            if end - start > CHUNK_BYTES:
                yield [(number, start, end)]
            else:
                parts.append((number, start, end))
                held += end - start
    if parts:
        yield parts
