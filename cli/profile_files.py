"""``pliant profile merge``, ``diff`` and ``prune``: keep profiles that were measured."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.console import note, out_text, page_width
from pliant.cli.profile import refuse_terminal
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.text import counted

if TYPE_CHECKING:
    from pliant.schemas.profile import Profile, ProfileRow
    from pliant.tools.profile.upkeep import RowChange

OUT = Annotated[str, typer.Option("--output", "-o", help="Profile to write (Parquet); - is stdout.")]
LEAST = 0.05


def profile_merge(
    profiles: Annotated[list[str], typer.Argument(help="Profiles to put together; - is stdin.")],
    *,
    output: OUT = "-",
) -> None:
    """Put several profiles into one.

    Of rows that measure the same one is kept: an undisturbed one, and of these the newest.

    Example: pliant profile merge a100.parquet t4.parquet -o all.parquet
    """
    from pliant.schemas.io import read_profile
    from pliant.tools.profile.upkeep import merge

    if profiles.count("-") > 1:
        raise UsageError("only one profile can come from stdin")
    found = [read_profile(path) for path in profiles]
    rows = merge(each.rows for each in found)
    _write(found[0], rows, output)
    note(f"{counted(len(rows), 'row')} of {sum(len(each.rows) for each in found)}")


def profile_diff(
    before: Annotated[str, typer.Argument(help="The profile that was.")],
    after: Annotated[str, typer.Argument(help="The profile that is.")],
    *,
    least: Annotated[
        float, typer.Option("--least", min=0, help="Leave out steps that changed by a smaller fraction.")
    ] = LEAST,
) -> None:
    """Show which rows differ between two profiles.

    Example: pliant profile diff march.parquet april.parquet
    """
    from pliant.schemas.io import read_profile
    from pliant.schemas.text import Column, text_table
    from pliant.tools.profile.upkeep import changes

    if before == after == "-":
        raise UsageError("only one profile can come from stdin")
    old, new = read_profile(before), read_profile(after)
    found = changes(old.rows, new.rows, least)
    columns = (
        *(Column("model"), Column("type", 3), Column("GPUs", right=True), Column("batch", 1)),
        *(
            Column("before ms", 2, right=True),
            Column("after ms", 2, right=True),
            Column("change", right=True),
        ),
    )
    if found:
        out_text(text_table(columns, [_cells(each) for each in found], page_width(sys.stdout)))
    note(f"{counted(len(found), 'row')} of {max(len(old.rows), len(new.rows))} differ")


def _cells(change: RowChange) -> tuple[str, ...]:
    row = change.row
    if row.kind == "allreduce":
        name, batch = "(all-reduce)", f"{row.parameters or 0:,}"
    else:
        name, batch = (
            row.model,
            f"{row.local_batch}" + (f" × {row.accum_steps}" if row.accum_steps > 1 else ""),
        )
    if change.before is None or change.after is None:
        words = "new" if change.before is None else "gone"
    else:
        words = "-" if change.slower is None else f"{change.slower:+.0%}"
    times = (_milliseconds(change.before), _milliseconds(change.after))
    return name, row.gpu_type, row.placement, batch, *times, words


def _milliseconds(row: ProfileRow | None) -> str:
    if row is None:
        return "-"
    return "does not fit" if row.step_seconds is None else f"{1e3 * row.step_seconds:.4g}"


def profile_prune(
    profile: Annotated[str, typer.Argument(help="The profile; - is stdin.")],
    *,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Rows of this model; may be repeated.")
    ] = None,
    gpu_type: Annotated[
        list[str] | None, typer.Option("--gpu-type", help="Rows of this type; may be repeated.")
    ] = None,
    disturbed: Annotated[
        bool, typer.Option("--disturbed", help="Rows of a busy machine, or that took longer another time.")
    ] = False,
    before: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="Rows measured before this day (UTC), like 2026-03-01."),
    ] = None,
    output: OUT = "-",
) -> None:
    """Take rows out of a profile: those that match all options.

    Measure again what is missing with --append: pliant profile jobs.jsonl --append kept.parquet.

    Example: pliant profile prune profile.parquet --disturbed -o kept.parquet
    """
    from pliant.schemas.io import read_profile
    from pliant.tools.profile.upkeep import Pruning, pruned

    if not (model or gpu_type or disturbed or before):
        raise UsageError("say which rows to take out: --model, --gpu-type, --disturbed or --before")
    found = read_profile(profile)
    rows = pruned(found.rows, Pruning(model or (), gpu_type or (), disturbed, _day(before)))
    if not rows:
        raise BadInputError(f"{found.source}: no row would be left")
    _write(found, rows, output)
    note(f"{counted(len(found.rows) - len(rows), 'row')} of {len(found.rows)} taken out")


def _day(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise UsageError(f"--before {text}: expected a day like 2026-03-01") from None


def _write(first: Profile, rows: tuple[ProfileRow, ...], output: str) -> None:
    from dataclasses import replace

    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.io import write_profile

    refuse_terminal(output)
    check_output(output)
    write_profile(replace(first, rows=rows), output)
