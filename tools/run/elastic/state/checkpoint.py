"""Checkpoints that are whole or not there: written atomically, the newest two kept, verified on load.

A file is one line of JSON (format, number of bytes, SHA-256) and then what ``torch.save`` made of the state.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import remove_temporaries, write_chunks
from pliant.tools.run.elastic.state.storable import loaded, stored

FORMAT: Final = "pliant.checkpoint/2"
_KIND: Final = "pliant.checkpoint/"
KEPT: Final = 2
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest checkpoint that is whole, and what was wrong with newer ones."""

    state: dict[str, Any] | None
    """None: there is no checkpoint to go on from."""
    problems: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one job in a folder that is its own; rank 0 writes, every worker reads."""

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

        A file of a later step is of a past that was left: training goes on from what was loaded. A worker
        that saves ``alone`` removes nothing: others may do the same a step further, or be at it still.

        :param overtaken: whether others have gone on without this worker while it wrote; then the later steps
            are theirs, and nothing is removed.

        :raises UsageError: the state holds what could not be loaded again.
        :raises PliantError: it could not be written (a full disk); the older ones are untouched.
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

        :raises BadInputError: there are checkpoints, and none of them is whole.
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
    """Head and body; they are not joined, the body may be as large as all of the training's memory."""
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
