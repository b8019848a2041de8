"""What a command takes for granted, said on stderr; with --strict an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.console import note

if TYPE_CHECKING:
    from pliant.schemas.runinfo import Assumption

STRICT = Annotated[
    bool,
    typer.Option("--strict", help="Fail where the inputs leave something open, instead of assuming it."),
]


def heed(assumptions: Sequence[Assumption], *, strict: bool = False) -> None:
    """Say each assumption in one line.

    :raises BadInputError: there are some, with ``--strict``.
    """
    from pliant.tools.schedule.assumptions import refuse

    if strict:
        refuse(assumptions)
    for assumption in assumptions:
        note(assumption.text)
