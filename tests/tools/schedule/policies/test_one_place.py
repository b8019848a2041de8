"""A policy is known in its own module, or folder, and in the registry, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pliant.tools.schedule.registry import BUILT_IN
from tests.golden.scenario import FOLDER

ROOT = Path(__file__).resolve().parents[4]
POLICIES = "tools/schedule/policies/"
WORDS = BUILT_IN.keys() - {"fair-share", "slurm"}
"""The reports' reference is called fair-share, too, and backends and an importer are named after Slurm."""
MEAN_SOMETHING_ELSE = (
    "tools/schedule/registry.py",
    "schemas/runinfo.py",  # what event files of earlier versions do not state
    "tools/replay/compat.py",  # simulators that policies come with
    "tools/replay/importers/",  # traces that policies were published with
    "tools/replay/synthetic",  # recipes of such traces
)


def modules() -> list[str]:
    result = (path for folder in ("cli", "schemas", "tools") for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in result)


def names(module: str) -> Iterator[str]:
    """The policies that a module names, by a word or by an import."""
    text = (ROOT / module).read_text()
    if "schedule.policies" not in text and not any(word in text for word in WORDS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in WORDS:
            yield str(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "pliant.tools.schedule.policies"
        ):
            yield str(node.module)


def test_no_module_outside_names_a_policy() -> None:
    outside = [each for each in modules() if not each.startswith((POLICIES, *MEAN_SOMETHING_ELSE))]
    assert len(outside) > 100
    assert {module: result for module in outside if (result := [*names(module)])} == {}


def test_every_policy_is_registered_and_has_a_golden_file() -> None:
    classes = {
        node.name: f"pliant.{module[:-3].replace('/', '.')}:{node.name}"
        for module in modules()
        if module.startswith(POLICIES)
        for node in ast.parse((ROOT / module).read_text()).body
        if isinstance(node, ast.ClassDef) and any(has_name(each) for each in node.body)
    }
    assert set(classes.values()) == set(BUILT_IN.values())
    assert {path.stem for path in FOLDER.glob("*.json")} == set(BUILT_IN)


def has_name(statement: ast.stmt) -> bool:
    """Whether a statement of a class gives it the name of a policy."""
    target = statement.target if isinstance(statement, ast.AnnAssign) and statement.value else None
    return isinstance(target, ast.Name) and target.id == "name"
