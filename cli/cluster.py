"""``pliant cluster``: make cluster files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import note_sentence
from pliant.schemas.errors import UsageError
from pliant.schemas.text import counted

if TYPE_CHECKING:
    from pliant.tools.run.discovery import Found


def cluster_discover(
    *,
    backend: Annotated[
        Literal["local", "slurm", "slurm-jobs"],
        typer.Option("--backend", help="Where jobs are to run: this machine, or the nodes of Slurm."),
    ] = "local",
    slots: Annotated[
        Literal["gpu", "cpu"] | None,
        typer.Option("--slots", help="What a slot is.", show_default="gpu if there are any, else cpu"),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", help="Slurm: nodes of this partition.", show_default="the default one"),
    ] = None,
    gres: Annotated[
        str | None,
        typer.Option("--gres", metavar="gpu:TYPE", help="Slurm: GPUs of this type.", show_default="all"),
    ] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="The cluster (JSON); - is stdout.")] = "-",
) -> None:
    """Write a cluster file of this machine or of Slurm's nodes.

    Of this machine, GPUs are those that the NVIDIA driver lists and
    CUDA_VISIBLE_DEVICES leaves; of a GPU in MIG mode, its instances. CPU
    slots are the cores that affinity and cgroup leave. Of Slurm, GPUs and
    cores are those that its nodes have, and levels of the network those of
    its topology. Nodes that are out of service are named on stderr.

    Example: pliant cluster discover -o cluster.json

    Example: pliant cluster discover --backend slurm --partition gpu -o cluster.json
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.io import write_cluster

    check_output(output)
    discovered = look_for(backend, slots, partition or [], gres)
    for text in discovered.notes:
        note_sentence(text)
    write_cluster(discovered.cluster, output)
    what = "GPU" if discovered.cluster.slots == "gpu" else "CPU slot"
    count, nodes = (
        counted(discovered.cluster.total_gpus, what),
        counted(len(discovered.cluster.nodes), "node"),
    )
    note_sentence(f"{count} on {nodes}")


def look_for(
    backend: Literal["local", "slurm", "slurm-jobs"],
    slots: Literal["gpu", "cpu"] | None,
    partitions: list[str],
    gres: str | None,
) -> Found:
    if backend == "local":
        from pliant.tools.run.discovery import discover_local

        if partitions or gres:
            raise UsageError("--partition and --gres go with --backend slurm")
        return discover_local(slots, os.environ)
    from pliant.tools.run.discovery import discover_slurm

    if gres is not None and re.fullmatch(r"gpu:[A-Za-z0-9_.-]+", gres) is None:
        raise UsageError(f'--gres "{gres}": expected gpu:TYPE')
    names = [name for each in partitions for name in each.split(",") if name]
    return discover_slurm(slots, names, gres, backend=backend)


def cluster_release(
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP)
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="Where its jobs ran.", show_default="as the cluster says")
    ] = None,
) -> None:
    """Give back Slurm nodes on which a state directory runs nothing.

    On Slurm a run that leaves its jobs to the next one keeps its lease jobs;
    squeue lists them as pliant-…

    Example: pliant cluster release --state pliant-state
    """
    from pliant.tools.run.service.run import release_nodes

    note_sentence(f"gave back {counted(release_nodes(state_directory(state), backend), 'node')}")


SUBCOMMANDS = (cluster_discover, cluster_release)
