"""``pliant doctor``: is everything in place that runs need?

A check is a function of a :class:`Site` that yields what it found; :data:`CHECKS` lists all of them, by area,
in the order in which they are shown. Nothing is changed, and an error in a check is a problem of its area
alone.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final, Literal

import psutil

from pliant import __version__
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError, ServiceMissingError
from pliant.schemas.io import read_cluster
from pliant.schemas.text import (
    clock_text,
    counted,
    in_gpus,
    iso_time,
    listed,
    one_line,
    span_text,
    when_text,
    wrapped,
)
from pliant.tools.run.backends.cgroup import LIMITED, find_place
from pliant.tools.run.backends.host import (
    VISIBLE,
    Gpu,
    GpuListing,
    devices_by_node,
    list_gpus,
    processes_on,
    visible_of,
)
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.commands import ask
from pliant.tools.run.backends.slurm.parsing import SlurmNode
from pliant.tools.run.discovery import choose_partitions, levels_of, slurm_topology
from pliant.tools.run.gateway.access import ADVICE, obstacle
from pliant.tools.run.service.containers import TRIED
from pliant.tools.run.service.containers import obstacle as container_obstacle
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from pliant.tools.run.statedir.directory import ROOT, StateDir, check_own, holder_of
from pliant.tools.run.statedir.file_system import Mount, mount_of, probe
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.snapshot import LogView, Misfit
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import size_and_time

Verdict = Literal["ok", "warning", "problem"]
"""``problem``: runs fail or lose something. ``warning``: they work, but worse than they could."""
SCHEMA: Final = "pliant.doctor/1"
LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, and what to do about it if all is not well."""

    verdict: Verdict
    text: str
    advice: str = ""
    area: str = ""


def ok(text: str) -> Check:
    return Check("ok", text)


def warning(text: str, advice: str) -> Check:
    return Check("warning", text, advice)


def problem(text: str, advice: str) -> Check:
    return Check("problem", text, advice)


@dataclass(frozen=True, slots=True)
class Began:
    """When the examination began, by both clocks."""

    wall_s: float = field(default_factory=time.time)
    steady_s: float = field(default_factory=time.monotonic)

    def jumped_s(self) -> float:
        """By how much the clock was set forward since."""
        return (time.time() - self.wall_s) - (time.monotonic() - self.steady_s)


@dataclass(frozen=True, slots=True)
class Site:
    """What the checks examine."""

    backend: str
    dirs: StateDir | None = None
    refused: Exception | None = None
    """Why the state directory or its log cannot be used."""
    log: RunLog | None = None
    misfit: Misfit | None = None
    """How the snapshot of the log does not fit it."""
    cluster: Cluster | None = None
    unread: Exception | None = None
    began: Began = field(default_factory=Began)

    @property
    def there(self) -> bool:
        return self.dirs is not None and os.path.isdir(self.dirs.path)

    @property
    def is_slurm(self) -> bool:
        return self.backend != LOCAL


def examine(state: Path | None = None, cluster: str | None = None, backend: str | None = None) -> list[Check]:
    """Look at everything. Nothing is changed, and nothing that is broken ends it.

    :param state: a state directory, which need not exist.
    :param cluster: a cluster file; None for that of the state directory.
    :param backend: None for that of the cluster.
    """
    began = Began()
    site = replace(look_around(state, cluster, backend), began=began)
    return [found for area, check in CHECKS.items() for found in guarded(area, check, site)]


def guarded(area: str, check: Callable[[Site], Iterable[Check]], site: Site) -> Iterator[Check]:
    """What a check finds. An error ends the check and is a problem of its area."""
    try:
        for found in check(site):
            yield replace(found, area=area)
    except PliantError as error:
        yield replace(problem(first_line(error), "mend that, and look again"), area=area)
    except Exception as error:  # noqa: BLE001 - what is broken is what a doctor is asked about
        text = f"cannot be looked at: {type(error).__name__}: {first_line(error)}"
        yield replace(problem(text, "mend that, and look again"), area=area)


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def worst(checks: Iterable[Check]) -> Verdict:
    verdicts = {check.verdict for check in checks}
    return "problem" if "problem" in verdicts else "warning" if "warning" in verdicts else "ok"


def page(checks: Sequence[Check], width: int | None) -> str:
    return "".join(f"{line}\n" for check in checks for line in _lines(check, width))


