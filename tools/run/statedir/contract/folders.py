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
attempts/N/unit-U.alive      the keeper of unit U runs: touched every two seconds
attempts/N/worker-W.json     how worker W ended: a WorkerOutcome
attempts/N/exit-U            exit code of unit U (what the backend started), once it has ended
attempts/N/logs/             standard output and error of each worker
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder whose files have fixed names."""

    path: Path


class Inside:
    """A path of this name in the folder that it is asked of."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Folder, kind: type[Folder]) -> Path:
        return folder.path / self._name


class AttemptDir(Folder):
    """One start of one job: everything between two launches of its gang."""

    launch = Inside("launch.json")
    """How it was started."""
    reached = Inside("reached")
    """The generation that trains, written by rank 0."""
    progress = Inside("progress.jsonl")
    """Events of the workers, an event file of its own."""
    logs = Inside("logs")
    """Folder of the workers' output."""
    meetings = Inside("meet")
    """Folder of the folders in which workers meet: ``GENERATION.ROUND``, made by rank 0."""

    def plan(self, generation: int) -> Path:
        """The plan of one generation."""
        return self.path / f"plan-{generation}.json"

    def presence(self, worker: int) -> Path:
        """Whether one worker is ready, and alive."""
        return self.path / f"worker-{worker}.alive"

    def keeper(self, unit: int) -> Path:
        """Whether the keeper of one unit runs, which has less to hold it up than a worker."""
        return self.path / f"unit-{unit}.alive"

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


class JobDir(Folder):
    """One job's folder. Job ids are validated by the schema, so an id is always a plain folder name."""

    plan = Inside("plan.json")
    """The newest plan."""
    progress = Inside("progress.json")
    """How far it is right now."""
    checkpoints = Inside("checkpoints")
    """Folder of the checkpoints."""

    def attempt(self, number: int) -> AttemptDir:
        """The folder of attempt ``number`` (from 1)."""
        return AttemptDir(self.path / "attempts" / str(number))

    def newest_attempt(self) -> int:
        """The number of the last attempt that has a folder; 0: none was made."""
        folder = self.path / "attempts"
        found = folder.iterdir() if folder.is_dir() else ()
        return max((int(path.name) for path in found if path.name.isdecimal()), default=0)
