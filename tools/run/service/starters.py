"""What starts a job's command: Python, torchrun or nothing. Its first word and its script say it.

Only jobs that are not resized are looked at. Python starts a script once, torchrun a worker for each GPU; a
script is for torchrun if it, or a file of its own that it imports, plainly is distributed. Whatever else is
found by PATH, or is executable, is run as it is.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import dropwhile
from pathlib import Path
from typing import Final, NamedTuple

from pliant.schemas.file_io.json_lines import BOM
from pliant.schemas.job import Job, Launcher

_LIBRARIES: Final = frozenset(
    {"accelerate", "deepspeed", "lightning", "lightning_fabric", "pliant", "pytorch_lightning", "trl"}
)
"""Who imports one of these expects to be started once for each GPU."""
_NAMES: Final = frozenset(
    {
        *("DistributedDataParallel", "DistributedSampler", "FullyShardedDataParallel", "FSDP"),
        *("fully_shard", "init_process_group"),
    }
)
_VARIABLES: Final = frozenset({"LOCAL_RANK", "WORLD_SIZE"})
_TRAINERS: Final = ("Trainer", "TrainingArguments")
_MEETING: Final = frozenset({"MASTER_ADDR", "MASTER_PORT"})
"""Variables that a script sets which starts its workers as processes."""
SHELL_SUFFIXES: Final = (".sh", ".bash")
_SHELL_NAMES: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_OF_WINDOWS: Final = {
    re.compile(rb"\A[^\0]*\r\n\Z"): "its lines end as on Windows, which sed -i 's/\\r$//'",
    re.compile(rb"\A" + BOM): "begins with a byte order mark, which sed -i '1s/^\\xEF\\xBB\\xBF//'",
}
"""First lines of scripts that cannot run."""
_LAUNCHERS: Final = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
)
_WITH_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Options of Python that take the next word."""
_HEAD_BYTES: Final = 400
_MOST_BYTES: Final = 1 << 20
_MOST_FILES: Final = 100
_LOOK_S: Final = 30.0


class _Program(NamedTuple):
    """A command that is run as it is."""

    command: tuple[str, ...]
    why: str


class _Source(NamedTuple):
    """Python code that a command starts."""

    name: str
    code: str
    folders: tuple[Path, ...]
    """Folders of its own modules."""


def settled(job: Job) -> tuple[Job, str]:
    """A job with what starts it written out where that is not the default, and the reason, as a clause.

    A job that is resized stays as it is, as does one whose script cannot be read; it has no reason then.

    :param job: with its folder written out.
    """
    if not job.command or job.elastic != "none":
        return job, ""
    if job.launcher is not None:
        with suppress(OSError):
            if job.launcher == "python" and (program := _program(job)) is not None:
                return _with(job, "program", program.command), program.why
        return job, "as the job states"
    if job.names_torchrun:
        return job, 'it begins with "torchrun"'
    one, command = job.gpus.requested == 1, job.command
    first, *rest = command
    if first == "torchrun" and shutil.which(first, path=job.env.get("PATH")) is None:
        command = ("-m", "torch.distributed.run", *rest)
        job = job.model_copy(update={"command": command})
    if job.script[:1] == ("-m",) and (module := job.script[1:2]) and module[0] in _LAUNCHERS:
        return (job if one else _with(job, "python", command)), f"{module[0]} starts its workers"
    try:
        if (program := _program(job)) is not None:
            return _with(job, "program", program.command), program.why
        if job.tasks is not None:
            return _with(job, "python", command), f"a task for each {job.tasks}"
        source = _source(job.script, Path(job.workdir or "."))
    except OSError:
        return job, ""
    if source is None:
        return job, ""
    sign = _sign(source)
    if sign is None or sign.own:
        why = f"{source.name} is not distributed" if sign is None else sign.words
        return (job if one else _with(job, "python", command)), why
    return job, sign.words


