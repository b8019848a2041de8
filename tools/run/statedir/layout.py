"""Where everything lies in a state directory. Paths only: nothing here reads or writes a file.

events.jsonl  cluster.json  profile.parquet  schedule.json  lock
snapshot.jsonl                       what the log folds to up to a place in it; can be made again
run.log                              what a run in the background has to say
spool/                               submissions and cancellations that the log does not hold yet
jobs/ID/                             one job's folder: see ``contract/folders.py``
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pliant.tools.run.statedir.contract.folders import JobDir


@dataclass(frozen=True, slots=True)
class StateDir:
    """A state directory."""

    path: Path

    @property
    def events(self) -> Path:
        """The log that all state is folded from."""
        return self.path / "events.jsonl"

    @property
    def snapshot(self) -> Path:
        """What the log folds to, up to a place in it."""
        return self.path / "snapshot.jsonl"

    @property
    def cluster(self) -> Path:
        """The cluster in use."""
        return self.path / "cluster.json"

    @property
    def profile(self) -> Path:
        """The profile in use."""
        return self.path / "profile.parquet"

    @property
    def schedule(self) -> Path:
        """The schedule applied last."""
        return self.path / "schedule.json"

    @property
    def lock(self) -> Path:
        """Held by the one writer, by flock."""
        return self.path / "lock"

    @property
    def run_log(self) -> Path:
        """What a run in the background says."""
        return self.path / "run.log"

    @property
    def spool(self) -> Path:
        """The folder of the requests that the log does not hold yet."""
        return self.path / "spool"

    @property
    def jobs(self) -> Path:
        """The folder of the jobs' folders."""
        return self.path / "jobs"

    def job(self, job_id: str) -> JobDir:
        """One job's folder."""
        return JobDir(self.jobs / job_id)
