"""``pliant profile``: measure training jobs; its ``merge``, ``diff`` and ``prune`` keep what was measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from pliant import __version__
from pliant.cli.config import configuration
from pliant.cli.console import (
    is_terminal,
    named_or_piped,
    note,
    out_text,
    page_width,
    progress,
    reader_left,
    stderr,
    width_for,
)
from pliant.cli.option_types import DURATION_SHOWN, duration
from pliant.cli.predictions import PredictionFormat, PredictionScope, predictions_text
from pliant.schemas.errors import BadInputError, JobsFailedError, UsageError
from pliant.schemas.file_io.files import PIPE
from pliant.schemas.text import counted, whole_number

if TYPE_CHECKING:
    from pliant.schemas.cluster import Cluster
    from pliant.schemas.profile import Profile, ProfileRow
    from pliant.tools.profile.measuring.launch import PointsFile
    from pliant.tools.profile.measuring.plan import MeasuringOptions
    from pliant.tools.profile.measuring.run import MeasuredProfile
    from pliant.tools.profile.profile_edit import RowChange


AUTO = "auto"
NO_JOBS = "no jobs to measure: name a file, pipe one in, or give --import ROWS"
ITERATIONS = 10
WARMUP = 3
PATIENCE_S = 60.0


def profile(
    jobs: Annotated[
        str | None, typer.Argument(help="Jobs to measure (JSON Lines); - is stdin.", show_default=False)
    ] = None,
    *,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", "-c", help="The cluster they run on.", show_default="this machine alone"),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Only this model; may be repeated.")
    ] = None,
    gpus: Annotated[
        str, typer.Option(help="Numbers of workers, like 1,2,4. auto: powers of two and what jobs state.")
    ] = AUTO,
    batches: Annotated[
        str,
        typer.Option(
            help="Samples per worker, like 8,16; with --predict per step of all workers. "
            "auto: powers of two within the jobs' limits."
        ),
    ] = AUTO,
    iterations: Annotated[
        int, typer.Option(min=1, help="Steps per point; short ones are repeated more often.")
    ] = ITERATIONS,
    warmup: Annotated[int, typer.Option(min=0, help="Steps dropped before each point.")] = WARMUP,
    allreduce: Annotated[
        bool,
        typer.Option("--allreduce", help="Also time all-reduces by workers and parameters, once a cluster."),
    ] = False,
    allreduce_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Keeps the times of --allreduce; they are used until --refresh.",
            show_default="allreduce.parquet beside the profile",
        ),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Time all-reduces again although a file keeps them.")
    ] = False,
    costs: Annotated[
        bool,
        typer.Option(
            "--costs",
            help="Also time starts, relaunches from a checkpoint and changes in place; replay uses them.",
        ),
    ] = False,
    points: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Keeps what is measured until the profile is written; the same command goes on from it.",
            show_default="NAME.points.jsonl beside the profile",
        ),
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            parser=duration(),
            metavar=DURATION_SHOWN,
            help="Wait for a quiet machine and measure disturbed points again for up to this long.",
        ),
    ] = PATIENCE_S,
    append: Annotated[
        str | None, typer.Option(help="Keep the rows of this profile that are not measured again.")
    ] = None,
    imported: Annotated[
        str | None,
        typer.Option("--import", help="Take the rows of a CSV or Parquet file, measure nothing."),
    ] = None,
    predict: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="Measure nothing: predict from this profile how long the jobs take."
        ),
    ] = None,
    format: Annotated[
        PredictionFormat, typer.Option("--format", "-f", help="Form of --predict.")
    ] = PredictionFormat.table,
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="Profile to write (Parquet); - is stdout."),
    ] = "-",
) -> None:
    """Measure real training steps of the jobs' scripts and write a profile.

    Every model is started on one worker to sweep the local batch, then with torchrun on more. Where a script
    fails the other models are written, and the exit code is 5. The same command goes on where one was cut
    short. pliant profile merge, diff and prune keep profiles.

    \b
    Examples:
      pliant profile jobs.jsonl --cluster cluster.json -o profile.parquet
      pliant profile jobs.jsonl --predict profile.parquet --gpus 1,2,4 --batches 64,128
    """  # noqa: D301 - keeps the lines of the examples apart
    from dataclasses import replace

    from pliant.schemas.errors import require
    from pliant.schemas.file_io.files import check_output, write_bytes
    from pliant.schemas.io import read_profile, write_profile
    from pliant.tools.profile.measuring.plan import MeasuringOptions
    from pliant.tools.profile.predict import with_model_errors
    from pliant.tools.profile.throughput import merged

    wanted = (numbers(gpus, "--gpus"), numbers(batches, "--batches"))
    check_output(output)
    if predict is not None:
        measures = costs or (iterations, warmup, patience) != (ITERATIONS, WARMUP, PATIENCE_S)
        if imported or append or points or allreduce or allreduce_file or refresh or measures:
            raise UsageError(
                "--predict measures nothing: it goes with --cluster, --model, --gpus and --batches"
            )
        measured = read_profile(predict)
        asked = PredictionScope(tuple(model or ()), *wanted)
        width = width_for(sys.stdout) if output == "-" else None
        text = predictions_text(measured, named_or_piped(jobs, NO_JOBS), cluster, asked, format, width=width)
        write_bytes(output, text.encode())
        _show_errors(measured)
        return
    options = MeasuringOptions(
        tuple(model or ()),
        *wanted,
        iterations,
        warmup,
        allreduce or bool(allreduce_file) or refresh,
        costs,
        patience,
    )
    _refuse_terminal(output)
    old = read_profile(append) if append else None
    keeper = Keeper(allreduce_file or _beside(output), refresh)
    if options.allreduce and keeper.path is not None:
        check_output(keeper.path)
    if imported:
        new = _imported(imported, jobs)
        rows = with_model_errors(merged(old.rows if old else (), new.rows))
        write_profile(replace(new, rows=rows), output)
        return
    require("torch", "measuring trains with torch")
    with kept_points(points or points_beside(output)) as kept:
        made = _measured(
            named_or_piped(jobs, NO_JOBS), cluster, options, keeper, kept, into_pipe=output == "-"
        )
        rows = with_model_errors(merged(old.rows if old else (), made.profile.rows))
        write_profile(replace(made.profile, rows=rows), output)
        if made.failures:
            raise JobsFailedError("\n".join(made.failures))


def numbers(text: str, option: str) -> tuple[int, ...] | None:
    """A list like ``1,2,4`` in ascending order. Returns None for ``auto``."""
    if text == AUTO:
        return None
    counts = {whole_number(part.strip()) or 0 for part in text.split(",")}
    if 0 in counts:
        raise UsageError(f'{option} "{text}": expected numbers above 0 separated by commas, or auto')
    return tuple(sorted(counts))


def _refuse_terminal(out: str) -> None:
    if out == "-" and is_terminal(sys.stdout):
        raise UsageError("Parquet is not written to a terminal: give -o FILE or pipe into the next command")


def _imported(path: str, jobs: str | None) -> Profile:
    from pliant.schemas.profile import Profile
    from pliant.tools.profile.profile_edit import import_rows

    if jobs is not None:
        raise UsageError("--import takes rows instead of measuring jobs: give one of the two")
    origin = (("tool", f"pliant {__version__}"), ("imported_from", path))
    return Profile(import_rows(path), origin)


@dataclass(frozen=True, slots=True)
class Keeper:
    """Where the all-reduce times of the cluster are kept."""

    path: str | None
    """File of the profile; None for a pipe."""
    refresh: bool = False

    def known(self, cluster: Cluster | None) -> tuple[ProfileRow, ...]:
        """What is kept already and still valid."""
        from pliant.tools.profile.measuring.run import AllReduceCache, cluster_label

        if self.path is None:
            return ()
        if self.refresh:
            return self._of_other_types(self.path, cluster)
        kept = AllReduceCache.read(self.path, cluster_label(cluster))
        if kept is None:
            return ()
        note(
            f"all-reduce times are those of {self.path}, measured {kept.measured_on} "
            f"on {kept.cluster}; --refresh measures them again"
        )
        return kept.rows

    def _of_other_types(self, path: str, cluster: Cluster | None) -> tuple[ProfileRow, ...]:
        """What is kept of other GPU types than this machine's, if it is of the same cluster."""
        from pliant.tools.profile.measuring.plan import node_to_measure
        from pliant.tools.profile.measuring.run import AllReduceCache, cluster_label

        try:
            kept = AllReduceCache.read(path, cluster_label(cluster))
        except BadInputError:
            return ()
        here = node_to_measure(cluster).gpu_type
        return () if kept is None else tuple(row for row in kept.rows if row.gpu_type != here)

    def keep(self, measured: Profile, cluster: Cluster | None) -> None:
        from pliant.tools.profile.measuring.run import AllReduceCache, cluster_label

        kept = AllReduceCache.of(measured, cluster_label(cluster))
        if self.path is None:
            note("all-reduce times are in the profile alone: --allreduce-file keeps them for the next one")
        elif kept.rows:
            kept.write(self.path)
            note(f"all-reduce times of {kept.cluster} are kept in {self.path}")


