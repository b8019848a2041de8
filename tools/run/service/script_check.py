"""What a job's command starts, looked for before the job is accepted: a script, a folder, or a module.

torchrun runs the command as ``python -u COMMAND…`` in each worker, in the folder of the job. So its first
word is a Python file, a folder or archive with ``__main__.py``, or an option of Python such as ``-m``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zipfile
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_STARTERS: Final = re.compile(r"(python[\d.]*|torchrun|accelerate|deepspeed|srun|mpirun|env|sh|bash)$")
"""Programs that people type before a script."""
_LOOKED_AT_BYTES: Final = 200


def script_obstacle(command: Sequence[str], workdir: Path) -> str | None:
    """Why Python would not find or read what the command starts, as a clause; None: it would, or who knows.

    :param workdir: the folder that the job starts in.
    """
    first = command[0]
    if first == "-m":
        return _module_obstacle(command[1:], workdir)
    if first.startswith("-"):
        return None
    path = workdir / first
    try:
        return _file_obstacle(path) if path.exists() else _missing(command, path)
    except OSError as error:
        return f"script {path} cannot be read: {error.strerror}"


def _file_obstacle(path: Path) -> str | None:
    if not os.access(path, os.R_OK):
        return f"script {path} cannot be read: {os.strerror(errno.EACCES)}"
    if path.is_dir():
        return None if (path / "__main__.py").exists() else f"{path} is a folder without __main__.py"
    if not path.is_file() or zipfile.is_zipfile(path):
        return None
    with path.open("rb") as file:
        return _language_obstacle(path, file.read(_LOOKED_AT_BYTES))


def _language_obstacle(path: Path, head: bytes) -> str | None:
    """Python reads every file as Python, whatever its first line names."""
    first = head.partition(b"\n")[0].decode(errors="replace").strip()
    if b"\0" in head:
        what = "a compiled program"
    elif first.startswith("#!") and "python" not in first:
        what = f'a script for "{first[2:].strip()}"'
    else:
        return None
    return f"{path} is {what}, but torchrun starts Python scripts"


def _module_obstacle(words: Sequence[str], workdir: Path) -> str | None:
    if not words:
        return "-m names no module"
    top = words[0].partition(".")[0]
    if PathFinder.find_spec(top, [str(workdir)]) or find_spec(top):
        return None
    return f'no module "{words[0]}" in {workdir} or among the installed packages'


def _missing(command: Sequence[str], path: Path) -> str:
    """What is wrong where the first word is no file: often a program that torchrun takes the place of."""
    if not _STARTERS.match(Path(command[0]).name):
        return f"no such script: {path}"
    rest = command[1:]
    place = next((i for i, word in enumerate(rest) if word == "-m" or word.endswith(".py")), len(rest))
    expected = json.dumps(rest[place:] or ["train.py"], ensure_ascii=False)
    return f'starts with "{command[0]}", but torchrun itself starts Python: expected "command": {expected}'
