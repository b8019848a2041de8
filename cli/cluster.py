"""``pliant cluster``: make cluster files."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from pliant.cli.console import note_sentence
from pliant.schemas.text.wording import counted


def cluster_discover(
    *,
    slots: Annotated[
        Literal["gpu", "cpu"] | None,
        typer.Option("--slots", help="What a slot is.", show_default="gpu if there are any, else cpu"),
    ] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="The cluster (JSON); - is stdout.")] = "-",
) -> None:
    """Look what this machine has, and write it as a cluster file.

    Its GPUs are those that the NVIDIA driver lists and CUDA_VISIBLE_DEVICES
    leaves; of a GPU in MIG mode, its instances. CPU slots are the cores that
    affinity and cgroup leave.

    Example: pliant cluster discover -o cluster.json
    """
    from pliant.schemas.file_io.outputs import check_output
    from pliant.schemas.io import write_cluster
    from pliant.tools.run.discovery.local import discover_local

    check_output(output)
    found = discover_local(slots, os.environ)
    for text in found.notes:
        note_sentence(text)
    write_cluster(found.cluster, output)
    what = "GPU" if found.cluster.slots == "gpu" else "CPU slot"
    count, nodes = counted(found.cluster.total_gpus, what), counted(len(found.cluster.nodes), "node")
    note_sentence(f"{count} on {nodes}")


SUBCOMMANDS = (cluster_discover,)
