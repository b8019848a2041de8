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
from pliant.cli.console import note, nothing_comes_in
from pliant.schemas.errors import BadInputError

_SCRIPT: Final = "pliant.script"
_OPTIONS: Final = "#PLIANT"
"""Prefix of a line of a script that states options, like ``#SBATCH``."""
_NOT_OPTIONS: Final = re.compile(r"# *PLIANT\b:?(?= *-)|#(SBATCH|PBS|BSUB|\$)(?= )", re.IGNORECASE)
"""Prefixes of lines that look like options and are not read."""
_HEAD_BYTES: Final = 1 << 16
_READS_WORDS: Final = re.compile(r"(ba|da|z|k)?sh|python[\d.]*")
"""Interpreters that take a script as an argument after ``-c``."""
_OF_SHELLS: Final = frozenset({"cd", "source", ".", "export", "ulimit", "module", "conda", "if", "for"})
"""Words that a shell reads itself."""
_ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=")
_ENV: Final = (["/usr/bin/env", "-S"], ["/usr/bin/env"])


@dataclass(slots=True)
class SubmittedScript:
    """What is submitted, if it is not a file of jobs; or the jobs that came through stdin."""

    name: str
    command: list[str] = field(default_factory=list)
    text: str = ""
    """Its beginning, which may state options."""
    jobs: bytes = b""

    @classmethod
    def of(cls, context: typer.Context, path: str | None, arguments: Sequence[str]) -> SubmittedScript | None:
        """What a command line names, or stdin holds. Returns None for a file of jobs.

        :raises BadInputError: stdin cannot be read, or holds a script that no known shell reads.
        """
        if (known := context.meta.get(_SCRIPT)) is not None:
            return known if isinstance(known, SubmittedScript) else None
        script = cls._piped(arguments) if path in (None, "-") else cls._named(context, str(path), arguments)
        context.meta[_SCRIPT] = script
        return script

    @classmethod
    def _named(cls, context: typer.Context, path: str, arguments: Sequence[str]) -> SubmittedScript | None:
        command, is_script = [path, *arguments], path.endswith(".py") or path == "-m"
        try:
            with open(path, "rb") as file:
                head = file.read(_HEAD_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        except FileNotFoundError:
            is_script |= path == "torchrun" or context.params.get("container") is not None
            is_script |= "/" not in path and shutil.which(path) is not None
            if " " in path or (not is_script and (path in _OF_SHELLS or _ASSIGNED.match(path))):
                line = shlex.quote(" ".join((path, *arguments)))
                text = f"no such file; a command for a shell: pliant submit bash -- -c {line}"
                raise BadInputError.one(path, text) from None
            return cls(path, command) if is_script else None
        except OSError:
            return cls(path, command) if is_script else None
        is_script |= head.startswith((b"#!", b"\xef\xbb\xbf#!", b"\x7fELF")) or path.endswith(
            (".sh", ".bash")
        )
        if not is_script:
            _check_json(head, path)
        return cls(path, command, head.decode(errors="replace")) if is_script else None

    @classmethod
    def _piped(cls, arguments: Sequence[str]) -> SubmittedScript | None:
        from pliant.schemas.file_io.files import PIPE, read_bytes
        from pliant.schemas.file_io.limits import ROWS_BYTES

        if nothing_comes_in():
            return None
        data = read_bytes(PIPE, most=ROWS_BYTES)
        if not data.startswith(b"#!"):
            _check_json(data, "<stdin>")
            return cls("<stdin>", jobs=data)
        text = utf8(data, "<stdin>")
        if text.partition("\n")[0].endswith("\r"):
            raise BadInputError.one("<stdin>", "its lines end as on Windows, in CR LF", line=1)
        interpreter = text.partition("\n")[0][2:].split()
        interpreter = next(
            (interpreter[len(env) :] for env in _ENV if interpreter[: len(env)] == env), interpreter
        )
        name = Path(*interpreter[:1]).name
        if _READS_WORDS.fullmatch(name) is None:
            what = "a script from stdin is for sh, bash, dash, zsh, ksh or python: submit others as files"
            raise BadInputError.one("<stdin>", what)
        # A shell takes the word after the text as its own name, Python takes arguments at once.
        own_name = [] if name.startswith("python") else [name]
        return cls("<stdin>", [*interpreter, "-c", text, *own_name, *arguments], text)

    def take_options(self) -> list[tuple[int, list[str]]]:
        """The words of each line that states options, by its number; none the second time.

        A note names the first line of each kind that states none, though somebody may think so.
        """
        options, overlooked, at_top = [], dict[str, int](), True
        for number, line in enumerate(self.text.splitlines(), 1):
            at_top &= not line.strip() or line.startswith("#")
            if at_top and line.startswith(_OPTIONS):
                try:
                    options.append((number, shlex.split(line.removeprefix(_OPTIONS), comments=True)))
                except ValueError as error:
                    raise BadInputError.one(self.name, str(error), line=number) from error
            elif match := _NOT_OPTIONS.match(line):
                overlooked.setdefault(match[0], number)
        for sign, number in overlooked.items():
            note(
                f"{self.name}:{number}: {sign} is not read: options are {_OPTIONS} lines before all commands"
            )
        self.text = ""
        return options


def utf8(data: bytes, source: str) -> str:
    """:raises BadInputError: it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInputError.one(source, "is not UTF-8", line=data.count(b"\n", 0, error.start) + 1) from error


def _check_json(data: bytes, source: str) -> None:
    """:raises BadInputError: it is text that nothing reads: neither jobs nor a known kind of file."""
    from pliant.schemas.file_io.foreign import foreign
    from pliant.schemas.file_io.json_lines import BOM
    from pliant.schemas.file_io.packing import is_packed

    text = data.removeprefix(BOM).strip()
    if text and not text.startswith((b"{", b"[")) and not is_packed(data) and foreign(data, source) is None:
        what = "is neither jobs, which begin with {, nor a script, which begins with a line like #!/bin/bash"
        raise BadInputError.one(source, what)


def stated_in(context: typer.Context, source: str, lines: Iterable[tuple[int, list[str]]]) -> dict[str, Any]:
    """The parameters that lines of a script state, as far as the command line does not say otherwise.

    :raises BadInputError: a line is not made of options of this command.
    """
    stated: dict[str, Any] = {}
    for number, words in lines:
        try:
            own = context.command.make_context("submit", [*words])
        except typer.TyperException as error:
            raise BadInputError.one(source, mistake_line(error), line=number) from error
        for name, value in own.params.items():
            if _states(own, name) and name in ("jobs", "arguments"):
                word = value if isinstance(value, str) else value[0]
                text = f'"{word}" is no option: arguments of the script are given on the command line'
                raise BadInputError.one(source, text, line=number)
            if not _states(own, name):
                continue
            if isinstance(value, list | tuple):
                stated[name] = [*stated.get(name, ()), *value]
            elif not _states(context, name):
                stated[name] = value
    listed = [name for name, value in stated.items() if isinstance(value, list)]
    return stated | {name: [*stated[name], *(context.params[name] or ())] for name in listed}


def _states(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
