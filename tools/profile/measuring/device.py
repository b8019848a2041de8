"""Clocks and memory meters of the two kinds of device, and the load of other processes.

Every figure is the largest over all workers, so that all of them come to the same conclusions.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch
import torch.distributed as dist

LEAST_SHARE: Final = 0.02
"""Of its times that a worker on a CPU slot has had to itself; a smaller share cannot be told from none."""


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
        self.of_steps = 0.0
        """As :meth:`share`, set by it, for the thread that trains alone: what its steps take longer by."""
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
        found = [max(0.0, min(each_s, others_s)) / passed_s for each_s in (waited_s, trainer_s)]
        share, self.of_steps = (round(min(1.0, each), 4) for each in largest(found, self._device))
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
