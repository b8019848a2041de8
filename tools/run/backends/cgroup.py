"""Control groups of Linux (cgroups): what a unit may take of its host, and all of its processes.

The launcher finds out where groups can be made and says what those of a unit limit; the unit's supervisor
makes them, starts the command in them, and removes them once nothing is left. The launcher does so for a
supervisor that was killed. A group has a folder for each controller in version 1, and one folder in version
2; there, where systemd runs, it is in a scope that systemd is asked for, since no other program may make
groups.

The supervisor imports this by its path, without packages.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LIMITED = {"memory": "memory", "cpu": "cores", "pids": "processes", "devices": "GPUs of others"}
"""Names of what each controller limits."""
CONTROLLERS = tuple(LIMITED)
SYSTEMD = "/run/systemd/system"
"""Exists where systemd is the first process."""
BUSCTL = "busctl"
_IN_SCOPE = ".scope/unit"
"""The end of the folder of a group in a scope, in which its supervisor is, too."""
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1000
_OPTIONAL = ("memory.memsw.limit_in_bytes", "memory.swap.max")
"""Files that are not there where swap is not counted."""
_GONE_S = 2.0
"""Seconds to wait until killed processes leave a group's list."""
_REMOVED_S = 0.5
"""Seconds to wait until a group without listed processes can be removed."""
_FORGOTTEN_S = 60.0
"""Minimum age of a leftover group; a younger one may belong to a supervisor that starts."""
_SCOPE_S = 5.0
"""Seconds to wait for systemd to make a scope."""
_FULL = 0.9
"""Share of the limit in use at the peak below which a kill has another cause."""


class CgroupPlace:
    """Where groups can be made.

    :param parents: the folders that they are made in, by controller.
    :param missing: why a controller has none.
    :param scope: groups are in scopes of systemd, in these folders.
    """

    def __init__(
        self, parents: Mapping[str, str], missing: Mapping[str, str] | None = None, *, scope: bool = False
    ) -> None:
        self.parents, self.missing, self.scope = dict(parents), dict(missing or {}), scope

    @property
    def version(self) -> int:
        return 1 if any(not _is_v2(folder) for folder in self.parents.values()) else 2

    def group(
        self,
        name: str,
        *,
        memory: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        denied: Iterable[str] = (),
    ) -> UnitCgroup:
        """The group of a unit; None is no limit.

        :param memory: bytes.
        :param denied: devices that it may not open, as "major:minor".
        """
        inside = f"{name}{_IN_SCOPE}" if self.scope else name
        folders = {kind: f"{parent}/{inside}" for kind, parent in self.parents.items()}
        wanted = {"memory": memory, "cpu": cpus, "pids": pids}
        values: list[tuple[str, str]] = []
        for kind, folder in folders.items():
            is_v2 = _is_v2(self.parents[kind])
            if (limit := wanted.get(kind)) is not None:
                named = _limit_files(kind, limit, is_v2=is_v2)
                values += [(f"{folder}/{file}", text) for file, text in named]
            elif kind == "devices" and not is_v2:
                values += [(f"{folder}/devices.deny", f"c {device} rwm") for device in denied]
        scope = f"{name}.scope" if self.scope else ""
        return UnitCgroup(dict.fromkeys(folders.values()), values, scope, denied if scope else ())


def remove_empty(parents: Iterable[str]) -> None:
    """Remove groups in these folders that nothing has been in for a while: no run knows of some, as where
    the supervisor was killed and the job's folder was removed.
    """
    for parent in {*parents}:
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):  # there are processes in it
                if name.startswith("pliant-") and time.time() - os.stat(path).st_mtime > _FORGOTTEN_S:
                    os.rmdir(path)


def _limit_files(kind: str, limit: float, *, is_v2: bool) -> list[tuple[str, str]]:
    if kind == "pids":
        return [("pids.max", f"{limit:.0f}")]
    if kind == "memory":
        names = ("memory.max",) if is_v2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        return [*((name, f"{limit:.0f}") for name in names), *([("memory.swap.max", "0")] if is_v2 else [])]
    quota_us = max(_LEAST_QUOTA_US, round(limit * _PERIOD_US))
    if is_v2:
        return [("cpu.max", f"{quota_us} {_PERIOD_US}")]
    return [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota_us))]


