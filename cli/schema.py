"""``pliant schema``: print what a kind of file looks like."""

from __future__ import annotations

from typing import Annotated

import typer

from pliant.cli.console import out_text


def schema(
    kind: Annotated[
        str | None, typer.Argument(help="Kind of file. Without it the kinds are listed.", show_default=False)
    ] = None,
) -> None:
    """Print the schema of a kind of file: a JSON Schema, or for a table its columns.

    Example: pliant schema job | jq .required
    """
    from pliant.schemas.file_io.version import KINDS
    from pliant.schemas.generate import schema_text

    out_text("".join(f"{name}\n" for name in KINDS) if kind is None else schema_text(kind))
