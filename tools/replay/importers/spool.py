"""Columns that wait in memory, or in a temporary file once they are many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from pliant.schemas.file_io.files import write_error

if TYPE_CHECKING:
    import pyarrow as pa

IN_MEMORY: Final = 1 << 25
"""Bytes that are kept before columns go to a temporary file."""


@contextmanager
def on_disk() -> Iterator[None]:
    """:raises PliantError: temporary files cannot be written, which is said with their folder."""
    try:
        yield
    except OSError as error:
        raise write_error(error, tempfile.tempdir or "temporary files") from error


class Columns:
    """Columns and texts, block by block; in a file as soon as they are much."""

    def __init__(self) -> None:
        self._waiting: list[Sequence[str | pa.Array | None]] = []
        self._bytes = 0
        # Of the blocks in the file; True stands for an array.
        self._layouts: list[list[str | bool | None]] = []
        self._file: IO[bytes] | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, pieces: Sequence[str | pa.Array | None]) -> None:
        self._waiting.append(pieces)
        self._bytes += sum(array.nbytes for array in _arrays(pieces))
        if self._bytes > IN_MEMORY:
            with on_disk():
                self._to_file()

    def read(self) -> Iterator[tuple[Sequence[str | pa.Array | None], int]]:
        """The pieces of each block and the number of its rows."""
        from pyarrow import ipc

        if self._file is not None:
            self._file.seek(0)
            for layout in self._layouts:
                with ipc.open_stream(self._file) as stream:
                    arrays = iter(stream.read_all().combine_chunks().to_batches()[0].columns)
                pieces = [next(arrays) if piece is True else piece for piece in layout]
                yield pieces, len(next(_arrays(pieces)))
        for waiting in self._waiting:
            yield waiting, len(next(_arrays(waiting)))

    def _to_file(self) -> None:
        import pyarrow as pa
        from pyarrow import ipc

        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        for pieces in self._waiting:
            arrays = list(_arrays(pieces))
            batch = pa.RecordBatch.from_arrays(arrays, names=[str(place) for place in range(len(arrays))])
            with ipc.new_stream(self._file, batch.schema) as stream:
                stream.write_batch(batch)
            self._layouts.append(
                [piece if piece is None or isinstance(piece, str) else True for piece in pieces]
            )
        self._file.flush()
        self._waiting, self._bytes = [], 0


def _arrays(pieces: Sequence[str | pa.Array | None]) -> Iterator[pa.Array]:
    return (piece for piece in pieces if piece is not None and not isinstance(piece, str))
