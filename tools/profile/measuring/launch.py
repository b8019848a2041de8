"""One launch of a measurement: start it as `pliant run` would, wait for it, keep what it has measured.

Points are kept on disk as they are measured (:class:`PointsFile`), so that an interrupted command can go on.
A kept point counts only if all that it depends on is the same (:func:`launch_key`). The file is removed once
the profile is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, Self

import psutil

from pliant.schemas.errors import BadInputError, JobsFailedError, Problem
from pliant.schemas.file_io.files import atomic_write, read_failure, write_all, write_error
from pliant.schemas.file_io.json_lines import encode, header, read_lines
from pliant.schemas.file_io.record import NonNegativeFloat, NonNegativeInt, Record
from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.measuring.request import (
    ENV_PROFILE,
    LaunchOutcome,
    MeasurementRequest,
    Point,
    PointSearch,
    best_visit,
    best_visits,
    by_configuration,
    is_measured,
    out_of_memory_mark,
    spread,
    unsettled,
)
from pliant.tools.profile.torchrun.start import (
    ALONE,
    NO_STORE,
    ONE_THREAD,
    child_environment,
    kill,
    last_words,
    one_worker,
    standalone,
    strays,
    torchrun,
    tree,
)

START_LIMIT_S: Final = 600.0
"""A script that does not serve its sweep by then does not use the elastic library."""
POLL_S: Final = 0.05
KIND: Final = "points"
MODE: Final = 0o600
ADVICE: Final = (
    "profile needs the loop of `elastic.init()` and `job.prepare(…)` from pliant.tools.run, "
    "or the progress of docs/relaunch.md"
)
Advance = Callable[[LaunchOutcome], None]
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Script:
    """The training script to measure, as a job states it."""

    name: str
    """The model; messages use it."""
    command: tuple[str, ...]
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    slots: Literal["cpu", "gpu"] = "cpu"
    by_torchrun: bool = True
    """Whether torchrun starts it on one worker, too: the script of a gang may need its variables. Workers
    that change in place run without it."""
    python: str | None = None
    """What runs it, by path or name; None for the Python of this process."""


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """What a launch measured, and whether it ran out of memory at ``outcome.current``."""

    outcome: LaunchOutcome
    out_of_memory: bool = False
    start_s: float | None = None
    """From the launch to the end of the first step."""
    relaunch_s: float | None = None
    """Seconds to leave with a checkpoint and come back from it, if asked for."""


def launch(script: Script, workers: int, request: MeasurementRequest, advance: Advance) -> LaunchEnd:
    """Carry out one request.

    :param request: its ``result`` and ``launcher_pid`` are filled in here.
    :param advance: called with what was measured so far, also if the launch is cut short.
    :raises JobsFailedError: the script crashed, or never came to serve the sweep.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-profile-") as name:
        folder = Path(name)
        result, path = folder / "outcome.json", folder / "request.json"
        ours = {"result": str(result), "launcher_pid": os.getpid()}
        path.write_text(request.model_copy(update=ours).model_dump_json())
        env, logs = environment(script, path), folder / "logs"
        if script.by_torchrun or workers > 1:
            argv = torchrun(script.command, workers, standalone("127.0.0.1"), logs, script.python)
        else:
            argv, env = one_worker(script.command, logs, script.python), {**env, **ALONE}
        began_s = time.time()
        code = _run(argv, child_environment(os.environ, env), script, folder, advance)
        outcome = read_outcome(result)
        if outcome is not None and outcome.done:
            return _timed(outcome, began_s, time.time())
        if outcome is not None and outcome.rehearsing:
            _log.warning(
                "a change in place was not measured: %s", failure(script, workers, code, outcome, folder)
            )
            return LaunchEnd(outcome, start_s=_start_s(outcome, began_s))
        if outcome is not None and outcome.current and out_of_memory_mark(result).exists():
            return LaunchEnd(outcome, out_of_memory=True)
        raise JobsFailedError(failure(script, workers, code, outcome, folder))


