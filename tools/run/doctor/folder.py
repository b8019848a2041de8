"""Checks of the state directory: its file system, who may use it, its clock, and the run that serves it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from pliant.schemas.text import (
    clock_text,
    counted,
    span_text,
    when_text,
)
from pliant.tools.run.doctor.site import Check, Site, first_line, ok, problem, warning
from pliant.tools.run.gateway.readable_install import ADVICE, obstacle
from pliant.tools.run.statedir.directory import ROOT, holder_of
from pliant.tools.run.statedir.file_system import Mount, mount_of, probe
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import size_and_time

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
        probed = probe(place)
    except OSError as error:
        what = "cannot be written, or knows no locks"
        yield problem(f"{place} {what}: {error.strerror}", "name a folder that you may write in")
        return
    if not probed.locks:
        yield problem(
            "locks have no effect here: two runs could use it",
            "name a folder on a local disk, or NFS with locks",
        )
    text = f"a write is on disk after {1000 * probed.sync_s:.0f} ms"
    if probed.sync_s > _SLOW_S:
        yield warning(text, "every event costs that: name a folder on a faster disk")
    else:
        yield ok(f"{text}{', and locks work' if probed.locks else ''}")


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
