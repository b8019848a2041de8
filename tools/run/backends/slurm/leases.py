"""The lease jobs of one state directory: one on each of its nodes, found again by their names.

A lease is a job of one node, because a failed node shrinks a job of several nodes for good.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.slurm import command_lines, parsing
from pliant.tools.run.backends.slurm.ask import ask
from pliant.tools.run.backends.slurm.command_lines import Lease
from pliant.tools.run.backends.slurm.controller import View
from pliant.tools.run.backends.slurm.later import Later
from pliant.tools.run.backends.slurm.parsing import SlurmJob

AGAIN_S: Final = 3.0
"""Between two submissions of a lease that ends at once."""
LONGEST_S: Final = 300.0
"""Likewise, of one that does so again and again: each time it takes twice as long, up to this."""
STEADY_S: Final = 60.0
"""A lease that has run for so long has not ended at once."""
REFUSED_S: Final = 15.0
"""Likewise, of one that Slurm refuses."""
WAIT_S: Final = 30.0
"""A node serves as if its lease ran, until it has waited for so long."""
_NOT_LOOKED_AT: Final = ("", "None")
"""Reasons of a job that waits since a moment ago."""
_log = logging.getLogger("pliant")


@dataclass(slots=True)
class _Asked:
    """One node's lease, as far as this process has asked for it."""

    lease: Lease
    since_s: float
    """When it began to wait for its lease; while it has one, now."""
    submission: Later | None = None
    next_s: float = float("-inf")
    seen_from_s: float = float("-inf")
    """Only a view that was asked for later knows what was submitted."""
    refused: str = ""
    tries: int = 0
    """Submissions since a lease ran for long."""
    runs_from_s: float = float("inf")
    id: str | None = None
    job: SlurmJob | None = field(default=None)


