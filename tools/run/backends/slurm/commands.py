"""What is sent to Slurm: command lines and scripts as data, and the one function that runs them, in threads.

Slurm's controller may take milliseconds, or many seconds if it does not answer.

Argument lists come from pure functions; no shell reads them. Names come last in the output of ``squeue``,
because they may contain its separator. We choose the node of a lease and its steps; for an attempt that is a
job of its own (:class:`JobRequest`), Slurm chooses the nodes.

:class:`Controller` looks repeatedly without waiting. :class:`Later` is one command; a process that ends waits
for its threads, so what was submitted or cancelled reaches Slurm.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster, LeaseLimits, Node, NodeReservation, SlurmOptions
from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.backends.protocol import Credentials, Handle, Unit
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmNode, SlurmStep
from pliant.tools.run.statedir.contract.as_user import with_own_files
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from pliant.tools.run.statedir.directory import account_name

JOB_FIELDS: Final = "%i|%T|%N|%r|%U|%j"
"""id, state, nodes, reason, user id, name; :func:`parsing.jobs` reads them."""
LISTING: Final = "SQUEUE_FORMAT"
STEP_FIELDS: Final = "%i|%N|%j"
"""id, node, name; :func:`parsing.steps` reads them."""
IMMEDIATE_S: Final = 5
"""Seconds after which srun gives up a step that does not get its resources."""
TASK: Final = str(Path(__file__).with_name("task.py"))
TIMEOUT_S: Final = 30.0
"""Command timeout; longer than the ten seconds for which Slurm itself retries."""
CONF: Final = "SLURM_CONF"
JWT: Final = "SLURM_JWT"
"""Variable of the user's token, which srun does not support."""
_OPTIONS: Final = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_")
_DIGEST_CHARS: Final = 12
_MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Lease:
    """What a lease job holds of a node; None is all of it."""

    name: str
    """Job name, which identifies the leases of a state directory."""
    node: str
    gpus: int
    """Through --gres; 0 if the slots are CPUs."""
    cpus: int | None = None
    memory_bytes: int | None = None


def name_of(state: Path) -> str:
    return f"pliant-{hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:_DIGEST_CHARS]}"


def lease_prefix(state: Path) -> str:
    return f"{name_of(state)}-"


def queue_options(options: SlurmOptions) -> tuple[str, ...]:
    """Options for a job's queue and time limit; Slurm decides what is left out.

    Without ``B:`` the signal goes to the steps, and not to the script of the job.
    """
    asked = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "reservation": options.reservation,
        "time": None if options.lease_seconds is None else str(math.ceil(options.lease_seconds / 60)),
        "signal": None if options.notice_seconds is None else f"USR1@{math.ceil(options.notice_seconds)}",
    }
    return tuple(f"--{name}={value}" for name, value in asked.items() if value is not None)


def lease_of(cluster: Cluster, node: Node, state: Path) -> Lease:
    gpus = node.gpus if cluster.slots == "gpu" else 0
    name = f"{lease_prefix(state)}{node.name}"
    if cluster.slurm.exclusive:
        return Lease(name, node.name, gpus)
    cpus = math.ceil(node.cpus) if node.cpus is not None else node.gpus
    return Lease(name, node.name, gpus, max(1, cpus), node.memory)


LEFT_S: Final = 90.0
"""Seconds after which an idle lease ends by itself that no run has given back."""
_WATCH: Final = (
    "last=$(date +%s); while sleep 10; do now=$(date +%s); "
    "used=$(stat -c %Y {file} 2>/dev/null || echo 0); "
    '[ "$used" -gt "$last" ] && last=$used; [ $((now - last)) -lt {limit_s} ] && continue; '
    'steps=$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i) || steps=.0; '
    'case "$steps" in *.[0-9]*) last=$now;; *) exit 0;; esac; done'
)
"""Script of a lease that ends once its file is old and no step runs in it, whatever became of the run."""


def lease_file(state: Path, node: str) -> Path:
    """A file that is as old as the last use of a node."""
    return state / "leases" / node


def _lease_script(lease: Lease, limits: LeaseLimits | None, state: Path) -> str:
    if limits is None:
        return "exec sleep infinity"
    file = shlex.quote(str(lease_file(state, lease.node)))
    return _WATCH.format(file=file, limit_s=math.ceil(limits.idle_seconds + LEFT_S))


