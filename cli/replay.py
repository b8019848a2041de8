"""``pliant replay``: what would have happened under these policies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.assumptions import STRICT, heed
from pliant.cli.common import stated
from pliant.cli.console import note, note_sentence, progress
from pliant.cli.replay_sweep import Executor, check_sweep_options, replay_sweep, replay_task
from pliant.schemas.errors import UsageError
from pliant.schemas.formats.bulk import garbage_collection_paused

if TYPE_CHECKING:
    from pliant.tools.replay.batch import Task
    from pliant.tools.replay.run import Summary

COST = "SECONDS, MODEL=SECONDS,…, profile for what it has measured, or a run's event file likewise."


class ProgressChoice(StrEnum):
    """Progress models."""

    samples = "samples"
    goodput = "goodput"
    epochs = "epochs"


class SpeedsChoice(StrEnum):
    """Throughput models."""

    additive = "additive"
    placement = "placement"


def replay(
    context: typer.Context,
    *,
    jobs: Annotated[
        str | None, typer.Option("--jobs", help="The trace (JSON Lines); - is stdin.", show_default=False)
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="The cluster (JSON).", show_default=False)
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME[,NAME…]",
            help="One policy or several; see `pliant policies`.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", help="Measured speeds (Parquet).", show_default="1 sample/s a GPU"),
    ] = None,
    convergence: Annotated[
        str | None,
        typer.Option(
            "--convergence",
            help="Validation runs (Parquet); jobs that name one of its models train by its epochs.",
            show_default=False,
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="[POLICY.]KEY=VALUE",
            help="A parameter of a policy; with one policy its name may be left out.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            min=0,
            help="Seconds between decisions; 0: at every change.",
            show_default="what each policy prefers",
        ),
    ] = None,
    rescale_cost: Annotated[
        str | None,
        typer.Option(
            "--rescale-cost",
            help=f"Time without training when a job's GPUs change: {COST}",
            show_default="0",
        ),
    ] = None,
    start_cost: Annotated[
        str | None,
        typer.Option("--start-cost", help=f"The same for a first start: {COST}", show_default="0"),
    ] = None,
    resume_cost: Annotated[
        str | None,
        typer.Option(
            "--resume-cost",
            help="The same for a start after a preemption or a failure.",
            show_default="what --rescale-cost says or has measured",
        ),
    ] = None,
    progress_model: Annotated[
        ProgressChoice | None,
        typer.Option(
            "--progress",
            help="How work advances: by samples; by samples less the gradient noise of large batches; or by "
            "the epochs of --convergence.",
            show_default="epochs where there is a table, else samples",
        ),
    ] = None,
    noise_scale: Annotated[
        str | None,
        typer.Option(
            "--noise-scale",
            metavar="SAMPLES",
            help="Gradient noise scale for --progress goodput where there is no table: SAMPLES or "
            "MODEL=SAMPLES,…",
            show_default=False,
        ),
    ] = None,
    speeds: Annotated[
        SpeedsChoice,
        typer.Option(
            "--speeds",
            help="Between what the profile measured: a model of computing and sync by size, or step times "
            "interpolated over placements.",
        ),
    ] = SpeedsChoice.additive,
    compat: Annotated[
        str | None,
        typer.Option(
            "--compat",
            metavar="NAME",
            help="Replay with the quirks of a published simulator: pollux. See docs/replay-compat.md.",
            show_default=False,
        ),
    ] = None,
    failures: Annotated[
        str | None,
        typer.Option(
            "--failures",
            help='Nodes that go down and up: JSON Lines, {"time": 60, "node": "n0", "event": "down"}.',
            show_default=False,
        ),
    ] = None,
    mtbf: Annotated[
        float | None,
        typer.Option(
            "--mtbf",
            min=0.001,
            metavar="HOURS",
            help="Mean time between failures of a node; they are drawn with --seed.",
            show_default="no failures",
        ),
    ] = None,
    repair: Annotated[
        float,
        typer.Option("--repair", min=0.001, metavar="HOURS", help="Mean time until a failed node is back."),
    ] = 1.0,
    interference: Annotated[
        float,
        typer.Option(
            "--interference",
            metavar="PART",
            help="Part of their speed, 0 to below 1, that jobs lose to each other where they span several "
            "nodes and share one.",
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of policies that draw lots.")] = 0,
    jobs_limit: Annotated[
        int | None, typer.Option("--jobs-limit", min=1, help="Replay the first so many jobs only.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, help="Replays at a time.", show_default="1; of a sweep as many as cores"
        ),
    ] = None,
    timing: Annotated[
        bool | None,
        typer.Option(
            "--timing/--no-timing",
            help="Write how long decisions took into the event file, too; or nowhere.",
            show_default="into the summary",
        ),
    ] = None,
    strict: STRICT = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="FILE",
            help="Carry out a sweep (TOML or JSON) into the folder -o; what is finished there is kept.",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[
        Executor,
        typer.Option("--executor", help="Where a sweep runs: here, or as a Slurm job array."),
    ] = Executor.local,
    task: Annotated[
        int | None,
        typer.Option(
            "--task", min=0, help="Carry out one task of the sweep in the folder -o.", show_default=False
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="DIGEST",
            help="Refuse --task where the sweep's task table is not the one with this digest; scripts of "
            "--executor slurm-array say it.",
            show_default=False,
        ),
    ] = None,
    max_array_size: Annotated[
        int | None,
        typer.Option(
            "--max-array-size",
            min=1,
            help="Slurm's MaxArraySize: a larger sweep becomes several job arrays.",
            show_default="what scontrol says, else 1001",
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help="Event file of one policy (.parquet or .jsonl; - is stdout, JSON Lines), or a folder. "
            "NAME.summary.json is written beside NAME.parquet.",
        ),
    ] = "-",
) -> None:
    """Replay a trace under one or more policies, by discrete events; equal inputs give equal files.

    Example: pliant replay --jobs trace.jsonl --cluster cluster.json --profile profile.parquet
    --policy fifo,ares --rescale-cost 30 -o replays && pliant report replays/*.parquet
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # idle threads of numpy would cost more than a replay
    with garbage_collection_paused():  # imports leave none
        from pliant.tools.replay.batch import Task, replay_all
        from pliant.tools.replay.engine.costs import parse_costs
        from pliant.tools.replay.engine.failures import Mtbf, read_failures
        from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
        from pliant.tools.replay.inputs import Sources
        from pliant.tools.replay.output import check_paths, output_paths
        from pliant.tools.replay.progress.choice import Training, parse_noise_scales
        from pliant.tools.replay.run import Run, parameters_by_policy

    check_sweep_options(stated(context), recipe, task, executor)
    if recipe is not None:
        replay_sweep(recipe, output, workers, executor, max_array_size)
        return
    if task is not None:
        replay_task(task, table, output)
        return
    if jobs is None or cluster is None or not policy:
        given = {"--jobs": jobs, "--cluster": cluster, "--policy": policy}
        missing = " and ".join(name for name, value in given.items() if not value)
        raise UsageError(f"{missing} missing: a replay needs --jobs, --cluster and --policy, or --recipe")
    if [jobs, cluster, profile, convergence, failures].count("-") > 1:
        raise UsageError("only one input can come from stdin")
    _check_interval(interval)
    _check_interference(interference)
    names = [name for names in policy for name in names.split(",")]
    parameters = parameters_by_policy(names, param or [])
    simulated = SimulatedCluster(
        *parse_costs(start_cost, rescale_cost, resume_cost, profile),
        node_events=() if failures is None else read_failures(failures),
        mtbf=None if mtbf is None else Mtbf(mtbf, repair),
        interference=interference,
    )
    training = Training(
        None if progress_model is None else progress_model.value,
        parse_noise_scales(noise_scale),
        speeds is SpeedsChoice.placement,
        compat,
    )
    paths = output_paths(output, names)
    check_paths(paths)
    tasks = [
        Task(Run(name, parameters[name], seed, interval, simulated, training), path, timing, strict)
        for name, path in zip(names, paths, strict=True)
    ]
    with progress("replay", "jobs") as advance:
        summaries = replay_all(
            Sources(jobs, cluster, profile, jobs_limit, convergence),
            tasks,
            workers=workers or 1,
            advance=advance,
            heed=heed,
        )
    _tell(tasks, summaries)


def _check_interval(seconds: float | None) -> None:
    """Refuse a clock that would stand still or never tick."""
    from pliant.tools.replay.engine.agenda import SHORTEST_INTERVAL_S

    if seconds is not None and seconds != 0 and not SHORTEST_INTERVAL_S <= seconds < inf:
        raise UsageError(f"--interval {seconds:g}: expected 0, or {SHORTEST_INTERVAL_S:g} s or more")


def _check_interference(part: float) -> None:
    """Refuse what leaves a job no speed, or more than it has."""
    if not 0 <= part < 1:
        raise UsageError(f"--interference {part:g}: expected a part of the speed, from 0 to below 1")


def _tell(tasks: Sequence[Task], summaries: Sequence[Summary]) -> None:
    for task, found in zip(tasks, summaries, strict=True):
        for line in found.lines():
            note_sentence(line)
        if task.path != "-":
            note(f"{found.policy}: events in {task.path}")
