"""Where everything lies in a state directory. Paths only: nothing here reads or writes.

events.jsonl  cluster.json  profile.parquet  schedule.json  lock
jobs/ID/plan.json                    the newest plan of the job (atomic; the durable truth)
jobs/ID/checkpoints/                 newest two, verified by hash on load
jobs/ID/attempts/N/launch.json       how attempt N was started: argv, slots, pids with start times
jobs/ID/attempts/N/rdzv-U            file that the torchrun of unit U keeps its rendezvous in
jobs/ID/attempts/N/store             where the workers of attempt N meet: "host port"
jobs/ID/attempts/N/progress.jsonl    events of the workers (progress, epoch, checkpoint), written by rank 0
jobs/ID/attempts/N/rank-R.json       how rank R ended: a WorkerOutcome
jobs/ID/attempts/N/exit-U            exit code of unit U (what the backend started), once it has ended
jobs/ID/attempts/N/logs/             standard output and error of each worker
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """One start of one job: everything between two changes of its gang."""

    path: Path

    @property
    def launch(self) -> Path:
        """How it was started."""
        return self.path / "launch.json"

    @property
    def store(self) -> Path:
        """Address of the workers' meeting point, written by rank 0."""
        return self.path / "store"

    @property
    def progress(self) -> Path:
        """Events of the workers, an event file of its own."""
        return self.path / "progress.jsonl"

    @property
    def logs(self) -> Path:
        """Folder of the workers' output."""
        return self.path / "logs"

    def meeting(self, unit: int) -> Path:
        """Where the torchrun of one unit meets itself."""
        return self.path / f"rdzv-{unit}"

    def outcome(self, rank: int) -> Path:
        """How one rank ended."""
        return self.path / f"rank-{rank}.json"

    def exit_code(self, unit: int) -> Path:
        """Exit code of one unit, written when it has ended."""
        return self.path / f"exit-{unit}"

    def launcher_log(self, unit: int) -> Path:
        """What torchrun itself said."""
        return self.logs / f"launcher-{unit}.log"


@dataclass(frozen=True, slots=True)
class JobDir:
    """One job's folder. Job ids are validated by the schema, so an id is always a plain folder name."""

    path: Path

    @property
    def plan(self) -> Path:
        """The newest plan."""
        return self.path / "plan.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    def attempt(self, number: int) -> AttemptDir:
        """The folder of attempt ``number`` (from 1)."""
        return AttemptDir(self.path / "attempts" / str(number))


@dataclass(frozen=True, slots=True)
class StateDir:
    """A state directory."""

    path: Path

    @property
    def events(self) -> Path:
        """The log that all state is folded from."""
        return self.path / "events.jsonl"

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
    def jobs(self) -> Path:
        """The folder of the jobs' folders."""
        return self.path / "jobs"

    def job(self, job_id: str) -> JobDir:
        """One job's folder."""
        return JobDir(self.jobs / job_id)
