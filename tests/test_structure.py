"""The shape of the code base: who may import whom, and that packaging names every package."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cli", "integrations", "schemas", "tools")
ALLOWED = {
    "schemas": {"schemas"},
    "tools.profile": {"schemas", "tools.profile"},
    "tools.schedule": {"schemas", "tools.profile", "tools.schedule"},
    "tools.run": {"schemas", "tools.profile", "tools.schedule", "tools.run"},
    "tools.replay": {"schemas", "tools.profile", "tools.schedule", "tools.replay"},
    "tools.report": {"schemas", "tools.report"},
    "tools.api": {"schemas", "tools"},
    "integrations": {"integrations", "tools.run"},
    "cli": {"cli", "schemas", "tools"},
}
RUN_LAYERS = ("statedir", "backends", "discovery", "service", "watch", "door", "doctor")
"""Of tools/run: each knows those before it."""
ELASTIC_LAYERS = ("context", "state", "report", "membership", "loop")
"""Of tools/run/elastic: likewise. What is beside them may know all."""
HEAVY = {
    "torch": (
        "tools/profile/measuring/worker",
        "tools/profile/measuring/allreduce.py",
        "tools/run/elastic/",
        "tools/profile/torchrun/run_torchrun.py",
        "integrations/",
    ),
    "transformers": ("integrations/",),
    "lightning": ("integrations/",),
    "accelerate": ("integrations/",),
    "pandas": ("schemas/frames.py", "tools/api.py"),  # there for annotations alone, as matplotlib is
    "matplotlib": ("tools/report/", "tools/api.py"),
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


def imports_of(prefix: str, paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each module, and each name below ``prefix`` that it imports, without that prefix."""
    for path in paths:
        for name in sorted(imported(path)):
            if name.startswith(prefix):
                yield path, name.removeprefix(prefix)


def is_allowed(own: str, target: str) -> bool:
    allowed = ALLOWED.get(own)
    return (
        allowed is None
        or target in ("tools", "__version__")
        or bool({target, target.partition(".")[0]} & allowed)
    )


def test_imports_go_one_way() -> None:
    result = ((name_of(path), name) for path, name in imports_of("pliant.", modules()))
    assert [f"{own}: {name}" for own, name in result if not is_allowed(layer(own), layer(name))] == []


def breaks_run_layers(own: str, name: str) -> bool:
    """Whether a module of tools/run imports what it may not know; both without ``tools.run``."""
    layer, target = own.partition(".")[0], name.partition(".")[0]
    of_contract = f"{name}.".startswith("statedir.contract.")
    if own.startswith("statedir.contract."):
        return not of_contract
    if layer == "elastic":  # a worker knows what it shares with its launcher, and nothing else of that
        return target != "elastic" and not of_contract
    return layer in RUN_LAYERS and target not in RUN_LAYERS[: RUN_LAYERS.index(layer) + 1]


def test_the_layers_of_run_know_those_below_them() -> None:
    result = imports_of("pliant.tools.run.", sorted((ROOT / "tools/run").rglob("*.py")))
    named = ((name_of(path).removeprefix("tools.run").strip("."), name) for path, name in result)
    assert [f"{own}: {name}" for own, name in named if breaks_run_layers(own, name)] == []


def test_the_layers_of_the_elastic_library_know_those_below_them() -> None:
    folder = ROOT / "tools/run/elastic"
    wrong = []
    for own, layer in enumerate(ELASTIC_LAYERS):
        parts = [*folder.glob(f"{layer}.py"), *folder.glob(f"{layer}/*.py")]
        assert parts, f"there is no {layer}"
        for path, name in imports_of("pliant.tools.run.elastic.", parts):
            if name.partition(".")[0] not in ELASTIC_LAYERS[: own + 1]:
                wrong.append(f"{name_of(path)}: {name}")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {name_of(path) for path in modules()}
    needs = {name_of(path): modules_imported(path, known) - {name_of(path)} for path in modules()}
    TopologicalSorter(needs).prepare()  # a circle is an error that names it


def test_heavy_libraries_stay_where_they_belong() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        for name in sorted(imported(path))
        for places in [HEAVY.get(name.partition(".")[0])]
        if places is not None and not str(path.relative_to(ROOT)).startswith(places)
    ]
    assert wrong == []


def test_packaging_names_every_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    result = {
        "pliant." + ".".join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    scripts = {path.parent for path in (ROOT / "examples").rglob("*") if "__pycache__" not in path.parts}
    result |= {".".join(("pliant", *path.relative_to(ROOT).parts)) for path in (ROOT, *scripts)}
    assert set(listed) == result
    assert sorted(listed) == listed


def test_no_folder_of_code_lacks_its_init() -> None:
    folders = {path.parent for path in modules()}
    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").exists()] == []


def test_pinned_packages_take_the_oldest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pinned = [
        line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    ]
    asked = {}
    for name in pinned:
        with suppress(PackageNotFoundError):  # of an extra that is not installed
            asked[name] = metadata(name).get("Requires-Python") or ""
    assert len(asked) > 20
    assert {name: text for name, text in asked.items() if not SpecifierSet(text).contains(oldest)} == {}
