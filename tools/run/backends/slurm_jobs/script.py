"""What Slurm is asked for an attempt, and the script that it runs there, as text: pure functions.

Slurm chooses the nodes. What it is given of a placement is how many workers there are, whether they share
one node, and what each needs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster, Node, SlurmOptions
from pliant.tools.run.backends.protocol import Handle, Unit
from pliant.tools.run.backends.slurm.ask import JWT
from pliant.tools.run.backends.slurm.command_lines import asked_for, escaped, name_of
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.plan import ENV_WORKER

TASK: Final = str(Path(__file__).with_name("task.py"))
_MEGABYTE: Final = 1 << 20
_WORKERS: Final = "--nproc-per-node="


@dataclass(frozen=True, slots=True)
class Request:
    """What an attempt needs of Slurm: equal tasks, one for each unit."""

    name: str
    """Of the job: it leads from the attempt to it, and is used once."""
    tasks: int
    nodes: int | None
    """On exactly this many; None: on as many as Slurm likes."""
    gpus: int = 0
    """Of each task."""
    cpus: int | None = None
    """Of each task; None: what Slurm gives."""
    memory_bytes: int | None = None
    """For each processor; None: what Slurm gives."""


def job_name(handle: Handle, state: Path) -> str:
    """What the Slurm job of an attempt is called."""
    return f"{name_of(state)}.{handle.job}.{handle.attempt}"


def request_of(cluster: Cluster, units: Sequence[Unit], name: str) -> Request:
    """What the units of an attempt need.

    Units that are a node each get nodes of their own, and all as much as the largest: Slurm gives equal
    tasks only.
    """
    workers = max(_workers(unit) for unit in units)
    planned = {unit.node for unit in units}
    a_node_each = all(ENV_WORKER not in unit.env for unit in units)
    nodes = len(planned) if a_node_each or len(planned) == 1 else None
    if cluster.slots == "cpu":
        return Request(name, len(units), nodes, cpus=workers)
    known = [node for node in cluster.expanded() if node.name in planned]
    each = min((share for node in known if (share := _cpus_of_a_gpu(node))), default=None)
    memory = min((share for node in known if (share := _memory_of_a_cpu(node))), default=None)
    cpus = None if each is None else each * workers
    return Request(name, len(units), nodes, workers, cpus, memory if cpus is not None else None)


def _workers(unit: Unit) -> int:
    """How many workers a torchrun starts."""
    stated = next((word for word in unit.argv if word.startswith(_WORKERS)), f"{_WORKERS}1")
    return int(stated.removeprefix(_WORKERS))


def _cpus_of_a_gpu(node: Node) -> int | None:
    return max(1, int(node.cpus / node.gpus)) if node.cpus and node.gpus else None


def _memory_of_a_cpu(node: Node) -> int | None:
    return int(node.memory / node.cpus) if node.memory and node.cpus else None


def sbatch(request: Request, options: SlurmOptions, attempt: AttemptDir) -> tuple[str, ...]:
    """Submit the script of an attempt. Slurm does not start it a second time: that is our part."""
    nodes = () if request.nodes is None else (f"--nodes={request.nodes}",)
    memory = request.memory_bytes
    return (
        *("sbatch", "--parsable", f"--job-name={request.name}", "--no-requeue", "--export=ALL"),
        *nodes,
        *_tasks(request, options),
        *(() if memory is None else (f"--mem-per-cpu={max(1, memory // _MEGABYTE)}M",)),
        *asked_for(options),
        *("--chdir=/", f"--output={escaped(attempt.logs / 'slurm.log')}", "--open-mode=append"),
        *options.options,
        str(script_file(attempt)),
    )


def script(request: Request, options: SlurmOptions, attempt: AttemptDir, locale: str | None = None) -> str:
    """The script: it starts a task for each unit, and a task that fails leaves the others alone.

    The environment is that of the launcher, but no task gets its token.

    :param locale: LC_ALL as the launcher has it; None: not at all.
    """
    srun = (
        *("srun", "--quiet", *_tasks(request, options)),
        *("--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--input=none"),
        *(f"--output={escaped(attempt.logs)}/launcher-%t.log", "--open-mode=append"),
        *(sys.executable, "-I", "-S", TASK, str(attempt.path)),
    )
    said = "unset LC_ALL" if locale is None else f"export LC_ALL={shlex.quote(locale)}"
    return f"#!/bin/sh\n{said}\nunset {JWT}\nexec {shlex.join(srun)}\n"


def script_file(attempt: AttemptDir) -> Path:
    """Where the script of an attempt is."""
    return attempt.path / "slurm.sh"


def _tasks(request: Request, options: SlurmOptions) -> tuple[str, ...]:
    """Said to sbatch and to srun alike: not all of it is passed on by every release."""
    kind = options.gres.partition(":")[2]
    found = [f"--ntasks={request.tasks}"]
    if request.nodes is not None and request.nodes == request.tasks:
        found.append("--ntasks-per-node=1")
    if request.gpus:
        found.append(f"--gpus-per-task={f'{kind}:' if kind else ''}{request.gpus}")
    if request.cpus is not None:
        found.append(f"--cpus-per-task={request.cpus}")
    return tuple(found)
