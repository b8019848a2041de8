"""``pliant man``: a manual page for each command, made from what ``--help`` says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pliant.cli.console import note
from pliant.schemas.text import counted

EXIT_STATUS: Final = {
    "0": "All is well.",
    "1": "A bug in pliant or in a policy.",
    "2": "The command line is wrong.",
    "3": "An input file is wrong.",
    "4": "The inputs leave nothing to do.",
    "5": "Jobs failed, or a figure is out of its stated range.",
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
    from importlib.metadata import version

    command: Any = context.command
    name = context.command_path.replace(" ", "-")
    summary, *rest = _paragraphs(command.help or "")
    usage = " ".join(
        [r"\fB" + _text(context.command_path) + r"\fR", *map(_text, command.collect_usage_pieces(context))]
    )
    lines = [
        f'.TH "{_text(name.upper())}" 1 "" "pliant {version("pliant")}" "User commands"',
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