def document(checks: Sequence[Check], now_s: float) -> str:
    listed = [
        {"area": each.area, "verdict": each.verdict, "text": each.text, "advice": each.advice or None}
        for each in checks
    ]
    found = {"schema": SCHEMA, "time": iso_time(now_s), "verdict": worst(checks), "checks": listed}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _lines(check: Check, width: int | None) -> list[str]:
    head = f"{check.verdict:9}{check.area:10}"
    text = one_line(f"{check.text}; {check.advice}" if check.advice else check.text)
    if width is None or width <= 2 * len(head):
        return [head + text]
    first, *rest = wrapped(text, width - len(head))
    return [head + first, *(" " * len(head) + line for line in rest)]


def look_around(state: Path | None, cluster: str | None, backend: str | None) -> Site:
    dirs = None if state is None else StateDir(_resolved(state))
    view, refused = _view(dirs)
    found, unread = _read_cluster(dirs, cluster)
    says = found.backend if found is not None else LOCAL
    log, misfit = (None, None) if view is None else (view.log, view.misfit)
    return Site(backend or says, dirs, refused, log, misfit, found, unread)


def _resolved(path: Path) -> Path:
    with suppress(OSError, RuntimeError):  # a circle of links
        return path.resolve()
    return path.absolute()


def _view(dirs: StateDir | None) -> tuple[LogView | None, Exception | None]:
    if dirs is None or not os.path.isdir(dirs.path):
        return None, None
    try:
        check_own(dirs, close=False)
        view = LogView(dirs)
        view.refresh()
    except (PliantError, OSError, ValueError) as error:
        return None, error
    return view, None


def _read_cluster(dirs: StateDir | None, name: str | None) -> tuple[Cluster | None, Exception | None]:
    if name is None and (dirs is None or not os.path.isfile(dirs.cluster)):
        return None, None
    try:
        return read_cluster(name or str(dirs.cluster if dirs else "")), None
    except (PliantError, OSError, ValueError) as error:
        return None, error


# The areas.


CONSTRAINTS: Final = Path(__file__).parents[2] / "constraints.txt"
"""The versions that the tests run with; exists only in a checkout."""
_NEEDED: Final = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?")
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def versions(_site: Site, constraints: Path = CONSTRAINTS) -> Iterator[Check]:
    """Are the packages installed, and recent enough? None of them is imported."""
    yield ok(f"pliant {__version__}, Python {platform.python_version()}")
    needed = needed_versions(requires("pliant") or ())
    found = {name: _installed(name) for name in needed}
    yield _torch(_installed("torch"), constraints)
    bad = [_fault(name, found[name], least) for name, least in needed.items()]
    faults = [each for each in bad if each]
    if faults:
        yield problem("; ".join(faults), "install pliant again: pip install -c constraints.txt pliant")
    else:
        yield ok(f"{counted(len(needed), 'package')} as new as needed")


def needed_versions(requirements: Mapping[str, str] | tuple[str, ...] | list[str]) -> dict[str, str]:
    """The least version of each package by its name; empty: any. Packages of extras are left out."""
    own = (each for each in requirements if ";" not in each or "extra" not in each.partition(";")[2])
    matches = (_NEEDED.match(each) for each in own)
    return {match[1]: match[2] or "" for match in matches if match}


def _torch(found: str | None, constraints: Path) -> Check:
    if found is None:
        return problem("torch is not installed, so no job can train", "pip install 'pliant[run]'")
    try:
        pinned = dict(_PINNED.findall(constraints.read_text())).get("torch")
    except OSError:
        pinned = None
    if pinned is None or found.partition("+")[0] == pinned.partition("+")[0]:
        return ok(f"torch {found}")
    text = f"torch {found} is not the version that the tests run with, {pinned}"
    return warning(text, "pip install -c constraints.txt torch, or run the tests: make test")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _fault(name: str, found: str | None, least: str) -> str:
    if found is None:
        return f"{name} is not installed"
    return f"{name} {found} is older than {least}" if least and _numbers(found) < _numbers(least) else ""


def _numbers(text: str) -> tuple[int, ...]:
    release = re.match(r"[0-9.]*", text)
    return tuple(int(part) for part in (release[0] if release else "").split(".") if part)


