"""What a test must not leave to the next: children, threads, signal handlers, a folder, limits."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, Final

import psutil

PATIENCE_S: Final = 600.0
"""For what must happen; a test that hangs would be ended soon after."""
DYING_S: Final = 20.0
"""For what must end; what was forgotten lives on."""
RESTORED: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
"""Commands that a test calls set the first two, and fixtures restore them; pytest-timeout has the third."""
_TASKS: Final = Path("/proc/self/task")


@contextmanager
def started(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that ends with the block, even if an assertion in it fails."""
    with subprocess.Popen(argv, **options) as child:
        try:
            yield child
        finally:
            child.kill()


@dataclass(frozen=True)
class Surroundings:
    children: frozenset[int]
    threads: frozenset[threading.Thread]
    handlers: dict[int, Any]
    folder: str
    limits: dict[str, tuple[int, int]]

    @classmethod
    def now(cls) -> Surroundings:
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals() - RESTORED}
        return cls(_children(), frozenset(threading.enumerate()), handlers, _folder(), _limits())

    def left_behind(self) -> list[str]:
        """What has come since and stays, in words; all of it is undone."""
        _wait(lambda: not any(map(_runs, self._new_children())) and not self._new_threads())
        children = self._new_children()
        found = [f"process {pid}: {_command(pid)}" for pid in sorted(filter(_runs, children))]
        _end(children)
        found += [f"thread {thread.name}" for thread in self._new_threads()]
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is not handler:
                found.append(f"a handler of {signal.Signals(number).name}: {signal.getsignal(number)}")
                signal.signal(number, handler)
        if _folder() != self.folder:
            found.append(f"the working directory {_folder()}")
            os.chdir(self.folder)
        found += [
            f"a limit {name}: {limit}" for name, limit in _limits().items() if limit != self.limits[name]
        ]
        return found

    def _new_children(self) -> frozenset[int]:
        return _children() - self.children - _kept()

    def _new_threads(self) -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each not in self.threads and not each.daemon]


def _children() -> frozenset[int]:
    """The children of this process, zombies included."""
    found: set[int] = set()
    try:
        for thread in _TASKS.iterdir():
            with suppress(ProcessLookupError):
                found.update(map(int, (thread / "children").read_text().split()))
    except OSError:
        found.update(child.pid for child in psutil.Process().children())
    return frozenset(found)


def _kept() -> set[int | None]:
    """What Python itself keeps for the next process that it starts."""
    return {
        resource_tracker._resource_tracker._pid,
        forkserver._forkserver._forkserver_pid,
    }


def _limits() -> dict[str, tuple[int, int]]:
    """Limits that end a process long after they were set."""
    names = ("RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_AS", "RLIMIT_FSIZE")
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _wait(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DYING_S
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _command(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline()) or f"{process.name()} ({process.status()})"
    except psutil.Error:
        return "gone"


def _end(children: frozenset[int]) -> None:
    """Kill and reap them through the objects that know them: else these warn in a later test."""
    if not children:
        return
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for known in gc.get_objects():
        # isinstance() would ask weak proxies, and those of objects that are gone raise
        if issubclass(type(known), subprocess.Popen) and known.pid in children:
            known.wait()
            for pipe in (known.stdin, known.stdout, known.stderr):
                if pipe is not None:
                    pipe.close()
    for pid in children:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
