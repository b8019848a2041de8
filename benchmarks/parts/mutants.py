"""Mutation testing: how many small faults, planted in product code one at a time, the tests find.

A fault changes one operator, comparison or constant, or removes one statement. Lines are drawn over all
product code with a fixed seed, so that a long module gets more faults than a short one. Each fault is tried
against the tests that import its module until the first failure or a limit of time.
``python -m benchmarks.parts.mutants ROOT`` writes mutants.json here.
"""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.parts.figure import ROOT

SEED: Final = 52
COUNT: Final = 80
CPU_LIMIT_S: Final = 60.0
"""Processor time of one fault's tests, all their processes included."""
WALL_LIMIT_S: Final = 120.0
RECORD: Final = Path(__file__).with_suffix(".json")
PRODUCT: Final = ("cli", "integrations", "schemas", "tools")
COMMANDS: Final = "cli/main.py"
"""Imports the module of each command by name, when it is called."""
FAILED: Final = (1, 2)
"""Exit codes of pytest: a test failed, or could not be imported."""

_COMPARISONS: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
Node = ast.expr | ast.stmt


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: ``before`` becomes ``after`` at a line of a module."""

    path: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    killed_before: bool | None = None
    """Whether the tests of the commit that it was drawn at found it."""


def product_files(root: Path) -> list[str]:
    """Paths of product modules below ``root``, sorted."""
    return sorted(str(path.relative_to(root)) for folder in PRODUCT for path in (root / folder).rglob("*.py"))


def draw(root: Path = ROOT, count: int = COUNT, seed: int = SEED) -> list[Mutant]:
    """Faults at ``count`` lines drawn uniformly over all product code."""
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    changes: dict[tuple[str, int], list[tuple[Node, str, str]]] = {}
    lines: list[tuple[str, int]] = []
    for path in product_files(root):
        text = (root / path).read_text()
        lines += [(path, number + 1) for number in range(len(text.splitlines()))]
        for node, kind, after in _changes_of(ast.parse(text)):
            changes.setdefault((path, node.lineno), []).append((node, kind, after))
    rng.shuffle(lines)
    drawn: list[Mutant] = []
    for path, line in lines:
        if len(drawn) < count and (path, line) in changes:
            node, kind, after = rng.choice(changes[path, line])
            before = ast.get_source_segment((root / path).read_text(), node) or ""
            drawn.append(Mutant(path, line, node.col_offset, kind, before, after))
    return drawn


def _changes_of(tree: ast.Module) -> Iterator[tuple[Node, str, str]]:
    skipped = {id(node) for part in _without_effect(tree) for node in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt) and id(node) not in skipped:
            for kind, after in _changes(node):
                yield node, kind, after


def _without_effect(tree: ast.Module) -> Iterator[ast.AST]:
    """Annotations, docstrings, and what only a type checker reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            yield node.returns
        elif (
            (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or isinstance(node, ast.JoinedStr)
        ):
            yield node


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in _COMPARISONS:
            ops = [_COMPARISONS[type(operator)](), *node.ops[1:]]
            yield "comparison", f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS and not _is_text(node):
            changed = ast.BinOp(node.left, _OPERATORS[type(operator)](), node.right)
            yield "operator", f"({ast.unparse(changed)})"
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "operator", f"({ast.unparse(ast.BoolOp(other, node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield "operator", f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", f"{value + 1}"
        case ast.Return(value=ast.expr()):
            yield "statement", "return None"
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "statement", "pass"


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def mutated(text: str, mutant: Mutant, lines_before: Sequence[str] | None = None) -> str | None:
    """The module's text with the fault; None where its line is no longer there.

    :param lines_before: the module as it was when the fault was drawn: a line that moved is looked up by
        its text.
    """
    lines = text.splitlines(keepends=True)
    line = mutant.line - 1
    if lines_before is not None:
        wanted = lines_before[line].rstrip("\n")
        places = [number for number, each in enumerate(lines) if each.rstrip("\n") == wanted]
        if not places:
            return None
        line = min(places, key=lambda number: abs(number - line))
    start = sum(map(len, lines[:line])) + len(lines[line].encode()[: mutant.column].decode())
    if text[start : start + len(mutant.before)] != mutant.before:
        return None
    return text[:start] + mutant.after + text[start + len(mutant.before) :]


def tests_of(root: Path, path: str) -> list[str]:
    """Test files that import a module; where none does, those whose helpers do; then those that import what
    imports it, and so on.
    """
    imports = {
        each: _imported(root, each)
        for each in (*product_files(root), *_python_files(root, "tests"), *_python_files(root, "benchmarks"))
    }
    wanted, known = {path}, {path}
    while wanted:
        near = [each for each in sorted(imports) if _is_test(each) and imports[each] & wanted]
        helpers = {each for each in imports if each.startswith("tests/") and imports[each] & wanted}
        far = [each for each in sorted(imports) if _is_test(each) and imports[each] & helpers]
        if near or far:
            return sorted(near or far, key=lambda each: _distance(each, path))
        wanted = {each for each in imports if imports[each] & wanted} - known
        known |= wanted
    return tests_of(root, COMMANDS) if path.startswith("cli/") and path != COMMANDS else []


def _distance(test: str, path: str) -> tuple[int, bool, str]:
    """Tests of the nearest folder come first, and of these the file that mirrors the module."""
    folder = Path(path).parent
    around = next(each for each in (folder, *folder.parents) if Path(test).is_relative_to("tests" / each))
    return -len(around.parts), Path(test).stem != f"test_{Path(path).stem}", test


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).name.startswith("test_")


