"""Checks of this machine: packages, GPUs, containers of jobs, and limits of units."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

import psutil

from pliant import __version__
from pliant.schemas.errors import PliantError, ServiceMissingError
from pliant.schemas.text import (
    counted,
    in_gpus,
    listed,
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
from pliant.tools.run.doctor.site import Check, Site, first_line, ok, problem, warning
from pliant.tools.run.service.containers import TRIED
from pliant.tools.run.service.containers import obstacle as container_obstacle
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR

CONSTRAINTS: Final = Path(__file__).parents[3] / "constraints.txt"
"""The versions that the tests run with; exists only in a checkout."""
_NEEDED: Final = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?")
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def versions(_site: Site, constraints: Path = CONSTRAINTS) -> Iterator[Check]:
    """Are the packages installed, and recent enough? None of them is imported."""
    yield ok(f"pliant {__version__}, Python {platform.python_version()}")
    needed = needed_versions(requires("pliant") or ())
    installed = {name: _installed(name) for name in needed}
    yield _torch(_installed("torch"), constraints)
    bad = [_fault(name, installed[name], least) for name, least in needed.items()]
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


_CONTAINERS: Final = 5
"""Maximum containers to try."""


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
        if (release := version("torch")).endswith("+cpu"):
            text = f"torch {release} is the build without CUDA"
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


_STATED: Final = {"memory": "memory", "cpus": "cpu"}
"""Resources that a node states, with the controllers that share them."""


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
