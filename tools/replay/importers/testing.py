"""Checks that every importer passes, also those of other packages: call :func:`check_importer` in a test."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import read_jobs
from pliant.tools.replay.importers.conversion import ImportSummary
from pliant.tools.replay.importers.run import JOBS, import_trace
from pliant.tools.schedule.testing.harness import require


def check_importer(name: str, *paths: str | Path) -> None:
    """Check an importer on a small trace.

    :param name: as ``pliant trace import`` takes it.
    :param paths: files with at least one good row, or the folder that the importer reads.
    :raises AssertionError: it breaks a rule of docs/plugins.md.
    """
    inputs = [str(path) for path in paths]
    with tempfile.TemporaryDirectory() as folder:
        first, again = (_imported(name, inputs, Path(folder) / each) for each in ("first", "again"))
        _check_rows(first)
        _check_same(first, again)
        for path in first.files:
            if Path(path).name in (JOBS, "first"):
                _check_jobs(path, first)
        for number, path in enumerate(inputs):
            if Path(path).is_file():
                _check_damaged(name, inputs, number, Path(folder))


def _imported(name: str, paths: list[str], out: Path) -> ImportSummary:
    return import_trace(name, paths, str(out))


def _check_rows(summary: ImportSummary) -> None:
    made = summary.jobs + summary.profile_rows + summary.convergence_rows + summary.node_events
    require(made > 0, "nothing was imported from a trace with a good row")
    require(summary.rows > 0, "no row was counted: give each to Conversion.convert, or call count_rows")
    require(len(summary.files) > 0, "no file is named as written")


def _check_same(first: ImportSummary, again: ImportSummary) -> None:
    written = [[Path(path).read_bytes() for path in each.files] for each in (first, again)]
    require(written[0] == written[1], "a second import of the same trace differs")


def _check_jobs(path: str, summary: ImportSummary) -> None:
    jobs = list(read_jobs(path))
    require(len(jobs) == summary.jobs, "the summary counts other jobs than were written")
    times_s = [job.submit_time for job in jobs]
    require(times_s == sorted(times_s), "jobs are not in the order of submission")
    require(len({job.id for job in jobs}) == len(jobs), "two jobs have one id: make ids by Conversion.new_id")


def _check_damaged(name: str, paths: list[str], number: int, folder: Path) -> None:
    """A part of a file, and an empty one, are imported or refused in words that name the file."""
    data = Path(paths[number]).read_bytes()
    for kept in (data[: len(data) // 2], b"", b"\xff\xfe\n"):
        damaged = folder / f"damaged-{Path(paths[number]).name}"
        damaged.write_bytes(kept)
        given = [*paths[:number], str(damaged), *paths[number + 1 :]]
        for lenient in (False, True):
            try:
                import_trace(name, given, str(folder / "damaged"), lenient=lenient)
            except BadInputError as error:
                require(damaged.name in str(error), f"the message does not name the file: {error}")
            except UsageError:
                pass  # the paths as a whole are not what it takes
