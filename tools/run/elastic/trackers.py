"""Experiment trackers: what ``job.log`` gets also goes to wandb, MLflow or TensorBoard, by their clients.

``elastic.init(track=…)`` names them. Rank 0 alone hands values on, from a thread of its own, so that no
server holds up the training. All attempts and sizes of a job are one run: ``pliant run`` gives them one id
(:data:`ENV_RUN`). How far each value was logged is written to the job's folder before it is handed on: what
is trained again after a kill is not logged again, and a value whose turn it was then may be missing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

import torch

from pliant.schemas.errors import UsageError, require
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.text import one_line
from pliant.tools.run.elastic.context import Context, WorkerContext
from pliant.tools.run.elastic.state.training import Mean
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.contract.plan import ENV_RUN

TrackerName = Literal["wandb", "mlflow", "tensorboard"]
ENV_MLFLOW_RUN: Final = "MLFLOW_RUN_ID"
LOSS: Final = "loss"
METRIC: Final = "metric"
LOSS_INTERVAL_S: Final = 1.0
"""Least seconds between two losses without ``pliant run``, whose plans say it (``progress_s``)."""
OPEN_S: Final = 60.0
"""Seconds for which a training that begins waits for its trackers."""
CLOSE_S: Final = 10.0
"""Seconds at an end for values that are still to be handed on."""
MAX_QUEUED: Final = 10_000
_TAG: Final = "pliant.run"
_log = logging.getLogger("pliant")


class Tracker(Protocol):
    """One client."""

    def log(self, samples: int, values: Mapping[str, float]) -> None: ...

    def close(self, *, done: bool) -> None:
        """No more values come from this process.

        :param done: whether the training is over; else another attempt may go on with the run.
        """


class Wandb:
    """A run of wandb; one that the script has begun is taken over."""

    def __init__(self, run: str | None, name: str | None, folder: Path | None) -> None:
        import wandb

        self._own = wandb.run is None
        run = os.environ.get("WANDB_RUN_ID") or run
        name = os.environ.get("WANDB_NAME") or name
        self._run = wandb.run or wandb.init(id=run, resume="allow", name=name)

    def log(self, samples: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=samples)

    def close(self, *, done: bool) -> None:
        if not self._own:
            return
        if not done:
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if done else 1)


class Mlflow:
    """A run of MLflow, which chooses its id: that of the first attempt is kept in the job's folder."""

    def __init__(self, run: str | None, name: str | None, folder: Path | None) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._id = os.environ.get(ENV_MLFLOW_RUN) or self._made(run, name)
        os.environ[ENV_MLFLOW_RUN] = self._id
        if folder is not None:
            atomic_write(kept_mlflow_run(folder), self._id.encode(), mode=PRIVATE)

    def _made(self, run: str | None, name: str | None) -> str:
        """The run that an attempt before has made, or a new one."""
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID") or self._experiment()
        if run is not None:
            for known in self._client.search_runs([experiment], f"tags.`{_TAG}` = '{run}'", max_results=1):
                return str(known.info.run_id)
        tags = {} if run is None else {_TAG: run}
        return str(self._client.create_run(experiment, run_name=name, tags=tags).info.run_id)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if name is None:
            return "0"
        known = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if known is None else known.experiment_id)

    def log(self, samples: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(*pair, now_ms, samples) for pair in values.items()])

    def close(self, *, done: bool) -> None:
        if done:
            self._client.set_terminated(self._id)