def _beside(out: str) -> str | None:
    from pliant.tools.profile.measuring.run import USUAL_NAME

    return None if out == "-" else str(Path(out).with_name(USUAL_NAME))


def _measured(
    jobs: str,
    cluster: str | None,
    options: MeasuringOptions,
    keeper: Keeper,
    kept: PointsFile,
    *,
    into_pipe: bool,
) -> MeasuredProfile:
    """Measure; into a pipe only as long as its reader waits for the profile."""
    import shlex
    import time

    from pliant.schemas.io import read_cluster, read_jobs
    from pliant.tools.profile.measuring.run import measure

    nodes = read_cluster(cluster) if cluster else None
    known = keeper.known(nodes) if options.allreduce else ()
    with progress("profile", "measurements") as show:

        def advance(done: int, total: int | None) -> None:
            show(done, total)
            if into_pipe and reader_left(sys.stdout):
                raise BrokenPipeError

        measured = measure(
            read_jobs(jobs, configuration().job),
            nodes,
            options,
            clock=time.time,
            command_line=shlex.join(["pliant", *sys.argv[1:]]),
            progress=advance,
            note=note,
            allreduce=known,
            kept=kept,
        )
    if options.allreduce and any(
        row.kind == "allreduce" and row not in known for row in measured.profile.rows
    ):
        keeper.keep(measured.profile, nodes)
    _show_errors(measured.profile)
    _name_doubts(measured.profile)
    return measured


