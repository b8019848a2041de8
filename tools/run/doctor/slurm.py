"""Checks of Slurm: its commands, nodes and partitions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError
from pliant.schemas.text import (
    counted,
    listed,
)
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.commands import ask
from pliant.tools.run.backends.slurm.parsing import SlurmNode
from pliant.tools.run.discovery import choose_partitions, levels_of, slurm_topology
from pliant.tools.run.doctor.site import Check, Site, first_line, ok, problem, warning

COMMANDS: Final = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
JOBS: Final = "slurm-jobs"
OLDEST: Final = (20, 11)
"""The oldest release whose output is tested."""
ANSWER_S: Final = 15.0
"""Response timeout; longer than a command takes to give up by itself."""
_SHOWN: Final = 3


def slurm(site: Site) -> Iterator[Check]:
    """Are Slurm's commands here, does it answer, and do its nodes and partitions fit the cluster file?"""
    if not site.is_slurm:
        return
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        text = f"not found: {', '.join(missing)}"
        yield problem(text, "run on a host where Slurm's commands are, and mind PATH")
        return
    try:
        yield _release(ask(command_lines.version(), timeout_s=ANSWER_S))
        nodes = {n.name: n for n in parsing.nodes(ask(command_lines.show_nodes(), timeout_s=ANSWER_S))}
    except PliantError as error:
        advice = "start slurmctld, or name the right Slurm with SLURM_CONF; see scontrol ping"
        yield problem(first_line(error), advice)
        return
    if site.backend == JOBS and (site.cluster is None or site.cluster.slots == "gpu"):
        yield from _shares(parsing.settings(ask(command_lines.show_config())))
    yield from _partitions(site.cluster)
    yield from _nodes_of(site.cluster, nodes)
    yield from _levels(site.cluster)


def _release(said: str) -> Check:
    release = parsing.version(said)
    name = said.strip() or "Slurm of an unknown release"
    if release is None or release < OLDEST:
        return warning(f"{name} is older than any that was tried", "use {}.{:02} or newer".format(*OLDEST))
    return ok(f"{name} has all commands that are needed; sacct is not")


def _shares(settings: Mapping[str, str]) -> Iterator[Check]:
    plugin = settings.get("SelectType", "")
    if "cons_tres" not in plugin:
        text = f"{plugin or 'its scheduler'} does not give out GPUs by task, which backend {JOBS} needs"
        yield problem(text, "use backend slurm, or have SelectType=select/cons_tres set")


def _partitions(cluster: Cluster | None) -> Iterator[Check]:
    stated = None if cluster is None else cluster.slurm.partition
    known = parsing.partitions(ask(command_lines.show_partitions()))
    try:
        chosen = choose_partitions(known, stated.split(",") if stated else ())
    except PliantError as error:
        yield problem(first_line(error), "name one in the cluster file: slurm.partition")
        return
    for each in chosen:
        if not each.up:
            advice = "name another one, or ask who runs Slurm; jobs wait till it is up"
            yield warning(f"partition {each.name} starts nothing", advice)
        else:
            limit = f", for {each.limit} at most" if each.limit else ""
            yield ok(f"partition {each.name} starts jobs{limit}")


def _nodes_of(cluster: Cluster | None, nodes: Mapping[str, SlurmNode]) -> Iterator[Check]:
    wanted = list(nodes) if cluster is None else [node.name for node in cluster.expanded()]
    unknown = [name for name in wanted if name not in nodes]
    if unknown:
        text = f"Slurm has no node {listed(unknown)}"
        yield problem(text, "make the file again: pliant cluster discover --backend slurm")
    if cluster is not None and cluster.slots == "gpu":
        yield from _counts(cluster, nodes)
    there = [nodes[name] for name in wanted if name in nodes]
    out = [node for node in there if node.serves is False]
    for node in out[:_SHOWN]:
        why = node.reason or " ".join(sorted(node.state)).lower()
        advice = f"mend it, then: scontrol update nodename={node.name} state=resume"
        yield warning(f"{node.name} is out of service ({why})", advice)
    if len(out) > _SHOWN:
        text = f"{counted(len(out) - _SHOWN, 'more node')} out of service"
        yield warning(text, "sinfo -R lists them with reasons")
    text = f"{len(there) - len(out)} of {counted(len(wanted), 'node')} in service"
    yield ok(text) if len(out) < len(there) else problem(text, "no job can start; see sinfo -R")


def _levels(cluster: Cluster | None) -> Iterator[Check]:
    if cluster is None or cluster.levels:
        return
    levels = levels_of([node.name for node in cluster.expanded()], slurm_topology())
    if levels:
        text = (
            f"Slurm knows levels of the network that the cluster file does not name: {listed(list(levels))}"
        )
        yield warning(
            text, "make the file again, so that jobs stay near: pliant cluster discover --backend slurm"
        )


def _counts(cluster: Cluster, nodes: Mapping[str, SlurmNode]) -> Iterator[Check]:
    fewer = [
        f"{node.name} ({has} of {node.gpus})"
        for node in cluster.expanded()
        if node.name in nodes and (has := nodes[node.name].gpu_count(cluster.slurm.gres)) < node.gpus
    ]
    if fewer:
        text = f"nodes with fewer GPUs than the cluster file says: {', '.join(fewer[:_SHOWN])}"
        yield problem(text, "make the file again: pliant cluster discover --backend slurm")
