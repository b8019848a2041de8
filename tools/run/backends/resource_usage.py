"""What a unit uses of its host, as its supervisor sees it: CPUs, memory and GPUs of all that it has started.

The supervisor imports this by its path, without packages, so NVML is called through ``ctypes``. What cannot
be measured is null; an error here ends nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from collections import deque

WINDOW_S = 60.0
"""Seconds of the moving average that is reported."""
WIDTH = 240
"""Bytes of the file, whose one line is padded: it is written in place, so its folder does not change."""
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NEW = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PARENT, _USER, _SYSTEM, _START, _RESIDENT = 1, 11, 12, 19, 21
"""Fields of ``stat`` after the name of the process."""


class TreeMeter:
    """Measures at each :meth:`look`, and writes the newest means to a file.

    :param gpus: their names, as in CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, path: str, gpus: str = "") -> None:
        self._path = path
        self._gpus = GpuMeter([name for name in gpus.split(",") if name])
        # CPU seconds of each process, by pid and start; those that have ended are still counted.
        self._cpu_s: dict[tuple[int, int], float] = {}
        self._gpu_s = self._gpu_memory_s = 0.0
        # Time and CPU seconds of the first look.
        self._began: tuple[float, float] | None = None
        # (time, CPU seconds, GPU seconds) of the looks within the window.
        self._points: deque[tuple[float, float, float]] = deque()

    def look(self) -> None:
        """An error of the system only leaves the file as it is."""
        with contextlib.suppress(OSError, ValueError):
            now_s, memory = time.monotonic(), self._look_at_tree()
            busy, gpu_memory, full = self._gpus.look()
            if busy is not None and full is not None and self._points:
                self._gpu_s += busy * (now_s - self._points[-1][0])
                self._gpu_memory_s += full * (now_s - self._points[-1][0])
            self._points.append((now_s, sum(self._cpu_s.values()), self._gpu_s))
            began_s, before_s = self._began = self._began or self._points[0][:2]
            while len(self._points) > 2 and self._points[1][0] <= now_s - WINDOW_S:
                self._points.popleft()
            first, last = self._points[0], self._points[-1]
            span_s = last[0] - first[0]
            if span_s > 0:
                gpus = None if busy is None else (last[2] - first[2]) / span_s
                whole_gpu_s = None if busy is None else (self._gpu_s, self._gpu_memory_s)
                whole = (now_s - began_s, last[1] - before_s, *(whole_gpu_s or (None, None)))
                self._write((last[1] - first[1]) / span_s, memory, gpus, gpu_memory, whole)

    def _look_at_tree(self) -> int:
        """Take note of the CPU time of all descendants; returns their resident memory."""
        memory = 0
        for pid, fields in descendants(os.getpid()).items():
            used_s = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICK
            self._cpu_s[pid, int(fields[_START])] = used_s
            memory += int(fields[_RESIDENT]) * _PAGE
        return memory

    def _write(
        self,
        cpus: float,
        memory: int,
        gpus: float | None,
        gpu_memory: int | None,
        whole: tuple[float | None, ...],
    ) -> None:
        """:param whole: since the first look: seconds, CPU seconds, busy GPU seconds, and GPU seconds times
        the part of the memory that was taken.
        """
        usage = {
            "cpus": round(cpus, 3),
            "memory": memory,
            "gpus": None if gpus is None else round(gpus, 3),
            "gpu_memory": gpu_memory,
            "whole": [None if each is None else round(each, 1) for each in whole],
        }
        descriptor = os.open(self._path, _NEW, 0o600)
        try:
            os.pwrite(descriptor, json.dumps(usage).encode().ljust(WIDTH - 1) + b"\n", 0)
        finally:
            os.close(descriptor)


def descendants(root: int) -> dict[int, list[bytes]]:
    """The fields of ``/proc/PID/stat`` after the name, of all processes below one; it is left out itself."""
    fields_of: dict[int, list[bytes]] = {}
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            below.setdefault(int(fields[_PARENT]), []).append(int(name))
        except (OSError, IndexError, ValueError):  # no process, or gone
            continue
        fields_of[int(name)] = fields
    tree, left = dict[int, list[bytes]](), list(below.get(root, ()))
    while left:
        pid = left.pop()
        tree[pid] = fields_of[pid]
        left += below.get(pid, ())
    return tree


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class GpuMeter:
    """The GPUs of a unit, as the driver sees them: NVML, whose functions return 0 if all is well."""

    def __init__(self, names: list[str], library: str = "libnvidia-ml.so.1") -> None:
        self._handles: list[ctypes.c_void_p] = []
        if not names:
            return
        try:
            self._nvml = ctypes.CDLL(library)
            if self._nvml.nvmlInit_v2() == 0:
                self._handles = [handle for name in names if (handle := self._handle(name)) is not None]
        except (OSError, AttributeError):
            return
        if len(self._handles) < len(names):
            self._handles = []

    def _handle(self, name: str) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        if name.isdecimal():
            done = self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            done = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        return handle if done == 0 else None

    def look(self) -> tuple[float | None, int | None, float | None]:
        """How many of them are busy (0.5: one is, half of the time), the bytes that are taken of them, and
        how many have their memory full (0.5: of one a half is).

        Returns None for what the driver does not say, as of the instances of a GPU in MIG mode.
        """
        busy, taken, full = 0.0, 0, 0.0
        for handle in self._handles:
            rates, memory = _Rates(), _Memory()
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)):
                return None, None, None
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
                return None, None, None
            busy += rates.gpu / 100
            taken += memory.used
            full += memory.used / memory.total if memory.total else 0.0
        return (busy, taken, full) if self._handles else (None, None, None)