def cluster_file(site: Site) -> Iterable[Check]:
    if site.unread is not None:
        yield problem(first_line(site.unread), "mend the file: pliant validate lists all of it")
    elif site.cluster is not None:
        nodes = counted(sum(node.count or 1 for node in site.cluster.nodes), "node")
        slots = "GPU" if site.cluster.slots == "gpu" else "CPU slot"
        yield ok(f"{nodes}, {counted(site.cluster.total_gpus, slots)}, backend {site.backend}")


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
    """Is the state directory ours and writable, and does its file system do what runs rely on?"""
    if site.dirs is None:
        return
    path = site.dirs.path
    if site.refused is not None:
        yield problem(first_line(site.refused), "do what it says; what hangs on the log was not looked at")
    elif not site.there:
        if os.path.lexists(path):
            yield problem(f"{path} is not a folder", "name a new or an empty folder")
            return
        yield ok(f"{path} is not there yet: the first run or submission makes it")
    elif site.misfit is not None:
        yield warning(f"its log {site.misfit.words}", site.misfit.advice(path))
    elif site.log is not None:
        yield ok(_content(site))
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
    return next(place for place in (path, *path.parents) if place.is_dir())


def _kinds(site: Site, place: Path, mount: Mount) -> Iterator[Check]:
    nodes = 0 if site.cluster is None else sum(node.count or 1 for node in site.cluster.nodes)
    kind = mount.kind or "an unknown file system"
    if mount.kind in _MEMORY:
        yield warning(f"{place} is in memory ({kind}): a reboot empties it", "name a folder on a disk")
    elif mount.kind in SHARED and not _OWN_LOCKS.isdisjoint(mount.options):
        text = (
            f"{kind}: other machines do not see its locks ({', '.join(sorted(_OWN_LOCKS & mount.options))})"
        )
        yield warning(text, "use it from one machine only, or mount it with locks")
    elif site.is_slurm and nodes != 1 and mount.kind not in SHARED:
        text = f"{place} is on {kind}, and the nodes have to see it at the same path"
        yield warning(text, "name a folder that all nodes share, unless they all see this one")
    else:
        yield ok(f"on {kind}{', which machines can share' if mount.kind in SHARED else ''}")


def _room(place: Path) -> Iterator[Check]:
    free, files = shutil.disk_usage(place).free, os.statvfs(place)
    text = f"{free / _GIB:.1f} GiB free"
    if free < _FULL_BYTES:
        yield problem(text, "make room: a run that cannot write its log ends")
    elif free < _LOW_BYTES:
        yield warning(text, "make room: checkpoints that do not fit are not kept")
    elif files.f_files and files.f_favail < _LOW_FILES:
        yield warning(f"{text}, but {files.f_favail} files at most", "remove files: each job makes some")
    else:
        yield ok(text)


def _writing(place: Path) -> Iterator[Check]:
    try:
        found = probe(place)
    except OSError as error:
        what = "cannot be written, or knows no locks"
        yield problem(f"{place} {what}: {error.strerror}", "name a folder that you may write in")
        return
    if not found.locks:
        yield problem(
            "locks have no effect here: two runs could use it",
            "name a folder on a local disk, or NFS with locks",
        )
    text = f"a write is on disk after {1000 * found.sync_s:.0f} ms"
    if found.sync_s > _SLOW_S:
        yield warning(text, "every event costs that: name a folder on a faster disk")
    else:
        yield ok(f"{text}{', and locks work' if found.locks else ''}")


def accounts(site: Site) -> Iterator[Check]:
    """Could other accounts run jobs here, if root shares the run?"""
    if os.geteuid() != ROOT or site.dirs is None or (site.there and not site.dirs.is_shared):
        return
    if (why := obstacle()) is None:
        yield ok("other accounts can run this Python and read pliant, as pliant serve needs")
    elif site.there:
        yield problem(f"{why}: they fail with exit code 127", ADVICE)
    else:
        yield warning(f"{why}: under pliant serve they fail with exit code 127", ADVICE)


_CONTAINERS: Final = 5
"""Most that are tried."""


def containers(site: Site) -> Iterator[Check]:
    """Do the containers of jobs that have not ended start here, with what the jobs need of their images?"""
    if site.log is None or site.dirs is None or site.dirs.is_shared:
        return
    jobs = [record.job for record in site.log.jobs.values() if record.ended_s is None]
    by_container = {job.container: job for job in reversed(jobs) if job.container is not None}
    for container, job in list(by_container.items())[:_CONTAINERS]:
        if (why := container_obstacle(job, fetched=True)) is not None:
            yield problem(f'job "{job.id}": {why}', "mend the image, or submit the job with another one")
        elif container.runtime in TRIED:
            yield ok(f"{container.runtime} starts {container.image}")
        else:
            yield ok(f"{container.image} was not tried: {container.runtime} runs on the nodes alone")


