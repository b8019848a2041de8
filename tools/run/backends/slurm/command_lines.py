"""The command lines of Slurm, as data: pure functions that return argument lists. No shell reads them.

``squeue`` is asked for fields with ``|`` between them, the name last: names may contain anything.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster, Node, SlurmOptions

JOB_FIELDS: Final = "%i|%T|%N|%r|%j"
"""id, state, nodes, reason, name; :func:`parsing.jobs` reads them."""
STEP_FIELDS: Final = "%i|%N|%j"
"""id, node, name; :func:`parsing.steps` reads them."""
IMMEDIATE_S: Final = 5
"""For a step to be given what it asks for, before srun gives up."""
_DIGEST_CHARS: Final = 12
_MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Lease:
    """What a lease job is to hold of a node."""

    name: str
    """Of the job: it leads from a state directory to its leases."""
    node: str
    gpus: int
    """Through --gres; 0: none, the slots are CPUs."""
    cpus: int | None = None
    """None: all of the node."""
    memory_bytes: int | None = None
    """None: all of the node."""


def name_of(state: Path) -> str:
    """How the names of all jobs of one state directory begin."""
    return f"pliant-{hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:_DIGEST_CHARS]}"


def lease_prefix(state: Path) -> str:
    """How the names of all leases of one state directory begin."""
    return f"{name_of(state)}-"


def asked_for(options: SlurmOptions) -> tuple[str, ...]:
    """Which queue a job comes into, and for how long; what is left out is up to Slurm."""
    asked = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "reservation": options.reservation,
        "time": None if options.lease_seconds is None else str(math.ceil(options.lease_seconds / 60)),
    }
    return tuple(f"--{name}={value}" for name, value in asked.items() if value is not None)


def lease_of(cluster: Cluster, node: Node, state: Path) -> Lease:
    """The lease that a node of a cluster file needs."""
    gpus = node.gpus if cluster.slots == "gpu" else 0
    name = f"{lease_prefix(state)}{node.name}"
    if cluster.slurm.exclusive:
        return Lease(name, node.name, gpus)
    cpus = math.ceil(node.cpus) if node.cpus is not None else node.gpus
    return Lease(name, node.name, gpus, max(1, cpus), node.memory)


def sbatch_lease(lease: Lease, options: SlurmOptions, state: Path) -> tuple[str, ...]:
    """Submit a lease job: it holds a node and does nothing. Prints its id.

    It is not requeued: a job that is waits for two minutes, and its steps are lost all the same.
    """
    return (
        *("sbatch", "--parsable", f"--job-name={lease.name}", f"--comment=pliant --state {state}"),
        *("--nodes=1", "--ntasks=1", f"--nodelist={lease.node}", "--no-requeue"),
        *_share(lease),
        *((f"--gres={options.gres}:{lease.gpus}",) if lease.gpus else ()),
        *asked_for(options),
        *("--chdir=/", "--output=/dev/null", "--error=/dev/null", "--export=NONE"),
        *options.options,
        "--wrap=exec sleep infinity",
    )


def _share(lease: Lease) -> tuple[str, ...]:
    """Of the node: all, or a part."""
    if lease.cpus is None:
        return "--exclusive", "--mem=0"
    memory = () if lease.memory_bytes is None else (f"--mem={max(1, lease.memory_bytes // _MEGABYTE)}M",)
    return (f"--cpus-per-task={lease.cpus}", *memory)


@dataclass(frozen=True, slots=True)
class Step:
    """One unit of a training job on the node of a lease."""

    lease_id: str
    name: str
    log: Path
    """What the unit says before it redirects its output; written on the node."""
    gres: str = ""
    """What the step sees of the lease's GPUs: "gpu:4"; empty: none."""
    cpus: int | None = None
    """Of its own, where Slurm chooses its GPUs, too; None: it shares all that the lease has."""


def step_name(job: str, attempt: int, unit: int) -> str:
    """How the step of a unit is called."""
    return f"{job}.{attempt}.{unit}"


def step_gres(options: SlurmOptions, lease_gpus: int, own_gpus: int) -> str:
    """What a step asks for: all GPUs of its lease, of which its keeper picks its own, or their number."""
    count = own_gpus if options.gpu_choice == "slurm" else lease_gpus
    return f"{options.gres}:{count}" if lease_gpus else ""


def srun_step(step: Step, argv: Sequence[str]) -> tuple[str, ...]:
    """Start a step; returns its exit code when it has ended. The step outlives an srun that is killed hard.

    Memory is shared among the steps of a lease, and so are CPUs and GPUs unless the step has its own.
    """
    share = ("--overlap",) if step.cpus is None else ("--exact", f"--cpus-per-task={step.cpus}")
    return (
        *("srun", "--quiet", f"--jobid={step.lease_id}", f"--job-name={step.name}"),
        *("--nodes=1", "--ntasks=1", "--mem=0", *share, f"--immediate={IMMEDIATE_S}"),
        f"--gres={step.gres or 'none'}",
        *("--mpi=none", "--cpu-bind=none", "--chdir=/", "--input=none"),
        *(f"--output={escaped(step.log)}", "--open-mode=append"),
        *argv,
    )


def escaped(path: Path) -> str:
    """A path as a file name of srun: a percent sign would begin a pattern."""
    return str(path).replace("%", "%%")


def squeue_jobs(user_id: int) -> tuple[str, ...]:
    """All jobs of a user that wait or run."""
    return "squeue", "--all", "--noheader", f"--user={user_id}", f"--format={JOB_FIELDS}"


def squeue_steps(user_id: int) -> tuple[str, ...]:
    """All steps of a user that run."""
    return "squeue", "--all", "--noheader", "--steps", f"--user={user_id}", f"--format={STEP_FIELDS}"


def show_nodes(names: Iterable[str] = ()) -> tuple[str, ...]:
    """Nodes with all that Slurm knows of them, one a line; none named: all nodes."""
    wanted = ",".join(names)
    return "scontrol", "--oneliner", "--all", "show", "node", *((wanted,) if wanted else ())


def show_partitions() -> tuple[str, ...]:
    """All partitions, one a line."""
    return "scontrol", "--oneliner", "--all", "show", "partition"


def show_job(job_id: str) -> tuple[str, ...]:
    """A job with all that Slurm knows of it, also for a while after it has ended."""
    return "scontrol", "--oneliner", "show", "job", job_id


def show_config() -> tuple[str, ...]:
    """How Slurm is configured."""
    return "scontrol", "show", "config"


def version() -> tuple[str, ...]:
    """Which Slurm this is; no daemon is asked."""
    return "sinfo", "--version"


def scancel_jobs(ids: Iterable[str]) -> tuple[str, ...]:
    """End lease jobs, with all of their steps."""
    return "scancel", "--quiet", *ids


def scancel_named(name: str, user_id: int) -> tuple[str, ...]:
    """End a user's jobs of that name, wherever they stand; harmless if there are none.

    An operator could end those of other users, too, whose directory has the same path on another host.
    """
    return "scancel", "--quiet", f"--user={user_id}", f"--name={name}"


def scancel_step(step_id: str) -> tuple[str, ...]:
    """Kill every process of a step at once. A softer signal would reach all of them, too."""
    return "scancel", "--quiet", "--signal=KILL", step_id
