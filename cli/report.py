"""``pliant report``: event files to metrics, tables and figures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pliant.cli.config import configuration
from pliant.cli.console import (
    UNKNOWN_WIDTH,
    lines_for,
    note,
    nothing_comes_in,
    out_text,
    progress,
    stderr,
    width_for,
)
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.limits import garbage_collection_paused

if TYPE_CHECKING:
    from pliant.schemas.metrics import CheckedFigure
    from pliant.tools.report.figures.style import Form
    from pliant.tools.report.rendering.output import ReportFormat
    from pliant.tools.report.rendering.sections import GivenProfile
    from pliant.tools.report.report import Report

_FIGURE_FORMS: Final = "png,svg"
_BY_ENDING: Final[Mapping[str, Literal["json", "csv", "md", "html"]]] = {
    ".json": "json",
    ".csv": "csv",
    ".md": "md",
    ".html": "html",
}


@garbage_collection_paused(to_the_end=True)
def report(
    events: Annotated[
        list[str] | None,
        typer.Argument(
            help="Event files, or folders of them; - is stdin. Default: stdin if something is piped in.",
            show_default=False,
        ),
    ] = None,
    *,
    format: Annotated[
        Literal["table", "json", "csv", "csv-long", "md", "html"] | None,
        typer.Option(
            "--format",
            "-f",
            help="Form of the report; csv-long has a row for each run and figure.",
            show_default="that of the ending of --output, else table",
        ),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; - is stdout.")] = "-",
    figures: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Draw all figures into this folder, or one into a file like DIR/jct-cdf.pdf.",
        ),
    ] = None,
    figure_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORM,…",
            help="Forms of the figures in a folder: png, svg, pdf.",
            show_default=_FIGURE_FORMS,
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run (label or policy) to divide the others by.")
    ] = None,
    reference: Annotated[
        Literal["fair-share", "gps", "isolated"],
        typer.Option(help="Fair sharing that the table's FTF is relative to."),
    ] = "fair-share",
    bound: Annotated[
        bool, typer.Option("--bound", help="Add lower bounds that no schedule of the finished jobs can beat.")
    ] = False,
    completed_at: Annotated[
        str | None,
        typer.Option(
            "--completed-at",
            metavar="DURATION,…",
            help="Count the jobs that finished within these times from the first submission, like 90m,8h,2d; "
            "plain numbers are hours.",
        ),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Compare with expected figures; exit 5 where one is out of range."),
    ] = None,
    write_expected: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write a file for --expect: what these runs show, limited on the worse side of each figure.",
        ),
    ] = None,
    junit: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write what --expect found as JUnit XML, for CI.")
    ] = None,
    simulated: Annotated[
        str | None,
        typer.Option(metavar="EVENTS", help="Compare the measured run with this simulated one, job by job."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="Show how well the throughput model predicts this profile's rows."
        ),
    ] = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="Add a table of the jobs.")] = False,
    plot: Annotated[
        bool | None,
        typer.Option(help="Plot JCTs as characters. Default: on a terminal with room for the whole report."),
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Show every figure, and the tests of --baseline.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Explain each row in a line.")] = False,
    each_run: Annotated[
        bool, typer.Option("--each-run", help="A column for every run, no means over seeds and traces.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show the sources of every run, with all notes.")
    ] = False,
) -> None:
    """Compare runs: metrics, tables and figures from their event files.

    \b
    Examples:
      pliant report out/fifo.parquet out/ares.parquet --baseline fifo --figures figures/
      pliant replay jobs.jsonl --cluster cluster.json --policy ares | pliant report
      pliant report out/ --baseline fifo --format html -o report.html
      pliant report state/events.jsonl --simulated out/ares.parquet --jobs
      pliant report out/ --write-expected expected.json
      pliant report out/ --expect expected.json --junit junit.xml
    """  # noqa: D301 - keeps the lines of the examples apart
    from pliant.schemas.file_io.files import source_name, write_bytes
    from pliant.schemas.text import counted
    from pliant.tools.report.comparisons import compare_runs
    from pliant.tools.report.expectations import (
        check_expectations,
        expectations_section,
        other_traces,
        read_expectations,
        refuse_missed,
    )
    from pliant.tools.report.metrics import MetricOptions
    from pliant.tools.report.read_run import read_run
    from pliant.tools.report.rendering.output import Extras, render, shows_expectations
    from pliant.tools.report.rendering.summary import Shown
    from pliant.tools.report.rendering.text import as_table
    from pliant.tools.report.report import read_report, warnings_of

    if not events and nothing_comes_in():
        state = configuration().state
        as_here = "" if state is None else f", as in pliant report {shlex.quote(state)}"
        raise UsageError(f"no events: name event files{as_here}, or pipe one in")
    form: ReportFormat = _BY_ENDING.get(Path(output).suffix, "table") if format is None else format
    _check_files(output, junit, write_expected)
    if junit and not expect:
        raise UsageError("--junit writes what --expect found: name a file with --expect")
    forms = _check_figures(figures, figure_format)
    expectations = None if expect is None else read_expectations(expect)
    wanted = MetricOptions(bound, _seconds(completed_at))
    with progress("report", "steps") as advance:
        made = read_report(
            events or ["-"], reference=reference, baseline=baseline, wanted=wanted, advance=advance
        )
    made = replace(made, warnings=(*made.warnings, *other_traces(made, expectations, expect)))
    twin = None if simulated is None else read_run(simulated)
    if twin is not None and len(made.runs) > 1:
        raise UsageError("--simulated goes with one measured run")
    extras = Extras(
        jobs,
        () if twin is None else compare_runs(made.runs[0].run, twin),
        twin,
        () if expectations is None else check_expectations(made, expectations, source_name(str(expect))),
        Shown(all_rows=all, explain=explain, verbose=verbose, each_run=each_run),
        None if profile is None else _given(profile),
        shlex.join(["pliant", *sys.argv[1:]]),
    )
    width = width_for(sys.stdout) if output == "-" else None
    text = render(made, form, extras, width=width)
    if form == "table" and (width is not None if plot is None else plot):
        from pliant.tools.report.figures.plots import jct_plot

        drawn = "\n" + jct_plot(made, min(width or UNKNOWN_WIDTH, 100)) + "\n"
        if plot or (text + drawn).count("\n") < lines_for(sys.stdout):
            text += drawn
    drawn_files = _draw(
        made, figures, forms
    )  # before anything is printed: there may be no figure of this name
    if output == "-":
        out_text(text)
    else:
        write_bytes(output, text.encode())
    if drawn_files:
        note(f"{counted(len(drawn_files), 'figure')} in {figures}")
    _write_for_ci(made, extras.checked, write_expected, junit)
    if not shows_expectations(form):
        for warning in warnings_of(made):
            note(f"warning: {warning}")
        if extras.checked:
            table = as_table([expectations_section(extras.checked)], width_for(sys.stderr))
            stderr().print(table, end="", soft_wrap=True, markup=False)
    refuse_missed(extras.checked)


def _check_files(*paths: str | None) -> None:
    """Refuse products that could not be written, before the work begins."""
    from pliant.schemas.file_io.files import PIPE, check_output

    if paths.count(PIPE) > 1:
        raise UsageError("stdout holds one product: name files with -o, --junit and --write-expected")
    for path in paths:
        if path is not None:
            check_output(path)


def _write_for_ci(
    made: Report, checked: Sequence[CheckedFigure], write_expected: str | None, junit: str | None
) -> None:
    from pliant.schemas.file_io.files import write_bytes
    from pliant.tools.report.expectations import expectations_bytes, expectations_of, junit_bytes

    if write_expected is not None:
        written = expectations_of(made)
        write_bytes(write_expected, expectations_bytes(written))
        note(f"{len(written.figures)} expected figures in {write_expected}")
    if junit is not None:
        write_bytes(junit, junit_bytes(checked))


def _seconds(times: str | None) -> tuple[float, ...]:
    from pliant.schemas.quantities import duration_words, read_duration

    times_s: list[float] = []
    for text in [] if times is None else times.split(","):
        try:
            times_s.append(3600 * read_duration(text, "h"))
        except ValueError:
            raise UsageError(f'--completed-at "{text}": expected {duration_words("h")}') from None
    return tuple(times_s)


def _check_figures(target: str | None, forms: str | None) -> Sequence[Form]:
    if target is None:
        if forms is not None:
            raise UsageError("--figure-format is the form of figures: name their folder with --figures")
        return ()
    from pliant.schemas.file_io.files import check_folder
    from pliant.tools.report.figures import check_name, form_of, forms_of

    if form_of(target) is None:
        check_folder(target)
        return forms_of(_FIGURE_FORMS if forms is None else forms)
    if forms is not None:
        raise UsageError(f"--figures {target} states its form: leave out --figure-format, or name a folder")
    check_folder(Path(target).parent)
    check_name(target)
    return ()


def _draw(made: Report, target: str | None, forms: Sequence[Form]) -> list[Path]:
    if target is None:
        return []
    from pliant.tools.report.figures import write_figures

    return write_figures(made, target, forms)


def _given(path: str) -> GivenProfile:
    from pliant.schemas.io import profile_hash, profile_to_columns, read_profile
    from pliant.tools.profile.predict import holdout_errors
    from pliant.tools.report.rendering.sections import GivenProfile, ProfiledStep

    measured = read_profile(path)
    predicted = {id(held.row): held.predicted_s for held in holdout_errors(measured)}
    steps = (
        ProfiledStep(
            row.model,
            row.gpu_type,
            row.placement,
            row.local_batch,
            row.accum_steps,
            row.step_seconds,
            row.stdev_seconds,
            row.busy_share,
            predicted.get(id(row)),
        )
        for row in measured.rows
        if row.kind == "train"
    )
    return GivenProfile(measured.source, profile_hash(profile_to_columns(measured.rows)), tuple(steps))