def sbatch_lease(
    lease: Lease, options: SlurmOptions, state: Path, limits: LeaseLimits | None = None
) -> tuple[str, ...]:
    """Submit a lease job, which holds a node and does nothing. Prints its id.

    :param limits: it ends by itself some time after it could have been given back.

    It is not requeued: that takes two minutes, and its steps would be lost anyway.
    """
    return (
        *("sbatch", "--parsable", f"--job-name={lease.name}", f"--comment=pliant --state {state}"),
        *("--nodes=1", "--ntasks=1", f"--nodelist={lease.node}", "--no-requeue"),
        *_share(lease),
        *((f"--gres={options.gres}:{lease.gpus}",) if lease.gpus else ()),
        *queue_options(options),
        *("--chdir=/", "--output=/dev/null", "--error=/dev/null", "--export=NONE"),
        *options.options,
        f"--wrap={_lease_script(lease, limits, state)}",
    )


def _share(lease: Lease) -> tuple[str, ...]:
    if lease.cpus is None:
        return "--exclusive", "--mem=0"
    memory = () if lease.memory_bytes is None else (f"--mem={max(1, lease.memory_bytes // _MEGABYTE)}M",)
    return (f"--cpus-per-task={lease.cpus}", *memory)


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One unit of a training job on the node of a lease."""

    lease_id: str
    name: str
    log: Path | None
    """Written on the node; for the output of the unit until it is redirected. None: srun prints it."""
    gres: str = ""
    """The GPUs of the lease that the step sees, as in "gpu:4"; empty for none."""
    cpus: int | None = None
    """Its own CPUs if Slurm also chooses its GPUs; None if it shares those of the lease."""


def step_name(job: str, attempt: int, unit: int) -> str:
    return f"{job}.{attempt}.{unit}"


def step_gres(options: SlurmOptions, lease_gpus: int, own_gpus: int) -> str:
    """GPUs that a step requests: its own number, or all of its lease, of which the supervisor picks."""
    count = own_gpus if options.gpu_choice == "slurm" else lease_gpus
    return f"{options.gres}:{count}" if lease_gpus else ""


def srun_step(step: StepRequest, argv: Sequence[str]) -> tuple[str, ...]:
    """Start a step and wait for its exit code. The step outlives an srun that is killed with SIGKILL.

    The steps of a lease share its memory, and its CPUs and GPUs unless the step has its own.
    """
    share = ("--overlap",) if step.cpus is None else ("--exact", f"--cpus-per-task={step.cpus}")
    return (
        *("srun", "--quiet", f"--jobid={step.lease_id}", f"--job-name={step.name}"),
        *("--nodes=1", "--ntasks=1", "--mem=0", *share, f"--immediate={IMMEDIATE_S}"),
        f"--gres={step.gres or 'none'}",
        *("--mpi=none", "--cpu-bind=none", "--chdir=/", "--input=none"),
        *(() if step.log is None else (f"--output={escaped(step.log)}", "--open-mode=append")),
        *argv,
    )


def shell_step(slurm_job: str, node: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Start a step with a terminal in a job that runs; it takes nothing from the other steps."""
    return (
        *("srun", "--quiet", f"--jobid={slurm_job}", "--overlap", "--pty", "--nodes=1", "--ntasks=1"),
        *("--mem=0", "--gres=none", "--mpi=none", "--cpu-bind=none", "--chdir=/"),
        *((f"--nodelist={node}",) if node else ()),
        *argv,
    )


def escaped(path: Path) -> str:
    """A path as a file name for srun, where a percent sign would begin a pattern."""
    return str(path).replace("%", "%%")


def squeue_jobs(user_id: int | None) -> tuple[str, ...]:
    """The jobs of a user; None: of all, since a list with an unknown user in it counts as empty.

    What is printed of all is in the environment (:data:`LISTING`), as it begins with a secret.
    """
    own = () if user_id is None else (f"--user={user_id}", f"--format={JOB_FIELDS}")
    return "squeue", "--all", "--noheader", *own


def squeue_steps(user_id: int) -> tuple[str, ...]:
    return "squeue", "--all", "--noheader", "--steps", f"--user={user_id}", f"--format={STEP_FIELDS}"


