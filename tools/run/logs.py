"""The output of a job's workers, from the files that torchrun redirects it to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pliant.schemas.errors import UsageError
from pliant.schemas.wording import counted
from pliant.tools.run.executor import next_handle
from pliant.tools.run.layout import AttemptDir, StateDir
from pliant.tools.run.output_file import Gone, OutputFile
from pliant.tools.run.private import check_job
from pliant.tools.run.sight import Bystander
from pliant.tools.run.tail import Tail

ENDS: Final = frozenset({"finish", "fail", "reject", "cancel"})
_POLL_S: Final = 0.5


def job_output(state: Path, job_id: str, *, follow: bool = False) -> Iterator[bytes]:
    """Output of the newest attempt in pieces, each file under a headline; with ``follow`` until the job ends.

    While it follows it gives nothing at all now and then, so that whoever takes it can look up.

    :raises UsageError: no such state directory, or no such job in it.
    """
    dirs = StateDir(state)
    _check_known(dirs, job_id)
    check_job(dirs, job_id)
    output, ends = _Output(dirs, job_id), Tail(dirs.events, only=ENDS)
    while follow and all(event.job != job_id for event in ends.read()):
        yield from output.fresh()
        yield b""
        time.sleep(_POLL_S)
    yield from output.fresh()


def _check_known(dirs: StateDir, job_id: str) -> None:
    """A job that was submitted is known; the spool is read first, for a job moves from there to the log."""
    sight = Bystander(dirs.path).look()
    known = {*sight.log.jobs, *(job.id for job in sight.submitted)}
    if job_id not in known:
        raise UsageError(f"{dirs.path} has no job {job_id}; it has: {', '.join(sorted(known)) or 'none'}")


class _Output:
    """What a job prints, from its newest attempt on: no byte twice, and none left out between attempts."""

    def __init__(self, dirs: StateDir, job_id: str) -> None:
        self._dirs = dirs
        self._job_id = job_id
        self._attempt = self._newest()
        self._files: dict[Path, OutputFile] = {}
        self._shown: Path | None = None

    def fresh(self) -> Iterator[bytes]:
        """What was printed since the last call; the attempt that was shown last comes to its end first."""
        newest = self._newest()
        for number in range(self._attempt, newest + 1):
            for path in output_files(self._dirs.job(self._job_id).attempt(number)):
                yield from self._rest(path)
        self._attempt = newest

    def _rest(self, path: Path) -> Iterator[bytes]:
        for piece in self._files.setdefault(path, OutputFile(path)).rest():
            if self._shown != path:
                self._shown = path
                yield f"==> {path.relative_to(self._dirs.path)}\n".encode()
            yield _note(piece) if isinstance(piece, Gone) else piece

    def _newest(self) -> int:
        return max(1, next_handle(self._dirs, self._job_id).attempt - 1)


def output_files(attempt: AttemptDir) -> list[Path]:
    """What torchrun said, then the output of each worker."""
    return [*sorted(attempt.logs.glob("*.log")), *sorted(attempt.logs.rglob("*/std*.log"))]


def _note(gone: Gone) -> bytes:
    return f"==> {counted(gone.count, 'byte')} printed before this are not kept (--log-bytes)\n".encode()
