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

Clocks and memory meters of the two kinds of device are here, too, and the load of other processes. Every
figure is the largest over all workers, so that all of them come to the same conclusions.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
import torch
import torch.distributed as dist

from pliant.tools.profile.measuring.request import (
    ENV_PROFILE,
    LaunchOutcome,
    MeasurementRequest,
    Point,
    PointSearch,
    Rounds,
    out_of_memory_mark,
)

LEAST_SHARE: Final = 0.02
"""Least share of undisturbed times of a worker on a CPU slot; a smaller one cannot be told from none."""


def world() -> tuple[int, int]:
    """(Number of workers, rank of this one)."""
    return (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)


def largest(values: list[float], device: torch.device) -> list[float]:
    """Element-wise maximum over the workers."""
    return _reduced(values, device, dist.ReduceOp.MAX)


def total(value: float, device: torch.device) -> float:
    """Sum over the workers."""
    return _reduced([value], device, dist.ReduceOp.SUM)[0]


def _reduced(values: list[float], device: torch.device, operation: dist.ReduceOp.RedOpType) -> list[float]:
    if world()[0] == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=operation)
    return [float(value) for value in tensor.tolist()]


class OtherLoad:
    """How much other processes have kept this machine's workers from its cores, since it was made.

    Two signs must come together. A worker's threads were ready and had no core, by the kernel's count, or a
    hypervisor took it: alone, that may be the workers' own doing. And cores worked for other processes:
    alone, those may have been cores that the workers did not need.
    """

    def __init__(self, device: torch.device) -> None:
        # As `share`, set by it, for the thread that trains alone: what its steps take longer by.
        self.of_steps = 0.0
        self._device = device
        self._began = _Load.now()

    def share(self) -> float | None:
        """A fraction of the time, 0 to 1; None if the system does not say. All workers must call it."""
        ended = _Load.now()
        known = self._began is not None and ended is not None
        if largest([float(not known)], self._device)[0] or self._began is None or ended is None:
            return None
        began = self._began
        passed_s = max(1e-9, ended.time_s - began.time_s)
        cores = os.cpu_count() or 1
        stolen_s = max(0.0, ended.stolen_s - began.stolen_s)
        waited_s = max(0.0, ended.waited_s - began.waited_s) + stolen_s / cores
        trainer_s = max(0.0, ended.trainer_s - began.trainer_s) + stolen_s / cores
        others_s = max(0.0, ended.busy_s - began.busy_s) + stolen_s
        waited_s, trainer_s = largest([waited_s, trainer_s], self._device)
        others_s -= total(ended.own_s - began.own_s, self._device)
        # each worker has read the machine's clocks at its own moment
        shares = [max(0.0, min(each_s, others_s)) / passed_s for each_s in (waited_s, trainer_s)]
        share, self.of_steps = (round(min(1.0, each), 4) for each in largest(shares, self._device))
        return share


@dataclass(frozen=True, slots=True)
class _Load:
    time_s: float
    own_s: float
    waited_s: float
    """Time in which its threads were ready and had no core."""
    trainer_s: float
    """The same of the thread that asks."""
    busy_s: float
    """Time of all cores in processes."""
    stolen_s: float
    """Time of all cores that a hypervisor gave to others."""

    @classmethod
    def now(cls) -> Self | None:
        """None if the system does not say."""
        try:
            waits = [
                int((task / "schedstat").read_text().split()[1]) for task in Path("/proc/self/task").iterdir()
            ]
            own_wait = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
            user, nice, system, _idle, _iowait, irq, softirq, stolen = (
                int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
            )
        except (OSError, ValueError, IndexError):
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        busy_s = (user + nice + system + irq + softirq) / ticks
        waited_s, trainer_s = sum(waits) / 1e9, own_wait / 1e9
        return cls(time.monotonic(), time.process_time(), waited_s, trainer_s, busy_s, stolen / ticks)


