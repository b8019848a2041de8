"""How this process was started: by a plan, by plain torchrun, or alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.text import whole_number
from pliant.tools.run.statedir.contract.folders import (
    JobDir,
    UnreadableError,
    read_file,
    read_record,
    write_record,
)
from pliant.tools.run.statedir.contract.plan import (
    ENV_JOB_DIR,
    ENV_SLOT,
    ENV_WORKER,
    SLOT_FROM_RANK,
    Plan,
    WorkerOutcome,
)

_TRIES: Final = 100
"""Tries to read a plan that a worker needs, for two seconds."""


class Tracks(Protocol):
    """What a worker has for experiment trackers: :class:`~pliant.tools.run.elastic.trackers.Tracking`."""

    pending: dict[str, Any]

    def add_losses(self, losses: Any) -> None: ...

    def step_done(self, samples: int) -> None: ...

    def log(self, samples: int, values: Mapping[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def close(self, *, done: bool = False) -> None: ...


class Context:
    """Rank, world size and device of this process."""

    plan: Plan | None = None
    """Plan that a worker of ``pliant run`` follows; else None."""
    tracking: Tracks | None = None
    """The experiment trackers of the script, if it names some."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device


class WorkerContext(Context):
    """A worker of ``pliant run``; ``plan`` alone says which generation it is in."""

    plan: Plan

    def __init__(self, folder: JobDir, plan: Plan, worker: int, device: torch.device | None = None) -> None:
        """:param worker: its number in the attempt; ``device``: by default the CPU."""
        super().__init__(-1, 0, device or torch.device("cpu"))
        self.folder, self.worker = folder, worker
        self.attempt = folder.attempt(plan.attempt)
        self._attempt = plan.attempt
        # The workers that train together, or start together.
        self.known = frozenset[int]()
        self.follow(plan)

    @property
    def left(self) -> bool:
        return self.rank < 0

    def follow(self, plan: Plan) -> None:
        """Follow another plan. A later attempt numbers its own workers, so it goes on without this one."""
        workers = plan.workers
        self.plan, self.world_size = plan, len(workers)
        named = self.worker in workers and plan.attempt == self._attempt
        self.rank = workers.index(self.worker) if named else -1

    def settle(self) -> None:
        self.known = frozenset(self.plan.workers)

    def is_overtaken(self) -> bool:
        """Whether the job trains on without this worker, which was away (its host was cut off, for example).

        Then it must not write the job's files any more.
        """
        try:
            newest = read_record(self.folder.plan, "plan", Plan)
            reached = read_file(self.attempt.reached) or b""
        except (UnreadableError, BadInputError):
            return False
        trains = whole_number(reached.decode("ascii", "replace").strip()) or 0
        return trains > self.plan.generation or (newest is not None and newest.attempt > self._attempt)

    def is_done(self) -> bool:
        """Whether a member of the plan has trained to the end and left."""
        with contextlib.suppress(UnreadableError):  # the next look may succeed
            ends = (WorkerOutcome.read(self.attempt.outcome(worker)) for worker in self.plan.workers)
            return any(end is not None and end.outcome == "done" for end in ends)
        return False

    def report_end(self, outcome: WorkerOutcome) -> None:
        path = self.attempt.outcome(self.worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, "outcome", outcome)


def read_plan(path: Path) -> Plan:
    """The plan in a file.

    :raises BadInputError: there is no file, or it is not a plan of a known version.
    :raises UnreadableError: it could not be read, though it was tried for seconds.
    """
    plan = read_record(path, "plan", Plan, tries=_TRIES)
    if plan is None:
        raise BadInputError.one(str(path), "no such file")
    return plan


def find_context(environ: Mapping[str, str] = os.environ) -> Context:
    """Read the environment; a plan comes before torchrun's variables.

    :raises UsageError: the variables contradict each other or the plan.
    """
    if ENV_JOB_DIR in environ:
        return _planned(environ)
    rank, world_size = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise UsageError(f"RANK is {rank} and WORLD_SIZE is {world_size}: expected 0 <= RANK < WORLD_SIZE")
    return Context(rank, world_size, _device(_number(environ, "LOCAL_RANK", 0)))


def _planned(environ: Mapping[str, str]) -> WorkerContext:
    folder = JobDir(Path(environ[ENV_JOB_DIR]))
    plan = read_plan(folder.plan)
    known = ENV_WORKER in environ
    worker = _number(environ, ENV_WORKER, 0) if known else plan.workers[_rank(environ, plan)]
    context = WorkerContext(folder, plan, worker)
    if context.left:
        return context
    context.settle()
    member = plan.members[context.rank]
    if member.device == "cuda":
        # an elastic worker sees one GPU; workers of one torchrun see all of the job's GPUs on their node
        context.device = torch.device("cuda", _number(environ, "LOCAL_RANK", 0))
        if not torch.cuda.is_available():
            raise UsageError(f"slot {member.slot} is a GPU, but PyTorch sees none in this process")
    elif "OMP_NUM_THREADS" not in environ:
        torch.set_num_threads(1)  # a CPU slot is one core: neighbours must not slow each other down
    return context


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
    number = whole_number(text)
    if number is None:
        raise UsageError(f"{name} is {text!r}, expected a whole number")
    return number
