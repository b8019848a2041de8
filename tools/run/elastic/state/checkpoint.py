"""Checkpoints: written atomically, the newest two kept, verified on load.

A file is one line of JSON (format, number of bytes, SHA-256), then the state as :func:`stored` writes it.
Loading a state executes nothing. So it may hold what ``torch.load(weights_only=True)`` takes: tensors,
numbers, text, bytes, None, dictionaries (``OrderedDict`` and ``Counter`` included), lists, tuples and sets of
them, and the classes that the author allows by ``torch.serialization.add_safe_globals``. NumPy's numbers
become Python's.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.files import remove_temporaries, write_chunks

FORMAT: Final = "pliant.checkpoint/2"
_KIND: Final = "pliant.checkpoint/"
KEPT: Final = 2
_MAPPINGS: Final = (dict, OrderedDict)
_SEQUENCES: Final = (list, tuple)
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
        self._folder = folder
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
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not alone:
            remove_temporaries(self._folder)
        path = self._folder / f"step-{step:012}.ckpt"
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
                str(self._folder), f"no checkpoint is whole, remove them to start again: {found}"
            )
        return Loaded(None, ())

    def _newest_first(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.ckpt"), reverse=True)


def _packed(state: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Head and body, not joined: the body may be as large as the memory of the training."""
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


def plain(state: Any) -> Any:
    """The state with NumPy's numbers as Python's; they come from arguments of schedulers, for example."""
    return mapped(state, lambda found: found.item() if isinstance(found, np.generic) else found)


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
    """Names of the classes and functions that would not be loaded."""
    buffer.seek(0)
    return ", ".join(sorted(get_unsafe_globals_in_checkpoint(buffer)))


def _place(state: Any) -> str:
    """Where the first of these is in a state, by keys and indices."""
    keys: list[str] = []
    rest = mapped(state, lambda found: None if isinstance(found, torch.Tensor) else found)
    while found := [(key, child) for key, child in _children(rest) if _holds_others(child)]:
        key, rest = found[0]
        keys.append(str(key))
    return f" at {'.'.join(keys)}" if keys else ""


def _children(state: Any) -> Iterable[tuple[Any, Any]]:
    if type(state) in _MAPPINGS:
        return list(state.items())
    return enumerate(state) if type(state) in _SEQUENCES else ()


def _holds_others(state: Any) -> bool:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return bool(_others(buffer))


def mapped(state: Any, leaf: Callable[[Any], Any]) -> Any:
    """A copy with ``leaf`` applied to whatever lies in its plain dictionaries, lists and tuples."""
    kind = type(state)
    if kind in _MAPPINGS:
        made = kind((name, mapped(value, leaf)) for name, value in state.items())
        if kind is OrderedDict:
            made.__dict__.update(state.__dict__)  # modules keep the versions of their states there
        return made
    if kind in _SEQUENCES:
        return kind(mapped(value, leaf) for value in state)
    return leaf(state)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
