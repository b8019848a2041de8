"""``pliant policies``: which policies there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.console import note, out_text
from pliant.schemas.errors import PliantError

if TYPE_CHECKING:
    from pliant.tools.schedule.registry import Description


def policies(
    name: Annotated[
        str | None, typer.Argument(help="Tell all about this policy.", show_default="list all")
    ] = None,
) -> None:
    """List the policies, or tell all about one: what it does, its parameters, what it needs.

    Example: pliant policies ares
    """
    from pliant.tools.schedule.registry import describe, policy_names

    if name is not None:
        out_text(_page(describe(name)))
        return
    width = max(map(len, policy_names()))
    for each in policy_names():
        try:
            out_text(f"{each:{width}}  {describe(each).summary}\n")
        except PliantError as error:
            note(str(error))


def _page(found: Description) -> str:
    every = "at every change" if found.interval_s is None else f"every {found.interval_s:g} s"
    lines = [
        f"{found.name} ({found.source})",
        "",
        found.text,
        "",
        f"changes of a job: {found.elasticity}",
        f"decides: {every}",
        f"needs: {', '.join(found.needs) or 'nothing'}",
        "parameters:" if found.parameters else "parameters: none",
    ]
    lines += [f"  {each.name}={each.default}  {each.expected}" for each in found.parameters]
    return "\n".join(lines) + "\n"
