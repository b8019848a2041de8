"""Where ``pliant profile`` keeps the points that it has measured until the profile is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pliant.cli.console import note
from pliant.schemas.file_io.pipes import PIPE

if TYPE_CHECKING:
    from pliant.tools.profile.measuring.points import PointsFile


def points_beside(out: str) -> str | None:
    """The usual file for the points of a profile; None: the profile goes into a pipe or a device."""
    path = Path(out)
    if out == PIPE or (path.exists() and not path.is_file()):
        return None
    return str(path.with_suffix(".points.jsonl"))


@contextmanager
def kept_points(path: str | None) -> Iterator[PointsFile]:
    """The points in a file, for more to be added; the file is removed if the body ends well.

    :raises BadInputError: it is another file, or damaged.
    :raises UsageError: it could not be written.
    """
    from pliant.schemas.file_io.outputs import check_output
    from pliant.tools.profile.measuring.points import PointsFile

    if path is not None:
        check_output(path)
    kept = PointsFile.read(None if path is None else Path(path))
    try:
        yield kept
    except BaseException:
        kept.close()
        if path is not None and Path(path).exists():
            note(f"what was measured is in {path}: the same command goes on from there")
        raise
    kept.remove()