def _name_doubts(measured: Profile) -> None:
    """Say which rows were disturbed or disagree."""
    from pliant.tools.schedule.assumptions import speeds_doubted, trust_of

    rows = list(trust_of(measured.rows))
    for doubt in speeds_doubted({row.model for row in rows}, rows):
        note(f"warning: {doubt.text}")


def _show_errors(measured: Profile) -> None:
    """The model's error on rows that it has not seen."""
    from pliant.tools.profile.predict import holdout_errors
    from pliant.tools.report.rendering.sections import Section
    from pliant.tools.report.rendering.text import as_table
    from pliant.tools.schedule.assumptions import ERROR_SHOWN

    errors = holdout_errors(measured)
    if not errors:
        note("no measured row could be held out to check the throughput model on")
        return
    rows = []
    for held_out in errors:
        row = held_out.row
        times = (f"{1e3 * (row.step_seconds or 0):.2f}", f"{1e3 * held_out.predicted_s:.2f}")
        cells = (str(row.gpus), str(row.local_batch), str(row.accum_steps), *times, f"{held_out.error:+.1%}")
        rows.append((row.model, *cells))
    headers = ("model", "GPUs", "local batch", "accum", "measured ms", "predicted ms", "error")
    table = Section("Throughput model on measured rows held out", headers, tuple(rows))
    stderr().print(as_table([table], width_for(sys.stderr)), end="", soft_wrap=True, markup=False)
    off = median(abs(held_out.error) for held_out in errors)
    if off > ERROR_SHOWN:
        note(
            f"warning: the model is {off:.0%} off in the median of these rows: expect predictions to be, too"
        )


