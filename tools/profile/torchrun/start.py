"""How workers are started, found and ended, and why they failed. Commands are lists, never for a shell."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

import psutil

from pliant.schemas.errors import UsageError

ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""A CPU slot is one thread: more would take cores of other slots."""
TORCHRUN_MODULE: Final = "pliant.tools.profile.torchrun.run_torchrun"
RUN_TORCHRUN: Final = str(Path(__file__).with_name("run_torchrun.py"))
ONE_WORKER: Final = str(Path(__file__).with_name("one_worker.py"))
_WORKERS: Final = "--nproc-per-node="
NO_STORE: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Keeps torchrun from opening a store for its workers: it would listen on every address."""
ALONE: Final = {
    **{f"{scope}RANK": "0" for scope in ("", "LOCAL_", "GROUP_", "ROLE_")},
    **{f"{scope}WORLD_SIZE": "1" for scope in ("", "LOCAL_", "GROUP_", "ROLE_")},
}
"""The variables that torchrun sets for a single worker."""
FOREIGN: Final = ("PLIANT_", "SLURM_", "TORCHELASTIC_", "PMI_", "OMPI_")
TORCHRUN: Final = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME"}
    | {f"{scope}{name}" for scope in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ("RANK", "WORLD_SIZE")}
)
SMALL: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
    }
)
"""And all that begin with ``LC_``."""
OF_NODE: Final = ("NCCL_", "GLOO_")
VARIABLES: Final = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""Variables that choose the interface, and how they name it: without "=", NCCL takes names as prefixes."""
LOOPBACK: Final = "127.0.0.1"
ERROR_LINE: Final = re.compile(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception|Interrupt)\b")
"""Last line of a Python traceback; torch puts the rank before it."""
_WARNING: Final = re.compile(r"\S.*:\d+: \w*Warning: |\[?W\d{3,4} |\[W\] ")
"""First line of a warning of Python's, or of the libraries below torch."""
_SIGNAL: Final = re.compile(r"Signal \d+ \((?P<name>SIG\w+)\) received by PID")
"""Where torchrun says that a worker was killed."""
_SYNTAX_ERROR: Final = re.compile(r"(SyntaxError|IndentationError|TabError)\b")
_RANK: Final = re.compile(r"\[rank\d+\]: ?")
"""What torch puts before each line of a worker's traceback."""
_TRACEBACK: Final = re.compile(
    r"(\[rank\d+\]: ?)?( *\+ Exception Group |Original |╭─+ ?)?Traceback \(most recent call last\)"
)
"""Tracebacks of Python, and of Rich, which draws a box around all but the exception."""
_OF_BOX: Final = ("│", "╰")
_MARGIN: Final = re.compile(r"^ *\| ?")
"""What Python puts before each line about a group of exceptions."""
_PART: Final = re.compile(r"[ |]*\+[+-]*-+ \d+ -+$")
"""The line before each exception of a group."""
_LOGGED: Final = re.compile(r"\d\d:\d\d|\d%\||\b(ERROR|CRITICAL):\w|\b(DEBUG|INFO|WARNING)\b")
"""A line of a log, or a bar of progress."""
_USAGE: Final = re.compile(
    r"(^|code 2: )([^\s:]+: error: |Error: |usage: )|python[\d.]*: (can't open file|No module named)"
    r"|: cannot be started: No such file or directory",
    re.IGNORECASE,
)
"""What argparse, click, Python and those who start a program say of a command line; the exit code may stand
before it.
"""
_PLACE: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
LONGEST: Final = 200
"""Most characters of a line that are kept."""
MESSAGE_LINES: Final = 3
"""Most lines of the last words of a script that has no traceback."""
_END_BYTES: Final = 65536
"""Bytes at the end of a file that are searched."""


def torchrun(
    command: Sequence[str],
    workers: int,
    rendezvous: Sequence[str],
    logs: Path,
    python: str | None = None,
    *,
    by_module: bool = False,
) -> tuple[str, ...]:
    """The argument list of one torchrun; the output of each worker goes to files under ``logs``.

    It needs the environment of :data:`NO_STORE`. The script's own arguments follow ``--``.

    :param python: of torchrun and its workers; None for that of this process.
    :param by_module: that Python finds its own pliant, as the files of this one are not there.
    """
    return (
        *(python or sys.executable, "-P", *(("-m", TORCHRUN_MODULE) if by_module else (RUN_TORCHRUN,))),
        *rendezvous,
        f"{_WORKERS}{workers}",
        *("--max-restarts", "0"),
        *("--log-dir", str(logs), "--redirects", "3"),
        "--",
        *command,
    )