class CpuDevice:
    """A CPU slot: wall clock, resident memory of the process."""

    def __init__(self, memory_limit: int | None) -> None:
        self.name = "cpu"
        self.driver = ""
        self.torch_device = torch.device("cpu")
        self._limit = memory_limit
        if memory_limit is not None:
            _cap_growth(memory_limit)

    def align(self) -> None:
        largest([0.0], self.torch_device)

    def mark(self) -> object:
        return time.perf_counter()

    def seconds(self, marks: Sequence[tuple[object, object]]) -> list[float]:
        own = [float(end) - float(begin) for begin, end in marks]  # type: ignore[arg-type]
        return largest(own, self.torch_device)

    def reset_peak(self) -> None:
        """Reset the kernel's high-water mark; if not allowed, the peak is that of the whole process."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> int:
        """Largest resident memory of any worker since the reset, bytes."""
        return int(largest([float(_status_bytes("VmHWM"))], self.torch_device)[0])

    def over_limit(self) -> bool:
        return self._limit is not None and self.peak() > self._limit


class CudaDevice:
    """A GPU: events on the current stream, memory that the caching allocator has reserved."""

    def __init__(self, device: torch.device, memory_limit: int | None) -> None:
        self.torch_device = device
        properties = torch.cuda.get_device_properties(device)
        self.name = str(properties.name)
        self.driver = _driver_version()
        self._one = torch.zeros(1, device=device)
        if memory_limit is not None:
            fraction = min(1.0, memory_limit / properties.total_memory)
            torch.cuda.set_per_process_memory_fraction(fraction, device)

    def align(self) -> None:
        """An all-reduce on the stream: the GPUs wait for each other, the hosts run ahead."""
        if world()[0] > 1:
            dist.all_reduce(self._one, op=dist.ReduceOp.MAX)

    def mark(self) -> object:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def seconds(self, marks: Sequence[tuple[object, object]]) -> list[float]:
        torch.cuda.synchronize(self.torch_device)
        own = [begin.elapsed_time(end) / 1e3 for begin, end in marks]  # type: ignore[attr-defined]
        return largest(own, self.torch_device)

    def reset_peak(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def peak(self) -> int:
        """Largest memory reserved by any worker since the reset, bytes."""
        return int(largest([float(torch.cuda.max_memory_reserved(self.torch_device))], self.torch_device)[0])

    def over_limit(self) -> bool:
        """Never: the allocator itself keeps the limit."""
        return False


Device = CpuDevice | CudaDevice


def own_share(device: Device, load: OtherLoad) -> float:
    """Part of a measured time in which others did not keep the workers from their cores; 1 on a GPU."""
    return 1.0 if isinstance(device, CudaDevice) else max(LEAST_SHARE, 1.0 - load.of_steps)


def device_of(device: torch.device, memory_limit: int | None) -> Device:
    if device.type == "cuda":
        return CudaDevice(device, memory_limit)
    return CpuDevice(memory_limit)


def _cap_growth(limit: int) -> None:
    """Make the kernel refuse to give this process another ``limit`` bytes.

    Resident memory is what counts; this only keeps a far too large batch from swamping the machine.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = _status_bytes("VmData") + limit
    caps = [cap for cap in (soft, hard) if cap != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([ceiling, *caps]), hard))


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _driver_version() -> str:
    path = Path("/proc/driver/nvidia/version")
    first = path.read_text().splitlines()[0] if os.access(path, os.R_OK) else ""
    return next((word for word in first.split() if word[:1].isdigit()), "")


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
        # Whether the last micro-batch served ends an optimizer step.
        self.boundary = True
        # Whether its backward pass reduces gradients over the workers.
        self.synchronise = True
        # Samples of the micro-batch.
        self.local_batch = 1
        self._request = request
        self._model = model
        self._dataset_size = dataset_size
        self._batches = batches
        self._changes = changes
        self._workers, self._rank = world()
        self._kinds = 1 if self._workers == 1 else 2
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._device: Device = device_of(parameters[0].device, request.memory_limit)
        self._record = OutcomeRecorder(request, self._rank, sum(p.numel() for p in parameters), self._device)

    def __iter__(self) -> Iterator[Any]:
        """Serve every point of the request, then end the process."""
        self._record.start()
        search = PointSearch(self._request, self._workers)
        while (cut := search.next()) is not None:
            yield from self._serve(*cut)
            search.record(cut, fits=self._record.points[-1].feasible)
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


class OutcomeRecorder:
    """Keeps the outcome of a launch on disk, so that a crash loses only the current point."""

    def __init__(self, request: MeasurementRequest, rank: int, parameters: int, device: Device) -> None:
        self._path = Path(request.result)
        self._launcher_pid = request.launcher_pid
        self._rank = rank
        self._outcome = LaunchOutcome(
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