def find_place(proc: str = "/proc/self", systemd: str = SYSTEMD) -> CgroupPlace:
    """Where this process can make groups. Nothing is changed."""
    own, parents, missing = own_folders(proc), dict[str, str](), dict[str, str]()
    unified = own.get("")
    offered = _words(f"{unified}/cgroup.controllers") if unified else []
    if unified and "memory" in offered and os.path.isdir(systemd) and os.geteuid() == 0:
        return _place_of_systemd(proc)
    for kind in CONTROLLERS:
        if kind in own:
            if _is_writable(own[kind]):
                parents[kind] = own[kind]
            else:
                missing[kind] = f"{_who()} may not make groups in {own[kind]}"
        elif unified and kind in offered:
            near = (unified, os.path.dirname(unified))
            parent = next((folder for folder in near if _takes_groups(folder, kind)), None)
            if parent is None:
                missing[kind] = f"{_who()} may not make groups near {unified}"
            else:
                parents[kind] = parent
        elif unified and kind == "devices" and "memory" in offered:
            missing[kind] = "without systemd, version 2 of control groups limits no devices"
        else:
            missing[kind] = "the system has no control groups for it here"
    return CgroupPlace(parents, missing)


def _place_of_systemd(proc: str) -> CgroupPlace:
    import shutil  # the supervisor, which is to start fast, asks for no place

    if shutil.which(BUSCTL) is None:
        return CgroupPlace(
            {}, dict.fromkeys(CONTROLLERS, f"there is no {BUSCTL} to ask systemd for a scope with")
        )
    top = next(mount for kinds, _, mount in _mounts(proc) if kinds == [""])
    return CgroupPlace(dict.fromkeys(CONTROLLERS, f"{top}/system.slice"), scope=True)


def _who() -> str:
    return "root" if os.geteuid() == 0 else "this account"


def own_folders(proc: str = "/proc/self") -> dict[str, str]:
    """The folder of a process's group, by controller; "" is that of version 2."""
    mounts = {kind: (root, point) for kinds, root, point in _mounts(proc) for kind in kinds}
    folders = {}
    for line in _lines(f"{proc}/cgroup"):
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounts:
                root, point = mounts[name]
                inner = path if root == "/" else path.removeprefix(root)
                folders[name] = point + inner.rstrip("/")
    return folders


def _mounts(proc: str) -> Iterator[tuple[list[str], str, str]]:
    """The controllers, the root within the hierarchy and the folder of each mount of control groups."""
    for line in _lines(f"{proc}/mountinfo"):
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (path.replace(r"\040", " ") for path in left.split()[3:5])
            yield ([""] if kind == "cgroup2" else options.split(",")), root, point


def _takes_groups(folder: str, kind: str) -> bool:
    """Whether groups with that controller can be made in a folder of version 2: one with processes has none
    for its groups, except for the root of all.
    """
    if not _is_writable(folder) or not _is_v2(folder):
        return False
    if kind in _words(f"{folder}/cgroup.subtree_control"):
        return True
    is_free = not os.path.exists(f"{folder}/cgroup.type") or not _words(f"{folder}/cgroup.procs")
    return is_free and kind in _words(f"{folder}/cgroup.controllers")


def _is_writable(folder: str) -> bool:
    return os.access(folder, os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK)


def _is_v2(folder: str) -> bool:
    """Whether a folder belongs to version 2. Its own may not be there yet."""
    while folder != "/" and not os.path.exists(f"{folder}/cgroup.procs"):
        folder = os.path.dirname(folder)
    return os.path.exists(f"{folder}/cgroup.controllers")