def show_nodes(names: Iterable[str] = ()) -> tuple[str, ...]:
    wanted = ",".join(names)
    return "scontrol", "--oneliner", "--all", "show", "node", *((wanted,) if wanted else ())


def show_reservations() -> tuple[str, ...]:
    return "scontrol", "--oneliner", "--all", "show", "reservation"


def show_partitions() -> tuple[str, ...]:
    return "scontrol", "--oneliner", "--all", "show", "partition"


def show_topology() -> tuple[str, ...]:
    return "scontrol", "--oneliner", "show", "topology"


def show_job(job_id: str) -> tuple[str, ...]:
    return "scontrol", "--oneliner", "show", "job", job_id


def show_accounts(user: str) -> tuple[str, ...]:
    """Prints the accounts of a user, one a line, for each cluster of the database and partition again."""
    return "sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=account"


def show_config() -> tuple[str, ...]:
    return "scontrol", "show", "config"


def version() -> tuple[str, ...]:
    """The release; no daemon is asked."""
    return "sinfo", "--version"


def scancel_jobs(ids: Iterable[str]) -> tuple[str, ...]:
    return "scancel", "--quiet", *ids


def scancel_named(name: str, user_id: int) -> tuple[str, ...]:
    """End a user's jobs of that name; harmless if there are none.

    The user is stated because an operator could also end jobs of others, whose directory has the same path.
    """
    return "scancel", "--quiet", f"--user={user_id}", f"--name={name}"


def scancel_step(step_id: str) -> tuple[str, ...]:
    """Kill every process of a step. A softer signal would reach all of them, too."""
    return "scancel", "--quiet", "--signal=KILL", step_id


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What an attempt needs of Slurm: equal tasks, one for each unit. None leaves it to Slurm."""

    name: str
    """Job name, unique to this attempt."""
    tasks: int
    nodes: int | None
    gpus: int = 0
    """Number for each task."""
    cpus: int | None = None
    """Number for each task."""
    memory_bytes: int | None = None
    """Bytes for each processor."""


def job_prefix(state: Path) -> str:
    return f"{name_of(state)}."


def job_name(handle: Handle, state: Path) -> str:
    return f"{job_prefix(state)}{handle.job}.{handle.attempt}"


def request_of(cluster: Cluster, units: Sequence[Unit], name: str) -> JobRequest:
    """What the units of an attempt need.

    Units that each fill a node get nodes of their own. All get as much as the largest, as Slurm's tasks are
    equal.
    """
    workers = max(1, *(unit.slots for unit in units))
    planned = {unit.node for unit in units}
    a_node_each = all(ENV_WORKER not in unit.env for unit in units)
    nodes = len(planned) if a_node_each or len(planned) == 1 else None
    if cluster.slots == "cpu":
        return JobRequest(name, len(units), nodes, cpus=workers)
    if all(unit.env.get("CUDA_VISIBLE_DEVICES") == "" for unit in units):  # it needs no GPU
        demand = units[0].demand
        own = max(1, math.ceil(demand.get("cpu", 0.0)))
        most = math.ceil(demand["memory"] / own) if "memory" in demand else None
        return JobRequest(name, len(units), nodes, cpus=own, memory_bytes=most)
    known = [node for node in cluster.expanded() if node.name in planned]
    each = min((share for node in known if (share := _cpus_of_a_gpu(node))), default=None)
    memory = min((share for node in known if (share := _memory_of_a_cpu(node))), default=None)
    cpus = None if each is None else each * workers
    return JobRequest(name, len(units), nodes, workers, cpus, memory if cpus is not None else None)


def _cpus_of_a_gpu(node: Node) -> int | None:
    return max(1, int(node.cpus / node.gpus)) if node.cpus and node.gpus else None


def _memory_of_a_cpu(node: Node) -> int | None:
    return int(node.memory / node.cpus) if node.memory and node.cpus else None


def sbatch(
    request: JobRequest, options: SlurmOptions, attempt: AttemptDir, account: Credentials | None = None
) -> tuple[str, ...]:
    """Submit the script of an attempt. Slurm must not restart it: retries are up to the service.

    :param account: whose job it is; None: the caller's.
    """
    whose = () if account is None else (f"--uid={account.uid}", f"--gid={account.gid}")
    nodes = () if request.nodes is None else (f"--nodes={request.nodes}",)
    memory = request.memory_bytes
    return (
        *("sbatch", "--parsable", f"--job-name={request.name}", "--no-requeue", "--export=ALL", *whose),
        *nodes,
        *_tasks(request, options),
        *(() if memory is None else (f"--mem-per-cpu={max(1, memory // _MEGABYTE)}M",)),
        *queue_options(options),
        *("--chdir=/", f"--output={escaped(attempt.logs / 'slurm.log')}", "--open-mode=append"),
        *options.options,
        str(script_file(attempt)),
    )


def script(request: JobRequest, options: SlurmOptions, attempt: AttemptDir, locale: str | None = None) -> str:
    """The script, which starts a task for each unit; one that fails leaves the others alone.

    The tasks get the launcher's environment, with its LC_ALL (``locale``), but not its token.
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
    return (attempt.kept or attempt.path) / "slurm.sh"