class Tensorboard:
    """Event files in one folder."""

    def __init__(self, run: str | None, name: str | None, folder: Path | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(os.environ.get("TENSORBOARD_LOGGING_DIR"))

    def log(self, samples: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, samples)
        self._writer.flush()

    def close(self, *, done: bool) -> None:
        self._writer.close()


CLIENTS: Final[Mapping[TrackerName, type[Wandb | Mlflow | Tensorboard]]] = {
    "wandb": Wandb,
    "mlflow": Mlflow,
    "tensorboard": Tensorboard,
}


def kept_mlflow_run(folder: Path) -> Path:
    return folder / "mlflow-run"


def checked_names(names: Iterable[str]) -> tuple[TrackerName, ...]:
    """The names of trackers.

    :raises UsageError: one is not known.
    :raises ServiceMissingError: its package is not installed.
    """
    wanted = (names,) if isinstance(names, str) else tuple(names)
    for name in wanted:
        if name not in CLIENTS:
            raise UsageError(f"track names {name!r}, expected {', '.join(get_args(TrackerName))}")
        require(name, f"the job is tracked by {name}")
    return wanted  # type: ignore[return-value]


class Tracking:
    """What one worker has for the trackers. Only rank 0 hands it on."""

    def __init__(self, context: Context, names: Iterable[TrackerName]) -> None:
        """:param names: none where the script is measured or verified."""
        # Values that the script has logged in the step under way.
        self.pending: dict[str, float | torch.Tensor] = {}
        self._context, self._names, self._loss, self._due_s = context, tuple(names), Mean(), 0.0
        self._forwarding: list[_Forwarding] = []
        if isinstance(context, WorkerContext):
            kept = kept_mlflow_run(context.folder.tracked / os.environ.get(ENV_RUN, ""))
            if "mlflow" in self._names and kept.exists():
                with contextlib.suppress(OSError, ValueError):  # then it is found by its tag
                    os.environ.setdefault(ENV_MLFLOW_RUN, kept.read_text())
        else:
            atexit.register(self.close, done=True)
        if context.rank == 0:
            self._open(OPEN_S)

    def add_losses(self, losses: Mean) -> None:
        """Losses of some samples since the last time."""
        if self._context.rank == 0:
            self._loss.include(losses)

    def step_done(self, samples: int) -> None:
        """A step has ended after this number of samples: hand on what is due."""
        values, self.pending = self.pending, {}
        if self._context.rank != 0:
            return
        now_s = time.monotonic()
        if now_s >= self._due_s:
            plan = self._context.plan
            self._due_s = now_s + (LOSS_INTERVAL_S if plan is None else plan.progress_s)
            loss, self._loss = self._loss.value(), Mean()
            values |= {} if loss is None else {LOSS: loss}
        if values:
            self.log(samples, values)

    def log(self, samples: int, values: Mapping[str, float | torch.Tensor]) -> None:
        """Hand values on, but for what was logged at this number of samples, or a larger one."""
        if self._context.rank != 0:
            return
        self._open()
        numbers = {name: float(value) for name, value in values.items()}
        for forwarding in self._forwarding:
            forwarding.put(samples, numbers)

    def _open(self, wait_s: float = 0.0) -> None:
        """Begin to hand on, and wait until all trackers are there, if that is not too long."""
        if self._forwarding or not self._names:
            return
        folder, label, mark, run = None, None, "", os.environ.get(ENV_RUN)
        if isinstance(self._context, WorkerContext) and run is not None:
            folder, label = self._context.folder.tracked / run, self._context.plan.job
            mark = f"{self._context.plan.attempt}-{self._context.worker}"
        self._forwarding = [_Forwarding(name, run, label, folder, mark) for name in self._names]
        until_s = time.monotonic() + wait_s
        for forwarding in self._forwarding:
            forwarding.start()
        for forwarding in self._forwarding:
            forwarding.opened.wait(max(0.0, until_s - time.monotonic()))

    def flush(self) -> None:
        """Wait until all is handed on, for some seconds."""
        until_s = time.monotonic() + CLOSE_S
        while any(each.is_busy for each in self._forwarding) and time.monotonic() < until_s:
            time.sleep(0.01)

    def close(self, *, done: bool = False) -> None:
        """End for now: the worker logs no more, unless it becomes rank 0 again."""
        closing, self._forwarding = self._forwarding, []
        for forwarding in closing:
            forwarding.close(done=done)
        until_s = time.monotonic() + CLOSE_S
        for forwarding in closing:
            forwarding.join(max(0.0, until_s - time.monotonic()))
            if left := forwarding.left:
                text = "%s has not taken the last %d values within %g s"
                _log.warning(text, forwarding.tracker, left, CLOSE_S)


class _Forwarding(threading.Thread):
    """Hands values on to one tracker, in their order. One that fails stops nothing."""

    def __init__(
        self, tracker: TrackerName, run: str | None, label: str | None, folder: Path | None, mark: str
    ) -> None:
        """:param folder: where it is kept how far values were logged; None: nowhere.
        :param mark: the file of this worker there.
        """
        super().__init__(name=f"pliant-{tracker}", daemon=True)
        self.tracker: TrackerName = tracker
        self.opened = threading.Event()
        self._run, self._label, self._folder = run, label, folder
        self._mark = Path() if folder is None else folder / f"{mark}-{tracker}.json"
        self._reached = {} if folder is None else _reached(folder, tracker)
        self._queue = queue.Queue[tuple[int, Mapping[str, float], Mapping[str, int]] | bool]()
        self._client: Tracker | None = None
        self._warned = False

    @property
    def is_busy(self) -> bool:
        return bool(self._queue.unfinished_tasks) and self.is_alive()

    @property
    def left(self) -> int:
        """Values that nobody has taken."""
        return self._queue.qsize() if self.is_alive() else 0

    def put(self, samples: int, values: Mapping[str, float]) -> None:
        reached = self._reached
        newer = {name: value for name, value in values.items() if samples > reached.get(name, -1)}
        if self._queue.qsize() >= MAX_QUEUED:
            self._warn(f"{MAX_QUEUED:,} values wait for it, and further ones are lost")
        elif newer:
            reached |= dict.fromkeys(newer, samples)
            self._queue.put((samples, newer, reached.copy()))

    def close(self, *, done: bool) -> None:
        self._queue.put(done)

    def run(self) -> None:
        self._try(self._begin)
        self.opened.set()
        while not isinstance(item := self._queue.get(), bool):
            self._try(partial(self._forward, *item))
            self._queue.task_done()
        if self._client is not None:
            self._try(partial(self._client.close, done=item))

    def _begin(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
        self._client = CLIENTS[self.tracker](self._run, self._label, self._folder)

    def _forward(self, samples: int, values: Mapping[str, float], reached: Mapping[str, int]) -> None:
        if self._client is None:
            return
        if self._folder is not None:
            atomic_write(self._mark, json.dumps(reached).encode(), mode=PRIVATE)
        self._client.log(samples, values)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - clients raise what they like
            self._warn(one_line(str(error) or type(error).__name__))

    def _warn(self, text: str) -> None:
        if not self._warned:
            _log.warning("%s: %s; training goes on, and this is said once", self.tracker, text)
        self._warned = True


def _reached(folder: Path, tracker: TrackerName) -> dict[str, int]:
    """The samples at which workers so far have logged each value last."""
    reached: dict[str, int] = {}
    damaged = list[Path]()
    for path in folder.glob(f"*-{tracker}.json"):
        try:
            marks = {name: int(samples) for name, samples in json.loads(path.read_bytes()).items()}
        except (OSError, ValueError, TypeError, AttributeError):  # no JSON, or none of this kind
            damaged.append(path)
            continue
        for name, samples in marks.items():
            reached[name] = max(reached.get(name, -1), samples)
    if damaged:
        text = "%s: %s cannot be read: values may be logged twice; training goes on"
        _log.warning(text, tracker, damaged[0])
    return reached