class UnitCgroup:
    """The group of one unit.

    :param folders: one for each controller, or one in all.
    :param values: files, and what is written to them.
    :param scope: the scope of systemd that it is in; empty: none.
    :param denied: devices that the scope is to deny, as "major:minor".
    """

    def __init__(
        self,
        folders: Iterable[str],
        values: Iterable[Sequence[str]] = (),
        scope: str = "",
        denied: Iterable[str] = (),
    ) -> None:
        self.folders, self._values = tuple(folders), [(path, text) for path, text in values]
        self._scope, self._denied = scope, tuple(denied)
        self._before: set[str] = set()

    @classmethod
    def parse(cls, text: str) -> UnitCgroup:
        return cls(*json.loads(text))

    def __str__(self) -> str:
        return json.dumps([self.folders, self._values, self._scope, self._denied])

    def make(self) -> list[str]:
        """Make it, for this process to start a command in; returns what could not be limited, and why.

        :raises OSError: it cannot be made.
        """
        if self._scope:
            enter_scope(self._scope, self._denied)
        for folder in self.folders:
            if _is_v2(folder):
                _enable(os.path.dirname(folder), self._scope)
            os.makedirs(folder, exist_ok=True)
        if self.pids():
            raise OSError(errno.EBUSY, "there are processes in it that are none of the unit's")
        self._before = {*own_folders().values()}
        faults = []
        for path, text in self._values:
            try:
                _write(path, text)
            except OSError as error:
                if not (isinstance(error, FileNotFoundError) and path.endswith(_OPTIONAL)):
                    faults.append(f"{path}: {error.strerror}")
        return faults

    def join(self) -> None:
        """Let this process be in it, and what it starts."""
        for folder in self.folders:
            _write(f"{folder}/cgroup.procs", str(os.getpid()))

    def leave(self) -> None:
        """Let this process be where it was before."""
        for folder in self._before:
            with contextlib.suppress(OSError):  # in hierarchies that the group is not in nothing changes
                _write(f"{folder}/cgroup.procs", str(os.getpid()))

    def kill(self) -> None:
        """Kill all that is in it, and in groups inside, this process excepted; nothing new begins there."""
        deadline_s = time.monotonic() + _GONE_S
        for folder in self._all():
            with contextlib.suppress(OSError):
                _write(f"{folder}/pids.max", "0")
        for folder in self.folders:
            with contextlib.suppress(OSError):  # version 1, or an older system, has no such file
                if str(os.getpid()) not in _words(f"{folder}/cgroup.procs"):
                    _write(f"{folder}/cgroup.kill", "1")
        while (pids := self.pids()) and time.monotonic() < deadline_s:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def pids(self) -> set[int]:
        """All processes in it and in groups inside; without this one."""
        pids = {int(pid) for folder in self._all() for pid in _words(f"{folder}/cgroup.procs")}
        return pids - {os.getpid(), 0}

    def memory_kill(self) -> dict[str, int | None] | None:
        """The limit and the most that was used, in bytes, if the system has killed something for it."""
        files = ("/memory.max", "/memory.limit_in_bytes")
        limit = next((int(text) for path, text in self._values if path.endswith(files)), None)
        kills, peak = 0, None
        for folder in self._all():
            for line in [*_lines(f"{folder}/memory.oom_control"), *_lines(f"{folder}/memory.events")]:
                name, count = line.split()
                kills += int(count) if name == "oom_kill" else 0
        for folder in self.folders:
            peak = peak or number_in(f"{folder}/memory.peak")
            peak = peak or number_in(f"{folder}/memory.max_usage_in_bytes")
        if not kills or limit is None or (peak is not None and peak < _FULL * limit):
            return None
        return {"limit": limit, "peak": peak}

    def remove(self) -> None:
        """Remove it with groups inside, as far as nothing is in them. Processes take a moment to leave."""
        deadline_s = time.monotonic() + _REMOVED_S
        while True:
            for folder in self._all():
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if not self._all() or time.monotonic() > deadline_s:
                return
            time.sleep(0.005)

    def set_devices(self, denied: Sequence[str], allowed: Sequence[str]) -> None:
        """Change which devices may be opened from now on, as "major:minor"."""
        for folder in self.folders:
            if folder.endswith(_IN_SCOPE):
                name, none = os.path.basename(os.path.dirname(folder)), ["DeviceAllow", "a(ss)", "0"]
                properties = [none, *_device_properties(denied)]
                with contextlib.suppress(OSError):
                    _ask_systemd("SetUnitProperties", "sba(sv)", name, "true", properties)
                return
            for file, devices in (("devices.deny", denied), ("devices.allow", allowed)):
                for device in devices:
                    with contextlib.suppress(OSError):
                        _write(f"{folder}/{file}", f"c {device} rwm")

    def _all(self) -> list[str]:
        """Its folders and those inside, the innermost first."""
        return [path for top in self.folders for path, _, _ in os.walk(top, topdown=False)]


