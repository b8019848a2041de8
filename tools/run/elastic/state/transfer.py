"""The copy of the state that joining workers get.

:func:`pass_on` gives the state of the furthest workers to those that have none or an older one. Workers that
have it pass it on, so n workers have it after log2(n) rounds. It travels through main memory and the group's
own connections, which are not authenticated. An outline comes first, stored and loaded by the same rule as
checkpoints. Its tensors are on the meta device: they have a shape and no values. The values follow, large
tensors one by one, small ones together, and no more of them than were announced.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psutil
import torch
import torch.distributed as dist

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.elastic.state.storable import loaded, stored
from pliant.tools.run.elastic.state.training import mapped

CHUNK_BYTES: Final = 1 << 20
_LIFTED: Final = (torch.Tensor, torch.nn.Parameter)


def pass_on(state: Any, has: Sequence[bool], rank: int) -> Any:
    """The state, on every rank of the group; all ranks call this together.

    :param state: the state, if ``has[rank]``.
    :param has: by rank, which have it; at least one.
    :raises UsageError: it holds what other workers would not load; the message says what and where.
    :raises BadInputError: what arrives is not a state, or not the one that was announced.
    :raises RuntimeError: a worker was lost.
    """
    holders = [one for one, there in enumerate(has) if there]
    without = [one for one, there in enumerate(has) if not there]
    while without:
        served = without[: len(holders)]
        for giver, taker in zip(holders, served, strict=False):
            if rank == giver:
                _give(state, taker)
            elif rank == taker:
                state = _take(giver)
        holders += served
        without = without[len(served) :]
    return state


def _give(state: Any, to: int) -> None:
    tensors: list[torch.Tensor] = []
    body = stored(mapped(state, lambda found: _lift(found, tensors)))
    dist.send(torch.tensor([len(body), _total_bytes(tensors)]), to)
    dist.send(torch.frombuffer(bytearray(body), dtype=torch.uint8), to)
    for chunk in _chunks(tensors):
        for part in [torch.cat(chunk)] if len(chunk) > 1 else chunk:
            dist.send(part, to)


def _take(giver: int) -> Any:
    sizes = torch.zeros(2, dtype=torch.int64)
    dist.recv(sizes, giver)
    source = f"the state from worker {giver}"
    _check_fits(sizes.tolist(), source)
    body = torch.empty(int(sizes[0]), dtype=torch.uint8)
    dist.recv(body, giver)
    outline = loaded(io.BytesIO(body.numpy().tobytes()), source)
    announced: list[torch.Tensor] = []
    mapped(outline, lambda found: announced.append(found) if _is_announced(found) else None)
    if _total_bytes(announced) != int(sizes[1]):
        raise BadInputError.one(source, "its tensors are not of the size that was announced")
    tensors = [torch.empty(one.shape, dtype=one.dtype) for one in announced]
    _fill(tensors, giver)
    found = iter(tensors)
    return mapped(outline, lambda one: next(found) if _is_announced(one) else one)


def _check_fits(sizes: Sequence[int], source: str) -> None:
    """Refuse absurd sizes before memory is taken for them."""
    there = psutil.virtual_memory().total
    if min(sizes) < 0 or max(sizes) > there:
        announced = " and ".join(map(str, sizes))
        raise BadInputError.one(source, f"{announced} bytes are announced, and this machine has {there}")


def _lift(found: Any, tensors: list[torch.Tensor]) -> Any:
    """What stands for a plain tensor in the outline; anything else stays as it is."""
    if type(found) not in _LIFTED or found.layout != torch.strided or found.is_quantized:
        return found
    if found.is_meta:
        raise UsageError("the state of the job holds a tensor on the meta device, which has no values")
    tensors.append(found.detach().cpu().resolve_conj().resolve_neg().contiguous())
    return torch.empty(found.shape, dtype=found.dtype, device="meta")


def _is_announced(found: Any) -> bool:
    return isinstance(found, torch.Tensor) and found.is_meta


def _total_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(one.numel() * one.itemsize for one in tensors)


def _fill(tensors: Sequence[torch.Tensor], giver: int) -> None:
    for chunk in _chunks(tensors):
        if len(chunk) == 1:
            dist.recv(chunk[0], giver)
            continue
        sizes = [len(part) for part in chunk]
        together = torch.empty(sum(sizes), dtype=torch.uint8)
        dist.recv(together, giver)
        for part, found in zip(chunk, together.split(sizes), strict=True):
            part.copy_(found)


def _chunks(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors' bytes; those of small tensors together."""
    chunk: list[torch.Tensor] = []
    held = 0
    for tensor in tensors:
        data = tensor.reshape(-1).view(torch.uint8)
        if chunk and held + len(data) > CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
        if len(data):
            chunk.append(data)
            held += len(data)
    if chunk:
        yield chunk