def workers_of(argv: Sequence[str]) -> int:
    """How many workers a command of :func:`torchrun` starts; 1 of any other, whatever it says to its own."""
    words = iter(argv)
    if not any(
        word == TORCHRUN_MODULE or PurePath(word).name == PurePath(RUN_TORCHRUN).name for word in words
    ):
        return 1
    stated = (word.removeprefix(_WORKERS) for word in words if word.startswith(_WORKERS))
    return next((int(number) for number in stated if number.isdecimal()), 1)


def one_worker(script: Sequence[str], logs: Path, python: str | None = None) -> tuple[str, ...]:
    """The argument list of a script that is one worker, with output files as torchrun's.

    An elastic one needs the environment of :data:`ALONE`.

    :param python: what runs it; None for that of this process.
    """
    return one_program(in_python(script, python), logs)


def in_python(script: Sequence[str], python: str | None = None) -> tuple[str, ...]:
    """What runs a script.

    :param python: None for that of this process.
    """
    return (python or sys.executable, "-u", *script)


def one_program(command: Sequence[str], logs: Path) -> tuple[str, ...]:
    """The argument list of any command that is one process, with output files as torchrun's."""
    return (sys.executable, "-I", "-S", ONE_WORKER, str(logs / "worker" / "attempt_0" / "0"), *command)


def standalone(address: str) -> tuple[str, ...]:
    """The rendezvous of one torchrun with itself, in its own memory: no other process can take part.

    :param address: at which the workers of the node reach each other.
    """
    return (
        *("--nnodes=1", "--rdzv-backend=one-node", "--rdzv-endpoint=none", "--rdzv-id=pliant"),
        f"--local-addr={address}",
    )


def child_environment(base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The launcher's own environment without variables of other launchers, plus ``added``."""
    kept = {
        name: value for name, value in base.items() if name not in TORCHRUN and not name.startswith(FOREIGN)
    }
    return {**kept, **added}


def small_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a job gets unasked: who and where its user is, and what PATH finds."""
    return {name: value for name, value in base.items() if name in SMALL or name.startswith("LC_")}


def node_environment(base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """What a job gets of the launcher's environment, plus ``added``: the settings of the node's network, and
    the small environment where the job brings none of its own.
    """
    of_node = {name: value for name, value in base.items() if name.startswith(OF_NODE) or name == "TMPDIR"}
    return {**of_node, **({} if "PATH" in added else small_environment(base)), **added}


def tree(process: psutil.Process) -> list[psutil.Process]:
    """A process and all its descendants, children first."""
    try:
        return [*reversed(process.children(recursive=True)), process]
    except psutil.Error:
        return [process]


def strays(env: tuple[str, str]) -> Iterator[psutil.Process]:
    """Processes of this user that carry a variable with that value.

    They include a worker whose parent was killed, which no longer hangs below the launcher.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(env[0]) == env[1]:
                yield process


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL; processes that are gone are ignored."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def interface_of(address: str) -> str | None:
    """The interface of this machine with an IP address; None if there is none, or for a host name."""
    wanted = LOOPBACK if _is_loopback(address) and ":" not in address else address
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == wanted for entry in addresses):
            return name
    return None


def refuse_loopback(address: str, chosen: Mapping[str, str] = os.environ) -> None:
    """Check the user's choice of an interface for a worker that others reach at an address.

    Workers of several hosts that listen on their loopback interfaces would call themselves, or a neighbour on
    their own host, and wait for the others until a time limit.

    :raises UsageError: it is the loopback interface, and the address is not.
    """
    if _is_loopback(address):
        return
    for variable in VARIABLES:
        name = chosen.get(variable, "")
        if name and name.removeprefix("=") == interface_of(LOOPBACK):
            raise UsageError(
                f"{variable} is {name}, the loopback interface, where workers on other hosts do not reach "
                f"this one: unset it, or name the interface of {address}"
            )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name


def last_words(workers: Iterable[Path], *others: Path) -> str:
    """The error of the worker that failed first, else the signal that killed one, else its last message.

    Warnings are left out. It is one line, fit for a terminal; empty if all files are.

    :param workers: stderr of each worker, in files whose folder is named after the worker's number.
    :param others: read if no worker was started: a launcher says only that a worker failed.
    """
    started = [*workers]
    found_lines = [_without_warnings(lines) for lines in _files(started, others)]
    lines = next((lines for lines in found_lines if any(lines)), [])
    if not (_after_traceback(lines) or any(map(_is_error, lines))) and started:
        killed = (_SIGNAL.search(line) for path in others for line in _end_of(path).splitlines())
        if (signal := next(filter(None, killed), None)) is not None:
            return f"killed by {signal['name']}"
    if found_lines and not lines:
        return "only warnings on stderr"
    return printable(_most_telling(lines)) if lines else ""


