"""What ``pliant submit`` gets that is no file of jobs: a script or a program, and its ``#PLIANT`` lines."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer

from pliant.cli.common import mistake_line
from pliant.cli.console import nothing_comes_in
from pliant.schemas.errors import BadInputError

_SCRIPT: Final = "pliant.script"
_OPTIONS: Final = "#PLIANT"
"""Begins a line of a script that states options, as ``#SBATCH`` does."""
_HEAD_BYTES: Final = 1 << 16
_READS_WORDS: Final = re.compile(r"\b(ba|da|z|k)?sh\b|\bpython[\d.]*$")
"""Interpreters that take a script as an argument after ``-c``."""


@dataclass(slots=True)
class Script:
    """What is submitted, if it is not a file of jobs; or the jobs that came through stdin."""

    name: str
    command: list[str] = field(default_factory=list)
    text: str = ""
    """Its beginning, which may state options."""
    jobs: bytes = b""

    @classmethod
    def of(cls, context: typer.Context, path: str | None, arguments: Sequence[str]) -> Script | None:
        """What a command line names, or stdin holds. Returns None for a file of jobs.

        :raises BadInputError: stdin cannot be read, or holds a script that no known shell reads.
        """
        if (known := context.meta.get(_SCRIPT)) is not None:
            return known if isinstance(known, Script) else None
        found = cls._piped(arguments) if path in (None, "-") else cls._named(context, str(path), arguments)
        context.meta[_SCRIPT] = found
        return found

    @classmethod
    def _named(cls, context: typer.Context, path: str, arguments: Sequence[str]) -> Script | None:
        command, is_script = [path, *arguments], path.endswith(".py")
        try:
            with open(path, "rb") as file:
                head = file.read(_HEAD_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        except FileNotFoundError:
            is_script |= path == "torchrun" or context.params.get("container") is not None
            is_script |= "/" not in path and shutil.which(path) is not None
            return cls(path, command) if is_script else None
        except OSError:
            return cls(path, command) if is_script else None
        is_script |= head.startswith((b"#!", b"\x7fELF")) or path.endswith((".sh", ".bash"))
        return cls(path, command, head.decode(errors="replace")) if is_script else None

    @classmethod
    def _piped(cls, arguments: Sequence[str]) -> Script | None:
        from pliant.schemas.file_io.files import PIPE, read_bytes
        from pliant.schemas.file_io.limits import ROWS_BYTES

        if nothing_comes_in():
            return None
        data = read_bytes(PIPE, most=ROWS_BYTES)
        if not data.startswith(b"#!"):
            return cls("<stdin>", jobs=data)
        text = data.decode(errors="surrogateescape")
        interpreter = text.partition("\n")[0][2:].strip().split(None, 1)
        if _READS_WORDS.search(" ".join(interpreter)) is None:
            what = "a script from stdin is for sh, bash, dash, zsh, ksh or python: submit others as files"
            raise BadInputError.one("<stdin>", what)
        if interpreter[:1] == ["/usr/bin/env"] and "python" in interpreter[-1]:
            interpreter = interpreter[1:]
        # A shell takes the word after the text as its own name, Python takes arguments at once.
        own_name = [] if "python" in interpreter[-1] else [Path(interpreter[-1]).name]
        return cls("<stdin>", [*interpreter, "-c", text, *own_name, *arguments], text)

    def take_options(self) -> list[tuple[int, list[str]]]:
        """The words of each line that states options, by its number; none the second time."""
        found = []
        for number, line in enumerate(self.text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                break
            if line.startswith(_OPTIONS):
                try:
                    found.append((number, shlex.split(line.removeprefix(_OPTIONS), comments=True)))
                except ValueError as error:
                    raise BadInputError.one(self.name, str(error), line=number) from error
        self.text = ""
        return found


def stated_in(context: typer.Context, source: str, lines: Iterable[tuple[int, list[str]]]) -> dict[str, Any]:
    """The parameters that lines of a script state, as far as the command line does not say otherwise.

    :raises BadInputError: a line is not made of options of this command.
    """
    found: dict[str, Any] = {}
    for number, words in lines:
        try:
            own = context.command.make_context("submit", [*words])
        except typer.TyperException as error:
            raise BadInputError.one(source, mistake_line(error), line=number) from error
        for name, value in own.params.items():
            if _states(own, name) and name in ("jobs", "arguments"):
                text = f'"{words[0]}" is no option: arguments of the script are given on the command line'
                raise BadInputError.one(source, text, line=number)
            if not _states(own, name):
                continue
            if isinstance(value, list | tuple):
                found[name] = [*found.get(name, ()), *value]
            elif not _states(context, name):
                found[name] = value
    listed = [name for name, value in found.items() if isinstance(value, list)]
    return found | {name: [*found[name], *(context.params[name] or ())] for name in listed}


def _states(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