def enter_scope(name: str, denied: Sequence[str]) -> None:
    """Have systemd move this process into a new scope.

    :raises OSError: it does not.
    """
    properties = [
        ["PIDs", "au", "1", str(os.getpid())],
        ["Delegate", "b", "true"],
        ["CollectMode", "s", "inactive-or-failed"],
        ["Description", "s", "a unit of a job of pliant"],
        *(_device_properties(denied) if denied else ()),
    ]
    _ask_systemd("StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", properties, "0")
    until_s = time.monotonic() + _SCOPE_S
    while not own_folders().get("", "").endswith(name):
        if time.monotonic() > until_s:
            raise OSError(errno.ETIMEDOUT, "systemd has made no scope in time")
        time.sleep(0.01)


def _device_properties(denied: Sequence[str]) -> list[list[str]]:
    """What lets a scope open all devices but these."""
    if not denied:
        return [["DevicePolicy", "s", "auto"]]
    allowed = allowed_devices(denied)
    pairs = [word for device in allowed for word in (device, "rwm")]
    return [["DevicePolicy", "s", "closed"], ["DeviceAllow", "a(ss)", str(len(allowed)), *pairs]]


def _ask_systemd(method: str, signature: str, *arguments: str | list[list[str]]) -> None:
    """Call a method of systemd's manager; a list is one of properties.

    :raises OSError: it fails.
    """
    import subprocess  # takes longer than all the rest

    words = ["call", "--quiet", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"]
    words += ["org.freedesktop.systemd1.Manager", method, signature]
    for argument in arguments:
        if isinstance(argument, str):
            words.append(argument)
        else:
            words += [str(len(argument)), *(word for part in argument for word in part)]
    try:
        done = subprocess.run([BUSCTL, *words], check=False, capture_output=True, text=True, timeout=_SCOPE_S)
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, "systemd does not answer") from error
    if done.returncode:
        raise OSError(errno.EIO, f"systemd refuses: {done.stderr.strip()}")


def allowed_devices(denied: Iterable[str], dev: str = "/dev", proc: str = "/proc/devices") -> list[str]:
    """What a scope allows that is to allow all but these devices: kinds, and single ones of their kinds."""
    refused = {tuple(map(int, device.split(":"))) for device in denied}
    majors = {major for major, _ in refused}
    kinds, section = [], ""
    for line in _lines(proc):
        number, _, name = line.strip().partition(" ")
        if number.isdecimal():
            if section and not (section == "char" and int(number) in majors):
                kinds.append(f"{section}-{name}")
        elif line.strip():
            section = {"Character devices:": "char", "Block devices:": "block"}.get(line.strip(), "")
    single = []
    for entry in sorted(os.listdir(dev)):
        with contextlib.suppress(OSError):
            device = os.stat(f"{dev}/{entry}").st_rdev
            at = os.major(device), os.minor(device)
            if at[0] in majors and at not in refused:
                single.append(f"{dev}/{entry}")
    return [*dict.fromkeys(kinds), *single]


def gpu_devices(folder: str = "/proc/driver/nvidia/gpus", dev: str = "/dev") -> dict[str, str]:
    """The device of each GPU of this machine, as "major:minor", by the UUID that its driver gives it."""
    devices = {}
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        pairs = (line.partition(":") for line in _lines(f"{folder}/{entry}/information"))
        about = {name.strip(): value.strip() for name, _, value in pairs}
        with contextlib.suppress(KeyError, OSError):
            number = os.stat(f"{dev}/nvidia{about['Device Minor']}").st_rdev
            devices[about["GPU UUID"]] = f"{os.major(number)}:{os.minor(number)}"
    return devices


def _enable(parent: str, scope: str) -> None:
    """Let groups in a folder of version 2 have controllers. In a scope this process is in the way."""
    if scope:
        os.makedirs(f"{parent}/keeper", exist_ok=True)
        _write(f"{parent}/keeper/cgroup.procs", str(os.getpid()))
    for kind in _words(f"{parent}/cgroup.controllers"):
        if kind in CONTROLLERS and kind not in _words(f"{parent}/cgroup.subtree_control"):
            with contextlib.suppress(OSError):
                _write(f"{parent}/cgroup.subtree_control", f"+{kind}")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _words(path: str) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def number_in(path: str) -> int | None:
    """The number in a file. Returns None if it has another word, as "max", or none, or is not there."""
    word = next(iter(_words(path)), "")
    return int(word) if word.isdecimal() else None
