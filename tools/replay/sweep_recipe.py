"""Recipes of sweeps: traces × clusters × policies × parameters × seeds in one small TOML or JSON file.

The origin of a task has a digest of each thing that its outcome depends on.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pliant import __version__
from pliant.schemas.errors import BadInputError, Problem, UsageError
from pliant.schemas.file_io.documents import document_bytes, parse_document
from pliant.schemas.file_io.files import atomic_write, read_bytes, source_name
from pliant.schemas.file_io.limits import ROWS_BYTES
from pliant.schemas.file_io.record import Identifier, NonNegativeInt, Record, broken_rule, problems_of
from pliant.tools.replay.engine.costs import is_event_file
from pliant.tools.replay.options import Conditions, ConvergenceFile, JobsFile, JobsLimit, ProfileFile
from pliant.tools.replay.synthetic_recipe import BUILT_IN, parse_table
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.registry import (
    IN_FILE,
    files_among,
    is_file,
    make_policy,
    policy_class,
    policy_names,
)

Value = bool | int | float | str
_ORIGIN_KIND: Final = "origin"
_INPUTS: Final = ("jobs", "cluster", "profile", "convergence", "failures", "predictor")
COSTS: Final = ("start_cost", "rescale_cost", "resume_cost")
"""Options that may name an event file."""
_IN_WORDS: Final = {
    "failures": "the node failures",
    "predictor": "the progress predictor",
    "start_cost": "the start cost",
    "rescale_cost": "the rescale cost",
    "resume_cost": "the resume cost",
    "policy": "the policy's code",
    "settings": "the recipe's settings",
    "pliant": "pliant itself",
}
_PLIANT: Final = "pliant"
_REPLAYED: Final = ("schemas", "tools/profile", "tools/replay", "tools/schedule")
"""Folders of pliant whose code a replay runs."""


class Trace(Record):
    """One trace: a job file, or a recipe that makes one for each of some seeds."""

    name: Identifier
    """Part of the names of the event files."""
    jobs: JobsFile = None
    synth: str | None = None
    """A built-in recipe or a recipe file, as ``pliant trace synth`` takes."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    """Seeds of a recipe: one trace each. Default: the recipe's own seed."""
    profile: ProfileFile = None
    convergence: ConvergenceFile = None
    jobs_limit: JobsLimit = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.jobs is None) == (self.synth is None):
            raise broken_rule("expected exactly one of jobs and synth", "/jobs")
        return self


class Machines(Record):
    """One cluster."""

    name: Identifier
    """Part of the names of the event files."""
    path: str


class SweepRecipe(Record, Conditions):  # type: ignore[misc]  # pydantic freezes it
    """A sweep. Paths, those of policies in files too, start at the recipe's folder."""

    traces: Annotated[tuple[Trace, ...], Field(min_length=1)]
    clusters: Annotated[tuple[Machines, ...], Field(min_length=1)]
    policies: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    """Seeds of the policies that decide at random, and of failures."""
    parameters: dict[str, dict[str, Annotated[tuple[Value, ...], Field(min_length=1)]]] = Field(
        default_factory=dict
    )
    """Values to try, by policy and parameter; all combinations are replayed."""

    @model_validator(mode="after")
    def _conditions_hold(self) -> Self:
        for name, text in self.wrong():
            raise broken_rule(text, f"/{name}")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        axes: dict[str, Sequence[object]] = {
            "traces": [trace.name for trace in self.traces],
            "clusters": [cluster.name for cluster in self.clusters],
            "policies": self.policies,
            "seeds": self.seeds,
        }
        for axis, names in axes.items():
            for name in names:
                if names.count(name) > 1:
                    raise broken_rule(f'"{name}" is there twice', f"/{axis}")
        for policy in sorted(set(self.parameters) - set(self.policies)):
            raise broken_rule("is not among the policies of this sweep", f"/parameters/{policy}")
        return self


def read_sweep(path: str) -> SweepRecipe:
    """The sweep of a TOML or JSON file; relative paths become paths beside it."""
    source = source_name(path)
    fields = parse_table(read_bytes(path), source)
    try:
        recipe = SweepRecipe.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise BadInputError(problems_of(error, source)) from error
    resolved = _beside(recipe, Path(path).resolve().parent)
    _check_policies(resolved, source)
    return resolved


def _check_policies(recipe: SweepRecipe, source: str) -> None:
    problems: list[Problem] = []
    for index, policy in enumerate(recipe.policies):
        for parameters in parameter_grid(recipe, policy):
            try:
                make_policy(policy, parameters)
            except (UsageError, BadInputError) as error:
                problems.append(Problem(source, None, f"/policies/{index}", str(error)))
    if problems:
        raise BadInputError(list(dict.fromkeys(problems)))


