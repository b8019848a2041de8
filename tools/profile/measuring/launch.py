"""Start one measurement through torchrun, wait for it, say what went wrong. Commands are built as data."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import psutil

from pliant.schemas.errors import JobsFailedError
from pliant.tools.profile.measuring.request import (
    ENV_PROFILE,
    MeasurementRequest,
    Outcome,
    out_of_memory_mark,
)
from pliant.tools.profile.torchrun.command import NO_STORE, ONE_THREAD, standalone, torchrun
from pliant.tools.profile.torchrun.last_words import last_words
from pliant.tools.profile.torchrun.processes import child_environment, kill, strays, tree

START_LIMIT_S: Final = 600.0
"""A script that has not begun to serve its sweep by then does not use the elastic library."""
POLL_S: Final = 0.05
ADVICE: Final = "profile needs the loop of `elastic.init()` and `job.prepare(…)` from pliant.tools.run"
Advance = Callable[[Outcome], None]
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Script:
    """What is measured: a training script as a job states it."""

    name: str
    """What messages call it: the model."""
    command: tuple[str, ...]
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    slots: Literal["cpu", "gpu"] = "cpu"


def environment(script: Script, request: Path) -> dict[str, str]:
    """What the workers find in their environment beyond this process's own."""
    fixed = {"PYTHONUNBUFFERED": "1", **NO_STORE, ENV_PROFILE: str(request)}
    if script.slots == "cpu":
        return {**ONE_THREAD, **script.env, **fixed, "CUDA_VISIBLE_DEVICES": ""}
    return {**script.env, **fixed}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launch ended: what it measured, and whether it ran out of memory at ``outcome.current``."""

    outcome: Outcome
    out_of_memory: bool = False
    start_s: float | None = None
    """From the launch to the end of the first step."""
    relaunch_s: float | None = None
    """What it takes to leave with a checkpoint and come back from it; None: not asked for."""


def launch(script: Script, workers: int, request: MeasurementRequest, advance: Advance) -> Ended:
    """Carry out one request.

    :param request: its ``result`` is replaced by a file in a folder that lives as long as the launch, its
        ``launcher_pid`` by this process.
    :param advance: called with what was measured so far, also where the launch is cut short.
    :raises JobsFailedError: the script crashed, or never came to serve the sweep.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-profile-") as name:
        folder = Path(name)
        result, path = folder / "outcome.json", folder / "request.json"
        ours = {"result": str(result), "launcher_pid": os.getpid()}
        path.write_text(request.model_copy(update=ours).model_dump_json())
        argv = torchrun(script.command, workers, standalone("127.0.0.1"), folder / "logs")
        began_s = time.time()
        code = _run(argv, child_environment(os.environ, environment(script, path)), script, folder, advance)
        outcome = read_outcome(result)
        if outcome is not None and outcome.done:
            return _timed(outcome, began_s, time.time())
        if outcome is not None and outcome.rehearsing:
            _log.warning(
                "a change in place was not measured: %s", failure(script, workers, code, outcome, folder)
            )
            return Ended(outcome, start_s=_start_s(outcome, began_s))
        if outcome is not None and outcome.current and out_of_memory_mark(result).exists():
            return Ended(outcome, out_of_memory=True)
        raise JobsFailedError(failure(script, workers, code, outcome, folder))


def _timed(outcome: Outcome, began_s: float, ended_s: float) -> Ended:
    """What starting and leaving took; the clock may have been set meanwhile, but no time is negative."""
    if outcome.first_step_s is None or outcome.left_s is None or outcome.checkpoint_s is None:
        return Ended(outcome)
    start_s = _start_s(outcome, began_s) or 0.0
    leave_s = max(0.0, ended_s - outcome.left_s)
    return Ended(outcome, start_s=start_s, relaunch_s=outcome.checkpoint_s + leave_s + start_s)


def _start_s(outcome: Outcome, began_s: float) -> float | None:
    return None if outcome.first_step_s is None else max(0.0, outcome.first_step_s - began_s)


def read_outcome(path: Path) -> Outcome | None:
    """The outcome that rank 0 has written so far; None: the sweep has not begun."""
    try:
        return Outcome.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None


def failure(script: Script, workers: int, code: int, outcome: Outcome | None, folder: Path) -> str:
    """One line on a launch that did not get to its end."""
    what = f'measuring model "{script.name}" on {workers} worker{"s" * (workers > 1)}'
    if code == 0:
        return f"{what}: the script ended without serving the measurement; {ADVICE}"
    words = last_words(folder.glob("logs/*/attempt_*/*/stderr.log"), folder / "torchrun.log")
    point = outcome.current if outcome else None
    where = f" at local batch {point.local_batch}" if point else ""
    return f"{what}: the script failed{where}: {words or f'exit code {code}, nothing on stderr'}"


def _run(
    argv: Sequence[str],
    env: Mapping[str, str],
    script: Script,
    folder: Path,
    advance: Advance,
) -> int:
    """Run to the end, telling of progress; whatever happens, no process of it is left."""
    with (folder / "torchrun.log").open("wb") as log:
        try:
            process = subprocess.Popen(
                argv,
                env=env,
                cwd=script.workdir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            what = f'model "{script.name}": cannot start in {script.workdir}'
            raise JobsFailedError(f"{what}: {error.strerror}") from error
        try:
            return _wait(process, script, folder / "outcome.json", advance)
        finally:
            end_all(process, (ENV_PROFILE, env[ENV_PROFILE]))
            if (outcome := read_outcome(folder / "outcome.json")) is not None:
                advance(outcome)


def _wait(process: subprocess.Popen[bytes], script: Script, result: Path, advance: Advance) -> int:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        outcome = read_outcome(result)
        if outcome is not None:
            advance(outcome)
        elif time.monotonic() > deadline:
            what = f'model "{script.name}": no measurement was served within {START_LIMIT_S:.0f} s'
            raise JobsFailedError(f"{what}; {ADVICE}")


def end_all(process: subprocess.Popen[bytes], mark: tuple[str, str]) -> None:
    """Kill a process, everything it started, and every worker that outlived it.

    Workers have sessions of their own; of one whose torchrun is gone, only its environment says whose it is.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        kill(tree(psutil.Process(process.pid)))
    process.wait()
    kill(strays(mark))
