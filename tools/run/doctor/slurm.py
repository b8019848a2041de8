"""Slurm: are its commands here, does it answer, and do its nodes and partitions fit the cluster file?

Does a loop serve the state directory, and is anything waiting for one?
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

import psutil

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError
from pliant.schemas.text import counted, listed, when_text
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.commands import ask
from pliant.tools.run.backends.slurm.parsing import SlurmNode
from pliant.tools.run.discovery import choose_partitions
from pliant.tools.run.doctor.check import Check, Site, first_line, ok, problem, warning
from pliant.tools.run.statedir.directory import holder_of
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import size_and_time

SLURM: Final = "Slurm"
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
        yield problem(SLURM, text, "run on a host where Slurm's commands are, and mind PATH")
        return
    try:
        yield _release(ask(command_lines.version(), timeout_s=ANSWER_S))
        nodes = {n.name: n for n in parsing.nodes(ask(command_lines.show_nodes(), timeout_s=ANSWER_S))}
    except PliantError as error:
        advice = "start slurmctld, or name the right Slurm with SLURM_CONF; see scontrol ping"
        yield problem(SLURM, first_line(error), advice)
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
        return warning(SLURM, f"{name} is older than any that was tried", f"use {oldest} or newer")
    return ok(SLURM, f"{name} has all commands that are needed; sacct is not")


def _shares(settings: Mapping[str, str]) -> Iterator[Check]:
    """A job that is to get some GPUs of a node needs a Slurm that gives them out one by one."""
    found = settings.get("SelectType", "")
    if "cons_tres" not in found:
        text = f"{found or 'its scheduler'} does not give out GPUs by task, which backend {JOBS} needs"
        yield problem(SLURM, text, "use backend slurm, or have SelectType=select/cons_tres set")


def _partitions(cluster: Cluster | None) -> Iterator[Check]:
    stated = None if cluster is None else cluster.slurm.partition
    known = parsing.partitions(ask(command_lines.show_partitions()))
    try:
        chosen = choose_partitions(known, stated.split(",") if stated else ())
    except PliantError as error:
        yield problem(SLURM, first_line(error), "name one in the cluster file: slurm.partition")
        return
    for each in chosen:
        if not each.up:
            advice = "name another one, or ask who runs Slurm; jobs wait till it is up"
            yield warning(SLURM, f"partition {each.name} starts nothing", advice)
        else:
            limit = f", for {each.limit} at most" if each.limit else ""
            yield ok(SLURM, f"partition {each.name} starts jobs{limit}")


def _nodes(cluster: Cluster | None, nodes: Mapping[str, SlurmNode]) -> Iterator[Check]:
    wanted = list(nodes) if cluster is None else [node.name for node in cluster.expanded()]
    unknown = [name for name in wanted if name not in nodes]
    if unknown:
        text = f"Slurm has no node {listed(unknown)}"
        yield problem(SLURM, text, "make the file again: pliant cluster discover --backend slurm")
    if cluster is not None and cluster.slots == "gpu":
        yield from _counts(cluster, nodes)
    there = [nodes[name] for name in wanted if name in nodes]
    out = [node for node in there if node.serves is False]
    for node in out[:_SHOWN]:
        why = node.reason or " ".join(sorted(node.state)).lower()
        advice = f"mend it, then: scontrol update nodename={node.name} state=resume"
        yield warning(SLURM, f"{node.name} is out of service ({why})", advice)
    if len(out) > _SHOWN:
        text = f"{counted(len(out) - _SHOWN, 'more node')} out of service"
        yield warning(SLURM, text, "sinfo -R lists them with reasons")
    text = f"{len(there) - len(out)} of {counted(len(wanted), 'node')} in service"
    yield ok(SLURM, text) if len(out) < len(there) else problem(SLURM, text, "no job can start; see sinfo -R")


def _counts(cluster: Cluster, nodes: Mapping[str, SlurmNode]) -> Iterator[Check]:
    fewer = [
        f"{node.name} ({has} of {node.gpus})"
        for node in cluster.expanded()
        if node.name in nodes and (has := nodes[node.name].gpu_count(cluster.slurm.gres)) < node.gpus
    ]
    if fewer:
        text = f"nodes with fewer GPUs than the cluster file says: {', '.join(fewer[:_SHOWN])}"
        yield problem(SLURM, text, "make the file again: pliant cluster discover --backend slurm")


SERVICE: Final = "service"


def service(site: Site) -> Iterator[Check]:
    """The checks of this area."""
    if site.dirs is None or not site.there or site.refused is not None:
        return
    now_s, written_s = time.time(), size_and_time(site.dirs)[1]
    seen = f"; it wrote last {when_text(written_s, now_s)}" if written_s else ""
    holder = holder_of(site.dirs.lock)
    if holder is not None:
        yield _held(holder, seen)
        return
    if site.log is not None and site.log.once:
        yield ok(
            SERVICE, f"no loop: calls of pliant run serve it, as from cron{seen.replace('it', 'one', 1)}"
        )
        return
    waiting = _waiting(site)
    if waiting:
        text = f"no loop serves {waiting}{seen.replace('it wrote', 'one wrote')}"
        start = f"pliant run --follow --state {site.dirs.path}"
        yield warning(SERVICE, text, f"unless cron calls pliant run: {start}")
    else:
        yield ok(SERVICE, f"no loop, and nothing waits for one{seen.replace('it wrote', 'one wrote')}")


def _held(holder: int, seen: str) -> Check:
    if not holder:
        return ok(SERVICE, f"a run holds the directory{seen}")
    status = ""
    with suppress(psutil.Error):
        status = psutil.Process(holder).status()
    if status == psutil.STATUS_STOPPED:
        return problem(SERVICE, f"process {holder} runs it, but is stopped{seen}", f"kill -CONT {holder}")
    where = "" if status else " (of another machine)"
    return ok(SERVICE, f"process {holder}{where} runs it{seen}")


def _waiting(site: Site) -> str:
    """What waits for a loop, in words."""
    if site.dirs is None:
        return ""
    parts = []
    if site.log is not None and site.log.active:
        parts.append(counted(len(site.log.active), "job"))
    requests = len(Spool(site.dirs).requests())
    if requests:
        parts.append(counted(requests, "request"))
    return " and ".join(parts)
