"""Live runs from Python: :func:`submit` and :func:`cluster`, which do what the commands do, by the same code.

A request is on disk when a call returns, so a notebook may end meanwhile. In a shared run the calls go to its
gateway, as those of the commands.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, overload

from pliant.schemas.errors import JobsFailedError, UsageError
from pliant.schemas.job import Job
from pliant.tools.api import AnyPath, jobs_of
from pliant.tools.run.gateway.client import Client, JobEnd, id_of
from pliant.tools.run.gateway.connect import client_for
from pliant.tools.run.service.submit import free_id
from pliant.tools.run.watch.job_status import JobStatus, status_of
from pliant.tools.run.watch.nodes import NodeUse, node_uses

STATE_VARIABLE: Final = "PLIANT_STATE"


class LiveJob:
    """One job of a live run."""

    def __init__(self, client: Client, job_id: str) -> None:
        self.id = job_id
        self._client = client

    def __repr__(self) -> str:
        return f"<job {self.id} of {self._client.state}>"

    def status(self) -> JobStatus | None:
        """Where it stands now: what ``pliant status`` shows. Returns None until the run has taken it up."""
        return status_of(self._client.status(archived=[self.id]), self.id, time.time())

    @property
    def state(self) -> str:
        """Its state in a word: submitted, waiting, running, preempted, finished, failed, …"""
        log = self._client.status(archived=[self.id]).log.jobs.get(self.id)
        return "submitted" if log is None else log.end

    def done(self) -> bool:
        """Whether it has ended."""
        log = self._client.status(archived=[self.id]).log.jobs.get(self.id)
        return log is not None and log.ended

    def wait(self, timeout: float | None = None) -> JobEnd:
        """Wait until it has ended, and say how.

        :param timeout: seconds; None: for as long as it takes.
        :raises TimeoutError: it has not by then; it goes on.
        """
        return LiveJobs(self._client, [self.id]).wait(timeout)[0]

    def result(self, timeout: float | None = None) -> JobEnd:
        """As :meth:`wait`, for a job that has to finish.

        :raises JobsFailedError: it failed, was cancelled, or is of no use to the run.
        """
        return _finished(self.wait(timeout))

    def cancel(self) -> None:
        """End it; it saves first."""
        self._client.cancel([self.id])

    def log(self, lines: int | None = None, *, rank: int | None = None) -> str:
        """What it printed: its newest attempt, file by file.

        :param lines: the last ones of each file; None: all.
        """
        pieces = self._client.output(self.id, lines=lines, rank=rank)
        return b"".join(pieces).decode(errors="replace")

    def future(self) -> Future[JobEnd]:
        """A future of :meth:`result`, for ``concurrent.futures.wait`` and ``as_completed``."""
        future: Future[JobEnd] = Future()
        future.set_running_or_notify_cancel()

        def watch() -> None:
            try:
                end = self.result()
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
                future.set_exception(error)
            else:
                future.set_result(end)

        threading.Thread(target=watch, name=f"pliant-{self.id}", daemon=True).start()
        return future


class LiveJobs(Sequence[LiveJob]):
    """Jobs of a live run, in the order in which they were named."""

    def __init__(self, client: Client, ids: Sequence[str]) -> None:
        self.ids = tuple(ids)
        self._client = client

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> LiveJob: ...
    @overload
    def __getitem__(self, at: slice) -> LiveJobs: ...
    def __getitem__(self, at: int | slice) -> LiveJob | LiveJobs:
        if isinstance(at, slice):
            return LiveJobs(self._client, self.ids[at])
        return LiveJob(self._client, self.ids[at])

    def __repr__(self) -> str:
        return f"<jobs {', '.join(self.ids)} of {self._client.state}>"

    def wait(self, timeout: float | None = None) -> list[JobEnd]:
        """Wait until all have ended; returns how, in their order.

        :raises TimeoutError: some have not by then; they go on.
        """
        until_s = time.monotonic() + (inf if timeout is None else timeout)
        ends: dict[str, JobEnd] = {}
        for end in self._client.ends_of(self.ids) if self.ids else ():
            if end is not None:
                ends[end.id] = end
            elif time.monotonic() >= until_s:
                left = [job_id for job_id in self.ids if job_id not in ends]
                raise TimeoutError(f"not ended after {timeout:g} s: {', '.join(left)}")
        return [ends[job_id] for job_id in self.ids]

    def result(self, timeout: float | None = None) -> list[JobEnd]:
        """As :meth:`wait`; raises as :meth:`LiveJob.result`."""
        return [_finished(end) for end in self.wait(timeout)]

    def cancel(self) -> None:
        """End all of them."""
        self._client.cancel(self.ids)

    def log(self, lines: int | None = None) -> str:
        """What they printed, one after the other."""
        return "".join(job.log(lines) for job in self)


class LiveCluster:
    """A state directory: its jobs and nodes."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def state(self) -> Path:
        return self._client.state

    def jobs(self, *, ended: bool = False) -> LiveJobs:
        """Jobs that this account sees and that have not ended; ``ended``: all."""
        status = self._client.status()
        new = [job.id for job, _ in status.submitted if job.id not in status.log.jobs]
        return LiveJobs(self._client, [*(status.log.jobs if ended else status.log.active), *new])

    def job(self, name: str) -> LiveJob:
        """The newest job of a name, or the one of an id."""
        return LiveJob(self._client, id_of(self._client, name))

    def nodes(self) -> list[NodeUse]:
        """What ``pliant nodes`` shows."""
        return node_uses(*self._client.usage(), time.time())

    def submit(self, jobs: object, **fields: Any) -> LiveJobs:
        """See :func:`submit`."""
        script = _command_of(jobs)
        if script is None:
            if fields:
                raise UsageError(f"{', '.join(fields)}: fields are for a script; in jobs they are stated")
            listed, source = jobs_of(jobs)
        else:
            listed, source = (_job_of(self._client, script, fields),), "the submission"
        options = {"folder": Path.cwd(), "now_s": time.time(), "numbered": script is not None}
        done = self._client.submit(listed, source, **options)  # type: ignore[arg-type]
        return LiveJobs(self._client, done.ids)


