"""What a task of a sweep was made from: a digest of each thing that its outcome depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import document_bytes, parse_document
from pliant.schemas.file_io.files import atomic_write, read_bytes
from pliant.schemas.file_io.record import Record
from pliant.tools.replay.engine.costs import is_event_file
from pliant.tools.schedule.policy_source import pliant_digest, policy_digest
from pliant.tools.schedule.registry import policy_class

_KIND: Final = "origin"
_INPUTS: Final = ("jobs", "cluster", "profile", "convergence", "failures")
COSTS: Final = ("start_cost", "rescale_cost", "resume_cost")
"""Options that may name an event file."""
_IN_WORDS: Final = {
    "failures": "the node failures",
    "start_cost": "the start cost",
    "rescale_cost": "the rescale cost",
    "resume_cost": "the resume cost",
    "policy": "the policy's code",
    "settings": "the recipe's settings",
    "pliant": "pliant itself",
}


class Origin(Record):
    """The key of a finished task: what its files were made from."""

    schema_: Literal["pliant.origin/1"] = Field(default="pliant.origin/1", alias="schema")
    made_from: dict[str, str]


class Digests:
    """Digests of files and of policies' code, each computed once: tasks share their inputs."""

    def __init__(self) -> None:
        self.file: Callable[[str], str] = cache(file_digest)
        self.policy: Callable[[str], str] = cache(lambda name: policy_digest(policy_class(name)))


def made_from(task: Mapping[str, Any], digests: Digests | None = None) -> dict[str, str]:
    """Digest of each thing that a task's outcome depends on now, by its name in messages.

    File names do not matter, their bytes do.

    :param task: its fields, but for its name.
    """
    digests, fields = digests or Digests(), dict(task)
    costs = [name for name in COSTS if is_event_file(fields[name] or "")]
    files = {name: fields.pop(name) for name in (*_INPUTS, *costs)}
    found = {name: digests.file(path) for name, path in files.items() if path is not None}
    code = digests.policy(fields["policy"])
    if code:
        found["policy"] = code
    settings = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return {**found, "settings": settings, "pliant": pliant_digest()}


def file_digest(path: str) -> str:
    """Digest of a file's bytes.

    :raises BadInputError: it cannot be read.
    """
    return hashlib.sha256(read_bytes(path)).hexdigest()


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What a task's outcome depends on and is not what it was before, in words."""
    names = sorted({*before, *now})
    return [_IN_WORDS.get(name, f"the {name}") for name in names if before.get(name) != now.get(name)]


def write_origin(path: Path, origin: Mapping[str, str]) -> None:
    """Write the key of a finished task."""
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, document_bytes(Origin(made_from=dict(origin)), _KIND), mode=0o600)


def read_origin(path: Path) -> dict[str, str] | None:
    """What a finished task was made from; None: it has no key, or one that this version cannot read."""
    try:
        return parse_document(read_bytes(path), str(path), _KIND, Origin).made_from
    except BadInputError:
        return None
