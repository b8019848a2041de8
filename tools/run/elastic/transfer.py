"""The state of the furthest workers, given to those that have none or an older one.

Whoever has it passes it on, so that n workers have it after log2(n) rounds. Large tensors travel as they
are, small ones together; everything goes through main memory and the group's own connections.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

CHUNK_BYTES: Final = 1 << 20


def pass_on(state: Any, has: Sequence[bool], rank: int) -> Any:
    """The state that all ranks of the group have afterwards, which call this together.

    :param state: this rank's, where ``has[rank]``.
    :param has: which ranks have it; at least one.
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
    outline = io.BytesIO()
    _Outline(outline, tensors).dump(state)
    head = pickle.dumps((outline.getvalue(), [(one.dtype, one.shape) for one in tensors]))
    dist.send(torch.tensor([len(head)]), to)
    dist.send(torch.frombuffer(bytearray(head), dtype=torch.uint8), to)
    for chunk in _chunks(tensors):
        for part in [torch.cat(chunk)] if len(chunk) > 1 else chunk:
            dist.send(part, to)


def _take(giver: int) -> Any:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, giver)
    head = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(head, giver)
    outline, kinds = pickle.loads(head.numpy().tobytes())  # noqa: S301 from a worker that has the token
    tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in kinds]
    for chunk in _chunks(tensors):
        if len(chunk) == 1:
            dist.recv(chunk[0], giver)
            continue
        sizes = [len(part) for part in chunk]
        together = torch.empty(sum(sizes), dtype=torch.uint8)
        dist.recv(together, giver)
        for part, found in zip(chunk, together.split(sizes), strict=True):
            part.copy_(found)
    return _Whole(io.BytesIO(outline), tensors).load()


def _chunks(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors' bytes, of small ones several at a time."""
    chunk: list[torch.Tensor] = []
    held = 0
    for tensor in tensors:
        data = _bytes(tensor)
        if chunk and held + len(data) > CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
        if len(data):
            chunk.append(data)
            held += len(data)
    if chunk:
        yield chunk


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class _Outline(pickle.Pickler):
    """Everything but the tensors, which it collects."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors

    def persistent_id(self, found: Any) -> int | None:
        if type(found) not in (torch.Tensor, torch.nn.Parameter) or found.layout != torch.strided:
            return None
        self._tensors.append(found.detach().cpu().contiguous())
        return len(self._tensors) - 1


class _Whole(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, index: Any) -> torch.Tensor:
        found: torch.Tensor = self._tensors[index]
        return found
