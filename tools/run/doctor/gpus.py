"""The GPUs of this machine: are those of the cluster there, and does another program use them?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

from pliant.schemas.errors import PliantError, ServiceMissingError
from pliant.schemas.text.wording import in_gpus
from pliant.tools.run.backends.devices import (
    VISIBLE,
    Gpu,
    Listed,
    devices_by_node,
    list_gpus,
    processes_on,
    visible_of,
)
from pliant.tools.run.doctor.check import Check, first_line, ok, problem, warning
from pliant.tools.run.doctor.site import Site
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR

AREA: Final = "GPUs"
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
        yield warning(AREA, fault, "look at nvidia-smi; it is left out")
    if site.cluster is not None and needed:
        try:
            devices_by_node(site.cluster, usable)
        except PliantError as error:
            yield problem(AREA, first_line(error), "make the file again: pliant cluster discover")
    if usable:
        yield from _torch_build(needed=needed)
        yield from _others(site, usable)


def _no_driver(error: ServiceMissingError, *, needed: bool) -> Check:
    if needed:
        return problem(AREA, first_line(error), 'mend that, or use a cluster with "slots": "cpu"')
    if DRIVER.exists():
        return warning(AREA, first_line(error), "mend that to use GPUs")
    return ok(AREA, "no NVIDIA driver: CPU slots only")


def _count(listed: Listed, usable: tuple[Gpu, ...]) -> Check:
    instances = sum(gpu.name != gpu.card for gpu in usable)
    text = f"{in_gpus(len(usable))} to use of {len(listed.gpus)}, driver {listed.driver}"
    return ok(AREA, f"{text}, {instances} of them MIG instances" if instances else text)


def _torch_build(*, needed: bool) -> Iterator[Check]:
    """A build for CPUs leaves the GPUs unused; its version says which it is."""
    with suppress(PackageNotFoundError):
        if (found := version("torch")).endswith("+cpu"):
            text, advice = (
                f"torch {found} is the build without CUDA",
                "install the one with: pip install torch",
            )
            yield problem(AREA, text, advice) if needed else warning(AREA, text, advice)


def _others(site: Site, usable: tuple[Gpu, ...]) -> Iterator[Check]:
    own = "" if site.dirs is None else f"{site.dirs.path}/"
    for card, pids in processes_on(usable).items():
        others = [pid for pid in pids if not _is_ours(pid, own)]
        if others:
            number = next(gpu.number for gpu in usable if gpu.card == card)
            who = ", ".join(map(str, others[:3])) + ("…" if len(others) > 3 else "")
            text = f"GPU {number} is in use by process {who}"
            yield warning(AREA, text, f"end it, or leave that GPU out with {VISIBLE}")


def _is_ours(pid: int, folder: str) -> bool:
    """Whether it is a process of a job of this state directory."""
    with suppress(psutil.Error):
        return bool(folder) and psutil.Process(pid).environ().get(ENV_JOB_DIR, "").startswith(folder)
    return False
