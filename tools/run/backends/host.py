"""What is on this machine: its GPUs, and processes.

GPUs are those that the NVIDIA driver lists, and those of them that may be used. A GPU in MIG mode stands for
its instances, which are devices with names and memory of their own.

Processes are started here, and ours are distinguished from others with the same pid.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import psutil

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.backends.protocol import bad_cluster

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or an instance of one in MIG mode."""

    name: str
    """Its UUID, which CUDA_VISIBLE_DEVICES takes independently of CUDA's order of devices."""
    card: str
    """UUID of the GPU that it is or is an instance of."""
    number: int
    """Number of that GPU in the driver's order."""
    model: str
    """Model name of the driver: ``NVIDIA A100-SXM4-40GB``, of an instance ``… MIG 1g.5gb``."""
    memory: int
    """Bytes."""
    place: str = ""
    """Older name of an instance, by its numbers: ``MIG-GPU-…/1/0``."""


@dataclass(frozen=True, slots=True)
class GpuListing:
    """What the driver says."""

    driver: str
    gpus: tuple[Gpu, ...]
    faults: tuple[str, ...] = ()
    """GPUs that cannot be used, with reasons."""


def visible_gpus(env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that ``env`` leaves to CUDA, in its order."""
    return visible_of(list_gpus().gpus, env.get(VISIBLE))


def visible_of(gpus: Sequence[Gpu], names: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names (None if it is not set: all of them).

    As for CUDA, the first name that is not a GPU's ends the list.
    """
    if names is None:
        return tuple(gpus)
    visible: dict[Gpu, None] = {}
    for name in names.split(","):
        gpu = named(gpus, name.strip())
        if gpu is None:
            break
        visible[gpu] = None
    return tuple(visible)


def named(gpus: Sequence[Gpu], name: str) -> Gpu | None:
    """The GPU with that number, UUID or unique beginning of a UUID, or the instance with these numbers.

    A number or the UUID of a GPU in MIG mode means its first instance, as for CUDA.
    """
    if name.isdecimal():
        return next((gpu for gpu in gpus if str(gpu.number) == name), None)
    if not name.startswith(("GPU-", "MIG-")):
        return None
    if "/" in name and (there := next((gpu for gpu in gpus if name in (gpu.name, gpu.place)), None)):
        return there
    meant = {gpu.name if name.startswith("MIG-") else gpu.card: gpu for gpu in reversed(gpus)}
    matching = [gpu for uuid, gpu in meant.items() if uuid.startswith(name)]
    return matching[0] if len(matching) == 1 else None


def devices_by_node(cluster: Cluster, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
    """The names of each node's GPUs: those that it states, else the next that no other node states.

    :raises BadInputError: a stated GPU does not exist or is stated twice, or there are too few.
    """
    if cluster.total_gpus > len(gpus):
        text = f"{cluster.total_gpus} GPUs on the local backend, this machine has {len(gpus)} to use"
        raise bad_cluster(text)
    nodes = cluster.expanded()
    claimed = [_claimed(node, gpus) for node in nodes]
    taken = [name for names in claimed for name in names]
    if twice := sorted({name for name in taken if taken.count(name) > 1}):
        raise bad_cluster(f"the device {twice[0]} is named twice")
    left = iter([gpu.name for gpu in gpus if gpu.name not in taken])
    return [
        names or tuple(next(left) for _ in range(node.gpus))
        for node, names in zip(nodes, claimed, strict=True)
    ]


def _claimed(node: Node, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    claimed = {name: named(gpus, name) for name in node.devices}
    for name, gpu in claimed.items():
        if gpu is None:
            where = f"is not there, or {VISIBLE} leaves it out"
            raise bad_cluster(f"the device {name} of node {node.name} {where}: see pliant cluster discover")
    return tuple(gpu.name for gpu in claimed.values() if gpu is not None)


def list_gpus() -> GpuListing:
    """What the driver reports; GPUs that cannot be used are listed as faults.

    :raises ServiceMissingError: the NVML bindings are not installed, or there is no driver.
    """
    with _nvml() as nvml:
        gpus: list[Gpu] = []
        faults = []
        for number in range(nvml.nvmlDeviceGetCount()):
            try:
                on_card = _on_card(nvml, number)
            except nvml.NVMLError as error:
                faults.append(f"GPU {number}: {error}")
                continue
            gpus += on_card
            if not on_card:
                faults.append(f"GPU {number} is in MIG mode and has no instances")
        return GpuListing(nvml.nvmlSystemGetDriverVersion(), tuple(gpus), tuple(faults))


def processes_on(gpus: Sequence[Gpu]) -> dict[str, list[int]]:
    """Ids of the processes that compute on each card, by its UUID; empty if the driver does not say.

    :raises ServiceMissingError: the driver cannot be asked.
    """
    pids: dict[str, list[int]] = {}
    with _nvml() as nvml:
        for card in dict.fromkeys(gpu.card for gpu in gpus):
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(card)
                pids[card] = sorted({each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)})
            except nvml.NVMLError:
                pids[card] = []
    return pids


@contextmanager
def _nvml() -> Iterator[Any]:
    try:
        import pynvml
    except ImportError:
        raise ServiceMissingError(
            "GPU slots are counted with nvidia-ml-py, which is not installed: pip install 'pliant[gpu]', "
            'or use a cluster with "slots": "cpu"'
        ) from None
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise ServiceMissingError(f"the NVIDIA driver cannot be asked for its GPUs: {error}") from error


def _on_card(nvml: Any, number: int) -> list[Gpu]:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    card = nvml.nvmlDeviceGetUUID(handle)
    sliced = _in_mig_mode(nvml, handle)
    return [
        Gpu(
            name=nvml.nvmlDeviceGetUUID(each),
            card=card,
            number=number,
            model=nvml.nvmlDeviceGetName(each),
            memory=int(nvml.nvmlDeviceGetMemoryInfo(each).total),
            place=_place(nvml, card, each) if sliced else "",
        )
        for each in (_instances(nvml, handle) if sliced else [handle])
    ]


def _place(nvml: Any, card: str, instance: Any) -> str:
    try:
        numbers = nvml.nvmlDeviceGetGpuInstanceId(instance), nvml.nvmlDeviceGetComputeInstanceId(instance)
    except nvml.NVMLError:
        return ""
    return "/".join([f"MIG-{card}", *map(str, numbers)])


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # a GPU or driver without MIG
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _instances(nvml: Any, handle: Any) -> list[Any]:
    instances = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:  # none of that number
            continue
    return instances


_PROC: Final = Path("/proc")
_START_TICKS: Final = 19
"""The field of ``stat`` after the name with a process's start, in ticks since boot."""
_ENDED: Final = frozenset(("Z", "X", ""))
"""States of a process that has ended, whether or not it was reaped."""
_STOPPED: Final = "T"
_STAT_BYTES: Final = 4096
_LOOK_S: Final = 1.0
"""Seconds between two checks whether a launcher is stopped."""
_SURE_S: Final = 1.0
"""Seconds for which a recognised pid is trusted."""


def spawn(argv: tuple[str, ...], env: Mapping[str, str], output: BinaryIO, told: bytes = b"") -> int:
    """Start a process in a session of its own, with its output appended to a log; returns its pid.

    :param told: what it finds on its standard input.
    """
    with _input(told) as source:
        descriptors = ((source.fileno(), 0), (output.fileno(), 1), (output.fileno(), 2))
        return os.posix_spawnp(
            argv[0],
            argv,
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, source, to) for source, to in descriptors],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD),
        )


