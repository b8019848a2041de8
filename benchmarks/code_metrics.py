"""How large the code is, and what a reader stumbles over: counts of its sources, each by one rule.

Each function below states its rule in its docstring. Nothing is run: names, classes, calls and comments are
read from the syntax trees of ``cli``, ``integrations``, ``schemas`` and ``tools``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import ROOT, Figure

MEASURES: Final = ("cli", "integrations", "schemas", "tools")
CODEC: Final = ("schemas/event.py", "schemas/events.py", "schemas/file_io/events.py")
"""Modules that may read the free part of an event: the codec and the reader of its file."""
LOG_AND_STATE: Final = (
    *("from_log", "fold", "snapshot", "repair", "saved", "events", "reports", "read_run", "allocations"),
    *("job_cost", "costs", "reducer"),
)
"""Names of the modules that write, read and fold the log."""
PERSONAL_VERBS: Final = frozenset(
    {
        *("tell", "tells", "told", "hear", "hears", "heard", "ask", "asks", "asked", "say", "says", "said"),
        *("want", "wants", "wanted", "heed", "heeds", "heeded", "obey", "obeys", "obeyed"),
        *("condemn", "condemned", "forgive", "forgives", "give_up", "gives_up", "gave_up"),
        *("make_of", "look_at", "take_up", "takes_up", "turn_away", "put_back"),
    }
)
"""Verbs of persons, which say nothing of what the code does."""
USERS_NAMES: Final = frozenset({"ask", "ask_again_s", "asked_s", "says"})
"""Public names that users import or see in files (a decision's next time, an order's); they stay."""
EXPERIMENTS: Final = ("experiments", "benchmarks")
GENERATED_PAGES: Final = frozenset(
    {
        "choosing-a-policy.md",
        "cli.md",
        "performance.md",
        "policy-job.md",
        "policies.md",
        "rescaling.md",
        "schemas.md",
        "training-loops.md",
    }
)
_NO_PART_OF_A_GROW: Final = (
    *("tools/schedule/policies/", "tools/run/verify/", "tools/run/watch/", "tools/run/service/reports.py"),
)
ALLOCATION_TYPES: Final = ("Allocation", "Assignment", "NodeGpus", "tuple[tuple[str, PositiveInt], ...]")
"""Types of what one job holds: GPUs by node, or slots."""


@dataclass(frozen=True, slots=True)
class Source:
    """One module: its path below the repository root, and its text."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """Syntax tree of the text."""
        return _parsed(self.text)


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def sources(folders: Sequence[str] = MEASURES) -> list[Source]:
    """All modules of folders, sorted."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Source(str(path.relative_to(ROOT)), path.read_text()) for path in paths]


def lines(modules: Iterable[Source]) -> int:
    """All lines, blank ones and comments included."""
    return sum(len(module.text.splitlines()) for module in modules)


def detail_accesses(modules: Iterable[Source]) -> list[str]:
    """Reads of an attribute ``detail`` outside of the codec."""
    return [
        f"{module.path}:{node.lineno}"
        for module in modules
        if module.path not in CODEC
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr == "detail" and isinstance(node.ctx, ast.Load)
    ]


def files_quoting_events(modules: Iterable[Source]) -> list[str]:
    """Modules outside of schemas/ that compare an event with the text of its name.

    Counted is a comparison, a membership or a ``case`` whose one side reads ``.event`` and whose other side
    has a text, and a call of ``Event(…)`` whose kind is a text.
    """
    return sorted(
        module.path
        for module in modules
        if not module.path.startswith("schemas/")
        and any(_quotes_event(node) for node in ast.walk(module.tree))
    )


def _quotes_event(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        return any(_reads_event(side) for side in sides) and any(_has_text(side) for side in sides)
    if isinstance(node, ast.Match):
        return _reads_event(node.subject) and any(_has_text(case.pattern) for case in node.cases)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Event"
        and any(
            isinstance(argument, ast.Constant) and isinstance(argument.value, str) for argument in node.args
        )
    )


