"""The backend for a Slurm that lends no nodes: each attempt is a Slurm job of its own, which waits its turn.

A job that is to have another size is stopped with a checkpoint and submitted again. As with leases, what
runs is known by the files of an attempt, whether or not Slurm answers; the name of the Slurm job leads from
one to the other, so no id has to be remembered.
"""

from __future__ import annotations

import errno
import logging
import os
import shlex
import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.file_io.files import atomic_write
from pliant.tools.profile.torchrun.processes import child_environment
from pliant.tools.run.backends.protocol import Handle, NodeInfo, StopLevel, Unit, UnitStatus
from pliant.tools.run.backends.record import LaunchRecord, StartedUnit, newest_attempts, write_record
from pliant.tools.run.backends.slurm import command_lines
from pliant.tools.run.backends.slurm.controller import Controller, View
from pliant.tools.run.backends.slurm.later import Later
from pliant.tools.run.backends.slurm.units import SlurmUnit, no_orders, record_of
from pliant.tools.run.backends.slurm_jobs.attempt import Attempt, Listed
from pliant.tools.run.backends.slurm_jobs.script import job_name, request_of, sbatch, script, script_file
from pliant.tools.run.statedir.contract.files import PRIVATE, make_log_folder
from pliant.tools.run.statedir.folder_cache import FolderCache
from pliant.tools.run.statedir.layout import StateDir

_FORGET_S: Final = 3600.0
"""By then a job that is not wanted has come to the controller, if ever."""
_AGAIN_S: Final = 1.0
"""Between two times that a job is cancelled."""
_NEVER: Final = float("-inf")
_log = logging.getLogger("pliant")


class SlurmJobsBackend:
    """Jobs of a Slurm.

    :param dirs: of the state directory; all nodes see it under the same path.
    """

    name = "slurm-jobs"
    in_place = False
    shares_slots = False
    held_nodes = 0

    def __init__(self, cluster: Cluster, dirs: StateDir) -> None:
        self._cluster, self._dirs = cluster, dirs
        self._controller = Controller(())
        self._attempts: dict[Handle, Attempt] = {}
        self._unwanted: dict[str, float] = {}
        """Names of jobs that are to be cancelled wherever they are listed, and when that was asked last."""
        self._looked_at: View | None = None

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes of the cluster file, all up: which ones a job gets is Slurm's choice.

        :raises ServiceMissingError: Slurm does not answer.
        """
        if self._controller.view is None:
            self._controller.first()
        gpus = self._cluster.slots == "gpu"
        return [
            NodeInfo(node.name, node.gpus, devices=tuple(map(str, range(node.gpus))) if gpus else None)
            for node in self._cluster.expanded()
        ]

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        """The submission, its script, and what each task of it starts."""
        request, options = request_of(self._cluster, units, self._name_of(handle)), self._cluster.slurm
        text = script(request, options, handle.files, os.environ.get("LC_ALL"))
        return [
            shlex.join(sbatch(request, options, handle.files)),
            *(f"  {line}" for line in text.splitlines()),
            *(f"task {number}: {unit.in_a_shell}" for number, unit in enumerate(units)),
        ]

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """Submit a job for all units of an attempt.

        :raises OSError: the attempt has units already: it is one job as it was submitted.
        """
        if self._attempt(handle).units:
            raise OSError(errno.ENOTSUP, "an attempt is one job of Slurm, which does not change")
        make_log_folder(handle.files.logs)
        no_orders(handle, range(len(units)))
        request = request_of(self._cluster, units, self._name_of(handle))
        text = script(request, self._cluster.slurm, handle.files, os.environ.get("LC_ALL"))
        atomic_write(script_file(handle.files), text.encode(), mode=PRIVATE)
        started = tuple(StartedUnit.of(unit) for unit in units)
        record = LaunchRecord(job=handle.job, attempt=handle.attempt, backend=self.name, units=started)
        write_record(handle, record)
        self._attempts.pop(handle)
        self._attempt(handle).submission = Later(
            sbatch(request, self._cluster.slurm, handle.files), child_environment(os.environ, {})
        )

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """Write down for each keeper what it is to do; cancel what has not begun, or does not heed a kill."""
        attempt, is_late = self._attempt(handle), False
        for unit in attempt.units:
            if (only is None or unit.number in only) and unit.ended() is None:
                is_late |= unit.give_order(level)
        if is_late or (only is None and (level == "kill" or not attempt.began)):
            self._cancel(attempt.name)
        if all(unit.ended() is not None for unit in attempt.units):
            self._attempts.pop(handle)
        self._look()

    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        """What became of the units."""
        self._look()
        return {handle: self._statuses(handle, time.monotonic()) for handle in handles}

    def _statuses(self, handle: Handle, now_s: float) -> tuple[UnitStatus, ...]:
        attempt = self._attempt(handle)
        found = attempt.statuses(self._listed(attempt), now_s)
        if all(status.state != "running" for status in found):
            if attempt.units and (why := attempt.end_in_words()):
                _log.warning("job %s: Slurm has ended it: %s", handle.job, why)
            self._attempts.pop(handle)
        return found

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        """The newest attempt of every job that is not over, waiting in Slurm's queue or not."""
        return newest_attempts(self._dirs.jobs, over)

    def release(self, over: Container[str] = ()) -> int:
        """Nothing is held of a node on which nothing runs."""
        return 0

    def _look(self) -> None:
        """Take up the newest view of Slurm, and cancel what is listed there and not wanted."""
        self._controller.look()
        view = self._controller.view
        if view is None or view is self._looked_at:
            return
        self._looked_at = view
        old_s = time.monotonic() - _FORGET_S
        self._unwanted = {name: asked_s for name, asked_s in self._unwanted.items() if asked_s > old_s}
        for job in view.jobs:
            if job.name in self._unwanted and job.state != "COMPLETING":
                self._cancel(job.name)

    def _cancel(self, name: str) -> None:
        """Cancel a job; one that is still being submitted is cancelled when it is listed."""
        now_s = time.monotonic()
        if now_s - self._unwanted.get(name, _NEVER) >= _AGAIN_S:
            self._unwanted[name] = now_s
            Later(command_lines.scancel_named(name, os.getuid()))

    def _listed(self, attempt: Attempt) -> Listed:
        view = self._controller.view
        if view is None or self._controller.failure:
            return Listed(_NEVER, None)
        return Listed(view.asked_s, next((job for job in view.jobs if job.name == attempt.name), None))

    def _attempt(self, handle: Handle) -> Attempt:
        if handle not in self._attempts:
            record = record_of(handle, self.name)
            units = [SlurmUnit(handle, n, unit) for n, unit in enumerate(record.units if record else ())]
            cache = FolderCache(handle.folder)
            self._attempts[handle] = Attempt(handle, self._name_of(handle), units, cache, time.monotonic())
        return self._attempts[handle]

    def _name_of(self, handle: Handle) -> str:
        return job_name(handle, self._dirs.path)
