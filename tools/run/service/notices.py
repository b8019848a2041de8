"""Notices: a command or a web server hears of jobs that end or wait too long, and of sick slots and nodes.

Each target has a thread of its own, which reads the log behind the loop; the loop does nothing for it. How
far a target has heard lies in ``notices/`` of the state directory, so a notice that was not delivered is sent
by the next run. One that was delivered just before a kill comes twice, with the same ``id``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from pydantic_core import from_json

from pliant.schemas.cluster import NoticeKind, Notify
from pliant.schemas.errors import PliantError
from pliant.schemas.event import ENDS
from pliant.schemas.file_io.archives import archives_in, archives_of, shifted
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.text import iso_time, one_line
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.snapshot import LogView
from pliant.tools.run.statedir.slot_faults import UNTIL_RESUMED_S

SCHEMA: Final = "pliant.notice/1"
POLL_S: Final = 1.0
SAVE_S: Final = 60.0
"""Seconds between two times that a place without a notice is saved: archives wait for it."""
WAITING_POLL_S: Final = 15.0
TIMEOUT_S: Final = 15.0
"""Seconds for a command or a server to take one notice."""
RETRY_S: Final = (1.0, 60.0)
"""Seconds until the first retry, doubled each time, and at most."""
CLOSE_S: Final = 5.0
"""Seconds at the end of a run for what is still to be delivered."""
_log = logging.getLogger("pliant")


class Notices:
    """The targets of one run."""

    def __init__(self, dirs: StateDir, targets: Iterable[Notify], retry_s: tuple[float, float] = RETRY_S):
        self._dirs, self._retry_s = dirs, retry_s
        self._couriers: dict[Notify, _Courier] = {}
        self.go_on_with(targets)

    def go_on_with(self, targets: Iterable[Notify]) -> None:
        """The cluster file names these from now on."""
        wanted = [*dict.fromkeys(targets)]
        for target in [target for target in self._couriers if target not in wanted]:
            self._couriers.pop(target).stop()
        for target in wanted:
            if target not in self._couriers:
                courier = self._couriers[target] = _Courier(self._dirs, target, self._retry_s)
                courier.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        until_s = time.monotonic() + CLOSE_S
        for courier in self._couriers.values():
            courier.leave()
        for courier in self._couriers.values():
            courier.join(max(0.0, until_s - time.monotonic()))
            courier.stop()


def place_file(dirs: StateDir, target: Notify) -> Path:
    """The file that says up to where in the log a target has got its notices."""
    digest = hashlib.sha256(target.model_dump_json().encode()).hexdigest()[:16]
    return dirs.path / "notices" / f"{digest}.json"


def passed_by_all(dirs: StateDir, targets: Iterable[Notify]) -> int | None:
    """Up to where in the log all targets have got their notices, in bytes; None: none of them has begun."""
    archives, places = archives_of(dirs.events), list[int]()
    for target in targets:
        with suppress(FileNotFoundError, ValueError, KeyError):  # with a damaged one no notice is sent
            kept = json.loads(place_file(dirs, target).read_bytes())
            places.append(shifted(int(kept["bytes"]), kept.get("archives", ()), archives))
    return min(places, default=None)


class _Courier(threading.Thread):
    """Tells one target, notice after notice."""

    def __init__(self, dirs: StateDir, target: Notify, retry_s: tuple[float, float]) -> None:
        super().__init__(name="pliant-notices", daemon=True)
        self._dirs, self._target, self._retry_s = dirs, target, retry_s
        self._stopped, self._leaves = threading.Event(), threading.Event()
        self._file = place_file(dirs, target)
        self._saved, self._saved_s = 0, 0.0
        self._place, self._waited = 0, set[str]()
        self._archives: tuple[str, ...] = ()
        self._view = LogView(dirs)
        self._looks_s = 0.0

    def stop(self) -> None:
        self._stopped.set()

    def leave(self) -> None:
        """End once all is delivered that the log has now."""
        self._leaves.set()

    def run(self) -> None:
        try:
            self._begin()
            while not self._stopped.is_set():
                leaves = self._leaves.is_set()
                for after, notice in self._due():
                    if not self._delivered(notice):
                        return
                    self._save(after)
                self._look_for_waiting()
                is_due = leaves or time.monotonic() >= self._saved_s + SAVE_S
                if is_due and self._place != self._saved:
                    self._save(self._place)
                if leaves:
                    return
                self._leaves.wait(POLL_S)
        except (OSError, PliantError, ValueError) as error:
            _log.warning(
                "notices to %s end until the next start: %s", self._target.name, one_line(str(error))
            )

    def _begin(self) -> None:
        """A target that is new hears of what happens from now on."""
        self._file.parent.mkdir(PRIVATE | 0o100, exist_ok=True)
        if self._file.exists():
            kept = json.loads(self._file.read_bytes())
            self._place, self._waited = int(kept["bytes"]), {*kept["waited"]}
            self._archives = tuple(kept.get("archives", ()))
        else:
            with suppress(FileNotFoundError), self._dirs.events.open("rb") as file:
                self._archives = (*archives_in(file),)
                self._place = os.fstat(file.fileno()).st_size
        self._save(self._place)

    def _save(self, place: int) -> None:
        self._place = place
        data = {"bytes": place, "waited": sorted(self._waited), "archives": self._archives}
        atomic_write(self._file, json.dumps(data).encode() + b"\n", mode=PRIVATE)
        self._saved, self._saved_s = place, time.monotonic()

    def _due(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Notices from the log, each with the place after its line."""
        if not self._dirs.events.exists():
            return
        with self._dirs.events.open("rb") as file:
            archives = archives_in(file)
            self._place = shifted(self._place, self._archives, archives)
            self._archives, made = (*archives,), f"-{len(archives)}" if archives else ""
            self._place = min(self._place, os.fstat(file.fileno()).st_size)  # it may have been repaired
            file.seek(0)
            if self._place:  # within a line, if the log was repaired since: the rest of it is left out
                file.seek(self._place - 1)
                file.readline()
            while (line := file.readline()).endswith(b"\n"):
                is_header = line.startswith(b'{"schema"')
                notice = None if is_header else notice_of(from_json(line), self._target, self._owner_of)
                if notice is not None:
                    yield file.tell(), {**notice, "id": f"{file.tell()}{made}", "state": str(self._dirs.path)}
                self._place = file.tell()

    def _owner_of(self, job_id: str) -> str | None:
        job = self._view.log.jobs.get(job_id) or self._view.refresh().jobs.get(job_id)
        return None if job is None else job.job.user

    def _look_for_waiting(self) -> None:
        if "waiting" not in self._target.on or time.monotonic() < self._looks_s:
            return
        self._looks_s = time.monotonic() + WAITING_POLL_S
        log, now_s = self._view.refresh(), time.time()
        self._waited &= log.active.keys()
        for job_id, job in log.active.items():
            waits_s = now_s - job.submitted_s
            if job.started_s is not None or job.held is not None or job_id in self._waited:
                continue
            if waits_s >= self._target.waiting_seconds:
                notice = _notice("waiting", now_s, job_id, job.job.user, f"it has waited for {waits_s:.0f} s")
                if not self._delivered({**notice, "id": f"waiting-{job_id}", "state": str(self._dirs.path)}):
                    return
                self._waited.add(job_id)
                self._save(self._place)

    def _delivered(self, notice: Mapping[str, Any]) -> bool:
        """Deliver a notice, as often as it takes. Returns False if this is to stop before that."""
        pause_s, warned = self._retry_s[0], False
        data = json.dumps(notice, ensure_ascii=False).encode() + b"\n"
        while not self._stopped.is_set():
            try:
                deliver(self._target, data)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                if not warned:
                    text = "a notice to %s was not taken, and is sent again: %s"
                    _log.warning(text, self._target.name, one_line(str(error)))
                warned = True
                self._stopped.wait(pause_s)
                pause_s = min(2 * pause_s, self._retry_s[1])
            else:
                return True
        return False


