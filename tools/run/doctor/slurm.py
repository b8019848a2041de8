"""Slurm: are its commands here, does it answer, and do its nodes and partitions fit the cluster file?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError
from pliant.schemas.text.wording import counted, listed
from pliant.tools.run.backends.slurm import command_lines, parsing
from pliant.tools.run.backends.slurm.ask import ask
from pliant.tools.run.backends.slurm.parsing import SlurmNode
from pliant.tools.run.discovery.slurm import choose_partitions
from pliant.tools.run.doctor.check import Check, first_line, ok, problem, warning
from pliant.tools.run.doctor.site import Site

AREA: Final = "Slurm"
COMMANDS: Final = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
JOBS: Final = "slurm-jobs"
"""The backend whose attempts are jobs of their own."""
OLDEST: Final = (20, 11)
"""The oldest release whose output the tests have."""
ANSWER_S: Final = 15.0
"""A command gives up by itself before, unless it does not even find its configuration."""
_SHOWN: Final = 3


def slurm(site: Site) -> Iterator[Check]:
    """The checks of this area."""
    if not site.is_slurm:
        return
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        text = f"not found: {', '.join(missing)}"
        yield problem(AREA, text, "run on a host where Slurm's commands are, and mind PATH")
        return
    try:
        yield _release(ask(command_lines.version(), timeout_s=ANSWER_S))
        nodes = {n.name: n for n in parsing.nodes(ask(command_lines.show_nodes(), timeout_s=ANSWER_S))}
    except PliantError as error:
        advice = "start slurmctld, or name the right Slurm with SLURM_CONF; see scontrol ping"
        yield problem(AREA, first_line(error), advice)
        return
    if site.backend == JOBS and (site.cluster is None or site.cluster.slots == "gpu"):
        yield from _shares(parsing.settings(ask(command_lines.show_config())))
    yield from _partitions(site.cluster)
    yield from _nodes(site.cluster, nodes)


def _release(said: str) -> Check:
    found = parsing.version(said)
    name = said.strip() or "Slurm of an unknown release"
    if found is None or found < OLDEST:
        oldest = "{}.{:02}".format(*OLDEST)
        return warning(AREA, f"{name} is older than any that was tried", f"use {oldest} or newer")
    return ok(AREA, f"{name} has all commands that are needed; sacct is not")


def _shares(settings: Mapping[str, str]) -> Iterator[Check]:
    """A job that is to get some GPUs of a node needs a Slurm that gives them out one by one."""
    found = settings.get("SelectType", "")
    if "cons_tres" not in found:
        text = f"{found or 'its scheduler'} does not give out GPUs by task, which backend {JOBS} needs"
        yield problem(AREA, text, "use backend slurm, or have SelectType=select/cons_tres set")


def _partitions(cluster: Cluster | None) -> Iterator[Check]:
    stated = None if cluster is None else cluster.slurm.partition
    known = parsing.partitions(ask(command_lines.show_partitions()))
    try:
        chosen = choose_partitions(known, stated.split(",") if stated else ())
    except PliantError as error:
        yield problem(AREA, first_line(error), "name one in the cluster file: slurm.partition")
        return
    for each in chosen:
        if not each.up:
            advice = "name another one, or ask who runs Slurm; jobs wait till it is up"
            yield warning(AREA, f"partition {each.name} starts nothing", advice)
        else:
            limit = f", for {each.limit} at most" if each.limit else ""
            yield ok(AREA, f"partition {each.name} starts jobs{limit}")


def _nodes(cluster: Cluster | None, nodes: Mapping[str, SlurmNode]) -> Iterator[Check]:
    wanted = list(nodes) if cluster is None else [node.name for node in cluster.expanded()]
    unknown = [name for name in wanted if name not in nodes]
    if unknown:
        text = f"Slurm has no node {listed(unknown)}"
        yield problem(AREA, text, "make the file again: pliant cluster discover --backend slurm")
    if cluster is not None and cluster.slots == "gpu":
        yield from _counts(cluster, nodes)
    there = [nodes[name] for name in wanted if name in nodes]
    out = [node for node in there if node.serves is False]
    for node in out[:_SHOWN]:
        why = node.reason or " ".join(sorted(node.state)).lower()
        advice = f"mend it, then: scontrol update nodename={node.name} state=resume"
        yield warning(AREA, f"{node.name} is out of service ({why})", advice)
    if len(out) > _SHOWN:
        text = f"{counted(len(out) - _SHOWN, 'more node')} out of service"
        yield warning(AREA, text, "sinfo -R lists them with reasons")
    text = f"{len(there) - len(out)} of {counted(len(wanted), 'node')} in service"
    yield ok(AREA, text) if len(out) < len(there) else problem(AREA, text, "no job can start; see sinfo -R")


def _counts(cluster: Cluster, nodes: Mapping[str, SlurmNode]) -> Iterator[Check]:
    fewer = [
        f"{node.name} ({has} of {node.gpus})"
        for node in cluster.expanded()
        if node.name in nodes and (has := nodes[node.name].gpu_count(cluster.slurm.gres)) < node.gpus
    ]
    if fewer:
        text = f"nodes with fewer GPUs than the cluster file says: {', '.join(fewer[:_SHOWN])}"
        yield problem(AREA, text, "make the file again: pliant cluster discover --backend slurm")
