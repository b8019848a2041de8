"""Commands that describe pliant itself: ``pliant policies``, ``schema`` and ``validate``, and ``man``.

``man`` writes what ``--help`` says as manual pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pliant import __version__
from pliant.cli.console import entry, named_or_piped, note, out_text, width_for
from pliant.schemas.errors import BadInputError, PliantError
from pliant.schemas.text import counted

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
        policy = describe(name)
        lines = page(policy) if width is None else page(replace(policy, text=flowing(policy.text)))
        out_text("".join(f"{line}\n" for line in fitted(lines, width)))
        return
    longest = max(map(len, policy_names()))
    for each in policy_names():
        try:
            policy = describe(each)
        except PliantError as error:
            note(str(error))
        else:
            out_text("".join(f"{line}\n" for line in entry(each, policy.summary, longest, width)))


KNOWS: Final = {
    "nothing": "nothing but requests, priorities and arrivals",
    "service": "the service of jobs so far, and of those that ended",
    "work": "the work of jobs",
    "profile": "speeds at other sizes, at other batches or on other GPU types",
}


def priority_in_words(means: str | None) -> str:
    """What the priority of a job means to a policy.

    :param means: as :attr:`Policy.traits.priority_means` has it.
    """
    return "the policy does not say" if means is None else means or "it ignores them"


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
        typer.Argument(
            help="Files of any kind, or folders of trace import; - is stdin, also the default in a pipe.",
            show_default=False,
        ),
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
    from pliant.schemas.io import imported_files
    from pliant.schemas.kinds import check_kind, validate_file

    check_kind(kind)
    bad: list[BadInputError] = []
    names = files or [named_or_piped(None, "no file to validate: name some, or pipe one in")]
    for file in chain.from_iterable([*map(str, imported_files(name))] or [name] for name in names):
        try:
            out_text(validate_file(file, kind) + "\n")
        except BadInputError as error:
            bad.append(error)
    if bad:
        raise BadInputError("\n".join(str(error) for error in bad))


EXIT_STATUS: Final = {
    "0": "All is well.",
    "1": "A bug in pliant or in a policy.",
    "2": "The command line is wrong.",
    "3": "An input file is wrong.",
    "4": "The inputs leave nothing to do.",
    "5": "Jobs failed, or a figure is out of its stated range.",
    "6": "Jobs were ended by their limits, and no other one failed (`pliant wait`).",
    "69": "Something outside of pliant is needed and not there.",
    "75": "Another process writes there; try again later.",
    "128+N": "Ended by signal N.",
}


def man(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Pages are written to man1 in this folder.", show_default=False),
    ],
) -> None:
    """Write manual pages: pliant(1), and one for each command.

    Example: pliant man ~/.local/share/man && man pliant-replay
    """
    from pliant.cli.main import app
    from pliant.schemas.file_io.files import atomic_write, make_folder

    target = folder / "man1"
    make_folder(target)
    pages = dict(manual(typer.main.get_command(app)))
    for name, text in pages.items():
        atomic_write(target / f"{name}.1", text.encode())
    note(f"{counted(len(pages), 'page')} in {target}")


def manual(root: Any) -> Iterator[tuple[str, str]]:
    """The name and the text of each page, those of groups before those of their commands."""
    return _pages(typer.Context(root, info_name="pliant"))


def _pages(context: typer.Context) -> Iterator[tuple[str, str]]:
    command: Any = context.command
    names = command.list_commands(context) if hasattr(command, "list_commands") else []
    within = [
        typer.Context(command.get_command(context, name), info_name=name, parent=context) for name in names
    ]
    yield context.command_path.replace(" ", "-"), _page(context, within)
    for each in within:
        yield from _pages(each)


def _page(context: typer.Context, within: list[typer.Context]) -> str:
    command: Any = context.command
    name = context.command_path.replace(" ", "-")
    summary, *rest = _paragraphs(command.help or "")
    usage = " ".join(
        [r"\fB" + _text(context.command_path) + r"\fR", *map(_text, command.collect_usage_pieces(context))]
    )
    lines = [
        f'.TH "{_text(name.upper())}" 1 "" "pliant {__version__}" "User commands"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(' '.join(summary))}",
        ".SH SYNOPSIS",
        usage,
    ]
    told = [text for text in rest if not text[0].startswith("Example")]
    if told:
        lines += [".SH DESCRIPTION", *_filled(told)]
    if within:
        lines.append(".SH COMMANDS")
        for each in within:
            first = _paragraphs(each.command.help or "")[0]
            lines += [".TP", rf"\fB{_text(str(each.info_name))}\fR", _line(" ".join(first))]
    records = [param.get_help_record(context) for param in command.get_params(context)]
    if shown := [record for record in records if record]:
        lines.append(".SH OPTIONS")
        for head, text in shown:
            lines += [".TP", rf"\fB{_text(head)}\fR", _line(" ".join(text.split()) or " ")]
    examples = [line for text in rest if text[0].startswith("Example") for line in _example(text)]
    if examples:
        lines += [".SH EXAMPLES", ".nf", *map(_line, examples), ".fi"]
    if context.parent is None:
        lines.append(".SH EXIT STATUS")
        for code, text in EXIT_STATUS.items():
            lines += [".TP", _text(code), _line(text)]
    others = within if context.parent is None else [context.parent]
    names = ", ".join(rf"\fB{_text(each.command_path.replace(' ', '-'))}\fR(1)" for each in others)
    return "\n".join([*lines, ".SH SEE ALSO", names, ""])


def _paragraphs(text: str) -> list[list[str]]:
    """Paragraphs of a docstring, as lines."""
    plain = text.replace("\b\n", "").replace("\\[", "[")
    blocks = re.split(r"\n\s*\n", plain.strip())
    return [[line.rstrip() for line in block.splitlines()] for block in blocks]


def _filled(paragraphs: list[list[str]]) -> Iterator[str]:
    for number, block in enumerate(paragraphs):
        if number:
            yield ".PP"
        yield _line(" ".join(line.strip() for line in block))


def _example(block: list[str]) -> list[str]:
    """The commands of ``Example: …``, which may wrap, or of a list below ``Examples:``."""
    first, *more = [line.strip() for line in block]
    head, _, rest = first.partition(":")
    return more if head == "Examples" else [" ".join([rest.strip(), *more])]


def _line(text: str) -> str:
    r"""A line of text; ``\&`` keeps one that begins with a dot from being a request."""
    return rf"\&{_text(text)}" if text.startswith((".", "'")) else _text(text)


def _text(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-")
