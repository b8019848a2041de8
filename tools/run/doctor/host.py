"""Are the packages that pliant needs there, and as new as it needs them? None of them is imported.

The GPUs of this machine: are those of the cluster there, and does another program use them?

The state directory: is it ours, can it be written, and does its file system do what runs rely on?

What a folder's file system does: tried with a file of our own, which is removed again.

The clocks: this machine's against one that cannot be set, the log's, and the state directory's.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from pliant.schemas.errors import PliantError, ServiceMissingError
from pliant.schemas.file_io.files import TEMPORARY, write_all
from pliant.schemas.text import clock_text, counted, in_gpus, span_text
from pliant.tools.run.backends.devices import (
    VISIBLE,
    Gpu,
    Listed,
    devices_by_node,
    list_gpus,
    processes_on,
    visible_of,
)
from pliant.tools.run.doctor.check import Check, Site, first_line, ok, problem, warning
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR

VERSIONS: Final = "versions"
CONSTRAINTS: Final = Path(__file__).parents[3] / "constraints.txt"
"""The versions that the tests run with; only a checkout has them."""
_NEEDED: Final = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?")
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def versions(constraints: Path = CONSTRAINTS) -> Iterator[Check]:
    """The checks of this area."""
    yield ok(VERSIONS, f"pliant {version('pliant')}, Python {platform.python_version()}")
    needed = needed_versions(requires("pliant") or ())
    found = {name: _installed(name) for name in needed}
    yield _torch(found.get("torch"), constraints)
    bad = [_fault(name, found[name], least) for name, least in needed.items()]
    faults = [each for each in bad if each]
    if faults:
        yield problem(
            VERSIONS, "; ".join(faults), "install pliant again: pip install -c constraints.txt pliant"
        )
    else:
        yield ok(VERSIONS, f"{counted(len(needed), 'package')} as new as needed")


def needed_versions(requirements: Mapping[str, str] | tuple[str, ...] | list[str]) -> dict[str, str]:
    """The least version of each package by its name; empty: any. Packages of extras are left out."""
    own = (each for each in requirements if ";" not in each or "extra" not in each.partition(";")[2])
    matches = (_NEEDED.match(each) for each in own)
    return {match[1]: match[2] or "" for match in matches if match}


def _torch(found: str | None, constraints: Path) -> Check:
    if found is None:
        return problem(VERSIONS, "torch is not installed, so no job can train", "pip install torch")
    try:
        pinned = dict(_PINNED.findall(constraints.read_text())).get("torch")
    except OSError:
        pinned = None
    if pinned is None or found.partition("+")[0] == pinned.partition("+")[0]:
        return ok(VERSIONS, f"torch {found}")
    text = f"torch {found} is not the version that the tests run with, {pinned}"
    return warning(VERSIONS, text, "pip install -c constraints.txt torch, or run the tests: make test")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _fault(name: str, found: str | None, least: str) -> str:
    if found is None:
        return f"{name} is not installed"
    return f"{name} {found} is older than {least}" if least and _older(found, least) else ""


def _older(found: str, least: str) -> bool:
    return _numbers(found) < _numbers(least)


def _numbers(text: str) -> tuple[int, ...]:
    release = re.match(r"[0-9.]*", text)
    return tuple(int(part) for part in (release[0] if release else "").split(".") if part)


GPUS: Final = "GPUs"
DRIVER: Final = Path("/dev/nvidiactl")


def gpus(site: Site) -> Iterator[Check]:
    """The checks of this area. Under Slurm they are about the nodes, which are not this machine."""
    if site.is_slurm:
        return
    needed = site.cluster is not None and site.cluster.slots == "gpu" and site.cluster.total_gpus > 0
    try:
        listed = list_gpus()
    except ServiceMissingError as error:
        yield _no_driver(error, needed=needed)
        return
    usable = visible_of(listed.gpus, os.environ.get(VISIBLE))
    yield _count(listed, usable)
    for fault in listed.faults:
        yield warning(GPUS, fault, "look at nvidia-smi; it is left out")
    if site.cluster is not None and needed:
        try:
            devices_by_node(site.cluster, usable)
        except PliantError as error:
            yield problem(GPUS, first_line(error), "make the file again: pliant cluster discover")
    if usable:
        yield from _torch_build(needed=needed)
        yield from _others(site, usable)


def _no_driver(error: ServiceMissingError, *, needed: bool) -> Check:
    if needed:
        return problem(GPUS, first_line(error), 'mend that, or use a cluster with "slots": "cpu"')
    if DRIVER.exists():
        return warning(GPUS, first_line(error), "mend that to use GPUs")
    return ok(GPUS, "no NVIDIA driver: CPU slots only")


def _count(listed: Listed, usable: tuple[Gpu, ...]) -> Check:
    instances = sum(gpu.name != gpu.card for gpu in usable)
    text = f"{in_gpus(len(usable))} to use of {len(listed.gpus)}, driver {listed.driver}"
    return ok(GPUS, f"{text}, {instances} of them MIG instances" if instances else text)


def _torch_build(*, needed: bool) -> Iterator[Check]:
    """A build for CPUs leaves the GPUs unused; its version says which it is."""
    with suppress(PackageNotFoundError):
        if (found := version("torch")).endswith("+cpu"):
            text, advice = (
                f"torch {found} is the build without CUDA",
                "install the one with: pip install torch",
            )
            yield problem(GPUS, text, advice) if needed else warning(GPUS, text, advice)


def _others(site: Site, usable: tuple[Gpu, ...]) -> Iterator[Check]:
    own = "" if site.dirs is None else f"{site.dirs.path}/"
    for card, pids in processes_on(usable).items():
        others = [pid for pid in pids if not _is_ours(pid, own)]
        if others:
            number = next(gpu.number for gpu in usable if gpu.card == card)
            who = ", ".join(map(str, others[:3])) + ("…" if len(others) > 3 else "")
            text = f"GPU {number} is in use by process {who}"
            yield warning(GPUS, text, f"end it, or leave that GPU out with {VISIBLE}")


def _is_ours(pid: int, folder: str) -> bool:
    """Whether it is a process of a job of this state directory."""
    with suppress(psutil.Error):
        return bool(folder) and psutil.Process(pid).environ().get(ENV_JOB_DIR, "").startswith(folder)
    return False


FOLDER: Final = "folder"
_OF_CLUSTERS: Final = ("lustre", "beegfs", "gpfs", "wekafs", "panfs", "orangefs", "ceph", "fuse.ceph", "afs")
SHARED: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "glusterfs", "fuse.glusterfs", "9p", "virtiofs", *_OF_CLUSTERS)
)
"""File systems that several machines can see."""
_MEMORY: Final = frozenset(("tmpfs", "ramfs"))
_OWN_LOCKS: Final = frozenset(("nolock", "local_lock=all", "local_lock=flock"))
"""Options of mounts whose locks other machines do not see."""
_FULL_BYTES: Final = 64 << 20
_LOW_BYTES: Final = 2 << 30
_LOW_FILES: Final = 10_000
_SLOW_S: Final = 0.25
_GIB: Final = 1 << 30


def folder(site: Site) -> Iterator[Check]:
    """The checks of this area."""
    if site.dirs is None:
        return
    path = site.dirs.path
    if site.refused is not None:
        advice = "do what it says; what hangs on the log was not looked at"
        yield problem(FOLDER, first_line(site.refused), advice)
    elif not site.there:
        if os.path.lexists(path):
            yield problem(FOLDER, f"{path} is not a folder", "name a new or an empty folder")
            return
        yield ok(FOLDER, f"{path} is not there yet: the first run or submission makes it")
    elif site.misfit is not None:
        yield warning(FOLDER, f"its log {site.misfit.words}", site.misfit.advice(path))
    elif site.log is not None:
        yield ok(FOLDER, _content(site))
    place = _nearest(path)
    yield from _kinds(site, place, mount_of(place))
    yield from _room(place)
    yield from _writing(place)


def _content(site: Site) -> str:
    log, path = site.log, site.dirs.path if site.dirs else Path()
    if log is None or log.info is None:
        return f"{path} is private and holds no run yet"
    jobs = counted(len(log.jobs), "job")
    return (
        f"{path} is private; its log is whole, has {jobs}, and was begun by pliant {log.info.pliant_version}"
    )


def _nearest(path: Path) -> Path:
    """The folder itself, or the one in which it is to be made."""
    return next(place for place in (path, *path.parents) if place.is_dir())


def _kinds(site: Site, place: Path, mount: Mount) -> Iterator[Check]:
    nodes = 0 if site.cluster is None else sum(node.count or 1 for node in site.cluster.nodes)
    kind = mount.kind or "an unknown file system"
    if mount.kind in _MEMORY:
        yield warning(
            FOLDER, f"{place} is in memory ({kind}): a reboot empties it", "name a folder on a disk"
        )
    elif mount.kind in SHARED and not _OWN_LOCKS.isdisjoint(mount.options):
        text = (
            f"{kind}: other machines do not see its locks ({', '.join(sorted(_OWN_LOCKS & mount.options))})"
        )
        yield warning(FOLDER, text, "use it from one machine only, or mount it with locks")
    elif site.is_slurm and nodes != 1 and mount.kind not in SHARED:
        text = f"{place} is on {kind}, and the nodes have to see it at the same path"
        yield warning(FOLDER, text, "name a folder that all nodes share, unless they all see this one")
    else:
        yield ok(FOLDER, f"on {kind}{', which machines can share' if mount.kind in SHARED else ''}")


def _room(place: Path) -> Iterator[Check]:
    free, files = shutil.disk_usage(place).free, os.statvfs(place)
    text = f"{free / _GIB:.1f} GiB free"
    if free < _FULL_BYTES:
        yield problem(FOLDER, text, "make room: a run that cannot write its log ends")
    elif free < _LOW_BYTES:
        yield warning(FOLDER, text, "make room: checkpoints that do not fit are not kept")
    elif files.f_files and files.f_favail < _LOW_FILES:
        yield warning(
            FOLDER, f"{text}, but {files.f_favail} files at most", "remove files: each job makes some"
        )
    else:
        yield ok(FOLDER, text)


def _writing(place: Path) -> Iterator[Check]:
    try:
        found = probe(place)
    except OSError as error:
        what = "cannot be written, or knows no locks"
        yield problem(FOLDER, f"{place} {what}: {error.strerror}", "name a folder that you may write in")
        return
    yield from _from(found)


def _from(found: Probed) -> Iterator[Check]:
    if not found.locks:
        yield problem(
            FOLDER,
            "locks have no effect here: two runs could use it",
            "name a folder on a local disk, or NFS with locks",
        )
    text = f"a write is on disk after {1000 * found.sync_s:.0f} ms"
    if found.sync_s > _SLOW_S:
        yield warning(FOLDER, text, "every event costs that: name a folder on a faster disk")
    else:
        yield ok(FOLDER, f"{text}{', and locks work' if found.locks else ''}")


def skew_s(site: Site) -> float | None:
    """Seconds by which the state directory's clock is ahead; None: there is none to be asked."""
    if site.dirs is None:
        return None
    with suppress(OSError):
        return probe(_nearest(site.dirs.path)).skew_s
    return None


