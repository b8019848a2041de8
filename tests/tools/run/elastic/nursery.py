"""Workers as real processes that start in milliseconds: forked from a server that has torch imported.

A child does what an interpreter does with a script: runs it as ``__main__``, tells ``sys.excepthook`` what
it died of, calls what is registered for its exit, and ends with the script's exit code.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

CONTEXT = multiprocessing.get_context("forkserver")
"""Makes processes that have torch already; what they run is found by its import."""
PRELOADED = [__name__, "torch._dynamo", "pliant.tools.run.elastic"]
CONTEXT.set_forkserver_preload(PRELOADED)


def preload(module: str) -> None:
    """Let processes have this module, too: their server begins again with it."""
    if module not in PRELOADED:
        PRELOADED.append(module)
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        CONTEXT.set_forkserver_preload(PRELOADED)


class Worker:
    """A process that runs a script with one argument; its standard error goes to a file."""

    def __init__(self, script: Path, argument: str, env: Mapping[str, str], errors: Path) -> None:
        arguments = (str(script), argument, dict(env), str(errors))
        self._process: ForkServerProcess = CONTEXT.Process(target=_run, args=arguments)
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self._process.join()
        self._process.close()


def printed_by(script: str, words: Sequence[str]) -> str:
    """Of a script that runs in this process."""
    sys.argv = [script, *words]
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue()


def steps_and_loss(source: str) -> tuple[int, float]:
    """Of a training that runs in this process: what its job has counted, and its last loss."""
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - of the tests and our own pages
    return names["job"]._loop.training.counters.step, float(names["loss"])


def _run(script: str, argument: str, env: dict[str, str], errors: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    multiprocessing.set_start_method("fork", force=True)  # for loading processes, as in a script
    if threads := env.get("OMP_NUM_THREADS"):  # read when torch is loaded, which it is
        torch.set_num_threads(int(threads))
    sys.stderr = Path(errors).open("w", buffering=1)  # noqa: SIM115 until the process ends
    os._exit(run_to_its_end(script, argument))


def run_to_its_end(script: str, *words: str) -> int:
    """Run a script as an interpreter does, which ends then. Returns its exit code."""
    sys.argv = [script, *words]
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:  # noqa: BLE001 as the interpreter does at its end
        sys.excepthook(type(error), error, error.__traceback__)
        traceback.print_exception(error)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code
