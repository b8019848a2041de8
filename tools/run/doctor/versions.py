"""Are the packages that pliant needs there, and as new as it needs them? None of them is imported."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from pliant.schemas.text.wording import counted
from pliant.tools.run.doctor.check import Check, ok, problem, warning

AREA: Final = "versions"
CONSTRAINTS: Final = Path(__file__).parents[3] / "constraints.txt"
"""The versions that the tests run with; only a checkout has them."""
_NEEDED: Final = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?")
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def versions(constraints: Path = CONSTRAINTS) -> Iterator[Check]:
    """The checks of this area."""
    yield ok(AREA, f"pliant {version('pliant')}, Python {platform.python_version()}")
    needed = needed_versions(requires("pliant") or ())
    found = {name: _installed(name) for name in needed}
    yield _torch(found.get("torch"), constraints)
    bad = [_fault(name, found[name], least) for name, least in needed.items()]
    faults = [each for each in bad if each]
    if faults:
        yield problem(AREA, "; ".join(faults), "install pliant again: pip install -c constraints.txt pliant")
    else:
        yield ok(AREA, f"{counted(len(needed), 'package')} as new as needed")


def needed_versions(requirements: Mapping[str, str] | tuple[str, ...] | list[str]) -> dict[str, str]:
    """The least version of each package by its name; empty: any. Packages of extras are left out."""
    own = (each for each in requirements if ";" not in each or "extra" not in each.partition(";")[2])
    matches = (_NEEDED.match(each) for each in own)
    return {match[1]: match[2] or "" for match in matches if match}


def _torch(found: str | None, constraints: Path) -> Check:
    if found is None:
        return problem(AREA, "torch is not installed, so no job can train", "pip install torch")
    try:
        pinned = dict(_PINNED.findall(constraints.read_text())).get("torch")
    except OSError:
        pinned = None
    if pinned is None or found.partition("+")[0] == pinned.partition("+")[0]:
        return ok(AREA, f"torch {found}")
    text = f"torch {found} is not the version that the tests run with, {pinned}"
    return warning(AREA, text, "pip install -c constraints.txt torch, or run the tests: make test")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _fault(name: str, found: str | None, least: str) -> str:
    if found is None:
        return f"{name} is not installed"
    return f"{name} {found} is older than {least}" if least and _older(found, least) else ""


def _older(found: str, least: str) -> bool:
    return _numbers(found) < _numbers(least)


def _numbers(text: str) -> tuple[int, ...]:
    release = re.match(r"[0-9.]*", text)
    return tuple(int(part) for part in (release[0] if release else "").split(".") if part)
