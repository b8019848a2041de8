"""``pliant trace``: make job traces, or import published ones with their measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pliant.cli.console import note, progress
from pliant.cli.option_types import DURATION_SHOWN, FORM, TO_FILE, Form, duration
from pliant.schemas.errors import UsageError
from pliant.schemas.text import counted, in_gpus, whole_number

if TYPE_CHECKING:
    from pliant.tools.report.figures.style import Form as Shape


def trace_import(
    format_name: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="Production traces: philly, helios, acme, pai, alibaba-v2023, alibaba-spot, slurm, swf, "
            "tiresias; csv with --map. With measurements: pollux, sia, ones, gavel, shockwave, elasticflow. "
            "Nodes that fail: faults.",
        ),
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="The trace's files, or the data folder of measurements; - is stdin."
        ),
    ],
    *,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="Jobs to write (Parquet to NAME.parquet, else JSON Lines), or the folder for formats with "
            "measurements; - is stdout.",
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
            help="Cluster to write (JSON) from the list of nodes among the paths (alibaba), or of those that "
            "fail (faults).",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="A cluster whose nodes are to fail in the place of the trace's (faults)."),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN,…|FILE.toml",
            help="What the columns of a csv mean: id, submit, start, end, wait, duration, gpus, workers, "
            "user, team, model, priority; other names become labels.",
        ),
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(
            "--time-zone",
            metavar="ZONE",
            help="Zone of clock times that state none, as +08:00 or Europe/Berlin (philly, helios, acme, "
            "slurm, csv).",
            show_default="UTC",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="The trace beside the measurements (pollux, sia, ones, gavel, shockwave, elasticflow)."
        ),
    ] = None,
    cpu_jobs: Annotated[
        bool,
        typer.Option(
            "--cpu-jobs",
            help="Keep jobs that used no GPU, with the cores and memory of their node (helios, pai, "
            "alibaba-v2023, slurm).",
        ),
    ] = False,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Keep jobs submitted from then on: a length of time since the trace's start, or a date.",
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Keep jobs submitted before that.")
    ] = None,
    user: Annotated[list[str] | None, typer.Option(help="Keep the jobs of this user, or of several.")] = None,
    vc: Annotated[
        list[str] | None,
        typer.Option(help="Keep the jobs of this virtual cluster, partition, queue or team, or of several."),
    ] = None,
    sample: Annotated[
        float, typer.Option(metavar="PART", help="Keep this part of the jobs, drawn at random.")
    ] = 1.0,
    scale_time: Annotated[
        float,
        typer.Option(metavar="FACTOR", help="Multiply the time between submissions; jobs stay as they are."),
    ] = 1.0,
) -> None:
    """Import a trace as jobs, and measurements as a profile and convergence tables.

    Says on stderr how many rows it read, which it dropped and why, and what it
    had to assume. pollux, sia, ones, gavel, shockwave and elasticflow write a folder:
    jobs.jsonl, profile.parquet, convergence.parquet and history.jsonl (what jobs
    reported that ran), as far as the data goes. slurm reads what this prints:
    sacct -a -D -P --format=JobID,Cluster,User,State,Submit,Start,End,ElapsedRaw,AllocTRES

    Example: pliant trace import philly cluster_job_log -o jobs.jsonl
    """
    from pliant.tools.replay.importers.conversion import MalformedRowsError
    from pliant.tools.replay.importers.run import Selection, import_trace

    try:
        with progress("import", "rows") as advance:
            summary = import_trace(
                format_name,
                paths,
                output,
                lenient=lenient,
                workload=workload,
                cluster_out=cluster_out,
                cluster=cluster,
                mapping=mapping,
                zone=time_zone,
                cpu_jobs=cpu_jobs,
                selection=Selection(begin, end, user or (), vc or (), sample, scale_time),
                progress=advance,
            )
    except MalformedRowsError:
        note("nothing was written: some rows are malformed; --lenient drops and counts them")
        raise
    for line in summary.lines():
        note(line)


def synth(
    recipe: Annotated[
        str,
        typer.Argument(
            help="poisson, bursty, diurnal, or a recipe file (TOML or JSON); - is stdin.", show_default=False
        ),
    ],
    *,
    jobs: Annotated[int | None, typer.Option("--jobs", help="How many jobs.", show_default="160")] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours",
            parser=duration(unit="h"),
            metavar=DURATION_SHOWN,
            help="Arrivals end after this time (plain numbers are hours); without --jobs, as many come as "
            "the rate brings.",
            show_default="no limit",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Mean arrivals an hour; of bursts the high rate.", show_default="20"),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            metavar="NAME[:BATCH][=WEIGHT],…",
            help="Models, their global batch, how often each occurs.",
            show_default="model:256",
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="GPUS[=WEIGHT],…",
            help="Requested sizes.",
            show_default="1=0.5,2=0.2,4=0.2,8=0.1",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            metavar="CLASS=WEIGHT,…",
            help="GPU time: S up to an hour, M to 10, L to 100, XL to 1000.",
            show_default="S=0.6,M=0.3,L=0.1",
        ),
    ] = None,
    elastic: Annotated[
        str | None, typer.Option("--elastic", help="none, size or size+batch.", show_default="none")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed.", show_default="the recipe's, or 0")
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", help="The trace: Parquet to NAME.parquet, else JSON Lines; - is stdout."
        ),
    ] = "-",
) -> None:
    """Generate a trace with random arrivals; a recipe and a seed give the same bytes.

    Options replace what the recipe says. Recipes of published workloads are in experiments/recipes.

    Example: pliant trace synth poisson --jobs 160 --rate 20 --models resnet18:256=3,bert:32 -o trace.jsonl
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.io import write_jobs
    from pliant.tools.replay.synthetic import synthesize
    from pliant.tools.replay.synthetic_recipe import read_recipe

    check_output(output)
    given: dict[str, Any] = {
        "jobs": jobs,
        "hours": hours,
        "rate_per_hour": rate,
        "seed": seed,
        "elastic": elastic,
        "models": models and [_model(name, weight) for name, weight in _weights("--models", models).items()],
        "gpus": gpus and _weights("--gpus", gpus),
        "classes": classes and _weights("--classes", classes),
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    if classes:
        overrides["gpu_time"] = None
    made = synthesize(read_recipe(recipe, overrides), recipe)
    write_jobs(made, output)
    note(f"{counted(len(made), 'job')} over {made[-1].submit_time / 3600:.1f} h")


def _model(name: str, weight: float) -> dict[str, Any]:
    """``NAME[:BATCH]`` as a model of a recipe."""
    model, colon, batch = name.partition(":")
    size = whole_number(batch)
    if not model or (colon and size is None):
        raise UsageError(f'--models "{name}": expected NAME or NAME:BATCH')
    return {"name": model, "weight": weight, "batch": size}


def _weights(option: str, text: str) -> dict[str, float]:
    """``NAME[=WEIGHT],…`` as a mapping; the default weight is 1."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.partition("=")
        try:
            weights[name] = float(weight if equals else 1)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f'{option} "{part}": expected NAME or NAME=WEIGHT')
    return weights


def export(
    jobs: Annotated[
        str, typer.Argument(metavar="JOBS", help="The trace (JSON Lines or Parquet); - is stdin.")
    ],
    *,
    output: Annotated[str, typer.Option("-o", "--output", help="File to write; - is stdout.")] = "-",
) -> None:
    """Write a trace in the Standard Workload Format 2.2.

    Its processors are GPUs. Starts and ends are those that the trace recorded; without a recording, the run
    time is the GPU time over the GPUs requested, else not known (-1).

    Example: pliant trace export jobs.jsonl -o jobs.swf
    """
    from pliant.schemas.file_io.files import check_output, write_chunks
    from pliant.schemas.io import read_jobs
    from pliant.tools.replay.importers.formats.swf import lines

    check_output(output)
    ordered = sorted(read_jobs(jobs), key=lambda job: (job.submit_time, job.id))
    write_chunks(output, (f"{line}\n".encode() for line in lines(ordered)))
    note(f"{counted(len(ordered), 'job')} in the Standard Workload Format")


def describe(
    jobs: Annotated[
        str, typer.Argument(metavar="JOBS", help="The trace (JSON Lines or Parquet); - is stdin.")
    ],
    *,
    cluster: Annotated[
        str | None, typer.Option(help="A cluster (JSON), to say how much of it the trace fills.")
    ] = None,
    cluster_for: Annotated[
        float | None,
        typer.Option(metavar="LOAD", help="Suggest how many GPUs the trace fills to this load, as 0.8."),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw the work that arrives over time: a .svg, .png or .pdf."),
    ] = None,
    form: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Describe a trace: jobs, work, sizes, durations, arrivals, states, and the load of a cluster.

    Load is the GPU time of the jobs over that of the cluster from the first to the last submission.

    Example: pliant trace describe jobs.jsonl --cluster cluster.json --cluster-for 0.8
    """
    import json
    from dataclasses import asdict

    from pliant.schemas.file_io.files import atomic_write, check_output, write_bytes
    from pliant.schemas.io import read_cluster, read_jobs
    from pliant.tools.replay.describe import cluster_for as gpus_for
    from pliant.tools.replay.describe import describe as described
    from pliant.tools.replay.describe import warning

    check_output(output)
    shape = _shape_of(figure)
    read = read_jobs(jobs)
    if not read:
        raise UsageError(f"{jobs}: has no jobs to describe")
    description = described(read, None if cluster is None else read_cluster(cluster).total_gpus)
    wanted = None if cluster_for is None else gpus_for(description, cluster_for)
    if form is Form.json:
        fields = asdict(description) | ({} if wanted is None else {"cluster_for_gpus": wanted})
        write_bytes(output, f"{json.dumps(fields, indent=2)}\n".encode())
    else:
        lines = description.lines()
        if wanted is not None and cluster_for is not None:
            line = f"cluster for a load of {cluster_for:g}: {in_gpus(wanted)}"
            if wanted == description.sizes[-1][0] and (real := description.load_of(wanted)) < cluster_for:
                line += f", as many as its largest job has; their load is {real:.2g}"
            lines.append(line)
        write_bytes(output, "".join(f"{line}\n" for line in lines).encode())
    if figure is not None and shape is not None:
        from pliant.tools.report.figures.plots import arriving_work_image

        atomic_write(
            Path(figure),
            arriving_work_image(shape, description.arriving_gpus, description.bin_s, description.gpus),
        )
    if text := warning(description):
        note(text)


def _shape_of(figure: str | None) -> Shape | None:
    from pliant.tools.report.figures import form_of

    if figure is None:
        return None
    shape = form_of(figure)
    if shape is None:
        raise UsageError(f"--figure {figure}: expected a name that ends in .svg, .png or .pdf")
    return shape


SUBCOMMANDS = (trace_import, synth, export, describe)
