"""Whose process a unit is: ids, groups, umask, limits and the environment that it begins with."""

from __future__ import annotations

import os
import pwd
import resource
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from pliant.schemas.file_io.record import NonNegativeInt, PositiveInt, Record

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
UMASK: Final = 0o077
NO_GROUP: Final = 65534
"""Of an id without an account: a group of that number may be one with rights."""
_PID_MAX: Final = Path("/proc/sys/kernel/pid_max")


class ProcessLimits(Record):
    """What the processes of one account may take of the machine that they are on."""

    processes: PositiveInt = 8192
    """Processes and threads of the account, over all its jobs there; a quarter of the machine's at most."""
    open_files: PositiveInt = 65536
    """Of each process; no more than the launcher itself may have."""
    core_bytes: NonNegativeInt = 0
    """Of the image that a crashed process leaves."""
    memory_bytes: PositiveInt | None = None
    """Address space of each process; None: not limited. CUDA reserves far more than it uses."""
    file_bytes: PositiveInt | None = None
    """Of each file that is written; None: not limited."""

    def as_numbers(self) -> dict[int, int]:
        """By number of the resource, as ``setrlimit`` takes them."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        asked = {
            resource.RLIMIT_NPROC: min(self.processes, _processes_of_the_machine() // 4),
            resource.RLIMIT_NOFILE: self.open_files if most < 0 else min(self.open_files, most),
            resource.RLIMIT_CORE: self.core_bytes,
            resource.RLIMIT_AS: self.memory_bytes,
            resource.RLIMIT_FSIZE: self.file_bytes,
        }
        return {number: value for number, value in asked.items() if value is not None}


def _processes_of_the_machine() -> int:
    try:
        return int(_PID_MAX.read_text())
    except (OSError, ValueError):
        return 32768


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account of this machine, as its processes have it."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    shell: str
    umask: int = UMASK
    limits: ProcessLimits = field(default_factory=ProcessLimits)

    @classmethod
    def of(cls, uid: int, limits: ProcessLimits | None = None, umask: int = UMASK) -> Self:
        """The account of that id with all its groups; an id without an account has none of them."""
        own = limits or ProcessLimits()
        try:
            found = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid, NO_GROUP, (), str(uid), "/", "/bin/sh", umask, own)
        groups = tuple(sorted(os.getgrouplist(found.pw_name, found.pw_gid)))
        shell = found.pw_shell or "/bin/sh"
        return cls(uid, found.pw_gid, groups, found.pw_name, found.pw_dir, shell, umask, own)

    def environment(self) -> dict[str, str]:
        """What its processes begin with, as after a login: nothing of the launcher's own."""
        return {
            "HOME": self.home,
            "LANG": "C.UTF-8",
            "LOGNAME": self.name,
            "PATH": PATH,
            "SHELL": self.shell,
            "USER": self.name,
        }

    def order(self, env: dict[str, str]) -> dict[str, Any]:
        """What ``keep_as.py`` is to start a command with, as JSON values."""
        said = asdict(self) | {"limits": sorted(self.limits.as_numbers().items()), "env": env}
        return {name: said[name] for name in ("uid", "gid", "groups", "umask", "limits", "env")}