def _input(told: bytes) -> BinaryIO:
    """In memory, as it may be more than fits into a pipe, and holds secrets."""
    if not told:
        return open(os.devnull, "rb")
    file = open(os.memfd_create("pliant"), "w+b")  # noqa: SIM115 - the caller closes it
    file.write(told)
    file.seek(0)
    return file


def birth(pid: int) -> str:
    """Distinguishes a process from others with its pid: the boot id and the start in ticks since boot.

    Setting the clock does not change it. Without ``/proc``, the time of the start.

    :raises psutil.NoSuchProcess: it is gone.
    """
    return _identity(pid)[0]


def _identity(pid: int) -> tuple[str, bool]:
    """A process's :func:`birth`, and whether it has not ended yet."""
    if not (_PROC / "self" / "stat").exists():
        process = psutil.Process(pid)
        return str(process.create_time()), process.status() != psutil.STATUS_ZOMBIE
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    state, *rest = text.rpartition(")")[2].split()
    return f"{_boot()} {rest[_START_TICKS - 1]}", state not in _ENDED


class Waker:
    """Continues stopped launchers whose processes have ended, since only they know how.

    A launcher is the supervisor of a unit or the command that it started. Each is checked once a second.
    """

    def __init__(self) -> None:
        self._next_s: dict[int, float] = {}
        # By supervisor, which has adopted its other children.
        self._commands: dict[int, int] = {}
        self._idle: dict[int, bool] = {}

    def look(self, supervisor: int) -> bool:
        """Wake a running supervisor and its command if necessary.

        Returns whether the command is stopped and nothing that it started lives.
        """
        now_s = time.monotonic()
        if now_s >= self._next_s.get(supervisor, now_s):
            self._next_s[supervisor] = now_s + _LOOK_S
            self._idle[supervisor] = self._wake(supervisor)
        return self._idle[supervisor]

    def _wake(self, supervisor: int) -> bool:
        known = self._commands.get(supervisor)
        if known is not None and _STOPPED not in (_state(supervisor), _state(known)):
            return False  # by far the most frequent case; what follows costs twice as much
        children = _children(supervisor)
        command = self._commands.setdefault(supervisor, children[0]) if children else -1
        if _state(supervisor) == _STOPPED and (command not in children or _state(command) in _ENDED):
            _continue(supervisor)
        if _state(command) != _STOPPED:
            return False
        started = _children(command)
        if any(_state(pid) not in _ENDED for pid in started):
            return False
        if started:
            _continue(command)
        return True

    def forget(self, supervisor: int) -> None:
        for known in (self._next_s, self._commands, self._idle):
            known.pop(supervisor, None)