class Leases:
    """The leases of a state directory.

    :param clock: seconds that never run backwards.
    """

    def __init__(
        self,
        cluster: Cluster,
        state: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._state = cluster.slurm, state.resolve()
        self._clock = clock
        self._asked = {
            node.name: _Asked(command_lines.lease_of(cluster, node, state), clock())
            for node in cluster.expanded()
            if node.gpus
        }

    def id_of(self, node: str) -> str | None:
        """The job id of a node's lease, if it runs."""
        return self._asked[node].id if node in self._asked else None

    @property
    def held(self) -> int:
        """Leases that run or wait."""
        return sum(asked.job is not None for asked in self._asked.values())

    def size_of(self, node: str) -> int:
        """GPUs in a node's lease; 0: its slots are CPUs."""
        return self._asked[node].lease.gpus

    def cpus_of(self, node: str) -> int | None:
        """CPUs in a node's lease; None: all of the node."""
        return self._asked[node].lease.cpus

    def serves(self, node: str) -> bool:
        """Whether a node's lease runs, or has not been waited for long."""
        asked = self._asked.get(node)
        return asked is not None and (asked.id is not None or self._clock() - asked.since_s < WAIT_S)

    def asks_for(self, node: str) -> bool:
        """Whether a node's lease is still to come into Slurm's queue, or Slurm has not looked at it there."""
        asked = self._asked.get(node)
        if asked is None or asked.id is not None or asked.refused:
            return False
        return asked.job is None or asked.job.reason in _NOT_LOOKED_AT

    def why_not(self, node: str) -> str:
        """Why a node's lease does not run."""
        asked = self._asked.get(node)
        if asked is None or asked.refused:
            return "it has no GPUs" if asked is None else f"Slurm refuses its lease: {asked.refused}"
        if asked.job is None and asked.tries > 2:
            return "its lease ends at once, or is not called in Slurm's queue as it was asked to be"
        waits = f" ({asked.job.reason})" if asked.job is not None and asked.job.reason else ""
        return f"its lease waits in Slurm's queue{waits}"

    def look(self, view: View, *, renew: bool = True) -> None:
        """Learn from a view which leases run; where a node has none, ask for one.

        :param renew: ask for those that are missing.
        """
        by_name = self._by_name(view)
        for node, asked in self._asked.items():
            self._hear(asked)
            jobs = by_name.get(asked.lease.name, [])
            running = [job for job in jobs if job.state == "RUNNING"]
            now_s = self._clock()
            asked.id, before = running[0].id if running else None, asked.id
            asked.job = next(iter([*running, *jobs]), None)
            if asked.id != before:
                asked.runs_from_s = now_s if running else float("inf")
            if now_s - asked.runs_from_s >= STEADY_S:
                asked.tries = 0
            asked.since_s = now_s if running or not renew else asked.since_s
            if renew:
                self._drop_second(running or jobs, jobs)
            found = view.nodes.get(node)
            wanted = renew and not jobs and found is not None and found.serves is not False
            if (
                wanted
                and asked.submission is None
                and now_s >= asked.next_s
                and view.asked_s >= asked.seen_from_s
            ):
                self._submit(asked)

    def give_back(self, busy: Iterable[str] = ()) -> int:
        """End the leases of all nodes but the ``busy`` ones, and returns how many these are. Waits for Slurm.

        :raises ServiceMissingError: Slurm does not answer.
        """
        for asked in self._asked.values():
            if asked.submission is not None:  # or it would come into the queue after this
                asked.submission.wait()
        kept = {self._asked[node].lease.name for node in busy if node in self._asked}
        prefix = command_lines.lease_prefix(self._state)
        text = ask(command_lines.squeue_jobs(os.getuid()))
        own = [job for job in parsing.jobs(text) if job.name.startswith(prefix) and job.name not in kept]
        if own:
            ask(command_lines.scancel_jobs(job.id for job in own))
        return len(own)

    def drop(self, node: str) -> None:
        """End the lease of a node that is to serve no more."""
        asked = self._asked.get(node)
        if asked is not None and asked.id is not None and self._clock() >= asked.next_s:
            asked.next_s = self._clock() + AGAIN_S
            Later(command_lines.scancel_jobs([asked.id]))

    def _by_name(self, view: View) -> Mapping[str, list[SlurmJob]]:
        """The jobs that wait or run, the oldest first, by name."""
        found: dict[str, list[SlurmJob]] = {}
        for job in sorted(view.jobs, key=_age):
            if job.state in ("PENDING", "RUNNING", "CONFIGURING", "SUSPENDED"):
                found.setdefault(job.name, []).append(job)
        return found

    def _drop_second(self, kept: list[SlurmJob], jobs: list[SlurmJob]) -> None:
        """A node may get two where a controller answered late: all steps are in the first that runs."""
        surplus = [job.id for job in jobs if job.id != kept[0].id] if kept else []
        if surplus:
            Later(command_lines.scancel_jobs(surplus))

    def _submit(self, asked: _Asked) -> None:
        argv = command_lines.sbatch_lease(asked.lease, self._options, self._state)
        asked.submission = Later(argv)

    def _hear(self, asked: _Asked) -> None:
        """What became of a submission that is under way."""
        if asked.submission is None or not asked.submission.done:
            return
        refused, asked.submission = asked.submission.failure, None
        asked.seen_from_s = self._clock()
        asked.next_s = asked.seen_from_s + (REFUSED_S if refused else _pause_s(asked.tries))
        asked.tries += not refused
        if refused and refused != asked.refused:
            _log.warning("node %s: no lease: %s; it is asked for again", asked.lease.node, refused)
        asked.refused = refused


def _pause_s(tries: int) -> float:
    """How long to wait after another submission: a controller keeps each job that has ended for minutes."""
    return min(AGAIN_S * 2.0 ** min(max(0, tries - 1), 20), LONGEST_S)


def _age(job: SlurmJob) -> tuple[int, str]:
    return (int(job.id) if job.id.isdecimal() else 0, job.id)
