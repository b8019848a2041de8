"""Checkpoints: when one is due, who writes it, and how it gets to disk while training goes on.

:class:`Checkpoints` writes atomically, keeps the newest two and verifies them on load. A file is what
``torch.save`` writes, so ``torch.load`` reads it, and one line of JSON behind it (:func:`_seal`). Before
format 3 that line came first. :class:`Saving` says when a checkpoint is due, and what is on disk.

Training stands still until a later step can no longer change what is written. For a state in main memory,
that is until ``torch.save`` has handed it to the system, tensor by tensor: the file's pages are the copy, and
the system can write them out and take them back at any time. A copy in the process would be as quick, and
take as much memory as the state. A state on a GPU is copied to pinned memory, because a GPU sends faster
than files take: that copy is as large as the state, but lies in memory that the state does not use. The rest
happens in a thread: forcing the file to disk, reading it back for its hash, and giving it its name. Then the
checkpoint counts, and the other workers :meth:`~Saving.note_saved` it.

This is how ``torch.distributed.checkpoint.async_save`` saves, without its format: that keeps its outline as a
pickle, whose loading executes what is in it, and takes ten times as long for many small tensors.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

import torch
from torch.utils.serialization import config as serialization

from pliant.schemas.errors import BadInputError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io.files import Draft, remove_temporaries, write_error
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.state.training import (
    Training,
    TrainingCounters,
    loaded,
    map_leaves,
    refuse_unsafe,
    store,
)

FORMAT: Final = "pliant.checkpoint/3"
_HEAD_FIRST: Final = "pliant.checkpoint/2"
_KIND: Final = "pliant.checkpoint/"
KEPT: Final = 2
_SEAL_BYTES: Final = 1 << 12
"""Upper bound of the size of a seal."""
_PIECE: Final = 1 << 20
_BEFORE_LAST: Final = 0.25
"""Share of the time between checkpoints after which one is due before the last step of an epoch."""
_MOST_OF_TIME: Final = 0.02
"""Largest share of the time that these earlier checkpoints may take."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest whole checkpoint, and what was wrong with newer ones."""

    state: dict[str, Any] | None
    """State of the newest whole checkpoint; None if there is none."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that the system has and that has no name yet."""

    draft: Draft
    state: Mapping[str, Any]
    """State as it was captured; its tensors may have other values by now."""


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
        """Write and publish the state after ``step`` optimizer steps."""
        return self.publish(self.write(state, step, alone=alone), alone=alone, overtaken=overtaken)

    def write(self, state: Mapping[str, Any], step: int, *, alone: bool = False) -> Written:
        """Hand the state to the system, under a name that no one looks for; it may change afterwards.

        :param alone: other workers may be writing here, too.
        :raises UsageError: the state cannot be saved.
        :raises PliantError: it could not be written (a full disk); older checkpoints are untouched.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not alone:
            remove_temporaries(self.folder)
        path = self.folder / f"step-{step:012}.ckpt"
        with _failing(path):
            draft = Draft(path, 0o600)
            try:
                _Sink(draft).take(dict(state))
            except BaseException:
                draft.drop()
                raise
        return Written(draft, state)

    def publish(
        self, written: Written, *, alone: bool = False, overtaken: Callable[[], bool] = lambda: False
    ) -> Path:
        """Force a written checkpoint to disk under its own name, and keep the newest two whole ones.

        Files of later steps are removed, too: training went on from an earlier checkpoint. A worker that
        saves ``alone`` removes nothing, because others may be saving a step that is further.

        :param overtaken: whether others went on without this worker while it wrote; then later steps are
            theirs, and nothing is removed.
        :raises UsageError: the state holds what could not be loaded again.
        :raises PliantError: it could not be written (a full disk); older checkpoints are untouched.
        """
        draft, path = written.draft, written.draft.target
        with draft, _failing(path):
            with draft.path.open("rb") as file:
                refuse_unsafe(file, written.state)
                draft.write(_seal(file))
            draft.publish()
        self._damaged.discard(path)
        if not alone and not overtaken():
            self._remove_old(path)
        return path

    def _remove_old(self, newest: Path) -> None:
        files = self._newest_first()
        kept = [one for one in files if one <= newest and one not in self._damaged][:KEPT]
        for other in files:
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
                return Loaded(_read(path), tuple(problems))
            except BadInputError as error:
                self._damaged.add(path)
                problems.append(str(error))
            except OSError as error:
                problems.append(str(error))
            _log.warning("%s; trying the one before", problems[-1])
        if problems:
            faults = "; ".join(problems)
            raise BadInputError.one(
                str(self.folder), f"no checkpoint is whole, remove them to start again: {faults}"
            )
        return Loaded(None, ())

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.ckpt"), reverse=True)


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a checkpoint."""

    counters: TrainingCounters
    stall_s: float
    """Seconds in which training stood still for it."""
    took_s: float
    """Seconds from its beginning until it had its name, or failed."""
    problem: str
    """Reason why it failed; empty if it did not."""


