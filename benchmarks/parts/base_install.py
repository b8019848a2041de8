"""How large ``pip install pliant`` is: the package and what it requires without extras, as installed here.

Sizes are those of the files that the installed distributions' records name, requirements of requirements
included. Of a checkout that is installed in place, its packages count.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.parts.figure import ROOT, Figure

LIMIT: Final = 120.0
_MEGABYTE: Final = 1_000_000


def figures() -> list[Figure]:
    """The size."""
    return [
        Figure("base_install_mb", round(sum(sizes("pliant").values()) / _MEGABYTE, 1), "MB", LIMIT),
    ]


def sizes(name: str) -> dict[str, int]:
    """Bytes of a distribution and of all that it requires, by name."""
    found: dict[str, int] = {}
    wanted = [Requirement(name)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        asked = wanted.pop()
        key = canonicalize_name(asked.name), frozenset(asked.extras)
        if key in seen:
            continue
        seen.add(key)
        there = distribution(asked.name)
        found[key[0]] = _bytes(there)
        needs = [Requirement(text) for text in there.requires or ()]
        wanted += [need for need in needs if _applies(need, asked.extras)]
    return found


def _applies(need: Requirement, extras: set[str]) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _bytes(there: Distribution) -> int:
    paths = [Path(str(there.locate_file(file))) for file in there.files or ()]
    if canonicalize_name(there.metadata["Name"]) == "pliant" and not any("tools" in p.parts for p in paths):
        paths = _packages()
    return sum(path.stat().st_size for path in paths if path.is_file())


def _packages() -> list[Path]:
    """The files of the packages in this checkout, without compiled ones."""
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [ROOT.joinpath(*name.split(".")[1:]) for name in names if name != "pliant"]
    files = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    return [*files, *(path for path in ROOT.glob("*.py")), *(ROOT / "schemas" / "json").glob("*.json")]
