"""Inside the workers: carry out a measurement request with the user's own training loop.

The training script knows nothing of it. The elastic library hands over in three places::

    request = request_from_env()                         # None outside of `pliant profile`
    sweep = Sweep(request, model, len(dataset), batches) # in prepare(), after wrapping in DDP
    yield from sweep                                     # in the loader's __iter__; never returns
    if sweep.boundary: …                                 # in the optimizer's step and zero_grad

``model`` is the module that the script calls: a ``DistributedDataParallel`` if there is a process group, else
the bare model. ``batches`` is the library's own way of reading: it takes an endless iterable of index lists
and gives an iterable of what the script's loop receives (read, collated, on the device), so reading costs the
same as in training. :attr:`Sweep.boundary` is False in every micro-step but the last of an optimizer step.
The sweep sets ``model.require_backward_grad_sync`` to :attr:`Sweep.synchronise` before it serves a batch, and
the library must not change it: every other step is timed without synchronisation, boundary or not.

When everything is measured, the sweep destroys the process group and raises ``SystemExit(0)`` out of the
script's loop. While a sweep is served, the library must not catch exceptions of the script:
``sys.excepthook`` detects that it ran out of memory; the launcher then starts again below that batch.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch
import torch.distributed as dist

from pliant.tools.profile.measuring.device import Device, OtherLoad, device_of, own_share, world
from pliant.tools.profile.measuring.request import (
    ENV_PROFILE,
    MeasurementRequest,
    Outcome,
    Point,
    PointSearch,
    Rounds,
    out_of_memory_mark,
)

Batches = Callable[[Iterable[list[int]]], Iterable[Any]]
Marks = tuple[object, object]


def request_from_env() -> MeasurementRequest | None:
    """The request that the environment names; None if this process is to train, not to measure."""
    path = os.environ.get(ENV_PROFILE)
    return MeasurementRequest.model_validate_json(Path(path).read_bytes()) if path else None


@dataclass(frozen=True, slots=True)
class Changes:
    """The library's ways through a change of workers; each gets a folder to use."""

    checkpoint: Callable[[Path], None]
    """Saves the whole state and loads it again; called by one worker."""
    rescale: Callable[[Path], float]
    """Lets the last of several workers join the others; called by all. Returns the seconds it took."""


class Sweep:
    """Serves micro-batches of the sizes under test and times the steps that the script makes of them."""

    def __init__(
        self,
        request: MeasurementRequest,
        model: torch.nn.Module,
        dataset_size: int,
        batches: Batches,
        changes: Changes | None = None,
    ) -> None:
        self.boundary = True
        """Whether the last micro-batch served ends an optimizer step."""
        self.synchronise = True
        """Whether its backward pass reduces gradients over the workers."""
        self.local_batch = 1
        """Samples of the micro-batch."""
        self._request = request
        self._model = model
        self._dataset_size = dataset_size
        self._batches = batches
        self._changes = changes
        self._workers, self._rank = world()
        self._kinds = 1 if self._workers == 1 else 2
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._device: Device = device_of(parameters[0].device, request.memory_limit)
        self._record = Recorder(request, self._rank, sum(p.numel() for p in parameters), self._device)

    def __iter__(self) -> Iterator[Any]:
        """Serve every point of the request, then end the process."""
        self._record.start()
        search = PointSearch(self._request, self._workers)
        while (cut := search.next()) is not None:
            yield from self._serve(*cut)
            search.tell(cut, fits=self._record.points[-1].feasible)
        yield from self._serve_again()
        if self._request.costs and self._changes is not None:
            self._record.costs(self._changes, self._workers)
        self._record.finish()
        if dist.is_initialized():
            dist.destroy_process_group()
        raise SystemExit(0)

    def _serve_again(self) -> Iterator[Any]:
        """Serve points again until their times are settled."""
        rounds = Rounds(self._request)
        while due := rounds.next(self._record.points):
            for point in due:
                yield from self._serve(point.local_batch, point.accum)

    def _serve(self, local: int, accum: int) -> Iterator[Any]:
        """Serve one point; the first in a new process warms up for as long as it measures."""
        fresh, self.local_batch = self._record.is_fresh, local
        self._record.begin(Point(local_batch=local, accum=accum))
        self._device.reset_peak()
        data = iter(self._batches(self._indices(local)))
        warm: list[Marks] = []
        yield from self._rounds(data, accum, max(1, self._request.warmup), warm)
        marks: list[Marks] = []
        if not self._device.over_limit():
            count = self._request.rounds(self._device.seconds(warm[-self._kinds :])[0])
            yield from self._rounds(data, accum, count if fresh else 0, [])
            load = OtherLoad(self._device.torch_device)
            yield from self._rounds(data, accum, count, marks)
        if self._device.over_limit():  # the second batch is read while the first is still held
            self._record.end(Point(local_batch=local, accum=accum, feasible=False))
        else:
            self._record.end(self._point(local, accum, self._device.seconds(marks), load))

    def _rounds(self, data: Iterator[Any], accum: int, count: int, marks: list[Marks]) -> Iterator[Any]:
        """Steps with synchronised gradients; with several workers, every other step without."""
        for number in range(count * self._kinds):
            self._device.align()
            begin = self._device.mark()
            yield from self._step(data, accum, synchronise=number % self._kinds == 0)
            self._record.stepped()
            marks.append((begin, self._device.mark()))

    def _point(self, local: int, accum: int, seconds: list[float], load: OtherLoad) -> Point:
        busy_share = load.share()
        return Point(
            local_batch=local,
            accum=accum,
            step_s=tuple(seconds[:: self._kinds]),
            compute_s=tuple(seconds[1::2]) if self._kinds == 2 else (),
            peak_memory=self._device.peak(),
            busy_share=busy_share,
            own_share=own_share(self._device, load),
        )

    def _step(self, data: Iterator[Any], accum: int, *, synchronise: bool) -> Iterator[Any]:
        for micro in range(accum):
            self.boundary = micro == accum - 1
            self.synchronise = self.boundary and synchronise
            if self._workers > 1:
                self._model.require_backward_grad_sync = self.synchronise  # type: ignore[assignment]
            yield next(data)

    def _indices(self, local: int) -> Iterator[list[int]]:
        choose = random.Random(self._request.seed * self._workers + self._rank)  # noqa: S311 - no secret
        everything = range(self._dataset_size)
        while True:
            yield choose.choices(everything, k=local)