def parameter_grid(recipe: SweepRecipe, policy: str) -> Iterator[dict[str, Value]]:
    grid = recipe.parameters.get(policy, {})
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _beside(recipe: SweepRecipe, folder: Path) -> SweepRecipe:
    def found(record: Record, *names: str) -> dict[str, str]:
        paths = {name: getattr(record, name) for name in names}
        return {name: str(folder / path) for name, path in paths.items() if path is not None}

    traces = []
    for trace in recipe.traces:
        made_by = () if trace.synth in BUILT_IN else ("synth",)
        traces.append(trace.model_copy(update=found(trace, "jobs", "profile", "convergence", *made_by)))
    recipe = recipe.model_copy(
        update={
            "policies": tuple(_policy_beside(name, folder) for name in recipe.policies),
            "parameters": {_policy_beside(name, folder): grid for name, grid in recipe.parameters.items()},
        }
    )
    clusters = [one.model_copy(update=found(one, "path")) for one in recipe.clusters]
    costs = [name for name in COSTS if is_event_file(getattr(recipe, name) or "")]
    update = {
        "traces": tuple(traces),
        "clusters": tuple(clusters),
        "parameters": _files_beside(recipe, folder),
    }
    return recipe.model_copy(update={**update, **found(recipe, "failures", "predictor", *costs)})


def _policy_beside(name: str, folder: Path) -> str:
    """A policy in a file by its whole path, the name of any other."""
    return str(folder / name) if is_file(name) else name


def _files_beside(recipe: SweepRecipe, folder: Path) -> dict[str, dict[str, tuple[Value, ...]]]:
    grids = {}
    for policy, grid in recipe.parameters.items():
        known = is_file(policy) or policy in policy_names()
        files = policy_class(policy).traits.file_parameters if known else frozenset()
        grids[policy] = {
            key: tuple(str(folder / str(value)) if value else value for value in values)
            if key in files
            else values
            for key, values in grid.items()
        }
    return grids


class Origin(Record):
    """The key of a finished task: what its files were made from."""

    schema_: Literal["pliant.origin/1"] = Field(default="pliant.origin/1", alias="schema")
    made_from: dict[str, str]


class Digests:
    """Digests of files and of policies' code, each computed once."""

    def __init__(self) -> None:
        self.file: Callable[[str], str] = cache(file_digest)
        self.policy: Callable[[str], str] = cache(lambda name: policy_digest(policy_class(name)))


def made_from(task: Mapping[str, Any], digests: Digests | None = None) -> dict[str, str]:
    """Digest of each thing that a task's outcome depends on now, by its name in messages.

    File names do not matter, their bytes do. ``task`` are its fields but for its name.
    """
    digests, fields = digests or Digests(), dict(task)
    costs = [name for name in COSTS if is_event_file(fields[name] or "")]
    files = {name: fields.pop(name) for name in (*_INPUTS, *costs)}
    named = files_among(policy_class(fields["policy"]), fields["parameters"])
    files |= {name: fields["parameters"][name] for name in named}
    fields["parameters"] = {name: value for name, value in fields["parameters"].items() if name not in named}
    digest_by_name = {name: digests.file(path) for name, path in files.items() if path is not None}
    code = digests.policy(fields["policy"])
    if code:
        digest_by_name["policy"] = code
    settings = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return {**digest_by_name, "settings": settings, "pliant": pliant_digest()}


def file_digest(path: str) -> str:
    return hashlib.sha256(read_bytes(path, most=ROWS_BYTES)).hexdigest()


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What changed of the things that a task's outcome depends on, in words."""
    names = sorted({*before, *now})
    return [_IN_WORDS.get(name, f"the {name}") for name in names if before.get(name) != now.get(name)]


def write_origin(path: Path, origin: Mapping[str, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, document_bytes(Origin(made_from=dict(origin)), _ORIGIN_KIND), mode=0o600)


def read_origin(path: Path) -> dict[str, str] | None:
    """What a finished task was made from, if it has a key that this version can read."""
    try:
        return parse_document(read_bytes(path), str(path), _ORIGIN_KIND, Origin).made_from
    except BadInputError:
        return None


def policy_digest(policy: type[Policy]) -> str:
    """Digest of the code of a policy from another package; empty for a built-in one.

    It covers the packages of the class and its bases; of a single module, also what it imports beside it.
    """
    roots = {_root(kind.__module__) for kind in policy.__mro__} - {_PLIANT, *sys.stdlib_module_names}
    files = [path for root in sorted(roots) for path in _files(sys.modules[root])]
    return _digest(files) if files else ""


def _root(module: str) -> str:
    """The package of a module; a module in a file is its own."""
    return module if module.startswith(IN_FILE) else module.partition(".")[0]


@cache
def pliant_digest() -> str:
    """Digest of pliant's version, and of the code that a replay runs, with the weights of its networks."""
    root = Path(__file__).resolve().parents[2]
    code = [path for folder in _REPLAYED for path in (root / folder).rglob("*.py")]
    learnt = (root / "tools" / "schedule").rglob("*.json")
    return _digest([*code, *learnt], __version__)


def _digest(files: Iterable[Path], start: str = "") -> str:
    """One digest of names and contents, whatever the order and the folders of the files."""
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
    """A module, and the modules in its folder that it imports, directly or not."""
    modules: set[Path] = set()
    waiting = {module}
    while waiting:
        path = waiting.pop()
        modules.add(path)
        beside = {path.with_name(f"{name}.py") for name in _imported(path)}
        waiting |= {other for other in beside - modules if other.is_file()}
    return modules


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
