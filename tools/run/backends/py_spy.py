"""Stacks of processes that do not use the elastic library, by py-spy, where it is installed.

It looks at processes of this machine, so it serves the local backend.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.text import whole_number
from pliant.tools.profile.torchrun.start import RUN_TORCHRUN, printable, strays
from pliant.tools.run.backends.local import KEEPER
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from pliant.tools.run.statedir.contract.stacks import MOST_FRAMES, Frame, ThreadStack

PATIENCE_S: Final = 20.0
_STARTERS: Final = frozenset({Path(KEEPER).name, Path(RUN_TORCHRUN).name})
"""Programs between the launcher and its workers."""


def find_py_spy() -> str:
    """:raises ServiceMissingError: it is not installed."""
    found = shutil.which("py-spy")
    if found is None:
        text = "py-spy is not on PATH, which shows jobs without the elastic library: pip install py-spy"
        raise ServiceMissingError(text)
    return found


def worker_processes(folder: JobDir) -> dict[int, int]:
    """The process of each worker of a job on this machine, by rank."""
    processes = {each.pid: each for each in strays((ENV_JOB_DIR, str(folder.path)))}
    between = {pid for pid, each in processes.items() if _starts_workers(each)}
    found = {}
    for pid, process in processes.items():
        with contextlib.suppress(psutil.Error):
            if pid not in between and process.ppid() not in processes.keys() - between:
                found[whole_number(process.environ().get("RANK", "0")) or 0] = pid
    return dict(sorted(found.items()))


def _starts_workers(process: psutil.Process) -> bool:
    try:
        return any(Path(word).name in _STARTERS for word in process.cmdline()[:5])
    except psutil.Error:
        return True


def dumped(py_spy: str, pid: int) -> tuple[tuple[ThreadStack, ...], str]:
    """The stacks of a process, the main thread first; or why there are none."""
    try:
        done = subprocess.run(
            [py_spy, "dump", "--json", "--pid", str(pid)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (), f"py-spy did not answer within {PATIENCE_S:g} s"
    except OSError as error:
        return (), f"py-spy cannot be started: {error.strerror}"
    if done.returncode:
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        return (), printable(f"py-spy: {said[-1].strip() if said else f'exit code {done.returncode}'}")
    try:
        return _threads(json.loads(done.stdout)), ""
    except (ValueError, KeyError, TypeError):
        return (), "py-spy wrote no JSON that this version understands"


def _threads(found: Iterable[Mapping[str, Any]]) -> tuple[ThreadStack, ...]:
    threads = [
        ThreadStack(
            name=str(thread.get("thread_name") or "not made by Python"),
            frames=tuple(
                Frame(str(call["filename"]), int(call["line"]), str(call["name"]))
                for call in thread["frames"][:MOST_FRAMES]
            ),
        )
        for thread in found
    ]
    return tuple(sorted(threads, key=lambda thread: thread.name != "MainThread"))
