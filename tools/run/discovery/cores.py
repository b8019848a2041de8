"""What of this machine's processors and memory this process may use: affinity and cgroup limits count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_UNLIMITED: Final = 1 << 60
"""From here on a limit of memory in bytes is none: version 1 writes a very large number."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The share of this machine that is ours."""

    cores: int
    """Physical cores that this process may run on."""
    quota: float | None
    """Processors' time that its cgroup may use, in processors; None: as much as there is."""
    memory: int
    """Bytes of main memory, the cgroup's limit where that is less."""

    @property
    def cpus(self) -> float:
        """Cores' worth of time."""
        return self.cores if self.quota is None else min(self.cores, self.quota)

    @property
    def slots(self) -> int:
        """CPU slots: workers that each have a core for themselves. At least one."""
        return max(1, int(self.cpus))


def this_machine(root: Path = Path("/")) -> Machine:
    """What this process may use.

    :param root: where ``proc`` and ``sys`` are.
    """
    folders = list(_cgroups(root))
    quotas = [quota for folder in folders if (quota := _quota(folder)) is not None]
    limits = [limit for folder in folders if (limit := _memory_limit(folder)) is not None]
    return Machine(
        cores=_cores(os.sched_getaffinity(0), root),
        quota=min(quotas, default=None),
        memory=min([psutil.virtual_memory().total, *limits]),
    )


def _cores(cpus: set[int], root: Path) -> int:
    """Physical cores of these logical processors; each is one where the system does not say."""
    topology = root / "sys/devices/system/cpu"
    return len({_text(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def _cgroups(root: Path) -> Iterator[Path]:
    """The folders of this process's cgroups with those above them: a limit holds for all below it."""
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        base = top / names if names else top
        inside = base / path.lstrip("/")
        yield from (folder for folder in (inside, *inside.parents) if folder.is_relative_to(base))


def _quota(folder: Path) -> float | None:
    """Processors, by either version of cgroups."""
    limit, _, period = _text(folder / "cpu.max").partition(" ")
    if not limit:
        limit, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if not (limit.isdecimal() and period.isdecimal() and int(limit) and int(period)):
        return None
    return int(limit) / int(period)


def _memory_limit(folder: Path) -> int | None:
    """Bytes, by either version of cgroups."""
    limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
    return int(limit) if limit.isdecimal() and 0 < int(limit) < _UNLIMITED else None


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""
