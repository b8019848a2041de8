"""``pliant new``: files to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.console import note, out_text
from pliant.schemas.errors import UsageError


def new_policy(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the policy, like my-policy.", show_default=False)
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The folder of the package.", show_default="pliant-NAME"),
    ] = None,
) -> None:
    """Make a package with a policy of your own: it works, and is there to be changed.

    It has the policy, its test (the checks that pliant's own policies pass) and a
    pyproject.toml. Prints the files. docs/writing-a-policy.md explains them.

    Example: pliant new policy my-policy && pliant policies pliant-my-policy/pliant_my_policy.py
    """
    from pliant.schemas.file_io.files import atomic_write, make_folder
    from pliant.tools.schedule.new_policy import package_files

    files = package_files(name)
    folder = folder or Path(f"pliant-{name}")
    there = [path for path in (folder / each for each in files) if path.exists()]
    if there:
        raise UsageError(f"{there[0]} is there: name another folder")
    make_folder(folder)
    for each, text in files.items():
        atomic_write(folder / each, text.encode())
    out_text("".join(f"{folder / each}\n" for each in files))
    place = folder if folder.is_absolute() else f"./{folder}"  # pip takes a bare name for one of its index
    source = next(folder / each for each in files if each.startswith("pliant_"))
    note(f"try it: --policy {source} in schedule, replay and run; install it: pip install {place}")


SUBCOMMANDS = (new_policy,)