_TRIES: Final = 3
_BYTES: Final = 4096
_TICK_S: Final = 0.02
"""The kernel dates files by a clock that stands still between two ticks."""
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Probed:
    """What was found out by writing."""

    sync_s: float
    """To force a small write to disk, seconds: the median of a few."""
    locks: bool
    """Whether a second opening of a file sees the lock of the first."""
    skew_s: float
    """Seconds by which the clock of the file system is ahead of this machine's; 0 where it may be equal."""


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a folder is mounted."""

    kind: str
    """Type of its file system; empty: unknown."""
    options: frozenset[str] = frozenset()


def probe(folder: Path) -> Probed:
    """Write, lock and date a file in a folder.

    :raises OSError: the folder takes no file, or knows no locks.
    """
    with _probe_file(folder) as (path, descriptor):
        seconds = []
        for _ in range(_TRIES):
            began_s = time.monotonic()
            write_all(descriptor, bytes(_BYTES))
            seconds.append(time.monotonic() - began_s)
        before_s = time.time()
        dated_s = _dated_s(descriptor)
        return Probed(median(seconds), _locks(path, descriptor), _beyond(dated_s, before_s, time.time()))


@contextmanager
def _probe_file(folder: Path) -> Iterator[tuple[Path, int]]:
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}.tmp"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _dated_s(descriptor: int) -> float:
    """The time that the file's own server gives it now."""
    os.utime(descriptor)
    return os.fstat(descriptor).st_mtime