def last_lines(workers: Iterable[Path], *others: Path, most: int) -> list[str]:
    """The last lines of the file that :func:`last_words` quotes, each fit for a terminal."""
    lines = [line for line in next(_files(workers, others), []) if line.strip()]
    return [printable(line.rstrip()) for line in lines[-most:]]


def printable(line: str) -> str:
    """A line without terminal control characters, cut to :data:`LONGEST` characters."""
    text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def is_usage_error(words: str) -> bool:
    """Whether the last words of a script, or of Python, complain about its command line."""
    return _USAGE.search(words) is not None


def _without_warnings(lines: Iterable[str]) -> list[str]:
    """Lines without warnings, and without the lines of code that Python shows below them."""
    kept, below = list[str](), False
    for line in lines:
        is_code = below and line[:1].isspace()
        below = _WARNING.match(line) is not None
        if not (below or is_code):
            kept.append(line.rstrip())
    return kept


def _is_error(line: str) -> bool:
    return ERROR_LINE.match(line.strip()) is not None


def _most_telling(lines: list[str]) -> str:
    telling = _after_traceback(lines) or next(
        (line.strip() for line in reversed(lines) if _is_error(line)), None
    )
    if telling is None:
        return _last_message(lines)
    if _SYNTAX_ERROR.match(telling):  # its message alone does not say where
        where = [place for line in lines if (place := _PLACE.match(line.strip()))]
        return f"{telling} ({Path(where[-1]['file']).name}, line {where[-1]['line']})" if where else telling
    return telling


def _after_traceback(lines: Sequence[str]) -> str | None:
    """The first line after the last traceback; of a group of exceptions, also those in it."""
    place = next((at for at in reversed(range(len(lines))) if _is_traceback(lines, at)), None)
    if place is None:
        return None
    head, *parts = _grouped([_RANK.sub("", line) for line in lines[place:]])
    rank = _RANK.match(lines[place])
    return ": ".join(filter(None, [f"{rank[0] if rank else ''}{head}", "; ".join(parts)])) if head else None


def _is_traceback(lines: Sequence[str], place: int) -> bool:
    """Whether a traceback begins here that may have ended the script; Python goes on after an ignored one."""
    if _TRACEBACK.match(lines[place]) is None:
        return False
    return not (place and lines[place - 1].lstrip().startswith("Exception ignored"))


def _grouped(trace: Sequence[str]) -> list[str]:
    """The exception that a traceback ends with, and the exceptions of a group."""
    plain, group, is_next = [_MARGIN.sub("", line) for line in trace], list[str](), True
    for line in plain[1:]:
        if _PART.match(line):
            is_next = True
        elif is_next and line and not (line[0].isspace() or line[0] in _OF_BOX or _TRACEBACK.match(line)):
            group.append(line)
            is_next = False
    return group or [""]


def _last_message(lines: list[str]) -> str:
    """The last lines if they can be one message, as that of ``sys.exit("…")``, else the last line."""
    end = next(place for place in reversed(range(len(lines))) if lines[place].strip())
    first = end
    while first and lines[first - 1].strip() and not any(map(_LOGGED.search, lines[first - 1 : first + 1])):
        first -= 1
    message = lines[first : end + 1]
    is_one = len(message) <= MESSAGE_LINES and not is_usage_error(lines[end])
    return "; ".join(line.strip() for line in (message if is_one else message[-1:]))


def _files(workers: Iterable[Path], others: Iterable[Path]) -> Iterator[list[str]]:
    """The last lines of each file that has any."""
    for path in sorted(workers, key=_failed_first) or others:
        lines = _end_of(path).splitlines()
        if any(line.strip() for line in lines):
            yield lines


def _failed_first(log: Path) -> tuple[bool, int, str]:
    try:
        changed_ns = log.stat().st_mtime_ns
    except OSError:
        changed_ns = 0
    return "Traceback" not in _end_of(log), changed_ns, log.parent.name.rjust(9)


def _without_waiting(path: str, flags: int) -> int:
    """A job may have put a pipe or a link in the place of its log."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _end_of(path: Path) -> str:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _END_BYTES))
            return file.read().decode(errors="replace").strip("\0")
    except OSError:
        return ""