def environment(script: Script, request: Path) -> dict[str, str]:
    """What is added to this process's environment for the workers."""
    fixed = {"PYTHONUNBUFFERED": "1", **NO_STORE, ENV_PROFILE: str(request)}
    if script.slots == "cpu":
        return {**ONE_THREAD, **script.env, **fixed, "CUDA_VISIBLE_DEVICES": ""}
    return {**script.env, **fixed}


def _timed(outcome: LaunchOutcome, began_s: float, ended_s: float) -> LaunchEnd:
    """Times are never negative, even if the clock was set meanwhile."""
    if outcome.first_step_s is None or outcome.left_s is None or outcome.checkpoint_s is None:
        return LaunchEnd(outcome)
    start_s = _start_s(outcome, began_s) or 0.0
    leave_s = max(0.0, ended_s - outcome.left_s)
    return LaunchEnd(outcome, start_s=start_s, relaunch_s=outcome.checkpoint_s + leave_s + start_s)


def _start_s(outcome: LaunchOutcome, began_s: float) -> float | None:
    return None if outcome.first_step_s is None else max(0.0, outcome.first_step_s - began_s)


def read_outcome(path: Path) -> LaunchOutcome | None:
    """What rank 0 has written so far; None before the sweep has begun."""
    try:
        return LaunchOutcome.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None


def failure(script: Script, workers: int, code: int, outcome: LaunchOutcome | None, folder: Path) -> str:
    """One line about a launch that did not reach its end."""
    what = f'measuring model "{script.name}" on {workers} worker{"s" * (workers > 1)}'
    if code == 0:
        return f"{what}: the script ended without serving the measurement; {ADVICE}"
    words = last_words(folder.glob("logs/*/attempt_*/*/stderr.log"), folder / "torchrun.log")
    ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    point = outcome.current if outcome else None
    where = f" at local batch {point.local_batch}" if point else ""
    return f"{what}: the script failed{where}: {words or f'{ended}, nothing on stderr'}"


def _run(
    argv: Sequence[str],
    env: Mapping[str, str],
    script: Script,
    folder: Path,
    advance: Advance,
) -> int:
    """Run to the end and report progress; no process is left, whatever happens."""
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

    Workers have sessions of their own. If torchrun is gone, only a worker's environment identifies it.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        kill(tree(psutil.Process(process.pid)))
    process.wait()
    kill(strays(mark))


class MeasuredPoint(Record):
    """One point or, at the end of a launch, its costs; and the machine."""

    launch: str
    """The :func:`launch_key`."""
    measured_at: NonNegativeFloat
    """UTC seconds."""
    parameters: NonNegativeInt = 0
    torch: str = ""
    device: str = ""
    driver: str = ""
    point: Point | None = None
    """None in the record of a launch's costs."""
    start_s: NonNegativeFloat | None = None
    relaunch_s: NonNegativeFloat | None = None
    rescale_s: NonNegativeFloat | None = None


class PointsFile:
    """The points of an interrupted command, and a place for new ones.

    JSON Lines, one point a line, each forced to disk when measured.

    :param path: None if the profile goes into a pipe: then nothing is kept.
    """

    def __init__(self, path: Path | None = None, found: Collection[MeasuredPoint] = ()) -> None:
        self.path = path
        self._found = list(found)
        self._descriptor: int | None = None

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """Read a file; a torn last line is left out.

        :raises BadInputError: it is another kind of file, or damaged.
        """
        if path is None:
            return cls()
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise read_failure(error, str(path)) from error
        lines, problems = read_lines(
            data,
            str(path),
            KIND,
            MeasuredPoint.model_validate_json,
            schema_required=True,
            torn_end_allowed=True,
        )
        if problems:
            what = "cannot be gone on from: remove it to measure everything again"
            raise BadInputError([*problems, Problem(str(path), None, "", what)])
        return cls(path, [point for _, point in lines])

    def count(self, launches: Collection[str]) -> int:
        return sum(each.point is not None and each.launch in launches for each in self._found)

    def of(self, launch: str) -> list[MeasuredPoint]:
        return [each for each in self._found if each.launch == launch]

    def add(self, measured: MeasuredPoint) -> None:
        """Keep one more point; it is on disk when this returns.

        :raises PliantError: the file cannot be written.
        """
        self._found.append(measured)
        if self.path is None:
            return
        try:
            if self._descriptor is None:
                self._descriptor = self._open(self.path)
            else:
                write_all(self._descriptor, _line(measured))
        except OSError as error:
            raise write_error(error, str(self.path)) from error

    def remove(self) -> None:
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, path: Path) -> int:
        """Rewrite the file without a torn line and open it for more."""
        atomic_write(path, header(KIND) + b"".join(map(_line, self._found)), mode=MODE)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


