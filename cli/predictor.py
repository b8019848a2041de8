"""``pliant predictor``: predict how far jobs are that do not state their work."""

from __future__ import annotations

from typing import Annotated

import typer

from pliant.cli.console import note
from pliant.schemas.text import counted


def predictor_fit(
    histories: Annotated[
        list[str],
        typer.Argument(
            metavar="HISTORY…",
            help="Event files of runs and replays, and imported histories (history.jsonl); - is stdin.",
        ),
    ],
    *,
    append: Annotated[
        str | None,
        typer.Option("--append", metavar="FILE", help="Go on from this predictor.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the sample of epochs.")] = 0,
    output: Annotated[str, typer.Option("-o", "--output", help="The predictor (JSON); - is stdout.")] = "-",
) -> None:
    """Fit a progress predictor to the epochs of jobs that finished.

    schedule, run and replay take it with --demand predicted --predictor FILE,
    and go on learning as jobs end. It holds at most 2,000 epochs, drawn
    uniformly; equal inputs give equal files.

    Example: pliant predictor fit ones/history.jsonl -o predictor.json
    """
    from pliant.schemas.errors import BadInputError, UsageError
    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.io import read_events, read_predictor, write_predictor
    from pliant.tools.profile.predictor import FEWEST_JOBS, ProgressPredictor, ended_jobs

    check_output(output)
    if append is not None and seed:
        raise UsageError("--append and --seed contradict each other: a predictor keeps its seed")
    made = ProgressPredictor(None if append is None else read_predictor(append), seed=seed)
    before = made.jobs
    for path in histories:
        made.learn(ended_jobs(read_events(path)))
    if made.jobs == before:
        names = ", ".join(histories)
        raise BadInputError(f"{names}: no job finished whose epochs are known, expected one or more")
    found = made.document()
    note(
        f"{counted(found.jobs, 'job')}, {counted(found.rows_seen, 'epoch')}, {len(found.rows)} in the sample"
    )
    if found.fit is None:
        note(f"progress stays uniform between 0 and 1: fewer than {FEWEST_JOBS} jobs have finished")
    else:
        part = made.coverage()
        note(f"90 % intervals hold {part:.0%} of the epochs as predicted before their job was learned from")
    write_predictor(found, output)


SUBCOMMANDS = (predictor_fit,)
