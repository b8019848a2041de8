"""The ``pliant`` command: registers one thin module per command and nothing else."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from pliant.cli.common import BROKEN_PIPE, command
from pliant.cli.console import abandon

TOOLS: Final = "The tools"
LIVE: Final = "Live state"
FILES: Final = "Files"

COMMANDS: Final = (
    ("profile", TOOLS),
    ("schedule", TOOLS),
    ("run", TOOLS),
    ("replay", TOOLS),
    ("report", TOOLS),
    ("submit", LIVE),
    ("cancel", LIVE),
    ("status", LIVE),
    ("log", LIVE),
    ("validate", FILES),
    ("schema", FILES),
    ("policies", FILES),
)
GROUPS: Final = (("trace", FILES, "Make job traces: import published ones, or generate."),)

app = typer.Typer(
    name="pliant",
    help="Elastic deep-learning scheduling as Unix tools: profile | schedule | run, replay, report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pliant {version('pliant')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Elastic deep-learning scheduling as Unix tools: profile | schedule | run, replay, report."""


def _register() -> None:
    for name, panel in COMMANDS:
        module = importlib.import_module(f"pliant.cli.{name}")
        app.command(name, rich_help_panel=panel)(command(getattr(module, name)))
    for name, panel, help_text in GROUPS:
        module = importlib.import_module(f"pliant.cli.{name}")
        group = typer.Typer(help=help_text, no_args_is_help=True)
        for sub in module.SUBCOMMANDS:
            group.command(sub.__name__.removeprefix(f"{name}_"))(command(sub))
        app.add_typer(group, name=name, rich_help_panel=panel)


_register()


def main() -> None:
    """Entry point of the ``pliant`` command."""
    if sys.stderr is None:  # closed: what is meant for it must not end up in another file
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the end
    try:
        app()
    except SystemExit as leaving:
        raise SystemExit(_exit_code(leaving)) from None
    except OSError as unsaid:  # stderr is full
        code = getattr(unsaid.__context__, "exit_code", None)
        if code is None:
            raise
        raise SystemExit(code) from None
    finally:
        _flush_stderr()


def _exit_code(leaving: SystemExit) -> str | int | None:
    """The code to leave with: help or a usage error that nobody reads to the end is no failure of its own."""
    broken = leaving.__context__
    if not isinstance(broken, BrokenPipeError):
        return leaving.code
    if sys.stdout is not None:
        abandon(sys.stdout)
    code: int = getattr(broken.__context__, "exit_code", BROKEN_PIPE)
    return code


def _flush_stderr() -> None:
    try:
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)
