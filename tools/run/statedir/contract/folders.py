"""Where everything lies in a job's folder, which launcher, backend and workers share."""

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
    """How it was started: commands, nodes, processes with their start times."""
    reached = Inside("reached")
    """The number of the generation that trains, written by rank 0."""
    progress = Inside("progress.jsonl")
    """Events of the workers (progress, epoch, checkpoint), an event file of its own that rank 0 writes."""
    logs = Inside("logs")
    """Folder of the workers' standard output and error."""
    meetings = Inside("meet")
    """Where workers meet: ``GENERATION.ROUND``, made by rank 0, there until the next one trains."""

    def plan(self, generation: int) -> Path:
        """The plan of one generation; never changed."""
        return self.path / f"plan-{generation}.json"

    def presence(self, worker: int) -> Path:
        """Whether one worker is ready, and alive: locked while it lives, touched every second."""
        return self.path / f"worker-{worker}.alive"

    def keeper(self, unit: int) -> Path:
        """Whether the keeper of one unit runs, which has less to hold it up than a worker."""
        return self.path / f"unit-{unit}.alive"

    def displaced(self, unit: int) -> Path:
        """It is there once somebody else than the launcher has ended one unit: its place was taken away."""
        return self.path / f"unit-{unit}.displaced"

    def orders(self, unit: int) -> Path:
        """What the keeper of one unit is to do, where no signal reaches it: nothing, "term" or "kill"."""
        return self.path / f"orders-{unit}"

    def outcome(self, worker: int) -> Path:
        """How one worker ended, a WorkerOutcome."""
        return self.path / f"worker-{worker}.json"

    def exit_code(self, unit: int) -> Path:
        """Exit code of one unit (what the backend started), written when it has ended."""
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
    """The newest plan: the durable truth."""
    progress = Inside("progress.json")
    """How far it is right now: the newest report of its rank 0, a Progress."""
    checkpoints = Inside("checkpoints")
    """Folder of the checkpoints: the newest two, verified by hash on load."""

    def attempt(self, number: int) -> AttemptDir:
        """The folder of attempt ``number`` (from 1)."""
        return AttemptDir(self.path / "attempts" / str(number))

    def newest_attempt(self) -> int:
        """The number of the last attempt that has a folder; 0: none was made."""
        folder = self.path / "attempts"
        found = folder.iterdir() if folder.is_dir() else ()
        return max((int(path.name) for path in found if path.name.isdecimal()), default=0)
