"""Does a loop serve the state directory, and is anything waiting for one?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import psutil

from pliant.schemas.text.times import when_text
from pliant.schemas.text.wording import counted
from pliant.tools.run.doctor.check import Check, ok, problem, warning
from pliant.tools.run.doctor.site import Site
from pliant.tools.run.statedir.directory import size_and_time
from pliant.tools.run.statedir.lock import holder_of
from pliant.tools.run.statedir.requests import Spool

AREA: Final = "service"


def service(site: Site) -> Iterator[Check]:
    """The checks of this area."""
    if site.dirs is None or not site.there or site.refused is not None:
        return
    now_s, written_s = time.time(), size_and_time(site.dirs)[1]
    seen = f"; it wrote last {when_text(written_s, now_s)}" if written_s else ""
    holder = holder_of(site.dirs.lock)
    if holder is not None:
        yield _held(holder, seen)
        return
    if site.log is not None and site.log.once:
        yield ok(AREA, f"no loop: calls of pliant run serve it, as from cron{seen.replace('it', 'one', 1)}")
        return
    waiting = _waiting(site)
    if waiting:
        text = f"no loop serves {waiting}{seen.replace('it wrote', 'one wrote')}"
        start = f"pliant run --follow --state {site.dirs.path}"
        yield warning(AREA, text, f"unless cron calls pliant run: {start}")
    else:
        yield ok(AREA, f"no loop, and nothing waits for one{seen.replace('it wrote', 'one wrote')}")


def _held(holder: int, seen: str) -> Check:
    if not holder:
        return ok(AREA, f"a run holds the directory{seen}")
    status = ""
    with suppress(psutil.Error):
        status = psutil.Process(holder).status()
    if status == psutil.STATUS_STOPPED:
        return problem(AREA, f"process {holder} runs it, but is stopped{seen}", f"kill -CONT {holder}")
    where = "" if status else " (of another machine)"
    return ok(AREA, f"process {holder}{where} runs it{seen}")


def _waiting(site: Site) -> str:
    """What waits for a loop, in words."""
    if site.dirs is None:
        return ""
    parts = []
    if site.log is not None and site.log.active:
        parts.append(counted(len(site.log.active), "job"))
    requests = len(Spool(site.dirs).requests())
    if requests:
        parts.append(counted(requests, "request"))
    return " and ".join(parts)
