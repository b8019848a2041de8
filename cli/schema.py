"""``pliant schema`` prints what a kind of file looks like; ``pliant validate`` checks files against their
schemas.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pliant.cli.console import named_or_piped, out_text
from pliant.schemas.errors import BadInputError


def schema(
    kind: Annotated[
        str | None, typer.Argument(help="Kind of file. Without it the kinds are listed.", show_default=False)
    ] = None,
) -> None:
    """Print the schema of a kind of file: a JSON Schema, or for a table its columns.

    Example: pliant schema job | jq .required
    """
    from pliant.schemas.file_io.record import KINDS
    from pliant.schemas.generate import schema_text

    out_text("".join(f"{name}\n" for name in KINDS) if kind is None else schema_text(kind))


def validate(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Files of any kind; - is stdin, also the default in a pipe.", show_default=False),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="What the files are.", show_default="from content, then name"),
    ] = None,
) -> None:
    """Check files against their schemas: a line for each good file, every problem of the bad ones.

    Exits with 3 if a file is bad, after all files were looked at.

    Example: pliant validate jobs.jsonl cluster.json profile.parquet
    """
    from pliant.schemas.kinds import check_kind, validate_file

    check_kind(kind)
    bad: list[BadInputError] = []
    for name in files or [named_or_piped(None, "no file to validate: name some, or pipe one in")]:
        try:
            out_text(validate_file(name, kind) + "\n")
        except BadInputError as error:
            bad.append(error)
    if bad:
        raise BadInputError("\n".join(str(error) for error in bad))
