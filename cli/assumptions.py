"""What several commands declare alike: ``--strict`` with the assumptions that it refuses, and option records.

An assumption is said on stderr, with ``--strict`` it is an error. :func:`options_of` makes the options of a
command from the fields of a dataclass that are declared with an ``Option``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from annotated_types import Ge

from pliant.cli.console import note
from pliant.tools.replay.options import Option

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


Command = Callable[..., None]


def options_of(record: type, panels: Sequence[str]) -> Callable[[Command], Command]:
    """Give a command that takes a context and keywords an option for each field of ``record``.

    :param panels: headings of the help in order; options without one come last.
    """
    hints = get_type_hints(record, include_extras=True)
    found = [_option(field, hints[field.name]) for field in fields(record)]
    found.sort(key=lambda each: panels.index(each[0]) if each[0] else len(panels))
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

    def give(command: Command) -> Command:
        signature = Signature([context, *(parameter for _, parameter in found)])
        command.__signature__ = signature  # type: ignore[attr-defined]
        return command

    return give


def _option(field: Field[Any], hint: object) -> tuple[str | None, Parameter]:
    """The panel of a field, and the parameter that the command gets for it."""
    kind, *notes = get_args(hint)
    option = next(note for note in notes if isinstance(note, Option))
    shown = typer.Option(
        *(option.names or (f"--{field.name.replace('_', '-')}",)),
        help=option.help,
        metavar=option.metavar,
        min=next((note.ge for note in notes if isinstance(note, Ge)), None),  # type: ignore[arg-type]
        show_default=option.default or True,
        rich_help_panel=option.panel,
    )
    annotation = Annotated[option.given_as or kind, shown]  # type: ignore[valid-type]
    return option.panel, Parameter(
        field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation
    )
