"""Where everything lies in a job's folder, which launcher, backend and workers share.

plan.json                    the newest plan of the job (atomic; the durable truth)
progress.json                how far it is right now: the newest report of its rank 0, a Progress
checkpoints/                 newest two, verified by hash on load
attempts/N/launch.json       how attempt N was started: argv, slots, pids with start times
attempts/N/plan-G.json       every plan of attempt N by generation; never changed
attempts/N/meet/G.R/         where workers of generation G meet in round R, until the next one trains
attempts/N/reached           the generation that trains: "G"
attempts/N/progress.jsonl    events of the workers (progress, epoch, checkpoint), written by rank 0
attempts/N/worker-W.alive    worker W is ready to train: locked while it lives, touched every second
attempts/N/worker-W.json     how worker W ended: a WorkerOutcome
attempts/N/exit-U            exit code of unit U (what the backend started), once it has ended
attempts/N/logs/             standard output and error of each worker
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """One start of one job: everything between two launches of its gang."""

    path: Path

    @property
    def launch(self) -> Path:
        """How it was started."""
        return self.path / "launch.json"

    @property
    def reached(self) -> Path:
        """The generation that trains, written by rank 0."""
        return self.path / "reached"

    @property
    def progress(self) -> Path:
        """Events of the workers, an event file of its own."""
        return self.path / "progress.jsonl"

    @property
    def logs(self) -> Path:
        """Folder of the workers' output."""
        return self.path / "logs"

    def plan(self, generation: int) -> Path:
        """The plan of one generation."""
        return self.path / f"plan-{generation}.json"

    @property
    def meetings(self) -> Path:
        """Folder of the folders in which workers meet: ``GENERATION.ROUND``, made by rank 0."""
        return self.path / "meet"

    def presence(self, worker: int) -> Path:
        """Whether one worker is ready, and alive."""
        return self.path / f"worker-{worker}.alive"

    def outcome(self, worker: int) -> Path:
        """How one worker ended."""
        return self.path / f"worker-{worker}.json"

    def exit_code(self, unit: int) -> Path:
        """Exit code of one unit, written when it has ended."""
        return self.path / f"exit-{unit}"

    def worker_errors(self, unit: int) -> list[Path]:
        """Standard error of each worker of one unit, as far as it is there."""
        return sorted(self.logs.glob(f"{unit}/*/attempt_*/*/stderr.log"))

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
    def progress(self) -> Path:
        """How far it is right now."""
        return self.path / "progress.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    def attempt(self, number: int) -> AttemptDir:
        """The folder of attempt ``number`` (from 1)."""
        return AttemptDir(self.path / "attempts" / str(number))

    def newest_attempt(self) -> int:
        """The number of the last attempt that has a folder; 0: none was made."""
        folder = self.path / "attempts"
        found = folder.iterdir() if folder.is_dir() else ()
        return max((int(path.name) for path in found if path.name.isdecimal()), default=0)