_BEFORE_US_S: Final = 1_700_000_000.0
"""November 2023, before the first pliant."""
_JUMP_S: Final = 0.2
_AHEAD_S: Final = 5.0
_SKEW_S: Final = 1.0


def clock(site: Site) -> Iterator[Check]:
    """Compare this machine's clock with one that cannot be set, the log's, and the folder's."""
    now_s, jumped_s = time.time(), site.began.jumped_s()
    if now_s < _BEFORE_US_S:
        yield problem(f"this machine's clock shows {clock_text(now_s, 0.0)}", "set it, by NTP at best")
    elif abs(jumped_s) > _JUMP_S:
        text = f"this machine's clock was set by {jumped_s:+.1f} s while it was looked at"
        yield warning(text, "let NTP slew it; jobs bear it, times in the log jump")
    else:
        yield ok(f"this machine's clock shows {clock_text(now_s, now_s)} and runs evenly")
    if site.log is not None and site.log.last_s > now_s + _AHEAD_S:
        text = f"the log is {span_text(site.log.last_s - now_s)} ahead: the clock was set back since"
        yield warning(text, "set the clock right; till then the log's goes at half its speed")
    skew = skew_s(site)
    if skew is not None and abs(skew) > _SKEW_S:
        side = "ahead of" if skew > 0 else "behind"
        text = f"the folder's clock is {span_text(abs(skew))} {side} this machine's"
        yield warning(text, "let NTP set both; signs of life are dated by the folder's")
    elif skew is not None:
        yield ok("the folder's clock agrees with it")


def skew_s(site: Site) -> float | None:
    """By how much the state directory's clock is ahead. Returns None if there is none to ask."""
    if site.dirs is None:
        return None
    with suppress(OSError):
        return probe(_nearest(site.dirs.path)).skew_s
    return None


DRIVER: Final = Path("/dev/nvidiactl")


def gpus(site: Site) -> Iterator[Check]:
    """Are the GPUs of the cluster here, and does another program use them? Not for Slurm."""
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
        yield warning(fault, "look at nvidia-smi; it is left out")
    if site.cluster is not None and needed:
        try:
            devices_by_node(site.cluster, usable)
        except PliantError as error:
            yield problem(first_line(error), "make the file again: pliant cluster discover")
    if usable:
        yield from _torch_build(needed=needed)
        yield from _others(site, usable)


def _no_driver(error: ServiceMissingError, *, needed: bool) -> Check:
    if needed:
        return problem(first_line(error), 'mend that, or use a cluster with "slots": "cpu"')
    if DRIVER.exists():
        return warning(first_line(error), "mend that to use GPUs")
    return ok("no NVIDIA driver: CPU slots only")


def _count(listed: GpuListing, usable: tuple[Gpu, ...]) -> Check:
    instances = sum(gpu.name != gpu.card for gpu in usable)
    text = f"{in_gpus(len(usable))} to use of {len(listed.gpus)}, driver {listed.driver}"
    return ok(f"{text}, {instances} of them MIG instances" if instances else text)


def _torch_build(*, needed: bool) -> Iterator[Check]:
    """Whether torch is a build for CPUs, which leaves the GPUs unused."""
    with suppress(PackageNotFoundError):
        if (found := version("torch")).endswith("+cpu"):
            text = f"torch {found} is the build without CUDA"
            yield (problem if needed else warning)(text, "install the one with: pip install torch")


def _others(site: Site, usable: tuple[Gpu, ...]) -> Iterator[Check]:
    own = "" if site.dirs is None else f"{site.dirs.path}/"
    for card, pids in processes_on(usable).items():
        others = [pid for pid in pids if not _is_ours(pid, own)]
        if others:
            number = next(gpu.number for gpu in usable if gpu.card == card)
            who = ", ".join(map(str, others[:3])) + ("…" if len(others) > 3 else "")
            text = f"GPU {number} is in use by process {who}"
            yield warning(text, f"end it, or leave that GPU out with {VISIBLE}")


def _is_ours(pid: int, folder: str) -> bool:
    with suppress(psutil.Error):
        return bool(folder) and psutil.Process(pid).environ().get(ENV_JOB_DIR, "").startswith(folder)
    return False