def _python_files(root: Path, folder: str) -> list[str]:
    return sorted(str(each.relative_to(root)) for each in (root / folder).rglob("*.py"))


@cache
def _imported(root: Path, path: str) -> set[str]:
    """Files of the repository that a file imports, at its top or in a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((root / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    found = set()
    for name in names:
        file = name.removeprefix("pliant.").replace(".", "/")
        found |= {each for each in (f"{file}.py", f"{file}/__init__.py") if (root / each).exists()}
    return found


@contextmanager
def planted(root: Path, mutant: Mutant, text: str) -> Iterator[None]:
    """The module with the fault; compiled files never hide it."""
    path = root / mutant.path
    kept, status = path.read_bytes(), path.stat()
    path.write_text(text)
    os.utime(path, (status.st_atime, status.st_mtime + 2))
    try:
        yield
    finally:
        path.write_bytes(kept)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int | None, float, str]:
    """Exit code (None: the limit was reached), seconds of processor time, and what pytest printed last."""
    link = root / ".types" / "pliant"
    link.parent.mkdir(exist_ok=True)
    if not link.is_symlink():
        link.symlink_to("..")
    environment = os.environ | {"PYTHONPATH": str(link.parent), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line"]
    with subprocess.Popen(
        [*command, *tests], cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        printed: deque[str] = deque(maxlen=40)
        begun, used = time.monotonic(), 0.0
        while child.poll() is None and used < CPU_LIMIT_S and time.monotonic() - begun < WALL_LIMIT_S:
            time.sleep(0.2)
            printed.extend(child.stdout.readlines())
            used = max(used, _cpu_s(child.pid))
        code = child.poll()
        _kill(child.pid)
        printed.extend(child.stdout.readlines())
    return code, used, "".join(printed)


def _cpu_s(pid: int) -> float:
    total = 0.0
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    except psutil.NoSuchProcess:
        return total
    return total


def _kill(pid: int) -> None:
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in processes:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def killed(
    root: Path, mutants: Sequence[Mutant], before: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """One row a fault: ``killed`` (None: its line is gone), processor time of its tests, the failed test."""
    rows: list[dict[str, Any]] = []
    for number, mutant in enumerate(mutants):
        text = mutated((root / mutant.path).read_text(), mutant, before.get(mutant.path))
        row: dict[str, Any] = {"mutant": asdict(mutant), "killed": None, "cpu_s": 0.0, "test": None}
        if text is not None:
            with planted(root, mutant, text):
                code, row["cpu_s"], printed = run_tests(root, tests_of(root, mutant.path))
            row["killed"] = code in FAILED
            failed = [
                line.split()[1] for line in printed.splitlines() if line.startswith(("FAILED", "ERROR"))
            ]
            row["test"] = failed[0] if failed else None
        rows.append(row)
        print(f"{number:3d} {mutant.path}:{mutant.line} {mutant.kind}: {row['killed']}", file=sys.stderr)
    return rows


def main(root: Path) -> None:
    """Draw faults of the commit checked out in ``root``, try them, and write the record."""
    mutants = draw(root)
    rows = killed(root, mutants, {})
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()
    drawn = [
        asdict(replace(each, killed_before=row["killed"])) for each, row in zip(mutants, rows, strict=True)
    ]
    RECORD.write_text(json.dumps({"commit": commit, "mutants": drawn}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
