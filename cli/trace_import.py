"""``pliant trace import``: public traces and measurements as pliant's own files."""

from __future__ import annotations

from typing import Annotated

import typer

from pliant.cli.console import note, progress


def trace_import(
    format_name: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="philly, helios, pai, alibaba-v2023, pollux, sia, ones, tiresias, gavel or slurm.",
        ),
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="The trace's files, or the data folder of measurements; - is stdin."
        ),
    ],
    *,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", help="Jobs to write, or the folder for formats with measurements; - is stdout."
        ),
    ] = "-",
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Drop malformed rows and count them instead of failing.")
    ] = False,
    cluster_out: Annotated[
        str | None,
        typer.Option(
            "--cluster-out",
            metavar="FILE",
            help="Cluster to write (JSON) from the list of nodes among the paths (alibaba-v2023).",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="The trace beside the measurements (pollux, sia, ones, gavel)."),
    ] = None,
) -> None:
    """Turn a public trace into jobs, and measurements into a profile and convergence tables.

    Says on stderr how many rows it read, which it dropped and why, and what it had to assume. pollux, sia,
    ones and gavel write a folder: jobs.jsonl, profile.parquet, convergence.parquet, interference.json, as
    far as the data goes. slurm reads what this prints:
    sacct -P --format=JobID,User,State,Submit,Start,ElapsedRaw,AllocTRES

    Example: pliant trace import philly cluster_job_log -o jobs.jsonl
    """
    from pliant.tools.replay.importers.run import import_trace

    with progress("import", "rows") as advance:
        summary = import_trace(
            format_name,
            paths,
            out,
            lenient=lenient,
            workload=workload,
            cluster_out=cluster_out,
            progress=advance,
        )
    for line in summary.lines():
        note(line)
