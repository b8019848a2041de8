"""Mutation testing: how many small faults, planted in product code one at a time, the tests find.

A fault changes one operator, comparison or constant, or removes one statement. Lines are drawn over all
product code with a fixed seed, so that a long module gets more faults than a short one. Each fault is tried
against the tests that import its module until the first failure or a limit of time.

The record keeps each fault by the statement that it changes and not by its line, so that it is planted as
long as that statement is in the code. ``python -m benchmarks.parts.mutants ROOT`` renews mutants.json here
where the code of some faults is gone: it draws others in ``ROOT``, a checkout of an earlier commit, that
today's code has as well, and tries them there.
"""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
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
    """One fault: ``before`` becomes ``after`` in a statement of a module."""

    path: str
    function: str
    """Names of the classes and functions around it, joined by dots."""
    statement: str
    """As Python writes it anew, without the statements in it."""
    before: str
    nth: int
    """Which one it is, where the function has it several times."""
    kind: str
    after: str
    commit: str = ""
    """Where it was tried first."""
    killed_before: bool | None = None
    """Whether the tests of that commit found it."""


def product_files(root: Path) -> list[str]:
    """Paths of product modules below ``root``, sorted."""
    return sorted(str(path.relative_to(root)) for folder in PRODUCT for path in (root / folder).rglob("*.py"))


def draw(root: Path = ROOT, count: int = COUNT, seed: int = SEED) -> list[Mutant]:
    """Faults at ``count`` lines drawn uniformly over all product code."""
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    changes: dict[tuple[str, int], list[Mutant]] = {}
    lines: list[tuple[str, int]] = []
    for path in product_files(root):
        text = (root / path).read_text()
        lines += [(path, number + 1) for number in range(len(text.splitlines()))]
        for node, mutant in changes_of(path, text):
            changes.setdefault((path, node.lineno), []).append(mutant)
    rng.shuffle(lines)
    drawn = (rng.choice(changes[line]) for line in lines if line in changes)
    return list(islice(drawn, count))


def changes_of(path: str, text: str) -> Iterator[tuple[Node, Mutant]]:
    """All faults of a module, each with the expression or statement that it changes."""
    tree = ast.parse(text)
    skipped = {id(node) for part in _without_effect(tree) for node in ast.walk(part)}
    seen: Counter[tuple[str, str, str]] = Counter()
    for function, statement in _statements(tree, ()):
        head = _head(statement)
        written = ast.unparse(head)
        for node in ast.walk(head):
            if not isinstance(node, ast.expr | ast.stmt) or {id(node), id(statement)} & skipped:
                continue
            for kind, after in _changes(node):
                place = (function, written, ast.unparse(node))
                yield (statement if node is head else node), Mutant(path, *place, seen[place], kind, after)
                seen[place] += 1


def _statements(node: ast.AST, around: tuple[str, ...]) -> Iterator[tuple[str, ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield ".".join(around), child
        inside = (child.name,) if isinstance(child, ast.FunctionDef | ast.ClassDef) else ()
        yield from _statements(child, (*around, *inside))


def _head(node: ast.AST) -> ast.AST:
    """A copy of a statement without the statements in it; the statement itself where it has none."""
    parts: dict[str, list[ast.AST]] = {}
    for name, value in ast.iter_fields(node):
        match value:
            case [ast.stmt(), *_]:
                parts[name] = [ast.Pass()]
            case [ast.ExceptHandler() | ast.match_case(), *_]:
                parts[name] = [_head(part) for part in value]
    if not parts:
        return node
    head = copy(node)
    for name, inside in parts.items():
        setattr(head, name, inside)
    return head


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


def mutated(text: str, mutant: Mutant) -> str | None:
    """The module's text with the fault; None where its statement is no longer there."""
    wanted = _drawn(mutant)
    node = next((node for node, each in changes_of(mutant.path, text) if each == wanted), None)
    if node is None:
        return None
    source = ast.get_source_segment(text, node) or ""
    lines = text.splitlines(keepends=True)
    line = node.lineno - 1
    start = sum(map(len, lines[:line])) + len(lines[line].encode()[: node.col_offset].decode())
    return text[:start] + mutant.after + text[start + len(source) :]


def located(root: Path, mutant: Mutant) -> Mutant | None:
    """The fault where its function is now, in its module or another one; None where its statement is gone."""
    name = mutant.function.rpartition(".")[2]
    for path in (mutant.path, *product_files(root)):
        text = (root / path).read_text() if (root / path).exists() else ""
        if path == mutant.path or (name and f"def {name}(" in text):
            for _, each in changes_of(path, text):
                found = replace(mutant, path=path, function=each.function)
                if each.function.rpartition(".")[2] == name and each == _drawn(found):
                    return found
    return None


def _drawn(mutant: Mutant) -> Mutant:
    return replace(mutant, commit="", killed_before=None)


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


def killed(root: Path, mutants: Sequence[Mutant]) -> list[dict[str, Any]]:
    """One row a fault: ``killed`` (None: its statement is gone), CPU time of its tests, the failed test."""
    rows: list[dict[str, Any]] = []
    for number, each in enumerate(mutants):
        mutant = located(root, each) or each
        path = root / mutant.path
        text = mutated(path.read_text(), mutant) if path.exists() else None
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
        print(f"{number:3d} {mutant.path} {mutant.function} {mutant.kind}: {row['killed']}", file=sys.stderr)
    return rows


def recorded() -> list[Mutant]:
    """The faults of the record."""
    return [Mutant(**row) for row in json.loads(RECORD.read_text())]


def main(root: Path) -> None:
    """Keep the recorded faults that today's code has, draw and try others in ``root``, write the record."""
    kept = list(filter(None, (located(ROOT, mutant) for mutant in recorded())))
    known = set(map(_drawn, kept))
    others = (each for each in draw(root, 10 * COUNT) if each not in known and located(ROOT, each))
    drawn = list(islice(others, COUNT - len(kept)))
    rows = killed(root, drawn)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()
    tried = [
        replace(mutant, commit=commit, killed_before=row["killed"])
        for mutant, row in zip(drawn, rows, strict=True)
    ]
    RECORD.write_text(json.dumps([asdict(each) for each in kept + tried], indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