def python_obstacle(job: Job) -> str | None:
    """Why a Python of the job's own would not start it, as a clause. Returns None if it would, or has none.

    :param job: settled.
    """
    if (python := job.own_python) is None or job.launcher == "program" or job.container is not None:
        return None
    named = str(Path(job.workdir or ".") / python) if "/" in python else python
    interpreter = shutil.which(named, path=job.env.get("PATH"))
    if interpreter is None:
        return f"no such Python: {python}"
    alone = job.elastic == "none" and job.launcher != "torchrun" and not job.names_torchrun
    if (alone and (job.gpus.requested == 1 or job.launcher == "python")) or _is_this(interpreter):
        return None
    missing = _missing_in(interpreter, job.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
    text = f"{python} has no {missing}, which starts its workers: install it there, or name another Python"
    return text if missing else None


def _is_this(python: str) -> bool:
    """Whether it is of the environment that runs this process."""
    return Path(python).parent.parent == Path(sys.prefix)


@lru_cache(maxsize=16)
def _missing_in(python: str, folders: str) -> str:
    """What it lacks of what torchrun and the elastic library are; empty if nothing."""
    code = "import importlib.util as u; print(*(n for n in ('torch', 'pliant') if u.find_spec(n) is None))"
    try:
        done = subprocess.run(
            (python, "-c", code),
            env={**os.environ, "PYTHONPATH": folders},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LOOK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "modules that can be looked up"
    return " and no ".join(done.stdout.split())


def program_obstacle(job: Job) -> str | None:
    """Why the file that a job which is a program begins with would not run, as a clause. Returns None if it
    would.

    :param job: settled.
    """
    folder, (first, *rest) = Path(job.workdir or "."), job.command or ("",)
    if (absent := _absent((first, *rest), job)) is not None:
        return f"{absent} is not there or not executable"
    shell_reads = Path(first).name in _SHELL_NAMES and rest and not rest[0].startswith("-")
    path = folder / (rest[0] if shell_reads else first)
    if not path.is_file():
        return f"no such script: {path}" if shell_reads else None
    try:
        with path.open("rb") as file:
            line = file.readline(_HEAD_BYTES)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    for sign, what in _OF_WINDOWS.items():
        if sign.search(line):
            return f"{path}:1: {what} {shlex.quote(str(path))} mends"
    interpreter = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    if shell_reads or not interpreter or (absent := _absent(interpreter, job)) is None:
        return None
    return f"{path}:1: is for {absent}, which is not there or not executable"


def _absent(words: Sequence[str], job: Job) -> str | None:
    """The program that starts a command line, if it is not there."""
    if Path(words[0]).name == "env":
        words = list(dropwhile(lambda word: word == "-S" or "=" in word, words[1:]))
        if not words or words[0].startswith("-"):
            return None
    named = str(Path(job.workdir or ".") / words[0]) if "/" in words[0] else words[0]
    return words[0] if shutil.which(named, path=job.env.get("PATH")) is None else None


def by_what(job: Job) -> str:
    """What starts a settled job, in words."""
    number = "one process" if job.tasks is None else f"a process for each {job.tasks}"
    if job.launcher == "program":
        return f"{number}, as it is"
    if job.launcher == "torchrun" or job.names_torchrun or (job.launcher is None and job.gpus.requested > 1):
        return f"torchrun, a worker for each of {job.gpus.requested} GPUs"
    return f"{number}, by Python"


def is_a_name(word: str) -> bool:
    """Whether a first word may be that of a program on PATH."""
    return not ("/" in word or word.startswith("-") or word.endswith(".py"))


def _with(job: Job, launcher: Launcher, command: tuple[str, ...]) -> Job:
    started = job.model_copy(update={"launcher": launcher, "command": command})
    started.model_fields_set.add("launcher")
    return started


def _program(job: Job) -> _Program | None:
    """The program that a command names. Returns None if it is a Python script, or cannot be found.

    :raises OSError: its file cannot be read.
    """
    first, *rest = job.command or ("",)
    if job.names_python or first.endswith(".py"):
        return None
    path = Path(job.workdir or ".") / first
    if path.is_file():
        return _program_in(job, path, (first if "/" in first else f"./{first}", *rest))
    here = job.container is None
    if not is_a_name(first) or (here and shutil.which(first, path=job.env.get("PATH")) is None):
        return None if here or not first.startswith("/") else _Program((first, *rest), "it is in the image")
    return _Program((first, *rest), f'"{first}" is a program')


def _program_in(job: Job, path: Path, command: tuple[str, ...]) -> _Program | None:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).removeprefix(BOM)
    line = head.partition(b"\n")[0].decode(errors="replace").strip()
    interpreter = line[2:].split(None, 1) if line.startswith("#!") else []
    is_python = "python" in line
    if interpreter and is_python and job.gpus.requested > 1:
        source = _source((str(path),), path.parent)
        if source is not None and (sign := _sign(source)) is not None and not sign.own:
            return None
    if interpreter or (b"\0" in head and not zipfile.is_zipfile(path)):
        why = f"{path.name} is for {' '.join(interpreter)}" if interpreter else f"{path.name} is a program"
        if os.access(path, os.X_OK):
            return _Program(command, why)
        return _Program((*interpreter, *command), why) if interpreter and not is_python else None
    return _Program(("bash", *command), f"{path.name} is for bash") if path.suffix in SHELL_SUFFIXES else None


def _source(script: Sequence[str], folder: Path) -> _Source | None:
    """The code that Python is to run. Returns None if it is not one of the job's own files.

    :raises OSError: it cannot be read.
    """
    words = iter(script)
    for word in words:
        if word == "-c":
            return _Source("its code", next(words, ""), (folder,))
        if word == "-m":
            module = next(words, "")
            found = _module(module.split("."), folder, "__main__")
            return _Source(f"the module {module}", "", ()) if found is None else _read(found, folder)
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            path = folder / word
            path = path / "__main__.py" if path.is_dir() else path
            return _read(path, path.parent) if path.is_file() and not zipfile.is_zipfile(path) else None
    return None


def _read(path: Path, folder: Path) -> _Source:
    with path.open(errors="replace") as file:
        return _Source(path.name, file.read(_MOST_BYTES), (folder, path.parent))


def _module(parts: Sequence[str], folder: Path, of_package: str = "__init__") -> Path | None:
    """The file of a module below a folder. Returns None if there is none."""
    base = folder.joinpath(*parts)
    tried = (base.with_name(f"{base.name}.py"), base / f"{of_package}.py")
    return next((path for path in tried if path.is_file()), None)


class _Sign(NamedTuple):
    """What shows how a script expects to be started."""

    words: str
    own: bool = False
    """True if it starts its workers itself."""


@lru_cache(maxsize=16)
def _sign(source: _Source) -> _Sign | None:
    """Why a script is for torchrun, or starts its own workers. Returns None if neither shows."""
    left, known, result = [source], set[Path](), None
    while left:
        name, code, folders = left.pop()
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError):
            continue
        modules = dict.fromkeys(_imports(tree))
        if (by := _own_start(tree, modules)) is not None:
            return _Sign(f"{name} starts its workers by {by}", own=True)
        if result is None and (word := _distributed(tree, modules)) is not None:
            result = _Sign(f"{name} names {word}")
        for path in filter(None, (_module(each.split("."), at) for each in modules for at in folders)):
            if path not in known and len(known) < _MOST_FILES:
                known.add(path)
                with suppress(OSError):
                    left.append(_read(path, folders[0]))
    return result