class Recorder:
    """Keeps the outcome of a launch on disk, so that a crash loses only the current point."""

    def __init__(self, request: MeasurementRequest, rank: int, parameters: int, device: Device) -> None:
        self._path = Path(request.result)
        self._launcher_pid = request.launcher_pid
        self._rank = rank
        self._outcome = Outcome(
            parameters=parameters, torch=torch.__version__, device=device.name, driver=device.driver
        )

    @property
    def points(self) -> tuple[Point, ...]:
        return self._outcome.points

    @property
    def is_fresh(self) -> bool:
        return not self._outcome.points

    def start(self) -> None:
        """Record that the sweep has begun, and watch for running out of memory."""
        self._write()
        mark = out_of_memory_mark(self._path)

        def leave_mark(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if is_out_of_memory(error):
                mark.touch()
            sys.__excepthook__(kind, error, trace)

        sys.excepthook = leave_mark

    def begin(self, point: Point) -> None:
        """:raises SystemExit: the launcher was killed, so no process waits for the result."""
        if self._launcher_pid is not None and not psutil.pid_exists(self._launcher_pid):
            raise SystemExit("the measurement was given up: who started it is gone")
        self._change(current=point)

    def end(self, point: Point) -> None:
        self._change(current=None, points=(*self._outcome.points, point))

    def stepped(self) -> None:
        if self._outcome.first_step_s is None:
            self._change(first_step_s=time.time())

    def costs(self, changes: Changes, workers: int) -> None:
        if self._rank == 0:
            began_s = time.monotonic()
            changes.checkpoint(self._path.parent / "checkpoints")
            self._change(checkpoint_s=time.monotonic() - began_s)
        if workers > 1:
            self._change(rehearsing=True)
            self._change(rescale_s=changes.rescale(self._path.parent / "rescale"))

    def finish(self) -> None:
        self._change(done=True, left_s=time.time())

    def _change(self, **fields: object) -> None:
        self._outcome = self._outcome.model_copy(update=fields)
        self._write()

    def _write(self) -> None:
        if self._rank == 0:
            temporary = self._path.with_name(f"{self._path.name}.tmp")
            temporary.write_text(self._outcome.model_dump_json())
            temporary.replace(self._path)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the device or on the host."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    signs = ("can't allocate memory", "cannot allocate memory", "out of memory", "bad_alloc")
    return isinstance(error, (RuntimeError, OSError)) and any(sign in text for sign in signs)
