"""Digests of code: a replay's outcome depends on its policy's code as much as on its inputs."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Final

from pliant.tools.schedule.policy import Policy

_PLIANT: Final = "pliant"
_REPLAYED: Final = ("schemas", "tools/profile", "tools/replay", "tools/schedule")
"""Folders of pliant whose code a replay runs."""


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
    """Digest of pliant's version and of the code that a replay runs."""
    root = Path(__file__).resolve().parents[2]
    files = (path for folder in _REPLAYED for path in (root / folder).rglob("*.py"))
    return _digest(files, version("pliant"))


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