def points_beside(out: str) -> str | None:
    """The usual file for points. Returns None if the profile goes into a pipe or a device."""
    path = Path(out)
    if out == PIPE or (path.exists() and not path.is_file()):
        return None
    return str(path.with_suffix(".points.jsonl"))


@contextmanager
def kept_points(path: str | None) -> Iterator[PointsFile]:
    """The points in a file, which is removed if the body ends well.

    :raises BadInputError: it is another file, or damaged.
    :raises UsageError: it could not be written.
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.tools.profile.measuring.launch import PointsFile

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


OUT = Annotated[str, typer.Option("--output", "-o", help="Profile to write (Parquet); - is stdout.")]
LEAST = 0.05


def profile_merge(
    profiles: Annotated[list[str], typer.Argument(help="Profiles to put together; - is stdin.")],
    *,
    output: OUT = "-",
) -> None:
    """Merge several profiles into one.

    Of rows that measure the same one is kept: an undisturbed one, and of these the newest.

    Example: pliant profile merge a100.parquet t4.parquet -o all.parquet
    """
    from pliant.schemas.io import read_profile
    from pliant.tools.profile.profile_edit import merge

    if profiles.count("-") > 1:
        raise UsageError("only one profile can come from stdin")
    read = [read_profile(path) for path in profiles]
    rows = merge(each.rows for each in read)
    _write(read[0], rows, output)
    note(f"{counted(len(rows), 'row')} of {sum(len(each.rows) for each in read)}")


def profile_diff(
    before: Annotated[str, typer.Argument(help="Earlier profile.")],
    after: Annotated[str, typer.Argument(help="Later profile.")],
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
    from pliant.tools.profile.profile_edit import changes

    if before == after == "-":
        raise UsageError("only one profile can come from stdin")
    old, new = read_profile(before), read_profile(after)
    differing = changes(old.rows, new.rows, least)
    columns = (
        *(Column("model"), Column("type", 3), Column("GPUs", right=True), Column("batch", 1)),
        *(
            Column("before ms", 2, right=True),
            Column("after ms", 2, right=True),
            Column("change", right=True),
        ),
    )
    if differing:
        out_text(text_table(columns, [_cells(each) for each in differing], page_width(sys.stdout)))
    note(f"{counted(len(differing), 'row')} of {max(len(old.rows), len(new.rows))} differ")


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
    """Remove rows from a profile: those that match all options.

    Measure again what is missing with --append: pliant profile jobs.jsonl --append kept.parquet.

    Example: pliant profile prune profile.parquet --disturbed -o kept.parquet
    """
    from pliant.schemas.io import read_profile
    from pliant.tools.profile.profile_edit import Pruning, pruned

    if not (model or gpu_type or disturbed or before):
        raise UsageError("say which rows to take out: --model, --gpu-type, --disturbed or --before")
    measured = read_profile(profile)
    rows = pruned(measured.rows, Pruning(model or (), gpu_type or (), disturbed, _day(before)))
    if not rows:
        raise BadInputError(f"{measured.source}: no row would be left")
    _write(measured, rows, output)
    note(f"{counted(len(measured.rows) - len(rows), 'row')} of {len(measured.rows)} taken out")


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

    _refuse_terminal(output)
    check_output(output)
    write_profile(replace(first, rows=rows), output)
