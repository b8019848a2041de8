"""Where everything lies in a state directory. Paths only: nothing here reads or writes a file."""

from __future__ import annotations

from pliant.tools.run.statedir.contract.folders import Folder, Inside, JobDir


class StateDir(Folder):
    """A state directory."""

    events = Inside("events.jsonl")
    """The log that all state is folded from."""
    snapshot = Inside("snapshot.jsonl")
    """What the log folds to, up to a place in it; can be made again."""
    cluster = Inside("cluster.json")
    """The cluster in use."""
    profile = Inside("profile.parquet")
    """The profile in use."""
    schedule = Inside("schedule.json")
    """The schedule applied last."""
    version = Inside("version.json")
    """In which format the directory is."""
    lock = Inside("lock")
    """Held by the one writer, by flock."""
    run_log = Inside("run.log")
    """What a run in the background says."""
    spool = Inside("spool")
    """Submissions, cancellations and orders that the log does not hold yet."""
    jobs = Inside("jobs")
    """The folder of the jobs' folders."""

    def job(self, job_id: str) -> JobDir:
        """One job's folder, see ``contract/folders.py``."""
        return JobDir(self.jobs / job_id)
