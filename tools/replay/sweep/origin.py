"""What a task of a sweep was made from: a digest of each thing that its outcome depends on."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from pydantic import Field

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import document_bytes, parse_document
from pliant.schemas.file_io.files import atomic_write, read_bytes
from pliant.schemas.file_io.limits import ROWS_BYTES
from pliant.schemas.file_io.record import Record
from pliant.tools.replay.engine.costs import is_event_file
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.registry import files_among, policy_class

_KIND: Final = "origin"
_INPUTS: Final = ("jobs", "cluster", "profile", "convergence", "failures", "predictor")
COSTS: Final = ("start_cost", "rescale_cost", "resume_cost")
"""Options that may name an event file."""
_IN_WORDS: Final = {
    "failures": "the node failures",
    "predictor": "the progress predictor",
    "start_cost": "the start cost",
    "rescale_cost": "the rescale cost",
    "resume_cost": "the resume cost",
    "policy": "the policy's code",
    "settings": "the recipe's settings",
    "pliant": "pliant itself",
}
_PLIANT: Final = "pliant"
_REPLAYED: Final = ("schemas", "tools/profile", "tools/replay", "tools/schedule")
"""Folders of pliant whose code a replay runs."""


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
    named = files_among(policy_class(fields["policy"]), fields["parameters"])
    files |= {name: fields["parameters"][name] for name in named}
    fields["parameters"] = {name: value for name, value in fields["parameters"].items() if name not in named}
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
    return hashlib.sha256(read_bytes(path, most=ROWS_BYTES)).hexdigest()


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


def policy_digest(policy: type[Policy]) -> str:
    """Digest of the code of a policy from another package; empty for a built-in one.

    It covers the packages of the policy's class and of its base classes. Of a policy in a single module it
    covers that module and the modules beside it that it imports.
    """
    roots = sorted({kind.__module__.partition(".")[0] for kind in policy.__mro__})
    foreign = [root for root in roots if root != _PLIANT and root not in sys.stdlib_module_names]
    files = [path for root in foreign for path in _files(sys.modules[root])]
    return _digest(files) if files else ""


@cache
def pliant_digest() -> str:
    """Digest of pliant's version, and of the code that a replay runs, with the weights of its networks."""
    root = Path(__file__).resolve().parents[3]
    code = [path for folder in _REPLAYED for path in (root / folder).rglob("*.py")]
    learnt = (root / "tools" / "schedule").rglob("*.json")
    return _digest([*code, *learnt], version("pliant"))


def _digest(files: Iterable[Path], start: str = "") -> str:
    """One digest of names and contents, whatever the order of the files; their folders do not matter."""
    each = sorted((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files)
    return hashlib.sha256(repr((start, each)).encode()).hexdigest()


def _files(module: ModuleType) -> Iterator[Path]:
    folders = list(getattr(module, "__path__", ()))
    file = getattr(module, "__file__", None)
    if folders:
        yield from (path for folder in folders for path in Path(folder).rglob("*.py"))
    elif file is not None:
        yield from _with_siblings(Path(file))


def _with_siblings(module: Path) -> set[Path]:
    """A module, and the modules in its folder that it imports, at any distance."""
    found: set[Path] = set()
    waiting = {module}
    while waiting:
        path = waiting.pop()
        found.add(path)
        beside = {path.with_name(f"{name}.py") for name in _imported(path)}
        waiting |= {other for other in beside - found if other.is_file()}
    return found


def _imported(path: Path) -> Iterator[str]:
    """The first parts of the names that a module's code imports from."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
