"""The state directory: is it ours, can it be written, and does its file system do what runs rely on?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pliant.schemas.text.wording import counted
from pliant.tools.run.doctor.check import Check, first_line, ok, problem, warning
from pliant.tools.run.doctor.probe import Mount, Probed, mount_of, probe
from pliant.tools.run.doctor.site import Site

AREA: Final = "folder"
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
        yield problem(AREA, first_line(site.refused), advice)
    elif not site.there:
        if os.path.lexists(path):
            yield problem(AREA, f"{path} is not a folder", "name a new or an empty folder")
            return
        yield ok(AREA, f"{path} is not there yet: the first run or submission makes it")
    elif site.misfit is not None:
        yield warning(AREA, f"its log {site.misfit.words}", site.misfit.advice(path))
    elif site.log is not None:
        yield ok(AREA, _content(site))
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
        yield warning(AREA, f"{place} is in memory ({kind}): a reboot empties it", "name a folder on a disk")
    elif mount.kind in SHARED and not _OWN_LOCKS.isdisjoint(mount.options):
        text = (
            f"{kind}: other machines do not see its locks ({', '.join(sorted(_OWN_LOCKS & mount.options))})"
        )
        yield warning(AREA, text, "use it from one machine only, or mount it with locks")
    elif site.is_slurm and nodes != 1 and mount.kind not in SHARED:
        text = f"{place} is on {kind}, and the nodes have to see it at the same path"
        yield warning(AREA, text, "name a folder that all nodes share, unless they all see this one")
    else:
        yield ok(AREA, f"on {kind}{', which machines can share' if mount.kind in SHARED else ''}")


def _room(place: Path) -> Iterator[Check]:
    free, files = shutil.disk_usage(place).free, os.statvfs(place)
    text = f"{free / _GIB:.1f} GiB free"
    if free < _FULL_BYTES:
        yield problem(AREA, text, "make room: a run that cannot write its log ends")
    elif free < _LOW_BYTES:
        yield warning(AREA, text, "make room: checkpoints that do not fit are not kept")
    elif files.f_files and files.f_favail < _LOW_FILES:
        yield warning(
            AREA, f"{text}, but {files.f_favail} files at most", "remove files: each job makes some"
        )
    else:
        yield ok(AREA, text)


def _writing(place: Path) -> Iterator[Check]:
    try:
        found = probe(place)
    except OSError as error:
        what = "cannot be written, or knows no locks"
        yield problem(AREA, f"{place} {what}: {error.strerror}", "name a folder that you may write in")
        return
    yield from _from(found)


def _from(found: Probed) -> Iterator[Check]:
    if not found.locks:
        yield problem(
            AREA,
            "locks have no effect here: two runs could use it",
            "name a folder on a local disk, or NFS with locks",
        )
    text = f"a write is on disk after {1000 * found.sync_s:.0f} ms"
    if found.sync_s > _SLOW_S:
        yield warning(AREA, text, "every event costs that: name a folder on a faster disk")
    else:
        yield ok(AREA, f"{text}{', and locks work' if found.locks else ''}")


def skew_s(site: Site) -> float | None:
    """Seconds by which the state directory's clock is ahead; None: there is none to be asked."""
    if site.dirs is None:
        return None
    with suppress(OSError):
        return probe(_nearest(site.dirs.path)).skew_s
    return None