COMMANDS: Final = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
JOBS: Final = "slurm-jobs"
OLDEST: Final = (20, 11)
"""The oldest release whose output is tested."""
ANSWER_S: Final = 15.0
"""Longer than a command takes to give up, unless it does not find its configuration."""
_SHOWN: Final = 3


def slurm(site: Site) -> Iterator[Check]:
    """Are Slurm's commands here, does it answer, and do its nodes and partitions fit the cluster file?"""
    if not site.is_slurm:
        return
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        text = f"not found: {', '.join(missing)}"
        yield problem(text, "run on a host where Slurm's commands are, and mind PATH")
        return
    try:
        yield _release(ask(command_lines.version(), timeout_s=ANSWER_S))
        nodes = {n.name: n for n in parsing.nodes(ask(command_lines.show_nodes(), timeout_s=ANSWER_S))}
    except PliantError as error:
        advice = "start slurmctld, or name the right Slurm with SLURM_CONF; see scontrol ping"
        yield problem(first_line(error), advice)
        return
    if site.backend == JOBS and (site.cluster is None or site.cluster.slots == "gpu"):
        yield from _shares(parsing.settings(ask(command_lines.show_config())))
    yield from _partitions(site.cluster)
    yield from _nodes_of(site.cluster, nodes)
    yield from _levels(site.cluster)


def _release(said: str) -> Check:
    found = parsing.version(said)
    name = said.strip() or "Slurm of an unknown release"
    if found is None or found < OLDEST:
        return warning(f"{name} is older than any that was tried", "use {}.{:02} or newer".format(*OLDEST))
    return ok(f"{name} has all commands that are needed; sacct is not")


def _shares(settings: Mapping[str, str]) -> Iterator[Check]:
    found = settings.get("SelectType", "")
    if "cons_tres" not in found:
        text = f"{found or 'its scheduler'} does not give out GPUs by task, which backend {JOBS} needs"
        yield problem(text, "use backend slurm, or have SelectType=select/cons_tres set")


def _partitions(cluster: Cluster | None) -> Iterator[Check]:
    stated = None if cluster is None else cluster.slurm.partition
    known = parsing.partitions(ask(command_lines.show_partitions()))
    try:
        chosen = choose_partitions(known, stated.split(",") if stated else ())
    except PliantError as error:
        yield problem(first_line(error), "name one in the cluster file: slurm.partition")
        return
    for each in chosen:
        if not each.up:
            advice = "name another one, or ask who runs Slurm; jobs wait till it is up"
            yield warning(f"partition {each.name} starts nothing", advice)
        else:
            limit = f", for {each.limit} at most" if each.limit else ""
            yield ok(f"partition {each.name} starts jobs{limit}")


def _nodes_of(cluster: Cluster | None, nodes: Mapping[str, SlurmNode]) -> Iterator[Check]:
    wanted = list(nodes) if cluster is None else [node.name for node in cluster.expanded()]
    unknown = [name for name in wanted if name not in nodes]
    if unknown:
        text = f"Slurm has no node {listed(unknown)}"
        yield problem(text, "make the file again: pliant cluster discover --backend slurm")
    if cluster is not None and cluster.slots == "gpu":
        yield from _counts(cluster, nodes)
    there = [nodes[name] for name in wanted if name in nodes]
    out = [node for node in there if node.serves is False]
    for node in out[:_SHOWN]:
        why = node.reason or " ".join(sorted(node.state)).lower()
        advice = f"mend it, then: scontrol update nodename={node.name} state=resume"
        yield warning(f"{node.name} is out of service ({why})", advice)
    if len(out) > _SHOWN:
        text = f"{counted(len(out) - _SHOWN, 'more node')} out of service"
        yield warning(text, "sinfo -R lists them with reasons")
    text = f"{len(there) - len(out)} of {counted(len(wanted), 'node')} in service"
    yield ok(text) if len(out) < len(there) else problem(text, "no job can start; see sinfo -R")


def _levels(cluster: Cluster | None) -> Iterator[Check]:
    if cluster is None or cluster.levels:
        return
    found = levels_of([node.name for node in cluster.expanded()], slurm_topology())
    if found:
        text = f"Slurm knows levels of the network that the cluster file does not name: {listed(list(found))}"
        yield warning(
            text, "make the file again, so that jobs stay near: pliant cluster discover --backend slurm"
        )


