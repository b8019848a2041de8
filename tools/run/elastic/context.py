"""How this process was started: by a plan, by plain torchrun, or alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pliant.schemas.errors import UsageError
from pliant.schemas.formats.digits import whole_number
from pliant.tools.run.elastic.membership.vote import read_plan
from pliant.tools.run.statedir.contract.files import UnreadableError, write_record
from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir
from pliant.tools.run.statedir.contract.outcome import WorkerOutcome
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_SLOT, ENV_WORKER, SLOT_FROM_RANK, Plan


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker of ``pliant run`` was told, and where it answers."""

    folder: JobDir
    plan: Plan
    worker: int
    """Number of this worker in its attempt."""

    @property
    def rank(self) -> int:
        """Position of this worker among the plan's members; -1 in a plan that goes on without it."""
        workers = self.plan.workers
        return workers.index(self.worker) if self.worker in workers else -1

    @property
    def attempt(self) -> AttemptDir:
        """The folder that this attempt writes to."""
        return self.folder.attempt(self.plan.attempt)

    def is_done(self) -> bool:
        """Whether a member of the plan has trained to the end and left."""
        with contextlib.suppress(UnreadableError):  # it is asked again
            ends = (WorkerOutcome.read(self.attempt.outcome(worker)) for worker in self.plan.workers)
            return any(end is not None and end.outcome == "done" for end in ends)
        return False

    def report_end(self, outcome: WorkerOutcome) -> None:
        """Write how this worker ended, as its last act."""
        path = self.attempt.outcome(self.worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, "outcome", outcome)


@dataclass(slots=True)
class Context:
    """Rank, world size and device of this process; under ``pliant run`` they change, by its ``orders``."""

    rank: int
    world_size: int
    device: torch.device
    orders: Orders | None = None
    known: frozenset[int] = frozenset()
    """The workers that train together, or are starting together."""

    @property
    def left(self) -> bool:
        """Whether the plan goes on without this worker."""
        return self.rank < 0

    def follow(self, plan: Plan) -> None:
        """Act on another plan."""
        if self.orders is not None:
            self.orders = replace(self.orders, plan=plan)
            self.rank, self.world_size = self.orders.rank, len(plan.members)

    def settle(self) -> None:
        """The workers of the plan train together."""
        if self.orders is not None:
            self.known = frozenset(self.orders.plan.workers)

    @property
    def seed(self) -> int | None:
        """The plan's seed, where there is a plan."""
        return None if self.orders is None else self.orders.plan.seed


def find_context(environ: Mapping[str, str] = os.environ) -> Context:
    """Read the environment: the plan's word counts before torchrun's.

    :raises UsageError: the variables contradict each other or the plan.
    """
    if ENV_JOB_DIR in environ:
        return _planned(environ)
    rank, world_size = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise UsageError(f"RANK is {rank} and WORLD_SIZE is {world_size}: expected 0 <= RANK < WORLD_SIZE")
    return Context(rank, world_size, _device(_number(environ, "LOCAL_RANK", 0)))


def _planned(environ: Mapping[str, str]) -> Context:
    folder = JobDir(Path(environ[ENV_JOB_DIR]))
    plan = read_plan(folder.plan)
    worker = _worker(environ, plan)
    orders = Orders(folder, plan, worker)
    rank = orders.rank
    if rank < 0:
        return Context(rank, len(plan.members), torch.device("cpu"), orders)
    # one torchrun per slot sees one GPU; one torchrun per node sees all of the job's GPUs on it
    gpu = torch.device("cuda", _number(environ, "LOCAL_RANK", 0))
    device = gpu if plan.members[rank].device == "cuda" else torch.device("cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"slot {plan.members[rank].slot} is a GPU, but PyTorch sees none in this process")
    if device.type == "cpu" and "OMP_NUM_THREADS" not in environ:
        torch.set_num_threads(1)  # a CPU slot is one core: neighbours must not slow each other down
    return Context(rank, len(plan.members), device, orders, frozenset(plan.workers))


def _worker(environ: Mapping[str, str], plan: Plan) -> int:
    if ENV_WORKER in environ:
        return _number(environ, ENV_WORKER, 0)
    return plan.workers[_rank(environ, plan)]


def _rank(environ: Mapping[str, str], plan: Plan) -> int:
    slot = environ.get(ENV_SLOT)
    if slot is None:
        raise UsageError(f"{ENV_JOB_DIR} is set but {ENV_SLOT} is not: a worker needs both, or neither")
    if slot == SLOT_FROM_RANK:
        rank = _number(environ, "RANK", 0)
        if rank >= len(plan.members):
            raise UsageError(
                f"RANK is {rank}, but the plan of job {plan.job} has {len(plan.members)} members"
            )
        return rank
    slots = [member.slot for member in plan.members]
    if slot not in slots:
        raise UsageError(
            f"slot {slot} is not in generation {plan.generation} of job {plan.job}: {', '.join(slots)}"
        )
    return slots.index(slot)


def _device(local_rank: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device("cuda", local_rank % count) if count else torch.device("cpu")


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    found = whole_number(text)
    if found is None:
        raise UsageError(f"{name} is {text!r}, expected a whole number")
    return found
