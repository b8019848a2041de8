"""Jobs on their way to a file: ordered and shifted in time without being in memory all at once."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, Self

from pliant.schemas.file_io.jobs import job_fields
from pliant.schemas.file_io.jsonlines import encode, header
from pliant.schemas.job import Job

_IN_MEMORY: Final = 1 << 25
"""Bytes that are kept before the jobs go to a temporary file."""
_CHUNK: Final = 1 << 20


class OrderedJobs:
    """Lines of a job file; 24 bytes a job stay in memory. A context manager: leaving it frees the rest."""

    def __init__(self) -> None:
        self._lines = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (closed by __exit__)
        self._submitted, self._starts, self._ends = array("d"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs behind those that are there."""
        for job in jobs:
            fields = job_fields(job)
            del fields["submit_time"]
            line = encode(fields)
            start = self._ends[-1] if self._ends else 0
            self._lines.write(line)
            self._submitted.append(job.submit_time)
            self._starts.append(start)
            self._ends.append(start + len(line))

    def chunks(self, *, from_zero: bool) -> Iterator[bytes]:
        """The job file in pieces, by submission time; ``from_zero``: seconds since the first submission."""
        import numpy as np

        times = np.array(self._submitted)
        origin = float(times.min()) if from_zero and len(times) else 0.0
        pieces, size = [header("job")], 0
        for index in np.argsort(times, kind="stable").tolist():
            line = self._line(index, self._submitted[index] - origin)
            pieces.append(line)
            size += len(line)
            if size >= _CHUNK:
                yield b"".join(pieces)
                pieces, size = [], 0
        yield b"".join(pieces)

    def _line(self, index: int, time_s: float) -> bytes:
        """The line with its time behind the id, which holds no comma."""
        self._lines.seek(self._starts[index])
        line = self._lines.read(self._ends[index] - self._starts[index])
        comma = line.index(b",")
        return b'%s,"submit_time":%s%s' % (line[:comma], repr(time_s).encode(), line[comma:])
