"""Users of a shared run, and one attempt of a job of theirs."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.tools.run.backends import protocol
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.statedir.contract.as_user import Rights, files_of, make_job_folder
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir, make_own, make_shared
from pliant.tools.run.statedir.log.events import submit_event
from tests.builders import cluster
from tests.tools.run.gateway.people import as_account
from tests.tools.run.site import until

ANN: Final = 1_900_000_000 + 4 * os.getpid()  # no other user's, also while tests of another process run
BOB: Final = ANN + 1
CYD: Final = ANN + 2
CREW: Final = ANN + 3  # a group
UIDS: Final = frozenset({ANN, BOB, CYD})


class Attempt:
    """An attempt of a user's job on the local backend; its units are shell scripts."""

    def __init__(
        self, folder: Path, uid: int = ANN, job: str = "a", limits: protocol.ProcessLimits | None = None
    ) -> None:
        self.dirs = StateDir(folder / "state")
        if not self.dirs.is_shared:
            make_own(self.dirs)
            make_shared(self.dirs)
        self.account = protocol.Credentials.of(uid, limits)
        job_dir = self.dirs.job(job)
        make_job_folder(job_dir.path, Rights(uid, self.account.gid))
        self.handle = protocol.Handle.of(job_dir, 1)
        assert self.handle.kept is not None
        self.handle.kept.mkdir(parents=True)
        with files_of(self.handle.files):
            self.handle.folder.mkdir(parents=True, mode=0o700)
        self.backend = LocalBackend(cluster(2, slots="cpu"), self.dirs.jobs)

    def start(self, *scripts: str, cwd: str = "/", env: Mapping[str, str] | None = None) -> None:
        units: Sequence[protocol.Unit] = [
            protocol.Unit(
                *("n0", ("/bin/sh", "-c", text), cwd),
                {**(env or {}), ENV_JOB_DIR: str(self.handle.job_files.path), ENV_WORKER: str(number)},
                self.account,
            )
            for number, text in enumerate(scripts)
        ]
        self.backend.start(self.handle, units)

    def poll(self) -> tuple[protocol.UnitStatus, ...]:
        return self.backend.poll([self.handle])[self.handle]

    def end(self) -> tuple[protocol.UnitStatus, ...]:
        until(self.has_ended)
        return self.poll()

    def kill(self) -> tuple[protocol.UnitStatus, ...]:
        until(lambda: (self.backend.stop(self.handle, "kill"), self.has_ended())[1])
        return self.poll()

    def has_ended(self) -> bool:
        return all(status.state != "running" for status in self.poll())

    def said(self, unit: int = 0) -> str:
        return self.handle.files.launcher_log(unit).read_text()

    def supervisor(self) -> psutil.Process:
        record = protocol.read_record(self.handle)
        assert record is not None
        return psutil.Process(record.units[0].pid)


def of_user(*uids: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real in uids and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def as_user(uid: int, *argv: str) -> int:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return int(as_account(uid, lambda: subprocess.run(argv, check=False, **quiet).returncode))


def submit_event_of(
    uids: Mapping[str, int], job: Job, time_s: float, detail: Mapping[str, Any] | None = None
) -> Event:
    """A submission as if these accounts, by job, had been proven."""
    uid = {"uid": uids[job.id]} if job.id in uids else {}
    return submit_event(job, time_s, {**(detail or {}), **uid})