def cluster(state: AnyPath | None = None) -> LiveCluster:
    """The run of a state directory.

    :param state: the directory; None: PLIANT_STATE names it.
    """
    named = os.environ.get(STATE_VARIABLE) if state is None else fspath(state)
    if not named:
        raise UsageError(f"name the state directory: state=…, or {STATE_VARIABLE}")
    return LiveCluster(client_for(Path(named)))


def submit(jobs: object, *, state: AnyPath | None = None, **fields: Any) -> LiveJobs:
    """Give jobs to a state directory, all of them or none, as ``pliant submit`` does.

    :param jobs: a script (``"train.py"``), a command as a list of words, or jobs as :func:`pliant.replay`
        takes them: a job file, a DataFrame, records.
    :param state: the directory; None: PLIANT_STATE names it.
    :param fields: fields of the job of a script or command: ``gpus=2`` or
        ``gpus={"requested": 4, "min": 1}``, ``elastic="size"``, ``labels=…``; its id is the script's name.
    :raises PliantError: the run cannot serve a job, or it is not one.
    """
    return cluster(state).submit(jobs, **fields)


def _command_of(jobs: object) -> list[str] | None:
    """The words of a command; None: these are jobs."""
    if isinstance(jobs, str | PathLike) and fspath(jobs).endswith(".py"):
        return [fspath(jobs)]
    if isinstance(jobs, list | tuple) and jobs and all(isinstance(word, str) for word in jobs):
        return [*jobs]
    return None


def _job_of(client: Client, command: list[str], fields: dict[str, Any]) -> Job:
    name = Path(command[0]).stem
    if isinstance(gpus := fields.get("gpus", 1), int):
        fields = {**fields, "gpus": {"requested": gpus}}
    own = {"id": free_id(name, client.used_ids()), "submit_time": 0.0, "model": name, "command": command}
    (job,), _ = jobs_of([{**own, **fields}])
    return job


def _finished(end: JobEnd) -> JobEnd:
    if end.phase != "finished":
        raise JobsFailedError(f"job {end.id} {end.phase}{f': {end.reason}' if end.reason else ''}")
    return end
