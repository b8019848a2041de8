"""The way from one generation of workers to the next: what the loop shall do, and who gets whose state.

The state of the furthest workers, given to those that have none or an older one.

Who has it passes it on, so that n workers have it after log2(n) rounds. Everything goes through main memory
and the group's own connections, which are not authenticated. So nothing that arrives is executed: an outline
travels as ``torch.save`` writes it and is loaded with ``weights_only``, by the same rule as checkpoints
(storable.py). In it, tensors are on the meta device, which has a shape and no values. The values follow,
large ones as they are, small ones together, and no more of them than were announced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psutil
import torch
import torch.distributed as dist

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.elastic.membership.checkpoint_schedule import Saving
from pliant.tools.run.elastic.report import Change
from pliant.tools.run.elastic.state.checkpoint import loaded, mapped, stored
from pliant.tools.run.elastic.state.state import Cursor
from pliant.tools.run.elastic.state.training import Training
from pliant.tools.run.statedir.contract.plan import Plan


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on: what was asked is done."""


@dataclass(frozen=True, slots=True)
class Regroup:
    """The workers change, or one was lost: let go of the process group, ask ``regroup``, then ask again."""


@dataclass(frozen=True, slots=True)
class NewDivision:
    """From here on other workers share the work, or share it otherwise: take the state, then ``settle``."""

    state: Mapping[str, Any] | None = None
    """Of a worker that is further; None: this one's own counts."""
    fresh: bool = False
    """This worker had no state before."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the script with this exit code; the outcome is written."""

    code: int = 0


Instruction = Continue | Regroup | NewDivision | Leave
CONTINUE: Final = Continue()
REGROUP: Final = Regroup()


@dataclass(slots=True)
class Transition:
    """On the way from one generation to the next, or to another cut of the batch."""

    change: Change | None = None
    """None: training begins."""
    since_s: float = 0.0
    """When the workers began to leave (monotonic)."""
    plan: Plan | None = None
    """What all have agreed to follow; None: a worker was lost."""
    lost: tuple[RuntimeError, tuple[int, ...]] | None = None
    """What says that a worker was lost, and those that trained together then."""
    problems: tuple[str, ...] = ()
    """What was wrong with checkpoints."""

    def timed(self, part: str, began_s: float, ended_s: float | None = None) -> None:
        """Count the time of a part; without an end, it ends now."""
        if self.change is not None:
            took_s = (time.monotonic() if ended_s is None else ended_s) - began_s
            self.change.parts[part] = self.change.parts.get(part, 0.0) + took_s


def share(
    training: Training, saving: Saving, cursors: Sequence[Cursor | None], rank: int
) -> tuple[NewDivision, tuple[str, ...]]:
    """All workers of the group, which call this together, get the state of the furthest.

    :param cursors: how far each worker is, by rank. Where none has a state, rank 0 loads the checkpoint.
    :returns: what is new here, and what was wrong with checkpoints.
    :raises RuntimeError: a worker was lost.
    """
    furthest = max((one for one in cursors if one), default=None)
    problems = saving.load(training) if furthest is None and rank == 0 else ()
    has = [one == furthest if furthest else index == 0 for index, one in enumerate(cursors)]
    if all(has):
        return NewDivision(), problems
    own = {**training.parcel(), "saving": saving.parcel()} if has[rank] else None
    parcel = pass_on(own, has, rank)
    if has[rank]:
        return NewDivision(), problems
    saving.unpack(parcel["saving"])
    return NewDivision(parcel, fresh=cursors[rank] is None), problems


CHUNK_BYTES: Final = 1 << 20
_LIFTED: Final = (torch.Tensor, torch.nn.Parameter)


def pass_on(state: Any, has: Sequence[bool], rank: int) -> Any:
    """The state that all ranks of the group have afterwards, which call this together.

    :param state: this rank's, where ``has[rank]``.
    :param has: which ranks have it; at least one.
    :raises UsageError: it holds what other workers would not load; what and where is said.
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
    outline = loaded(body.numpy().tobytes(), source)
    announced: list[torch.Tensor] = []
    mapped(outline, lambda found: announced.append(found) if _is_announced(found) else None)
    if _total_bytes(announced) != int(sizes[1]):
        raise BadInputError.one(source, "its tensors are not of the size that was announced")
    tensors = [torch.empty(one.shape, dtype=one.dtype) for one in announced]
    _fill(tensors, giver)
    found = iter(tensors)
    return mapped(outline, lambda one: next(found) if _is_announced(one) else one)


def _check_fits(sizes: Sequence[int], source: str) -> None:
    """Refuse sizes that no worker of ours announces, before any memory is taken for them."""
    there = psutil.virtual_memory().total
    if min(sizes) < 0 or max(sizes) > there:
        announced = " and ".join(map(str, sizes))
        raise BadInputError.one(source, f"{announced} bytes are announced, and this machine has {there}")


def _lift(found: Any, tensors: list[torch.Tensor]) -> Any:
    """What stands for a tensor in the outline; other than plain ones stay in it as they are."""
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
