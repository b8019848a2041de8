"""Jobs beside one that takes all it can get, and GPUs of others that a job tries to open.

A small machine is a control group with limits of its own, in which two units run: without limits for each of
them, one that takes all leaves the other without memory, cores or processes. Plain character devices stand
for GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from benchmarks.parts.figure import Figure, NotMeasurableError
from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.cgroup import UnitCgroup, find_place
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Handle, StartedUnit, Unit, UnitStatus, read_record

TRIALS: Final = 50
UNPROTECTED: Final = 3
MEMORY: Final = 240 << 20
CORES: Final = 0.8
PROCESSES: Final = 1100
LEAST_PART: Final = 0.3
"""Of the processor time that both had, for a neighbour that wants as much as it can get."""
ENDS_S: Final = 60.0
DEVICES: Final = {"GPU-zero": 5, "GPU-full": 7, "GPU-random": 8, "GPU-urandom": 9}
"""Minors of the memory devices, by the UUIDs that they get."""

_HIDES: Final = """
import os, time
os.environ.clear()
if {hides}:
    os.fork() and time.sleep(60)
    os.setsid()
    os.fork() and os._exit(0)
"""
_HOGS: Final = {
    "memory": "while True:\n    held = b'x' * ({size} << 22)\n    os.fork() or time.sleep(60)\n",
    "cores": "for _ in range({size}):\n    os.fork()\nwhile True:\n    pass\n",
    "processes": "while True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(1)\n",
}
_NEIGHBOUR: Final = """
import os, sys, threading, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
began_s = time.monotonic()
while time.monotonic() - began_s < 1.0:
    held = bytearray(40 << 20)
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    thread.join()
print(time.process_time())
"""
_OPENS: Final = """
import json, os, sys
if {hides} and os.fork():
    os.wait()
    sys.exit()
os.setsid() if {hides} else None
opened = []
for name, minor in json.loads(sys.argv[2]).items():
    for path in (f"{{sys.argv[1]}}/{{name}}", f"{{sys.argv[1]}}/own-{{os.getpid()}}-{{name}}"):
        try:
            if not os.path.exists(path):
                os.mknod(path, 0o600 | 0o020000, os.makedev(1, minor))
            os.close(os.open(path, os.O_RDONLY))
            opened.append(name)
        except OSError:
            pass
print(json.dumps(sorted(set(opened))))
"""


def figures(trials: int = TRIALS, unprotected: int = UNPROTECTED) -> list[Figure]:
    if len(find_place().parents) < 4 or os.geteuid() != 0:
        raise NotMeasurableError("it takes root, and control groups for memory, cores, processes and devices")
    without = sum(is_hurt(seed, isolation=False) for seed in range(unprotected))
    return [
        Figure("neighbours_hurt_by_a_hog", float(sum(map(is_hurt, range(trials)))), "jobs", 0.0),
        Figure("neighbours_hurt_without_isolation", without / max(1, unprotected), "of jobs"),
        Figure("foreign_devices_opened", float(sum(map(opened_of_others, range(trials)))), "devices", 0.0),
    ]


class TwoUnits:
    """Units side by side on one node with a slot for each.

    :param machine: the group that they start in.
    """

    def __init__(self, folder: Path, machine: UnitCgroup, *, isolation: bool = True) -> None:
        self._machine = machine
        node = {"name": "here", "gpus": 2, "memory": MEMORY, "cpus": CORES}
        self._folder = folder
        self.backend = LocalBackend(
            Cluster.model_validate({"nodes": (node,), "slots": "cpu", "isolation": isolation}), folder
        )

    def start(self, job: str, script: str, *words: str, gpus: str = "") -> Handle:
        handle = Handle(job, 1, self._folder / job / "attempts" / "1")
        env = {"PLIANT_JOB_DIR": str(self._folder / job), "CUDA_VISIBLE_DEVICES": gpus}
        self._machine.join()
        self.backend.start(handle, [Unit("here", (sys.executable, "-c", script, *words), "/", env, slots=1)])
        self._machine.leave()
        return handle

    def ended(self, handle: Handle) -> UnitStatus:
        until_s = time.monotonic() + ENDS_S
        while (status := self.backend.poll([handle])[handle][0]).state == "running":
            if time.monotonic() > until_s:
                return status
            time.sleep(0.02)
        return status

    def output(self, handle: Handle) -> str:
        return handle.files.launcher_log(0).read_text()


def is_hurt(seed: int, *, isolation: bool = True) -> bool:
    """Whether a job fails, or gets far less than its share of the cores, beside one that takes all."""
    rng, kind = random.Random(seed), [*_HOGS][seed % 3]  # noqa: S311 - the same trials in each run
    hides = rng.random() < 0.5
    script = _HIDES.format(hides=hides) + _HOGS[kind].format(size=rng.randint(2, 4))
    with tempfile.TemporaryDirectory() as name, small_machine() as machine:
        folder = Path(name).resolve()
        gate = folder / "gate"
        units = TwoUnits(folder / "jobs", machine, isolation=isolation)
        neighbour = units.start("neighbour", _NEIGHBOUR, str(gate))
        hog = units.start("hog", script)
        time.sleep(0.5)
        taken_s = _used_s(hog)
        gate.touch()
        found = units.ended(neighbour)
        taken_s = _used_s(hog) - taken_s
        units.backend.stop(hog, "kill")
        units.ended(hog)
        units.backend.stop(hog, "kill")
        if found.code != 0:
            return True
        had_s = float(units.output(neighbour))
        return kind == "cores" and had_s < LEAST_PART * (had_s + taken_s)


def _used_s(handle: Handle) -> float:
    """Processor time of what runs of a job."""
    found = 0.0
    record = read_record(handle)
    for unit in record.units if record else ():
        for pid in _processes(unit):
            with contextlib.suppress(psutil.Error):
                found += sum(psutil.Process(pid).cpu_times()[:2])
    return found


def _processes(unit: StartedUnit) -> set[int]:
    if unit.groups:
        return UnitCgroup(unit.groups).pids()
    with contextlib.suppress(psutil.Error):
        return {each.pid for each in psutil.Process(unit.pid).children(recursive=True)}
    return set()


@contextlib.contextmanager
def small_machine() -> Iterator[UnitCgroup]:
    """A control group with little of everything."""
    machine = find_place().group(f"pliant-machine-{os.getpid()}", memory=MEMORY, cpus=CORES, pids=PROCESSES)
    machine.make()
    try:
        yield machine
    finally:
        machine.kill()
        machine.remove()


def opened_of_others(seed: int) -> int:
    """GPUs of others that a job can open, and its own that it cannot."""
    rng = random.Random(seed)  # noqa: S311
    own = rng.sample(sorted(DEVICES), rng.randint(0, 2))
    script = _OPENS.format(hides=rng.random() < 0.5)
    with tempfile.TemporaryDirectory() as name, small_machine() as machine:
        folder = Path(name).resolve()
        for gpu, minor in DEVICES.items():
            os.mknod(folder / gpu, stat.S_IFCHR | 0o600, os.makedev(1, minor))
        units = TwoUnits(folder / "jobs", machine)
        units.backend.limits.devices = {gpu: f"1:{minor}" for gpu, minor in DEVICES.items()}
        handle = units.start("job", script, str(folder), json.dumps(DEVICES), gpus=",".join(own))
        units.ended(handle)
        units.backend.stop(handle, "kill")
        return len({*own} ^ {*json.loads(units.output(handle))})
