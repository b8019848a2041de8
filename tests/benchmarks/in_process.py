"""Commands that a benchmark starts as processes, called in the process of the test: no interpreter starts."""

import io
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stdout
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.cli.calling import call

_RUN = subprocess.run


def run(command: Sequence[str], **options: Any) -> Any:
    """In the place of ``subprocess.run``: modules of ``python -m`` in this process, all else as usual."""
    words = [word for word in command if word not in ("-W", "ignore")]
    if words[:2] != [sys.executable, "-m"] or words[2:4] == ["pliant.cli", "run"]:
        return _RUN(command, **options)
    with chdir(options.get("cwd", os.getcwd())):
        message = pliant(*words[3:]) if words[2] == "pliant.cli" else module(*words[2:])
    return subprocess.CompletedProcess(command, 0, message, "")


def pliant(*words: str) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def module(*words: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out), mock.patch.object(sys, "argv", list(words)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_module(words[0], run_name="__main__")
    return out.getvalue()


def spent(*words: str, **_options: object) -> tuple[float, float]:
    """In the place of the CPU seconds and peak MB of a command."""
    pliant(*words)
    return 1.0, 1.0


def of_service(usual: Callable[..., float]) -> Callable[..., float]:
    """In the place of the CPU seconds of a command; one that is ended by a signal is a process, as usual."""
    return lambda *words, **until: usual(*words, **until) if until else spent(*words)[0]


def used() -> Callable[[int], Any]:
    """In the place of the processor time that processes have used so far: a second more at every look."""
    seconds = count(1.0)
    return lambda _who: SimpleNamespace(ru_utime=next(seconds), ru_stime=0.0)