def _locks(path: Path, descriptor: int) -> bool:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(second)
    return False


def _beyond(dated_s: float, before_s: float, after_s: float) -> float:
    """How far a time is outside of the span in which it was taken."""
    return min(0.0, dated_s - before_s + _TICK_S) + max(0.0, dated_s - after_s - _TICK_S)


def mount_of(folder: Path, mounts: Path = _MOUNTS) -> Mount:
    """The mount that a folder is on, of those that the system lists."""
    best, found = -1, Mount("")
    with suppress(OSError):
        for line in mounts.read_text(errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            fields, more = before.split(" "), after.split(" ")
            if len(fields) < 6 or len(more) < 3:
                continue
            point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
            if folder.is_relative_to(point) and len(point) >= best:
                best = len(point)
                found = Mount(more[0], frozenset([*fields[5].split(","), *more[2].split(",")]))
    return found


CLOCK: Final = "clock"
_BEFORE_US_S: Final = 1_700_000_000.0
"""November 2023: pliant is younger."""
_JUMP_S: Final = 0.2
_AHEAD_S: Final = 5.0
_SKEW_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Began:
    """When the look began, by both clocks."""

    wall_s: float = field(default_factory=time.time)
    steady_s: float = field(default_factory=time.monotonic)

    def jumped_s(self) -> float:
        """Seconds by which the clock was set forward since."""
        return (time.time() - self.wall_s) - (time.monotonic() - self.steady_s)


def clock(site: Site, began: Began) -> Iterator[Check]:
    """The checks of this area.

    :param began: some time ago: a clock that is being set shows in between.
    """
    now_s, jumped_s = time.time(), began.jumped_s()
    if now_s < _BEFORE_US_S:
        yield problem(CLOCK, f"this machine's clock shows {clock_text(now_s, 0.0)}", "set it, by NTP at best")
    elif abs(jumped_s) > _JUMP_S:
        text = f"this machine's clock was set by {jumped_s:+.1f} s while it was looked at"
        yield warning(CLOCK, text, "let NTP slew it; jobs bear it, times in the log jump")
    else:
        yield ok(CLOCK, f"this machine's clock shows {clock_text(now_s, now_s)} and runs evenly")
    if site.log is not None and site.log.last_s > now_s + _AHEAD_S:
        text = f"the log is {span_text(site.log.last_s - now_s)} ahead: the clock was set back since"
        yield warning(CLOCK, text, "set the clock right; till then the log's goes at half its speed")
    skew = skew_s(site)
    if skew is not None and abs(skew) > _SKEW_S:
        side = "ahead of" if skew > 0 else "behind"
        text = f"the folder's clock is {span_text(abs(skew))} {side} this machine's"
        yield warning(CLOCK, text, "let NTP set both; signs of life are dated by the folder's")
    elif skew is not None:
        yield ok(CLOCK, "the folder's clock agrees with it")
