"""The state of a training as bytes: checkpoints on disk, and the copy that joining workers get.

:class:`Checkpoints` writes atomically, keeps the newest two and verifies them on load. :class:`Saving` says
when one is due, who writes it, and what is on disk. A file is one line of JSON (format, number of bytes,
SHA-256), then the state as :func:`stored` writes it. Loading a state executes nothing. So it may hold what
``torch.load(weights_only=True)`` takes: tensors, numbers, text, bytes, None, dictionaries (``OrderedDict``
and ``Counter`` included), lists, tuples and sets of them, and the classes that the author allows by
``torch.serialization.add_safe_globals``. NumPy's numbers become Python's.

:func:`pass_on` gives the state of the furthest workers to those that have none or an older one. Workers that
have it pass it on, so n workers have it after log2(n) rounds. It travels through main memory and the group's
own connections, which are not authenticated. An outline comes first, stored and loaded by the same rule as
checkpoints. Its tensors are on the meta device: they have a shape and no values. The values follow, large
tensors one by one, small ones together, and no more of them than were announced.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import psutil
import torch
import torch.distributed as dist
from torch.serialization import get_unsafe_globals_in_checkpoint

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.file_io.files import remove_temporaries, write_chunks
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.state.training import (
    MAPPINGS,
    SEQUENCES,
    Training,
    TrainingCounters,
    mapped,
    plain,
)

FORMAT: Final = "pliant.checkpoint/2"
_KIND: Final = "pliant.checkpoint/"
KEPT: Final = 2
CHUNK_BYTES: Final = 1 << 20
_LIFTED: Final = (torch.Tensor, torch.nn.Parameter)
_BEFORE_LAST: Final = 0.25
"""Share of the time between checkpoints after which one is due before the last step of an epoch."""
_MOST_OF_TIME: Final = 0.02
"""Largest share of the time that these earlier checkpoints may take."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest whole checkpoint, and what was wrong with newer ones."""

    state: dict[str, Any] | None
    """None if there is no checkpoint."""
    problems: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one job, in a folder of its own; rank 0 writes, every worker reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[Path] = set()

    def save(
        self,
        state: Mapping[str, Any],
        step: int,
        *,
        alone: bool = False,
        overtaken: Callable[[], bool] = lambda: False,
    ) -> Path:
        """Write the state after ``step`` optimizer steps, then remove all but the newest two whole ones.

        Files of later steps are removed, too: training went on from an earlier checkpoint. A worker that
        saves ``alone`` removes nothing, because others may be saving a step that is further.

        :param overtaken: whether others went on without this worker while it wrote; then later steps are
            theirs, and nothing is removed.
        :raises UsageError: the state holds what could not be loaded again.
        :raises PliantError: it could not be written (a full disk); older checkpoints are untouched.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not alone:
            remove_temporaries(self.folder)
        path = self.folder / f"step-{step:012}.ckpt"
        write_chunks(path, _packed(state), mode=0o600)
        self._damaged.discard(path)
        if not alone and not overtaken():
            self._remove_old(path)
        return path

    def _remove_old(self, newest: Path) -> None:
        found = self._newest_first()
        kept = [one for one in found if one <= newest and one not in self._damaged][:KEPT]
        for other in found:
            if other not in kept:
                other.unlink(missing_ok=True)

    def load(self) -> Loaded:
        """The newest whole checkpoint, tensors in main memory.

        :raises BadInputError: there are checkpoints, but none is whole.
        :raises UsageError: the newest whole one holds objects of classes that the script does not allow.
        """
        problems: list[str] = []
        for path in self._newest_first():
            try:
                return Loaded(_unpacked(path.read_bytes(), path), tuple(problems))
            except BadInputError as error:
                self._damaged.add(path)
                problems.append(str(error))
            except OSError as error:
                problems.append(str(error))
            _log.warning("%s; trying the one before", problems[-1])
        if problems:
            found = "; ".join(problems)
            raise BadInputError.one(
                str(self.folder), f"no checkpoint is whole, remove them to start again: {found}"
            )
        return Loaded(None, ())

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.ckpt"), reverse=True)


class Saving:
    """When a worker saves, and what it knows to be on disk. Rank 0 writes."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._checkpoints = Checkpoints(context.folder.checkpoints)
        self._at_s = time.monotonic()
        """When the last checkpoint was written, or training began."""
        self.took_s = 0.0
        """Seconds that writing it took."""
        self.counters = TrainingCounters()
        """Where training stands on disk, as far as this worker knows."""
        self._asked: tuple[TrainingCounters, float] | None = None
        """What rank 0 was asked to write last, and when; None once it is known to be written."""

    @property
    def step(self) -> int:
        return self.counters.step

    def hear(self, step: int) -> None:
        """Another worker has said that this step is on disk."""
        if self._asked is not None and self._asked[0].step == step:
            (self.counters, self._at_s), self._asked = self._asked, None

    def parcel(self) -> dict[str, Any]:
        """What a worker with an older state, or none, receives. An age, because clocks of hosts differ."""
        return {"counters": self.counters.as_dict(), "age_s": time.monotonic() - self._at_s}

    def unpack(self, parcel: Mapping[str, Any]) -> None:
        self.counters, self._asked = TrainingCounters.from_dict(parcel["counters"]), None
        self._at_s = time.monotonic() - parcel["age_s"]

    def load(self, training: Training) -> tuple[str, ...]:
        """Go on from the newest whole checkpoint, if there is one.

        :returns: what was wrong with newer ones.
        :raises BadInputError: there are checkpoints, but none is whole, or the newest lacks a part.
        """
        loaded = self._checkpoints.load()
        if loaded.state is not None:
            if lacking := sorted(training.capture().keys() - loaded.state.keys()):
                raise BadInputError.one(
                    str(self._checkpoints.folder),
                    f"the newest checkpoint is of another version, without {', '.join(lacking)}",
                )
            training.resume(loaded.state)
        self.counters = training.counters.copy()
        self._at_s = time.monotonic()
        return loaded.problems

    def due(self, checkpoint_s: float, *, before_last: bool) -> bool:
        """Whether this worker wants a checkpoint at the next boundary.

        It is due earlier before the last step of an epoch: there is no checkpoint in the author's code after
        it, which may take long. Such early ones may take only a small share of the time.
        """
        early_s = max(checkpoint_s * _BEFORE_LAST, self.took_s / _MOST_OF_TIME)
        within_s = min(checkpoint_s, early_s) if before_last else checkpoint_s
        return self._context.rank == 0 and time.monotonic() - self._at_s >= within_s

    def save(self, training: Training) -> str:
        """Write a checkpoint if this is rank 0; returns why it failed. Training goes on.

        The other workers know that it is written once they :meth:`hear` of it.
        """
        began_s = time.monotonic()
        if self._context.rank != 0:
            self._asked = training.counters.copy(), began_s
            return ""
        self._at_s = began_s
        problem = self._write(training)
        if not problem:
            self.took_s = time.monotonic() - began_s
        return problem

    def save_alone(self, training: Training) -> str:
        """Write a checkpoint without agreement: one of the workers at this step does, the others wait."""
        if training.counters == self.counters:
            return ""
        try:
            with _alone(self._context.attempt.path / f"saving-{training.counters.step}") as mark:
                if mark.read():
                    self._saved(training)
                    return ""
                problem = self._write(training, alone=True)
                if not problem:
                    with contextlib.suppress(OSError):  # then the next worker writes it once more
                        mark.write("saved\n")
                        mark.flush()
                return problem
        except OSError as error:
            return f"the checkpoint of step {training.counters.step} failed: {error}"

    def earlier(self) -> TrainingCounters:
        """Where a worker that ends before it trains would have gone on."""
        try:
            state = self._checkpoints.load().state
        except (BadInputError, UsageError):
            state = None
        return TrainingCounters() if state is None else TrainingCounters.from_dict(state["counters"])

    def _write(self, training: Training, *, alone: bool = False) -> str:
        overtaken = self._context.is_overtaken
        if overtaken():
            return "no checkpoint: the job trains on without this worker"
        try:
            state, step = training.capture(), training.counters.step
            self._checkpoints.save(state, step, alone=alone, overtaken=overtaken)
        except UsageError:
            raise
        except (PliantError, OSError) as error:
            return f"the checkpoint of step {training.counters.step} failed: {error}"
        self._saved(training)
        return ""

    def _saved(self, training: Training) -> None:
        self._at_s = time.monotonic()
        self.counters, self._asked = training.counters.copy(), None


