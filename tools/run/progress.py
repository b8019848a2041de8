"""How a script without the elastic library says how far it is, and hears that it is to save and leave.

It needs the standard library only, so any script can import it::

    from pliant.tools.run.progress import TrainingProgress

    progress = TrainingProgress(global_batch=256)
    step = load_newest_checkpoint()              # the script's own
    while step < steps:
        ...                                      # forward, backward, optimizer.step()
        step += 1
        leaving = progress.step(step, loss=loss)
        if leaving or step % 1000 == 0:
            save_checkpoint(step)                # the script's own, on all ranks
            progress.saved(step)
        if leaving:
            progress.leave()
    progress.done()

All ranks make these calls. Rank 0 writes the file that ``PLIANT_PROGRESS`` names, a
:class:`~pliant.tools.run.statedir.contract.plan.Progress`, about once a second. Without that variable (under
plain ``python`` or ``torchrun``) nothing is written and ``step`` returns False. docs/relaunch.md has the
format for scripts in other languages.

A stop is asked for by a file, not by a signal: a signal reaches the ranks at different steps, also their
data-loading processes, and torchrun kills what has not ended 30 s after one. The file that ``PLIANT_STOP``
names is empty at first. Once it holds a word, rank 0 replaces that by the number of the step after which all
ranks save; they look at every step. So they agree without an exchange, as long as no rank is ahead of
another by more steps than :data:`AHEAD` allows. SIGTERM and SIGUSR1 count as such a request, too, unless the
script has handlers of its own.

Under ``pliant profile`` the script's own steps are timed, then it ends. It trains with its own batch, which
no other party can change, so a launch measures one configuration: the samples of a rank, and the micro-steps
that keep the job's batch. All ranks end after the same number of steps.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

ENV_PROFILE: Final = "PLIANT_PROFILE"
_VISITS: Final = 3
"""Measurements of a configuration; the fastest one that another confirms counts."""


class _ScriptMeasurement:
    """Times the steps of one rank.

    :param request: the file with the request.
    """

    def __init__(self, request: Path, rank: int) -> None:
        asked: dict[str, Any] = json.loads(request.read_bytes())
        # The job's batch, as far as the request knows it.
        self.batch: int | None = max(asked.get("global_batches", ()), default=None)
        self.local_batch, self.accum, self.parameters = 1, 1, 0
        self._result, self._main = Path(asked["result"]), rank == 0
        self._warmup, self._steps = max(1, asked["warmup"]), asked["iterations"]
        self._seen = 0
        self._first_s: float | None = None
        self._before_s = 0.0
        self._step_s: list[float] = []
        self._points: list[dict[str, Any]] = []

    def step(self, memory: int) -> None:
        """A step is done.

        :param memory: most bytes that this process has held.
        :raises SystemExit: all is measured.
        """
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.monotonic()
        self._seen += 1
        if self._first_s is None:
            self._first_s = time.time()
            self._write(torch, done=False)
        if self._seen > self._warmup:
            self._step_s.append(now - self._before_s)
        self._before_s = now
        if len(self._step_s) == self._steps:
            self._end_visit(memory)
            self._write(torch, done=len(self._points) == _VISITS)
        if len(self._points) == _VISITS:
            self._leave(torch)

    def _end_visit(self, memory: int) -> None:
        point = {"local_batch": self.local_batch, "accum": self.accum, "peak_memory": memory}
        self._points.append({**point, "step_s": self._step_s})
        self._step_s = []

    def _write(self, torch: Any, *, done: bool) -> None:
        if not self._main:
            return
        document = {
            "points": self._points,
            "parameters": self.parameters,
            "torch": "" if torch is None else str(torch.__version__),
            "first_step_s": self._first_s,
            "done": done,
        }
        temporary = self._result.with_name(f"{self._result.name}.tmp")
        temporary.write_text(json.dumps(document))
        temporary.replace(self._result)

    def _leave(self, torch: Any) -> None:
        """:raises SystemExit: always."""
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        sys.exit()


def _measurement_from_env(rank: int, environ: Mapping[str, str] = os.environ) -> _ScriptMeasurement | None:
    """Returns None if this process is to train, not to be measured."""
    path = environ.get(ENV_PROFILE)
    return _ScriptMeasurement(Path(path), rank) if path else None


ENV_PROGRESS: Final = "PLIANT_PROGRESS"
ENV_STOP: Final = "PLIANT_STOP"
ENV_BATCH: Final = "PLIANT_BATCH"
REQUESTED: Final = "asked"
"""Content of the file that asks to stop, before rank 0 names the step."""
AHEAD: Final = 8
"""On GPUs, Python runs ahead of the device. It waits for it once in this number of steps, and that is how far
ahead rank 0 names the last step. On CPUs ranks are apart by one step at most."""
_LEAST_STEPS: Final = 3
"""The fewest steps whose mean counts as the time of a step."""
_NUMBER: Final = "0123456789"


class TrainingProgress:
    """What one rank of a script says of its training.

    :param global_batch: samples of an optimizer step over all ranks; by default ``batch.size`` of the job,
        else 1, so that samples count steps.
    :param world_size: ranks that train together; by default what torchrun says.
    :param main: whether this rank writes; by default that of rank 0.
    """

    def __init__(
        self,
        global_batch: int | None = None,
        *,
        world_size: int | None = None,
        main: bool | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.rank = int(environ.get("RANK", "0"))
        self.world_size = int(environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
        # The script was asked to stop, and is to leave after this step or soon.
        self.stopping = False
        self._main = self.rank == 0 if main is None else main
        named, stop = environ.get(ENV_PROGRESS), environ.get(ENV_STOP)
        self._path = Path(named) if named else None
        self._stop = Path(stop) if stop else None
        batch = environ.get(ENV_BATCH)
        self._stated = int(batch) if batch else None
        # What `pliant profile` asked for; None if the script is to train.
        self.measurement = _measurement_from_env(self.rank, environ)
        if self.measurement is not None:
            self._stated = self.measurement.batch
        self._warned = set[str]()
        self._head: dict[str, Any] = {}
        self._every_s = 1.0
        self._open(global_batch)
        self._fields: dict[str, Any] = {}
        self._loss: Any = None
        self._saved: dict[str, Any] | None = None
        self._saved_s = 0.0
        self._due_s = 0.0
        self._began_s: float | None = None
        # (time, step, samples) of the last write, for the speed since then.
        self._first: tuple[float, int, float] | None = None
        self._leaves = self._signalled = False
        self.listen(instead=False)

    @property
    def global_batch(self) -> int:
        """Samples of an optimizer step over all ranks."""
        batch: int = self._head["global_batch"]
        return batch

    def accumulate(self, per_rank: int, own: int = 1) -> int:
        """Micro-steps of an optimizer step that keep the job's ``batch.size`` on this number of ranks.

        If the job states none, that is what the script chose.

        :param per_rank: samples of one rank in one micro-step.
        :param own: micro-steps that the script chose.
        :raises SystemExit: with code 2, where they cannot keep it: other weights would be trained. ``pliant
            profile`` measures the nearest batch.
        """
        together = per_rank * self.world_size
        steps = own if self._stated is None else max(1, round(self._stated / together))
        if self.measurement is not None:
            self.measurement.local_batch, self.measurement.accum = per_rank, steps
        if self.measurement is None and self._stated not in (None, steps * together):
            self._refuse_batch(per_rank, self._stated or 0)
        self.trains(steps * together, f" with {per_rank} samples each")
        return steps

    def _refuse_batch(self, per_rank: int, stated: int) -> None:
        if self._main:
            sizes = [size for size in range(1, stated // per_rank + 1) if not stated % (size * per_rank)]
            on_these = f'let it have "sizes": {sizes} in its gpus, or ' if sizes else ""
            print(
                f"pliant: error: the job's batch of {stated} cannot be kept on {self.world_size} workers "
                f"with {per_rank} samples each: {on_these}give each worker fewer samples",
                file=sys.stderr,
            )
        sys.exit(2)

    def trains(self, samples: int, how: str = "") -> None:
        """A step trains so many samples over all ranks, with a warning if the job states others.

        :param how: what keeps the ranks from the job's batch, for the warning.
        """
        self._head["global_batch"] = samples
        if self._stated not in (None, samples):
            self.warn(
                f"the job's batch of {self._stated} cannot be kept on {self.world_size} workers{how}: "
                f"{samples} are trained in a step"
            )

    def warn(self, text: str) -> None:
        """Say on stderr what is not as it should be; each text once."""
        if self._main and text not in self._warned:
            self._warned.add(text)
            print(f"pliant: {text}", file=sys.stderr)

    def step(
        self, step: int, *, loss: Any = None, epoch: int | None = None, samples: float | None = None
    ) -> bool:
        """A step is done. Returns whether all ranks are to save and to leave now.

        :param step: optimizer steps done, over all starts of the job.
        :param loss: of this step; a tensor is read only when it is written, about once a second.
        :param epoch: complete epochs.
        :param samples: trained so far; by default steps times the global batch.
        :raises SystemExit: ``pliant profile`` has measured enough steps.
        """
        if self.measurement is not None:
            self.measurement.step(_memory())
            return False
        _wait_for_gpu(step)
        self._fields["step"] = step
        self._fields["samples_done"] = step * self.global_batch if samples is None else samples
        if epoch is not None:
            self._fields["epoch"] = epoch
        if loss is not None:
            self._loss = loss
        self._leaves = self._is_to_leave(step)
        if self._began_s is None:
            self._began_s = time.monotonic()
        if time.monotonic() >= self._due_s:
            self._write()
        return self._leaves

    def saved(self, step: int, *, seconds: float = 0.0, samples: float | None = None) -> None:
        """All that is needed to go on after this step is on disk. Work beyond it counts as not done.

        :param seconds: that the save took.
        """
        samples = step * self.global_batch if samples is None else samples
        self._saved = {"step": step, "samples_done": samples, "seconds": seconds}
        self._saved_s = time.monotonic()
        self._fields.setdefault("step", step)
        self._fields.setdefault("samples_done", samples)
        if self._leaves:
            self._fields["ended"] = "stopped"
        self._write()

    def leave(self) -> NoReturn:
        """End this process at once, with code 0, after a save.

        To take an interpreter with PyTorch down takes most of the time from the save to the end of the job.
        Nothing that is registered for the exit is done: a script with loggers that need it calls
        ``sys.exit()``.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def done(self) -> None:
        """The training is complete: the job is not started again."""
        self._fields["ended"] = "done"
        self._write()

    def _open(self, global_batch: int | None) -> None:
        """Read from the job's plan what the file begins with."""
        plan: dict[str, Any] = {}
        if self._path is not None:
            try:
                plan = json.loads(self._path.with_name("plan.json").read_bytes())
                self._head = {name: plan[name] for name in ("job", "attempt", "generation")}
            except (OSError, ValueError, KeyError) as error:
                self._disable(error)
        self._every_s = plan.get("progress_s", self._every_s)
        batch = global_batch or self._stated or 1
        self._head |= {"gpus": self.world_size, "global_batch": batch, "rank": self.rank}
        if self.measurement is not None:
            self.measurement.local_batch = -(-batch // self.world_size)

    def listen(self, *, instead: bool = True) -> None:
        """Take SIGTERM and SIGUSR1 as requests to stop, under a launcher.

        :param instead: also where something else has a handler.
        """
        if self._stop is None or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGUSR1):
            if instead or signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
                signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True

    def _is_to_leave(self, step: int) -> bool:
        if self._stop is None:
            return False
        try:
            asked = self._stop.read_text().strip()
            if self._signalled and not asked:
                asked = replace(self._stop, REQUESTED, self.rank)
            if asked and not _is_number(asked) and (self.rank == 0 or self.world_size == 1):
                asked = replace(self._stop, str(step + self._ahead()), self.rank)
        except OSError:  # the next look may succeed
            return False
        self.stopping = bool(asked)
        return _is_number(asked) and step >= int(asked)

    def _ahead(self) -> int:
        if self.world_size == 1:
            return 0
        return 1 if _cuda() is None else AHEAD

    def _write(self) -> None:
        if self._path is None or not self._main or "step" not in self._fields:
            return
        now = time.monotonic()
        self._due_s = now + self._every_s
        document = {
            "schema": "pliant.progress/1",
            **self._head,
            "epoch": 0,
            **self._fields,
            **self._speed(now),
            "memory": _memory(),
            "warnings": len(self._warned),
            "watches_stop": self._stop is not None,
        }
        if self._began_s is not None:
            document["since_first_step_s"] = now - self._began_s
        if (loss := _finite(self._loss)) is not None:
            document["loss"] = loss
        if self._saved is not None:
            document["checkpoint"] = {**self._saved, "age_s": now - self._saved_s}
        try:
            replace(self._path, json.dumps(document), self.rank)
        except OSError as error:
            self._disable(error)

    def _speed(self, now: float) -> dict[str, float]:
        step, samples = self._fields["step"], self._fields["samples_done"]
        before, speed = self._first, dict[str, float]()
        if before is not None and now > before[0] and step > before[1]:
            speed["samples_per_second"] = max(0.0, samples - before[2]) / (now - before[0])
            if step - before[1] >= _LEAST_STEPS:
                speed["step_seconds"] = (now - before[0]) / (step - before[1])
        if before is None or step > before[1]:
            self._first = now, step, samples
        return speed

    def _disable(self, error: Exception) -> None:
        print(f"pliant: no progress is reported: {self._path}: {error}", file=sys.stderr)
        self._path = None


def replace(path: Path, text: str, rank: int) -> str:
    """Replace a small file as a whole; returns the text.

    :raises OSError: it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{rank}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(temporary, flags, 0o600), "w") as file:
        file.write(f"{text}\n")
    temporary.replace(path)
    return text


def _is_number(text: str) -> bool:
    return bool(text) and not text.strip(_NUMBER)


def _cuda() -> Any:
    """PyTorch's module for GPUs; None if the script does not use any."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _wait_for_gpu(step: int) -> None:
    if step % AHEAD == 0 and (cuda := _cuda()) is not None:
        cuda.synchronize()


def _memory() -> int:
    """Most bytes that this process has held: of its GPU, or of main memory if it uses none."""
    if (cuda := _cuda()) is not None:
        return int(cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _finite(value: Any) -> float | None:
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None
