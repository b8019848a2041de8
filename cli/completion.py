"""What the shell completes beyond names of commands and options: policies, parameters, job ids and nodes.

:func:`complete` is called only where a shell asks. What cannot be known completes to nothing, and the shell
then offers files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pliant.cli.config import configuration
from pliant.schemas.errors import PliantError

Values = Callable[[Any, str], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Completion:
    """One word, as typer's scripts for the shells expect it."""

    value: str
    type: str = "plain"
    help: str | None = None


def complete(command: Any) -> None:
    """Let the parameters of a command complete what is in :data:`VALUES`."""
    for each in command.params:
        values = VALUES.get((command.name, each.name)) or VALUES.get(("", each.name))
        if values is not None:
            each.shell_complete = _completer(values)


def _completer(values: Values) -> Callable[[Any, str], list[Completion]]:
    def shell_complete(context: Any, incomplete: str) -> list[Completion]:
        try:
            matching = [each for each in values(context, incomplete) if each.startswith(incomplete)]
        except (PliantError, OSError):
            return []
        return [Completion(each) for each in matching]

    return shell_complete


def _policies(_context: Any, incomplete: str) -> Iterable[str]:
    """Also after a comma: a replay takes several."""
    from pliant.tools.schedule.registry import policy_names

    before, comma, _ = incomplete.rpartition(",")
    return [before + comma + name for name in policy_names() if name not in before.split(",")]


def _parameters(context: Any, _incomplete: str) -> Iterable[str]:
    """Those of the policy that was named; with the policy before them if there are several."""
    from pliant.tools.schedule.registry import parameter_types, policy_class

    named = context.params.get("policy") or ()
    names = [name for part in ([named] if isinstance(named, str) else named) for name in part.split(",")]
    for name in names:
        policy = policy_class(name)
        for key in parameter_types(policy):
            yield f"{key}=" if len(names) == 1 else f"{policy.name}.{key}="


def _jobs_there(context: Any, _incomplete: str) -> Iterable[str]:
    return sorted(_jobs(context, ended=True))


def _jobs_left(context: Any, _incomplete: str) -> Iterable[str]:
    """Jobs that have not ended and are not on the command line already."""
    return sorted(_jobs(context) - set(context.params.get("jobs") or ()))


def _jobs(context: Any, *, ended: bool = False) -> set[str]:
    """Jobs of the log, and those that were submitted since."""
    from pliant.tools.run.statedir.directory import StateDir
    from pliant.tools.run.statedir.log.snapshot import LogView
    from pliant.tools.run.statedir.requests import Spool

    dirs = StateDir(_state(context))
    log = LogView(dirs).refresh()
    new = {job.id for request in Spool(dirs).requests() for job in request.jobs}
    return {*(log.jobs if ended else log.active), *(new - log.jobs.keys())}


def _nodes(context: Any, _incomplete: str) -> Iterable[str]:
    from pliant.schemas.io import read_cluster
    from pliant.tools.run.statedir.directory import StateDir

    cluster = read_cluster(StateDir(_state(context)).cluster)
    return sorted({node.name for node in cluster.expanded()} - set(context.params.get("nodes") or ()))


def _state(context: Any) -> Path:
    """The state directory that was named."""
    return Path(context.params.get("state") or configuration().state or ".")


VALUES: Final[dict[tuple[str, str], Values]] = {
    ("", "policy"): _policies,
    ("", "param"): _parameters,
    ("policies", "name"): _policies,
    **{(order, "jobs"): _jobs_left for order in ("cancel", "hold", "release", "priority", "update", "wait")},
    ("status", "job"): _jobs_there,
    ("log", "jobs"): _jobs_there,
    ("requeue", "jobs"): _jobs_there,
    ("why", "job"): _jobs_there,
    ("stack", "job"): _jobs_left,
    ("drain", "nodes"): _nodes,
    ("nodes", "node"): _nodes,
    ("resume", "nodes"): _nodes,
}
"""Completions by command and parameter; an empty command means every one."""