def deliver(target: Notify, data: bytes) -> None:
    """Have a target take a notice.

    :raises OSError: a server does not answer, or not with a code of success; a command cannot be started.
    :raises SubprocessError: a command fails, or takes too long.
    """
    if target.command:
        subprocess.run(
            target.command, input=data, capture_output=True, timeout=TIMEOUT_S, cwd="/", check=True
        )
        return
    url = target.url or Path(target.url_file or "").read_text().strip()
    if not url.startswith(("https://", "http://")):
        raise ValueError("expected an address that begins with https:// or http://")
    headers = {"Content-Type": "application/json", "User-Agent": "pliant"}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - checked above
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        answer.read(1 << 16)


def notice_of(
    row: Mapping[str, Any], target: Notify, owner_of: Callable[[str], str | None]
) -> dict[str, Any] | None:
    """The notice that an event of the log is worth; None: the target does not want it.

    :param owner_of: the user of a job, by its id.
    """
    name, job_id, detail = row["event"], row.get("job"), row.get("detail") or {}
    if name in ENDS:
        kind: NoticeKind = ENDS[name]
    elif name == "slot_down" and job_id is None and float(detail.get("seconds") or 0) >= UNTIL_RESUMED_S:
        kind = "quarantined"
    elif name == "node_down":
        kind = "node_down"
    else:
        return None
    if kind not in target.on:
        return None
    owner = None if job_id is None else owner_of(job_id)
    notice = _notice(kind, row["time"], job_id, owner, str(detail.get("reason") or ""))
    more = {
        key: detail[key] for key in ("node", "slot", "exit_code", "attempt") if detail.get(key) is not None
    }
    return notice | more


def _notice(kind: NoticeKind, at_s: float, job: str | None, user: str | None, reason: str) -> dict[str, Any]:
    about = {"job": job, "user": user or None, "reason": reason or None}
    return {"schema": SCHEMA, "on": kind, "time": iso_time(at_s), **about}