class Saving:
    """When a worker saves, and what it knows to be on disk. Rank 0 writes."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._checkpoints = Checkpoints(context.folder.checkpoints)
        # When training last stood still for a checkpoint, or began.
        self._at_s = time.monotonic()
        # How long it stood still for it.
        self._stall_s = 0.0
        # Where training stands on disk, as far as this worker knows.
        self.counters = TrainingCounters()
        # What rank 0 was asked to write last, and when; None once it is known to be written.
        self._asked: tuple[TrainingCounters, float] | None = None
        self._writing: _Writing | None = None

    @property
    def step(self) -> int:
        return self.counters.step

    def note_saved(self, step: int) -> None:
        """Another worker has said that this step is on disk."""
        if self._asked is not None and self._asked[0].step == step:
            (self.counters, self._at_s), self._asked = self._asked, None

    def pack(self) -> dict[str, Any]:
        """What a worker with an older state, or none, receives. An age, because clocks of hosts differ."""
        return {"counters": self.counters.as_dict(), "age_s": time.monotonic() - self._at_s}

    def unpack(self, pack: Mapping[str, Any]) -> None:
        self.counters, self._asked = TrainingCounters.from_dict(pack["counters"]), None
        self._at_s = time.monotonic() - pack["age_s"]

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
        early_s = max(checkpoint_s * _BEFORE_LAST, self._stall_s / _MOST_OF_TIME)
        within_s = min(checkpoint_s, early_s) if before_last else checkpoint_s
        return self._context.rank == 0 and time.monotonic() - self._at_s >= within_s

    def begin(self, training: Training) -> None:
        """Begin a checkpoint if this is rank 0; what comes of it, :meth:`ended` says. Training goes on.

        The other workers know that it is written by the next vote. Ask :meth:`ended` first: two
        checkpoints are never written at once.

        :raises UsageError: the state cannot be saved.
        """
        assert self._writing is None  # noqa: S101 see above
        began_s = time.monotonic()
        self._asked = training.counters.copy(), began_s
        if self._context.rank == 0:
            self._writing = writing = _Writing(self._checkpoints, self._context, training)
            self._at_s, self._stall_s = time.monotonic(), writing.stall_s

    def ended(self, *, wait: bool) -> Saved | None:
        """What became of the checkpoint that this worker writes; each is handed out once.

        :param wait: until it is over; else None is returned while it is under way.
        :raises UsageError: its state could not be loaded again.
        """
        writing = self._writing
        if writing is None or not (wait or writing.over):
            return None
        self._writing = None
        saved = writing.result()
        if self._asked is not None and self._asked[0] == saved.counters:
            self._asked = None
        if not saved.problem:
            self.counters = saved.counters
        return saved

    def save_alone(self, training: Training) -> str:
        """Write a checkpoint without agreement: one of the workers at this step does, the others wait."""
        self.ended(wait=True)
        if training.counters == self.counters:
            return ""
        try:
            with _alone(self._context.attempt.path / f"saving-{training.counters.step}") as mark:
                if mark.read():
                    self._saved(training)
                    return ""
                problem = self._write_alone(training)
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

    def _write_alone(self, training: Training) -> str:
        writing = _Writing(self._checkpoints, self._context, training, alone=True)
        if not (problem := writing.result().problem):
            self._saved(training)
        return problem

    def _saved(self, training: Training) -> None:
        self._at_s = time.monotonic()
        self.counters, self._asked = training.counters.copy(), None


class _Writing:
    """One checkpoint on its way to disk; training may go on once it is made."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        context: WorkerContext,
        training: Training,
        *,
        alone: bool = False,
    ) -> None:
        self._checkpoints, self._context, self._alone = checkpoints, context, alone
        self._staged = context.device.type == "cuda"
        self._counters = training.counters.copy()
        self._began_s = time.monotonic()
        self._took_s: float | None = None
        self._problem = ""
        self._unsaveable: UsageError | None = None
        self._thread: threading.Thread | None = None
        if rest := self._begin(training):
            # the interpreter waits for it before it ends
            self._thread = threading.Thread(target=self._finish, args=(rest,), name="checkpoint")
        self.stall_s = time.monotonic() - self._began_s
        if self._thread is not None:
            self._thread.start()

    @property
    def over(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def result(self) -> Saved:
        """Waits for the end.

        :raises UsageError: the state could not be loaded again.
        """
        if self._thread is not None:
            self._thread.join()
        if self._unsaveable is not None:
            raise self._unsaveable
        took_s = self.stall_s if self._took_s is None else self._took_s
        return Saved(self._counters, self.stall_s, took_s, self._problem)

    def _begin(self, training: Training) -> Callable[[], object] | None:
        """Do what training must wait for.

        :returns: the rest, which a thread may do; None if it has failed.
        """
        if self._context.is_overtaken():
            self._problem = "no checkpoint: the job trains on without this worker"
            return None
        checkpoints, step = self._checkpoints, self._counters.step
        alone, overtaken = self._alone, self._context.is_overtaken
        try:
            state = training.capture()
            if self._staged:
                copied = staged(state)
                return lambda: checkpoints.save(copied, step, alone=alone, overtaken=overtaken)
            written = checkpoints.write(state, step, alone=alone)
        except UsageError:
            raise
        except (PliantError, OSError) as error:
            self._fail(error)
            return None
        return lambda: checkpoints.publish(written, alone=alone, overtaken=overtaken)

    def _finish(self, rest: Callable[[], object]) -> None:
        try:
            rest()
        except UsageError as error:
            self._unsaveable = error
        except (PliantError, OSError) as error:
            self._fail(error)
        except BaseException as error:  # a thread's end shows nowhere else
            self._fail(error)
            raise
        self._took_s = time.monotonic() - self._began_s

    def _fail(self, error: BaseException) -> None:
        self._problem = f"the checkpoint of step {self._counters.step} failed: {error}"


def staged(state: Any) -> Any:
    """A copy in main memory, pinned where a GPU fills it. What was one tensor under two names stays one."""
    copies: dict[Any, torch.Tensor] = {}
    pins = torch.cuda.is_available()

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return deepcopy(leaf)
        if leaf.layout != torch.strided:
            return leaf.detach().cpu().clone()
        place = leaf.untyped_storage().data_ptr(), leaf.storage_offset(), leaf.dtype
        key = (*place, leaf.shape, leaf.stride()) if leaf.numel() else id(leaf)
        if key not in copies:
            room = torch.empty_like(leaf.detach(), device="cpu", pin_memory=pins and leaf.is_cuda)
            copies[key] = room.copy_(leaf.detach(), non_blocking=True)
        return copies[key]

    result = map_leaves(state, copied)
    if pins:
        torch.cuda.current_stream().synchronize()
    return result


@contextmanager
def _alone(path: Path) -> Iterator[TextIO]:
    """A file that one worker at a time holds; if it dies, the next one gets it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@contextmanager
def _failing(path: Path) -> Iterator[None]:
    """Training survives whatever keeps a checkpoint from being written."""
    try:
        yield
    except OSError as error:
        raise ServiceMissingError(str(write_error(error, str(path)))) from error


class _Sink:
    """What ``torch.save`` writes to; C++ calls it, so it raises once that is through."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._error: OSError | None = None

    def take(self, state: Any) -> None:
        """:raises UsageError: the state cannot be saved. :raises OSError: it could not be written."""
        # a checksum of each tensor takes as long as writing it, and the whole file has a better one
        with serialization.patch({"save.compute_crc32": False}):  # type: ignore[attr-defined]
            store(state, self)
        if self._error is not None:
            raise self._error

    def write(self, data: memoryview) -> int:
        if self._error is None:
            try:
                self._draft.write(data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Nothing is kept here."""


def _seal(file: BinaryIO) -> bytes:
    """The end of a file: how many bytes stand before it, and their hash. Other readers pass it over."""
    size = file.seek(0, os.SEEK_END)
    head = {"format": FORMAT, "bytes": size, "sha256": _hash(file, 0, size)}
    return b"\n" + json.dumps(head).encode() + b"\n"


def _hash(file: BinaryIO, start: int, size: int) -> str:
    file.seek(start)
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE))
    while size > 0 and (count := file.readinto(buffer[: min(size, _PIECE)])):  # type: ignore[attr-defined]
        digest.update(buffer[:count])
        size -= count
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        if (opened := _opened(file)) is None:
            raise BadInputError.one(str(path), "the checkpoint is torn or damaged")
        written_as, start = opened
        if written_as not in (FORMAT, _HEAD_FIRST):
            raise BadInputError.one(str(path), f"the checkpoint is {written_as}, expected {FORMAT}")
        file.seek(start)
        state = loaded(file, str(path))
        return state if written_as == FORMAT else _with_one_optimizer(state)


def _with_one_optimizer(state: dict[str, Any]) -> dict[str, Any]:
    """A state of format 2, whose jobs had one model and one optimizer, as it is written today."""
    try:
        optimizers = {"optimizer": {"groups": state.pop("groups"), "state": state.pop("optimizer")}}
        return {**state, "optimizers": optimizers, "parts": 0, "agreed": ((), state["agreed"])}
    except KeyError:
        return state  # it is refused by what it lacks


def _opened(file: BinaryIO) -> tuple[str, int] | None:
    """The format of a file, and where the state begins. Returns None if it is not whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(1) == b"{":
        file.seek(0)
        line = file.readline(_SEAL_BYTES)
        start, end = len(line), size
    else:
        file.seek(max(0, size - _SEAL_BYTES))
        line = file.read()[:-1].rpartition(b"\n")[2]
        start, end = 0, size - len(line) - 2
    try:
        head = json.loads(line)
        known = str(head["format"]).startswith(_KIND)
        whole = known and head["bytes"] == end - start and head["sha256"] == _hash(file, start, end - start)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (str(head["format"]), start) if whole else None