def _continue(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    """The children that a process has not reaped, oldest first; empty if the system does not say."""
    children: list[int] = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return children


def _state(pid: int) -> str:
    try:
        descriptor = os.open(f"{_PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _STAT_BYTES).rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


@cache
def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def find(pid: int, born: str, env: tuple[str, str]) -> psutil.Process | None:
    """The process with that pid if it is alive and ours.

    :param born: its :func:`birth`.
    :param env: a variable and its value that the process was started with.
    """
    try:
        process = psutil.Process(pid)
        if not _still_is(pid, born):
            return None
        return process if process.environ().get(env[0]) == env[1] else None
    except psutil.Error:
        return None


class Watched:
    """Processes that are checked repeatedly: identified once a second, otherwise only by pid.

    A death is noticed at once, or within a second if the pid is reused or the process is not reaped.
    """

    def __init__(self) -> None:
        self._sure_until_s: dict[tuple[int, str], float] = {}

    def runs(self, pid: int, born: str, env: tuple[str, str]) -> bool:
        known, now_s = self._sure_until_s.get((pid, born)), time.monotonic()
        if known is not None and now_s < known and _is_there(pid):
            return True
        if find(pid, born, env) is None if known is None else not _still_is(pid, born):
            self._sure_until_s.pop((pid, born), None)
            return False
        self._sure_until_s[pid, born] = now_s + _SURE_S
        return True


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _still_is(pid: int, born: str) -> bool:
    try:
        return _identity(pid) == (born, True)
    except psutil.Error:
        return False