def _reads_event(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "event"


def _has_text(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(node))


def allocation_copies(modules: Iterable[Source]) -> list[str]:
    """Places of a live process that keep which GPUs or slots each job holds from one tick to the next.

    Counted are attributes of objects that live as long as the process does: a mapping from a job to one of
    ``ALLOCATION_TYPES`` that ``__init__`` or a dataclass in tools/run/service, tools/run/statedir/log and
    tools/schedule declares, and a record of a job (its class name ends with Job, JobLog, JobState or Attempt)
    with a field of these types. So is a class that is such a mapping itself.
    """
    return sorted(
        name
        for module in modules
        if module.path.startswith(("tools/run/service/", "tools/run/statedir/log/", "tools/schedule/"))
        and not module.path.startswith("tools/schedule/policies/")
        for owner in _classes(module)
        for name, annotation in (
            *((f"{module.path} {owner.name}.{name}", kind) for name, kind in _attributes(owner)),
            *((f"{module.path} {owner.name}", ast.unparse(base)) for base in owner.bases),
        )
        if _keeps_allocation(owner.name, annotation)
    )


def _keeps_allocation(owner: str, annotation: str) -> bool:
    of_all = re.match(r"(dict|Mapping|MutableMapping|defaultdict)\[str, ", annotation) is not None
    return any(kind in annotation for kind in ALLOCATION_TYPES) and (
        of_all or owner.endswith(("JobLog", "JobState", "Attempt", "AttemptState"))
    )


def grow_forms(modules: Iterable[Source]) -> list[str]:
    """Classes that carry what one job holds on the way from a decision to its workers.

    Counted are records (dataclasses, named tuples, models) of schemas/schedule.py, schemas/event*.py,
    tools/schedule and tools/run with a field of one job's GPUs or slots. Policies' own, verify, views for
    people, what is booked for later and reports of failures are no part of a grow.
    """
    return sorted(
        f"{module.path} {owner.name}"
        for module in modules
        if module.path.startswith(("schemas/schedule.py", "schemas/event", "tools/schedule/", "tools/run/"))
        and not module.path.startswith(_NO_PART_OF_A_GROW)
        for owner in _classes(module)
        if not owner.name.startswith(("Reserv", "WorkerFailure", "WorkerFailure"))
        and any(
            any(kind in annotation for kind in (*ALLOCATION_TYPES, "tuple[Slot, ...]", "tuple[Member, ...]"))
            or name == "placement"
            for name, annotation in _attributes(owner, declared=True)
        )
    )


def submit_parse_sites(modules: Iterable[Source]) -> list[str]:
    """Calls that turn the text of a submission into jobs.

    Counted are ``parse_jobs`` in cli and tools/run, and ``read_jobs`` in modules of submit.
    """
    return [
        f"{module.path}:{node.lineno}"
        for module in modules
        if module.path.startswith(("cli/", "tools/run/"))
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and (_called(node) == "parse_jobs" or ("submit" in module.path and _called(node) == "read_jobs"))
    ]


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def largest_attributes(modules: Iterable[Source]) -> tuple[str, int]:
    """The class that assigns the most attributes of its own (``self.x = …``) in its methods."""
    return _largest(modules, lambda owner: {name for name, _ in _attributes(owner, assigned=True)})


def largest_methods(modules: Iterable[Source]) -> tuple[str, int]:
    """The class with the most methods and properties in its body."""
    return _largest(
        modules, lambda owner: {node.name for node in owner.body if isinstance(node, ast.FunctionDef)}
    )


def _largest(modules: Iterable[Source], count: Callable[[ast.ClassDef], set[str]]) -> tuple[str, int]:
    sizes = {
        f"{module.path} {owner.name}": len(count(owner)) for module in modules for owner in _classes(module)
    }
    return max(sizes.items(), key=lambda size: size[1])


def _classes(module: Source) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def _attributes(
    owner: ast.ClassDef, *, declared: bool = False, assigned: bool = False
) -> Iterator[tuple[str, str]]:
    """Names and annotations of what a class body declares and of what its methods assign to ``self``."""
    if not assigned:
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, ast.unparse(node.annotation)
    if declared:
        return
    for node in ast.walk(owner):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        for target in (each for one in targets for each in getattr(one, "elts", [one])):
            owned = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"
            if owned and isinstance(target.ctx, ast.Store):
                yield target.attr, annotation


def metric_declarations(modules: Iterable[Source], metric: str = "makespan_s") -> list[str]:
    """Statements at the top of modules of tools/report, functions and classes included, that name a metric.

    One metric stands for all: it is declared in as many tables as each of the others.
    """
    return [
        f"{module.path}:{statement.lineno}"
        for module in modules
        if module.path.startswith("tools/report/")
        for statement in module.tree.body
        if any(isinstance(node, ast.Constant) and node.value == metric for node in ast.walk(statement))
    ]


def classes_defined_twice(modules: Iterable[Source]) -> list[str]:
    """Public names of classes at the top of several modules."""
    names = Counter(
        node.name
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def string_comments(modules: Iterable[Source]) -> list[str]:
    """Texts that stand alone in a function's body, its docstring aside."""
    return [
        f"{module.path}:{statement.lineno}"
        for module in modules
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in (node for body in _bodies(function) for node in body)
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
        and statement is not function.body[0]
    ]


def _bodies(function: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        if not isinstance(node, ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(body, list) and (node is function or not isinstance(node, ast.FunctionDef)):
                    yield body


def constants_beginning_with_of(modules: Iterable[Source]) -> list[str]:
    """Descriptions below an assignment that begin with "Of"."""
    return [
        f"{module.path}:{after.lineno}"
        for module in modules
        for node in ast.walk(module.tree)
        for before, after in _pairs(getattr(node, "body", None))
        if isinstance(before, ast.Assign | ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and str(after.value.value).startswith("Of ")
    ]


def _pairs(body: object) -> Iterable[tuple[ast.stmt, ast.stmt]]:
    return pairwise(body) if isinstance(body, list) else ()


def locals_named(modules: Iterable[Source], name: str) -> list[str]:
    """Functions with a local variable of this name; each counts once."""
    return [
        f"{module.path}:{function.lineno}"
        for module in modules
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
            for node in ast.walk(function)
        )
    ]


def personal_verbs(modules: Iterable[Source]) -> list[str]:
    """Names of modules, classes, public functions, methods and constants with a verb of persons."""
    names = {
        f"{module.path} {name}"
        for module in modules
        for name in (Path(module.path).stem, *_public_names(module.tree))
        if _words(name) & PERSONAL_VERBS and name not in USERS_NAMES
    }
    return sorted(names)


def _public_names(tree: ast.Module) -> Iterator[str]:
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        for node in owner.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            else:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (name for name in names if not name.startswith("_"))


def _words(name: str) -> set[str]:
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)
    lowered = [word.lower() for word in words]
    return {*lowered, *(f"{one}_{two}" for one, two in pairwise(lowered))}


def docs_words() -> int:
    """Words of the README, CONTRIBUTING and docs/, without generated pages and those of experiments."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return sum(
        len(page.read_text().split())
        for page in pages
        if page.name not in GENERATED_PAGES and page.parent.name != "experiments"
    )


def figures() -> list[Figure]:
    """All counts."""
    modules = sources()
    log = [module for module in modules if Path(module.path).stem in LOG_AND_STATE]
    return [
        Figure("product_lines", lines(modules), "lines", 80_000),
        Figure("product_modules", len(modules), "modules"),
        Figure("experiments_lines", lines(sources(EXPERIMENTS)), "lines", 16_000),
        Figure("docs_words", docs_words(), "words", 36_000),
        Figure("detail_accesses_outside_codec", len(detail_accesses(modules)), "places", 0),
        Figure("files_quoting_an_event_name", len(files_quoting_events(modules)), "modules", 3),
        Figure("forms_of_a_grow", len(grow_forms(modules)), "classes", 6),
        Figure("copies_of_an_allocation", len(allocation_copies(modules)), "attributes", 3),
        Figure("submit_parse_sites", len(submit_parse_sites(modules)), "calls", 1),
        Figure("lines_of_the_log_and_state", lines(log), "lines", 2_900),
        Figure("largest_class_attributes", largest_attributes(modules)[1], "attributes", 20),
        Figure("largest_class_methods", largest_methods(modules)[1], "methods", 30),
        Figure("metric_declarations", len(metric_declarations(modules)), "tables", 1),
        Figure("class_names_defined_twice", len(classes_defined_twice(modules)), "names", 10),
        Figure("string_comments_in_functions", len(string_comments(modules)), "texts", 0),
        Figure("constants_beginning_with_of", len(constants_beginning_with_of(modules)), "texts", 0),
        Figure("locals_named_found", len(locals_named(modules, "found")), "functions", 100),
        Figure("personal_verbs_in_names", len(personal_verbs(modules)), "names", 0),
    ]


smallest = figures


if __name__ == "__main__":
    _modules = sources()
    for _count in (
        *(detail_accesses, files_quoting_events, allocation_copies, grow_forms, submit_parse_sites),
        *(largest_attributes, largest_methods, metric_declarations, classes_defined_twice),
        *(string_comments, constants_beginning_with_of, personal_verbs),
    ):
        print(f"\n{_count.__name__}:", *map(str, _count(_modules)), sep="\n  ")
