"""The shape of the code base: who may import whom, and that packaging names every package."""

from __future__ import annotations

import ast
import tomllib
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
HEAVY = {
    "torch": (
        "tools/profile/measuring/worker",
        "tools/profile/measuring/device",
        "tools/profile/measuring/allreduce.py",
        "tools/run/elastic/",
        "tools/profile/torchrun/run_torchrun.py",
    ),
    "pandas": ("tools/report/", "tools/replay/importers"),
    "matplotlib": ("tools/report/",),
    "scipy": ("tools/schedule/policies/", "tools/profile/simplices"),
}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


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