def launch_key(script: Script, workers: int, wanted: MeasurementRequest) -> str:
    """A hash of all that a measured point depends on.

    It covers the script's own file, but not the modules that the script imports.

    :param wanted: the request of the whole plan, unchanged by results of other launches.
    """
    what = {
        "model": script.name,
        "command": script.command,
        "script": _digest(script),
        "workdir": script.workdir,
        "env": dict(script.env),
        "slots": script.slots,
        "by_torchrun": script.by_torchrun,
        "workers": workers,
        "wanted": wanted.model_dump(mode="json"),
        "host": platform.node(),
        "versions": [version(name) for name in ("pliant", "torch")],
        **({} if script.python is None else {"python": script.python}),
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _digest(script: Script) -> str | None:
    path = Path(script.workdir or ".", *script.command[:1])
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _line(measured: MeasuredPoint) -> bytes:
    return encode(measured.model_dump(mode="json", exclude_defaults=True))


class LaunchLog:
    """The points of one launch, however often it was started: those kept and those measured now.

    :param key: the launch's :func:`launch_key`.
    :param clock: UTC seconds.
    """

    def __init__(self, kept: PointsFile, key: str, clock: Callable[[], float]) -> None:
        self._kept = kept
        self._key = key
        self._clock = clock
        self._points: list[tuple[MeasuredPoint, Point]] = []
        self._costs: MeasuredPoint | None = None
        for kept_point in kept.of(key):
            self._remember(kept_point)

    def __len__(self) -> int:
        return len(self._points)

    def rest(self, request: MeasurementRequest, workers: int) -> MeasurementRequest | None:
        """What is left of a request; None if nothing is.

        Costs are measured at the end of a launch, after a step: if only they are left, one point is measured
        again.
        """
        rest = self._limited(request)
        known = rest.known
        if not is_measured(rest, workers):
            return rest
        fitting = [point for point in known if point.feasible]
        if not request.costs or self._costs is not None or not fitting:
            return None
        others = tuple(point for point in known if point.key != fitting[0].key)
        return request.model_copy(update={"known": others, "visits": 1})

    def is_searched(self, request: MeasurementRequest, workers: int) -> bool:
        """Whether all is measured once. Not so where a batch has fitted, and on a later visit has not."""
        return PointSearch(self._limited(request), workers).next() is None

    def _limited(self, request: MeasurementRequest) -> MeasurementRequest:
        """The request with all that was measured."""
        known = tuple(point for _, point in self._points)
        return below(request, known).model_copy(update={"known": known})

    def take(self, outcome: LaunchOutcome, before: int) -> None:
        """Add what a launch has measured since the last call.

        :param before: how many points there were when it was started.
        """
        for point in outcome.points[len(self) - before :]:
            self._add(outcome, point=point)

    def misfit(self, outcome: LaunchOutcome) -> None:
        """The current point ran out of memory."""
        if outcome.current is not None:
            self._add(outcome, point=outcome.current.model_copy(update={"feasible": False}))

    def end(self, ended: LaunchEnd) -> None:
        """The launch is over; its costs belong to all its points."""
        start_s, relaunch_s, rescale_s = ended.start_s, ended.relaunch_s, ended.outcome.rescale_s
        if (start_s, relaunch_s, rescale_s) != (None, None, None):
            self._add(ended.outcome, start_s=start_s, relaunch_s=relaunch_s, rescale_s=rescale_s)

    def unsettled(self) -> list[Point]:
        """A point of each configuration whose visits do not tell how long its step takes."""
        points = [point for _, point in self._points]
        return unsettled(points, visits=len(points) + 1)

    @property
    def facts(self) -> Mapping[str, str]:
        """What the workers reported about their machine; empty if nothing was measured."""
        last = self._points[-1:]
        return {
            name: getattr(measured, name) for measured, _ in last for name in ("torch", "device", "driver")
        }

    def rows(self, model: str, gpu_type: str, workers: int) -> list[ProfileRow]:
        """The profile rows of all points; feasible training rows have the costs of the launch."""
        measured = {id(point): step_time for step_time, point in self._points}
        rows = []
        for visits in by_configuration(point for _, point in self._points).values():
            point = best_visit(visits)
            row = _row(measured[id(point)], point, model, gpu_type, workers)
            rows.append(replace(row, visits=len(visits), spread=spread(visits) if row.feasible else None))
        if (costs := self._costs) is None:
            return rows
        with_costs = partial(
            replace,
            start_seconds=costs.start_s,
            relaunch_seconds=costs.relaunch_s,
            rescale_seconds=costs.rescale_s,
        )
        return [with_costs(row) if row.kind == "train" and row.feasible else row for row in rows]

    def _add(self, outcome: LaunchOutcome, **fields: object) -> None:
        facts = {name: getattr(outcome, name) for name in ("parameters", "torch", "device", "driver")}
        measured = MeasuredPoint(launch=self._key, measured_at=self._clock(), **facts, **fields)  # type: ignore[arg-type]
        self._remember(measured)
        self._kept.add(measured)

    def _remember(self, measured: MeasuredPoint) -> None:
        if measured.point is None:
            self._costs = measured
        else:
            self._points.append((measured, measured.point))


def below(request: MeasurementRequest, points: Iterable[Point]) -> MeasurementRequest:
    """The request, limited by what was measured and what did not fit, be it on a later visit."""
    seen = best_visits(points)
    misfits = [point.local_batch for point in seen if not point.feasible]
    if not misfits:
        return request
    fits = max((point.local_batch for point in seen if point.feasible), default=0)
    misfit = min(misfits)
    return request.model_copy(update={"fits": min(max(fits, request.fits), misfit - 1), "misfit": misfit})


def _row(measured: MeasuredPoint, point: Point, model: str, gpu_type: str, workers: int) -> ProfileRow:
    row = ProfileRow(
        kind="train",
        model=model,
        gpu_type=gpu_type,
        nodes=1,
        gpus=workers,
        placement=str(workers),
        local_batch=point.local_batch,
        accum_steps=point.accum,
        step_seconds=point.mean_s if point.feasible else None,
        stdev_seconds=point.own_share * statistics.pstdev(point.step_s) if point.feasible else None,
        iterations=len(point.step_s),
        peak_memory=point.peak_memory if point.feasible else None,
        parameters=measured.parameters,
        feasible=point.feasible,
        measured_at=measured.measured_at,
        busy_share=point.busy_share if point.feasible else None,
    )
    if point.weights:
        return replace(row, kind="allreduce", model="", parameters=point.weights)
    if row.step_seconds is None:
        return row
    step_s, compute_s = row.step_seconds, None
    if workers == 1:
        compute_s = step_s
    elif (alone_s := point.mean_compute_s) is not None:
        compute_s = min(step_s, alone_s)
    return replace(
        row,
        compute_seconds=compute_s,
        sync_seconds=None if compute_s is None else step_s - compute_s,
        samples_per_second=workers * point.local_batch * point.accum / step_s,
    )
