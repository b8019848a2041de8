"""``pliant policies``: which policies there are."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pliant.cli.console import note, out_text, width_for
from pliant.schemas.errors import PliantError

if TYPE_CHECKING:
    from pliant.tools.schedule.registry import Description


def policies(
    name: Annotated[str | None, typer.Argument(help="Describe this policy.", show_default="list all")] = None,
) -> None:
    """List the policies, or describe one: what it does, its parameters, what it needs.

    Example: pliant policies ares
    """
    from pliant.schemas.text import fitted, flowing
    from pliant.tools.schedule.registry import describe, policy_names

    width = width_for(sys.stdout)
    if name is not None:
        found = describe(name)
        lines = page(found) if width is None else page(replace(found, text=flowing(found.text)))
        out_text("".join(f"{line}\n" for line in fitted(lines, width)))
        return
    longest = max(map(len, policy_names()))
    for each in policy_names():
        try:
            out_text("".join(f"{line}\n" for line in entry(each, describe(each).summary, longest, width)))
        except PliantError as error:
            note(str(error))


def entry(name: str, summary: str, longest: int, width: int | None) -> list[str]:
    """A policy in the list; its summary stands below its name on a narrow terminal."""
    from pliant.schemas.text import wrapped

    beside = f"{name:{longest}}  {summary}"
    if width is None or len(beside) <= width:
        return [beside]
    indent = " " * (longest + 2)
    if len(indent) > width // 2:
        return [name, *(f"  {line}" for line in wrapped(summary, width - 2))]
    first, *rest = wrapped(summary, width - len(indent))
    return [f"{name:{longest}}  {first}", *(indent + line for line in rest)]


KNOWS: Final = {
    "nothing": "nothing but requests, priorities and arrivals",
    "service": "the service of jobs so far, and of those that ended",
    "work": "the work of jobs",
    "profile": "speeds at other sizes, at other batches or on other GPU types",
}


def priority_in_words(means: str | None) -> str:
    """What the priority of a job means to a policy.

    :param means: as :attr:`Policy.priority_means` has it.
    """
    return "the policy does not say" if means is None else means or "it does not look at them"


def page(found: Description) -> list[str]:
    lines = [
        f"{found.name} ({found.source})",
        "",
        *found.text.splitlines(),
        "",
        f"changes of a job: {found.elasticity}",
        f"decides: {found.decides}",
        f"knows: {KNOWS[found.knows]}",
        f"needs: {', '.join(found.needs) or 'nothing'}",
        f"priorities of jobs: {priority_in_words(found.priority)}",
        "parameters:" if found.parameters else "parameters: none",
    ]
    lines[-1:-1] = [text.replace("`", "") for text in found.traits]
    lines += [f"  {each.name}={each.default}  {each.expected}" for each in found.parameters]
    return lines