def _counts(cluster: Cluster, nodes: Mapping[str, SlurmNode]) -> Iterator[Check]:
    fewer = [
        f"{node.name} ({has} of {node.gpus})"
        for node in cluster.expanded()
        if node.name in nodes and (has := nodes[node.name].gpu_count(cluster.slurm.gres)) < node.gpus
    ]
    if fewer:
        text = f"nodes with fewer GPUs than the cluster file says: {', '.join(fewer[:_SHOWN])}"
        yield problem(text, "make the file again: pliant cluster discover --backend slurm")


def service(site: Site) -> Iterator[Check]:
    """Does a loop serve the state directory, or is anything waiting for one?"""
    if site.dirs is None or not site.there or site.refused is not None:
        return
    now_s, written_s = time.time(), size_and_time(site.dirs)[1]
    seen = f"; it wrote last {when_text(written_s, now_s)}" if written_s else ""
    holder = holder_of(site.dirs.lock)
    if holder is not None:
        yield _held(holder, seen)
        return
    if site.log is not None and site.log.once:
        yield ok(f"no loop: calls of pliant run serve it, as from cron{seen.replace('it', 'one', 1)}")
        return
    waiting = _waiting(site)
    if waiting:
        text = f"no loop serves {waiting}{seen.replace('it wrote', 'one wrote')}"
        start = f"pliant run --follow --state {site.dirs.path}"
        yield warning(text, f"unless cron calls pliant run: {start}")
    else:
        yield ok(f"no loop, and nothing waits for one{seen.replace('it wrote', 'one wrote')}")


def _held(holder: int, seen: str) -> Check:
    if not holder:
        return ok(f"a run holds the directory{seen}")
    status = ""
    with suppress(psutil.Error):
        status = psutil.Process(holder).status()
    if status == psutil.STATUS_STOPPED:
        return problem(f"process {holder} runs it, but is stopped{seen}", f"kill -CONT {holder}")
    where = "" if status else " (of another machine)"
    return ok(f"process {holder}{where} runs it{seen}")


def _waiting(site: Site) -> str:
    jobs = 0 if site.log is None else len(site.log.active)
    requests = 0 if site.dirs is None else len(Spool(site.dirs).requests())
    waiting = {"job": jobs, "request": requests}
    return " and ".join(counted(count, noun) for noun, count in waiting.items() if count)


_STATED: Final = {"memory": "memory", "cpus": "cpu"}
"""What a node states, and the controller by which it is shared."""


def isolation(site: Site) -> Iterator[Check]:
    """Is each unit kept to what its job demands, or its share? What is not enforced is said."""
    if site.is_slurm:
        yield ok(
            "left to Slurm, by ConstrainRAMSpace, ConstrainCores and ConstrainDevices of its cgroup.conf"
        )
        return
    if site.cluster is not None and not site.cluster.isolation:
        yield warning("jobs are not kept apart: the cluster file says so", 'leave out "isolation": false')
        return
    place = find_place()
    for reason in dict.fromkeys(place.missing.values()):
        what = ", ".join(LIMITED[kind] for kind, why in place.missing.items() if why == reason)
        yield warning(f"jobs are not limited in {what}: {reason}", "let root run it, or use Slurm")
    if place.parents:
        kinds = ", ".join(LIMITED[kind] for kind in place.parents)
        how = "a scope of systemd" if place.scope else f"control groups of version {place.version}"
        yield ok(f"each unit is limited in {kinds} by {how}")
    stated = {what: kind for what, kind in _STATED.items() if kind in place.parents}
    nodes = () if site.cluster is None else site.cluster.nodes
    unlimited = {node.name: [what for what in stated if not getattr(node, what)] for node in nodes}
    if names := [name for name, missing in unlimited.items() if missing]:
        what = " and ".join(what for what in stated if any(what in unlimited[name] for name in names))
        text = f"the cluster file states no {what} of {listed(names)}: a job that demands none is not limited"
        yield warning(text, "state it, as pliant cluster discover does")


CHECKS: Final[Mapping[str, Callable[[Site], Iterable[Check]]]] = {
    "versions": versions,
    "cluster": cluster_file,
    "folder": folder,
    "accounts": accounts,
    "container": containers,
    "clock": clock,
    "GPUs": gpus,
    "isolation": isolation,
    "Slurm": slurm,
    "service": service,
}
