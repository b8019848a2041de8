"""Recipes of sweeps: traces × clusters × policies × parameters × seeds in one small TOML or JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from pliant.schemas.errors import BadInputError, Problem, UsageError
from pliant.schemas.file_io.files import read_bytes, source_name
from pliant.schemas.file_io.problems import problems_of
from pliant.schemas.file_io.record import (
    Identifier,
    NonNegativeInt,
    Record,
)
from pliant.tools.replay.engine.costs import is_event_file
from pliant.tools.replay.options import Conditions, ConvergenceFile, JobsFile, JobsLimit, ProfileFile
from pliant.tools.replay.sweep.origin import COSTS
from pliant.tools.replay.traces.recipe import BUILT_IN, parse_table, refuse
from pliant.tools.schedule.registry import make_policy, policy_class, policy_names

Value = bool | int | float | str


class Trace(Record):
    """One trace: a job file, or a recipe that makes one for each of some seeds."""

    name: Identifier
    """Part of the names of the event files."""
    jobs: JobsFile = None
    synth: str | None = None
    """A built-in recipe or a recipe file, as ``pliant trace synth`` takes."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    """Of a recipe: one trace each. Default: the recipe's own seed."""
    profile: ProfileFile = None
    convergence: ConvergenceFile = None
    jobs_limit: JobsLimit = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.jobs is None) == (self.synth is None):
            refuse("/jobs", "expected exactly one of jobs and synth")
        return self


class Machines(Record):
    """One cluster."""

    name: Identifier
    """Part of the names of the event files."""
    path: str
    """The cluster file."""


class SweepRecipe(Record, Conditions):  # type: ignore[misc]  # pydantic freezes it
    """A sweep. Paths start at the recipe's folder."""

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
            refuse(f"/{name}", text)
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
                    refuse(f"/{axis}", f'"{name}" is there twice')
        for policy in sorted(set(self.parameters) - set(self.policies)):
            refuse(f"/parameters/{policy}", "is not among the policies of this sweep")
        return self


def read_sweep(path: str) -> SweepRecipe:
    """The sweep of a TOML or JSON file; relative paths become paths beside it.

    :raises BadInputError: with every problem.
    """
    source = source_name(path)
    fields = parse_table(read_bytes(path), source)
    try:
        recipe = SweepRecipe.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise BadInputError(problems_of(error, source)) from error
    found = _beside(recipe, Path(path).resolve().parent)
    _check_policies(found, source)
    return found


def _check_policies(recipe: SweepRecipe, source: str) -> None:
    """Refuse policies and values of parameters that no replay could have.

    :raises BadInputError: with every problem.
    """
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
    """All combinations of the values that a sweep tries for a policy."""
    grid = recipe.parameters.get(policy, {})
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _beside(recipe: SweepRecipe, folder: Path) -> SweepRecipe:
    def found(path: str | None) -> str | None:
        return None if path is None else str(folder / path)

    traces = tuple(
        trace.model_copy(
            update={
                "jobs": found(trace.jobs),
                "synth": trace.synth if trace.synth in BUILT_IN else found(trace.synth),
                "profile": found(trace.profile),
                "convergence": found(trace.convergence),
            }
        )
        for trace in recipe.traces
    )
    clusters = tuple(one.model_copy(update={"path": found(one.path)}) for one in recipe.clusters)
    named = {name: text for name in COSTS if is_event_file(text := getattr(recipe, name) or "")}
    own = {"failures": recipe.failures, "predictor": recipe.predictor}
    files = {name: found(path) for name, path in {**named, **own}.items()}
    return recipe.model_copy(
        update={"traces": traces, "clusters": clusters, "parameters": _files_beside(recipe, folder), **files}
    )


def _files_beside(recipe: SweepRecipe, folder: Path) -> dict[str, dict[str, tuple[Value, ...]]]:
    """The parameters, those that name files relative to ``folder``."""
    grids = {}
    for policy, grid in recipe.parameters.items():
        files = policy_class(policy).files if policy in policy_names() else frozenset()
        grids[policy] = {
            key: tuple(str(folder / str(value)) if value else value for value in values)
            if key in files
            else values
            for key, values in grid.items()
        }
    return grids