@contextmanager
def _alone(path: Path) -> Iterator[TextIO]:
    """A file that one worker at a time holds; if it dies, the next one gets it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _packed(state: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Head and body, not joined: the body may be large."""
    body = stored(dict(state))
    head = {"format": FORMAT, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(head).encode() + b"\n", body


def _unpacked(data: bytes, path: Path) -> dict[str, Any]:
    line, _, body = data.partition(b"\n")
    try:
        head = json.loads(line)
        whole = str(head["format"]).startswith(_KIND) and head["sha256"] == hashlib.sha256(body).hexdigest()
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise BadInputError.one(str(path), "the checkpoint is torn or damaged")
    if head["format"] != FORMAT:
        raise BadInputError.one(str(path), f"the checkpoint is {head['format']}, expected {FORMAT}")
    return loaded(body, str(path))


def check_training(training: Training) -> None:
    """Refuse a training that could not be saved.

    :raises UsageError: an object's state holds more than tensors and plain values.
    """
    check_storable("the model", training.model.state_dict())
    for name, optimizer in training.optimizers.items():
        label = "the optimizer" if len(training.optimizers) == 1 else f"optimizer {name}"
        check_storable(label, optimizer.state_dict())
    for name, helper in training.helpers.items():
        check_storable(f"registered object {name}", helper.state_dict())


def check_storable(name: str, state: Any) -> None:
    """Refuse a state that could not be loaded again. Tensors are left out, so this is cheap.

    :param name: whose state it is.
    :raises UsageError: it holds objects of other classes, or cannot be pickled.
    """
    stand_in = torch.empty(0)
    hollow = mapped(plain(state), lambda found: stand_in if isinstance(found, torch.Tensor) else found)
    stored(hollow, name)


def stored(state: Any, name: str = "the job") -> bytes:
    """The state as ``torch.save`` writes it.

    :param name: whose state it is.
    :raises UsageError: it could not be loaded again.
    """
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
    except Exception as error:  # an object's own pickling may raise anything
        raise UsageError(f"the state of {name} cannot be saved: {_first_line(error)}") from error
    if others := _others(buffer):
        raise UsageError(
            f"the state of {name} holds {others}{_place(state)}: keep it to tensors and plain values, "
            "or allow these by torch.serialization.add_safe_globals"
        )
    return buffer.getvalue()


def loaded(body: bytes, source: str) -> dict[str, Any]:
    """The state, with its tensors in main memory.

    :param source: where the bytes are from.
    :raises UsageError: the state holds objects of classes that are not allowed.
    :raises BadInputError: the bytes are not a state.
    """
    buffer = io.BytesIO(body)
    state: dict[str, Any] = {}
    try:
        if not (others := _others(buffer)):
            buffer.seek(0)
            state = torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:  # a file may hold anything
        raise BadInputError.one(source, f"the state cannot be loaded: {_first_line(error)}") from error
    if others:
        raise UsageError(
            f"{source} holds {others}: these are not loaded unless the script allows them "
            "by torch.serialization.add_safe_globals"
        )
    return state


def _others(buffer: io.BytesIO) -> str:
    buffer.seek(0)
    return ", ".join(sorted(get_unsafe_globals_in_checkpoint(buffer)))


def _place(state: Any) -> str:
    """Where the first of these is in a state."""
    keys: list[str] = []
    rest = mapped(state, lambda found: None if isinstance(found, torch.Tensor) else found)
    while found := [(key, child) for key, child in _children(rest) if _holds_others(child)]:
        key, rest = found[0]
        keys.append(str(key))
    return f" at {'.'.join(keys)}" if keys else ""


def _children(state: Any) -> Iterable[tuple[Any, Any]]:
    if type(state) in MAPPINGS:
        return list(state.items())
    return enumerate(state) if type(state) in SEQUENCES else ()


def _holds_others(state: Any) -> bool:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return bool(_others(buffer))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


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
