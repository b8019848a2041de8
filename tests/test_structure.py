"""The shape of the code base: who may import whom, and that packaging names every package."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cli", "schemas", "tools")
ALLOWED = {
    "schemas": {"schemas"},
    "tools.profile": {"schemas", "tools.profile"},
    "tools.schedule": {"schemas", "tools.profile", "tools.schedule"},
    "tools.run": {"schemas", "tools.profile", "tools.schedule", "tools.run"},
    "tools.replay": {"schemas", "tools.profile", "tools.schedule", "tools.replay"},
    "tools.report": {"schemas", "tools.report"},
    "cli": {"cli", "schemas", "tools"},
}
RUN_LAYERS = ("statedir", "backends", "discovery", "service", "watch", "doctor")
"""Of tools/run: each knows those before it."""
ELASTIC_LAYERS = ("context", "state", "report", "membership", "loop")
"""Of tools/run/elastic: likewise. What is beside them may know all."""
HEAVY = {
    "torch": (
        "tools/profile/measuring/worker",
        "tools/profile/measuring/device",
        "tools/profile/measuring/allreduce.py",
        "tools/run/elastic/",
        "tools/profile/torchrun/run_torchrun.py",
    ),
    "pandas": ("schemas/frames.py",),
    "matplotlib": ("tools/report/",),
    "scipy": (
        "tools/schedule/policies/",
        "tools/schedule/forecast.py",
        "tools/profile/simplices",
        "tools/profile/predictor.py",
        "tools/report/report.py",
    ),
}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def imported(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def name_of(path: Path) -> str:
    """Of a module, without ``pliant``; a package's is that of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path: Path, known: set[str]) -> set[str]:
    """The modules of this package that a module imports, at its top or inside of its functions."""
    return known & {name.removeprefix("pliant.") for name in imported(path)}


def layer(dotted: str) -> str:
    parts = dotted.split(".")
    return ".".join(parts[:2]) if parts[0] == "tools" else parts[0]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    own = layer(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for name in imported(path):
        if name.startswith("pliant.") and own in ALLOWED:
            target = layer(name.removeprefix("pliant."))
            allowed = ALLOWED[own]
            assert target in allowed or target.split(".")[0] in allowed or target == "tools", name


def run_parts() -> list[Path]:
    return sorted((ROOT / "tools/run").rglob("*.py"))


@pytest.mark.parametrize("path", run_parts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_layers_of_run_know_those_below_them(path: Path) -> None:
    own = name_of(path).removeprefix("tools.run").strip(".").partition(".")[0]
    prefix = "pliant.tools.run."
    for name in (name for name in imported(path) if name.startswith(prefix)):
        part = name.removeprefix(prefix)
        target = part.partition(".")[0]
        if "statedir.contract." in name_of(path):
            assert f"{part}.".startswith("statedir.contract."), name
        elif own == "elastic":  # a worker knows what it shares with its launcher, and nothing else of that
            assert target == "elastic" or f"{part}.".startswith("statedir.contract."), name
        elif own in RUN_LAYERS:
            assert target in RUN_LAYERS[: RUN_LAYERS.index(own) + 1], name


def elastic_parts() -> list[Path]:
    return [path for layer in ELASTIC_LAYERS for path in (ROOT / "tools/run/elastic").glob(f"{layer}/*.py")]


@pytest.mark.parametrize("path", elastic_parts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_layers_of_the_elastic_library_know_those_below_them(path: Path) -> None:
    prefix = "pliant.tools.run.elastic."
    for name in (name for name in imported(path) if name.startswith(prefix)):
        target = name.removeprefix(prefix).partition(".")[0]
        assert target in ELASTIC_LAYERS[: ELASTIC_LAYERS.index(path.parent.name) + 1], name


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {name_of(path) for path in modules()}
    needs = {name_of(path): modules_imported(path, known) - {name_of(path)} for path in modules()}
    TopologicalSorter(needs).prepare()  # a circle is an error that names it


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_libraries_stay_where_they_belong(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    for library, places in HEAVY.items():
        uses = any(name == library or name.startswith(f"{library}.") for name in imported(path))
        assert not uses or relative.startswith(places), f"{relative} imports {library}"


def test_packaging_names_every_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        "pliant." + ".".join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert set(listed) == found
    assert sorted(listed) == listed


def test_no_folder_of_code_lacks_its_init() -> None:
    folders = {path.parent for path in modules()}
    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").exists()] == []