def _imports(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports, and names from them, which may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module is not None:
                yield node.module
            yield from (f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names)


def _words(node: ast.AST) -> tuple[str, ...]:
    """The name that a node of code is, if it is one."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        is_of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
        return (node.attr, f"torch.{node.attr}") if is_of_torch else (node.attr,)
    if isinstance(node, ast.alias):
        return (node.name,)
    return ()


def _own_start(tree: ast.AST, modules: Iterable[str]) -> str | None:
    """What in a file starts its workers. Returns None if nothing does."""
    words = {word for node in ast.walk(tree) for word in _words(node)}
    by_torch = "torch.multiprocessing" in words or "torch.multiprocessing" in modules
    if by_torch and (starters := words & {"spawn", "start_processes"}):
        return f"torch.multiprocessing.{min(starters)}"
    if "Process" in words and (by_torch or "multiprocessing" in modules):
        values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        return "Process" if any(value in _MEETING for value in values) else None
    return None


def _distributed(tree: ast.AST, modules: Iterable[str]) -> str | None:
    """What in a file is for several workers."""
    for module in modules:
        parts = module.split(".")
        if parts[:2] == ["torch", "distributed"] or parts[0] in _LIBRARIES:
            return module
        if parts[0] == "transformers" and parts[-1].endswith(_TRAINERS):
            return module
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in _VARIABLES:
            return str(node.value)
        for word in _words(node):
            if word in _NAMES or word == "torch.distributed":
                return word
            if "transformers" in modules and word.endswith(_TRAINERS):
                return f"transformers.{word}"
    return None