def _tasks(request: JobRequest, options: SlurmOptions) -> tuple[str, ...]:
    """Options for both sbatch and srun, as not every release passes all of them on."""
    kind = options.gres.partition(":")[2]
    options_of_tasks = [f"--ntasks={request.tasks}"]
    if request.nodes is not None and request.nodes == request.tasks:
        options_of_tasks.append("--ntasks-per-node=1")
    if request.gpus:
        options_of_tasks.append(f"--gpus-per-task={f'{kind}:' if kind else ''}{request.gpus}")
    if request.cpus is not None:
        options_of_tasks.append(f"--cpus-per-task={request.cpus}")
    return tuple(options_of_tasks)


def of_slurm(env: Mapping[str, str], *names: str) -> dict[str, str]:
    """Only these variables of Slurm: the others are options or belong to a job around this process."""
    return {name: env[name] for name in names if name in env}


def ask(
    argv: Sequence[str],
    *,
    text: str | None = None,
    timeout_s: float = TIMEOUT_S,
    base: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> str:
    """Run one of Slurm's commands; returns what it prints.

    :param text: its standard input.
    :param base: its environment except for Slurm's variables; None for that of this process.
    :param more: variables of Slurm that it gets.
    :raises ServiceMissingError: it is missing, does not end in time, or fails.
    """
    base = os.environ if base is None else base
    env = {name: value for name, value in base.items() if not name.startswith(_OPTIONS)}
    env |= of_slurm(os.environ, CONF, JWT)
    try:
        done = subprocess.run(
            argv,
            input=text or "",
            env={**env, **(more or {}), "LC_ALL": "C"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise ServiceMissingError(f"Slurm's {argv[0]} is not here: run on a host of the cluster") from None
    except subprocess.TimeoutExpired:
        raise ServiceMissingError(
            f"Slurm does not answer: {argv[0]} took more than {timeout_s:.0f} s"
        ) from None
    except OSError as error:
        raise ServiceMissingError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()), "") or f"exit code {done.returncode}"
        raise ServiceMissingError(f"{argv[0]}: {said.removeprefix(f'{argv[0]}: ')}")
    return done.stdout


POLL_INTERVAL_S: Final = 1.0
"""Seconds between two polls of jobs and steps."""
NODES_S: Final = 5.0
"""Seconds between two polls of the nodes."""
RESERVATIONS_S: Final = 30.0
"""Seconds between two polls of the reservations."""
TIME_FORMAT: Final = {"SLURM_TIME_FORMAT": "%s"}
"""How Slurm prints times: as seconds since the epoch."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class ControllerView:
    """What Slurm said at one time."""

    queried_s: float
    """Time of the view on this process's clock."""
    jobs: Sequence[SlurmJob] = ()
    steps: Mapping[str, SlurmStep] = field(default_factory=dict)
    """Steps by job id of the lease and name: ``7/resnet.2.0``."""
    nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    reservations: Sequence[NodeReservation] | None = None
    """None: Slurm has not said."""


class Controller:
    """The Slurm of the environment.

    :param nodes: those of interest.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        # The newest, until another look succeeds.
        self.view: ControllerView | None = None
        self.failure = ""
        # Whether jobs of other accounts are looked for, too.
        self.of_all = False
        self._nodes = tuple(nodes)
        self._nodes_s = self._reservations_s = float("-inf")
        self._look_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._warned = False

    def watch(self, nodes: Iterable[str]) -> None:
        """These nodes are of interest from the next look on."""
        self._nodes, self._nodes_s = tuple(nodes), float("-inf")

    @with_own_files
    def look(self) -> None:
        """Begin another look if it is due. Never waits."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._thread is not None:
            self._warn()
            self._thread = None
        if time.monotonic() - self._look_s >= POLL_INTERVAL_S:
            self._look_s = time.monotonic()
            self._thread = threading.Thread(target=self._ask, name="pliant-slurm", daemon=True)
            self._thread.start()

    def first(self) -> ControllerView:
        """The newest view; waits for the first one.

        :raises ServiceMissingError: Slurm is not installed, or its controller does not answer.
        """
        if self.view is None:
            self._look_s = time.monotonic()
            self._ask()
        if self.view is None:
            raise ServiceMissingError(
                f"Slurm cannot be asked which jobs and nodes it has: {self.failure}; "
                "go to a host where squeue answers (pliant doctor --cluster FILE says more)"
            )
        return self.view

    def _ask(self) -> None:
        """One look, which counts only if all of it succeeds."""
        queried_s = time.monotonic()
        try:
            jobs = _jobs_of_all() if self.of_all else parsing.jobs(ask(squeue_jobs(os.getuid())))
            steps = parsing.steps(ask(squeue_steps(os.getuid())))
            nodes = self._ask_for_nodes(queried_s)
        except ServiceMissingError as error:
            self.failure = str(error)
            return
        self.failure = ""
        by_name = {f"{step.job_id}/{step.name}": step for step in steps}
        reserved = self._ask_for_reservations(queried_s)
        self.view = ControllerView(queried_s, jobs, by_name, nodes, reserved)

    def _ask_for_nodes(self, queried_s: float) -> Mapping[str, SlurmNode]:
        if not self._nodes:
            return {}
        if self.view is not None and queried_s - self._nodes_s < NODES_S:
            return self.view.nodes
        wanted, listed = set(self._nodes), parsing.nodes(ask(show_nodes()))
        self._nodes_s = queried_s
        return {node.name: node for node in listed if node.name in wanted}

    def _ask_for_reservations(self, queried_s: float) -> Sequence[NodeReservation] | None:
        """As Slurm said last; they are not what a look fails for."""
        known = None if self.view is None else self.view.reservations
        if queried_s - self._reservations_s < RESERVATIONS_S:
            return known
        self._reservations_s = queried_s
        with suppress(ServiceMissingError):
            known = parsing.reservations(
                ask(show_reservations(), more=TIME_FORMAT), account_name(os.getuid())
            )
        return known

    def reservations(self, options: SlurmOptions) -> Sequence[NodeReservation] | None:
        """All reservations but those that the jobs are in. Returns None if Slurm has not said."""
        if self.view is None or self.view.reservations is None:
            return None
        named = [each.partition("=")[2] for each in options.options if each.startswith("--reservation=")]
        own = {name for text in (*named, options.reservation or "") for name in text.split(",")}
        return [each for each in self.view.reservations if each.name not in own]

    def _warn(self) -> None:
        if self.failure and not self._warned:
            _log.warning("Slurm does not answer (%s): jobs run on, and it is asked again", self.failure)
        elif self._warned and not self.failure:
            _log.warning("Slurm answers again")
        self._warned = bool(self.failure)


def _jobs_of_all() -> list[SlurmJob]:
    """The jobs of all accounts, each behind a mark that none of them can know and put in a job's name."""
    mark = secrets.token_hex(16)
    listing = {LISTING: f"{mark}{JOB_FIELDS}"}
    return parsing.jobs(ask(squeue_jobs(None), more=listing), mark)


class Later:
    """One call of a command in a thread; ``base`` as for :func:`.commands.ask`.

    A thread begins with the file rights of the one that starts it.
    """

    @with_own_files
    def __init__(self, argv: Sequence[str], base: Mapping[str, str] | None = None) -> None:
        self.done = False
        self.text = ""
        self.failure = ""
        # On the clock of this process.
        self.ended_s = float("inf")
        self._argv, self._base = argv, base
        self._thread = threading.Thread(target=self._run, name="pliant-slurm")
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self.text = ask(self._argv, base=self._base)
        except ServiceMissingError as error:
            self.failure = str(error)
        self.ended_s = time.monotonic()
        self.done = True
