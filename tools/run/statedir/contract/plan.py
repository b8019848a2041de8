"""Plans, outcomes and progress: what launcher and workers tell each other, in files alone.

A worker finds its plan by two environment variables, :data:`ENV_JOB_DIR` (the job's folder) and
:data:`ENV_SLOT` (which member of the plan it is). Plans are immutable and numbered by generation; the file
``plan.json`` is replaced atomically, and workers look at its number at step boundaries; a copy of every plan
stays in the attempt's folder, so that all workers act on the very plan that they agreed on. A newer plan of
the same attempt changes who trains, or how the batch is cut, while training goes on; workers that it does
not name leave. It takes effect as soon as all workers that it adds are ready. A plan with ``abort`` asks
them to agree on a step, save a checkpoint and exit 0.

A script without the elastic library writes the same file, and nothing else (``tools/run/progress.py`` does it
for scripts in Python): the launcher makes events of what it says.

A worker's last act is a :class:`WorkerOutcome`; one that has trained to the end writes it before the script
goes on, too, because a script may end without a last act. While it trains, rank 0 replaces a small
:class:`Progress` file about once a second. The log and the events of an attempt hold the history; this file
holds the newest measurements only, so that a job that trains for hours does not fill a disk. It refines the
log and is never needed: if it is missing, torn or from another attempt, the log's word stands.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import (
    Identifier,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Record,
)
from pliant.tools.run.statedir.contract import as_user
from pliant.tools.run.statedir.contract.folders import PRIVATE, read_file, read_record

ENV_JOB_DIR: Final = "PLIANT_JOB_DIR"
ENV_JOB_ID: Final = "PLIANT_JOB_ID"
ENV_ATTEMPT: Final = "PLIANT_ATTEMPT"
ENV_SLOT: Final = "PLIANT_SLOT"
ENV_RUN: Final = "PLIANT_RUN_ID"
"""Id of the run that experiment trackers show, the same for all attempts of a job; each task has its own."""
ENV_WORKER: Final = "PLIANT_WORKER"
"""The worker's number in its attempt, if one unit starts one worker."""
ENV_ARRAY_INDEX: Final = "PLIANT_ARRAY_INDEX"
"""The number of a job in its array."""
ENV_TASK: Final = "PLIANT_TASK"
ENV_TASKS: Final = "PLIANT_TASKS"
ENV_ADDRESS: Final = "PLIANT_ADDRESS"
"""Address of this worker if only its node knows it; it takes precedence over the plan."""
ENV_NOISE: Final = "PLIANT_NOISE"
"""Set if the batch may change: the worker then measures the noise of its gradients."""
ENV_LOG_BYTES: Final = "PLIANT_LOG_BYTES"
"""Maximum bytes on disk of each output file of a unit."""
ENV_NOTICES: Final = "PLIANT_NOTICES"
"""Set if the launcher reads of a SIGUSR1 and has the worker save or leave: it only waits for that."""
PROTOCOL: Final = 6
"""What workers exchange while they train; to be raised when that changes (3: which tensors of a state are on
GPUs, several models and optimizers; 4: how long each one needs for its own part of a step; 5: small gradients
by all-gather; 6: gradients without DistributedDataParallel, losses, fingerprints). All workers of an attempt
have the same, see :attr:`Plan.protocol`."""
ENV_PER_REPLICA: Final = "PLIANT_GPUS_PER_REPLICA"
"""GPUs of a replica, if there are several: ranks that follow each other, from 0 on, are one replica."""
ENV_PROGRESS: Final = "PLIANT_PROGRESS"
"""Path at which a script without the elastic library writes its :class:`Progress`, beside ``plan.json``."""
ENV_STOP: Final = "PLIANT_STOP"
"""The file that asks such a script to save and to leave: empty until then."""
ENV_BATCH: Final = "PLIANT_BATCH"
"""Variable of such a script: ``batch.size`` of its job, if it states one."""
SLOT_FROM_RANK: Final = "rank"
"""Value of :data:`ENV_SLOT` if one torchrun starts several workers: member i of the plan is its RANK i."""


class Member(Record):
    """One worker of a plan: a slot is ``node/index``, unique in the cluster; rank = position in the plan."""

    slot: str
    node: str
    address: str
    """Address that the other members reach this one at."""
    device: Literal["cpu", "cuda"] = "cpu"
    worker: NonNegativeInt | None = None
    """Number of the worker, given once in an attempt; None stands for its rank, in plans that no other plan
    of the attempt follows."""


class Plan(Record):
    """Who trains this job from now on, and how the batch is cut."""

    job: Identifier
    generation: PositiveInt
    """Grows by one with every plan of the job, over all attempts."""
    attempt: PositiveInt
    """Folder under attempts/ that workers of this plan write to."""
    members: tuple[Member, ...]
    """Survivors of the generation before first."""
    global_batch: PositiveInt | None = None
    """Samples per optimizer step; None if the script says."""
    accum: PositiveInt = 1
    """Micro-steps per optimizer step, the same for all members."""
    lr_scale: PositiveFloat = 1.0
    """Factor on the author's learning rate."""
    seed: NonNegativeInt | None = None
    """Seed; None if the script sets it."""
    checkpoint_s: PositiveFloat = 60.0
    """Seconds between checkpoints."""
    progress_s: PositiveFloat = 1.0
    """Least seconds between two reports on the training."""
    history_s: PositiveFloat = 300.0
    """Least seconds between two that are kept as events, except those that a change brings."""
    timeout_s: PositiveFloat = 300.0
    """Seconds that workers wait for each other at the start, and for a newer plan."""
    patience_s: PositiveFloat = 30.0
    """Seconds that workers wait for a plan without a dead worker, before they save and leave."""
    abort: bool = False
    """Stop at a step boundary: save a checkpoint, exit 0."""
    reason: str = ""
    """Reason for leaving the attempt before; in a plan with ``abort``, this one."""
    protocol: PositiveInt | None = None
    """:data:`PROTOCOL` of the version that began the attempt; None if it did not number it. Workers of
    another protocol cannot join those that train."""

    @model_serializer(mode="wrap")
    def _without_unset(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Workers that a former version started may not know these fields, or know them as numbers only."""
        unset = {"seed", "protocol"}
        return {name: value for name, value in dump(self).items() if name not in unset or value is not None}

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers' numbers in order of rank."""
        return tuple(
            rank if member.worker is None else member.worker for rank, member in enumerate(self.members)
        )

    @property
    def cut(self) -> tuple[int | None, int, float]:
        """(global batch, micro-steps, learning-rate scale)."""
        return self.global_batch, self.accum, self.lr_scale


LOST_PEER: Final = "lost the connection to another worker"
"""Prefix of the message of a crashed worker that only noticed the end of another one."""
ENDED_EARLY: Final = "the script ended before its training did"
"""The message of a worker whose script left without an exception; ``sys.exit("…")`` says more on stderr."""


class WorkerOutcome(Record):
    """How one worker ended, written atomically as its last act, or when its training is over."""

    outcome: Literal["done", "stopped", "crashed", "left", "cut_off"]
    """``left``: a newer plan goes on without this worker. ``cut_off``: the network separates it from the
    others, which can go on without it."""
    samples_done: float = Field(default=0.0, ge=0)
    epoch: NonNegativeInt = 0
    message: str = ""
    exit_counts: bool = False
    """True if a non-zero exit code turns "done" into a failure, as the script ended by itself."""
    goes_on: bool = False
    """The training is over and the script goes on; with an exit code of 0 that was its end."""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The outcome in a file. Returns None if there is none, or it makes no sense.

        :raises UnreadableError: it cannot be read at the moment.
        """
        try:
            return read_record(path, "outcome", cls)
        except BadInputError:
            return None


_MOST_BYTES: Final = 1 << 16


class LastCheckpoint(Record):
    """The newest checkpoint of this attempt."""

    step: NonNegativeInt
    """Optimizer steps done in it."""
    samples_done: NonNegativeFloat
    """Samples trained in it."""
    seconds: NonNegativeFloat
    """Time that writing it took."""
    age_s: NonNegativeFloat
    """Seconds since it reached the disk, at the time of the report."""


class Progress(Record):
    """The newest report on a job. Times are durations: the clocks of machines need not agree."""

    schema_: Literal["pliant.progress/1"] = Field(default="pliant.progress/1", alias="schema")
    job: Identifier
    attempt: PositiveInt
    """The start of the job, from 1, that it comes from."""
    generation: PositiveInt
    """The plan that it trains under."""
    gpus: PositiveInt
    """Workers that train."""
    global_batch: PositiveInt
    """Samples per optimizer step."""
    step: NonNegativeInt
    """Optimizer steps done."""
    epoch: NonNegativeInt
    """Epochs that are complete."""
    samples_done: NonNegativeFloat
    """Samples trained, over all epochs."""
    loss: float | None = None
    """Mean over rank 0's samples since the report before."""
    samples_per_second: NonNegativeFloat | None = None
    """Since the report before, everything between the steps included."""
    step_seconds: PositiveFloat | None = None
    """Mean time of a step in this configuration; None until enough steps were measured."""
    own_seconds: tuple[NonNegativeFloat, ...] | None = None
    """Seconds of a step without waiting, by rank; None where not measured, as on GPUs."""
    noise_scale: NonNegativeFloat | None = None
    """Noise scale of the gradients, in samples."""
    memory: NonNegativeInt | None = None
    """Bytes that rank 0 holds: its peak on the GPU, or its resident main memory without one."""
    checkpoint: LastCheckpoint | None = None
    warnings: NonNegativeInt = 0
    """Faults in this attempt that training survived."""
    rank: NonNegativeInt | None = None
    """Rank of the writer. The fields from here on are those of scripts without the elastic library."""
    since_first_step_s: NonNegativeFloat | None = None
    """Seconds since its first step of this attempt was over."""
    watches_stop: bool | None = None
    """Whether its script looks at the file that asks it to save and to leave."""
    ended: Literal["done", "stopped"] | None = None
    """Last word: the training is complete, or it was saved because of a request to stop."""


def write_progress(path: Path, progress: Progress) -> None:
    """Replace the file, for its owner alone. It is not forced to disk: the next one follows soon.

    :raises OSError: it cannot be written; the one before stays.
    """
    temporary = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(as_user.opened(temporary, flags), "wb") as file:
        file.write(progress.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")
    temporary.replace(path)


def request_stop(path: Path) -> None:
    """Ask a script to save and to leave, unless it was asked already.

    A file that takes another one's place is seen at once on every host, a new one may be seen a minute late.

    :raises PliantError: the request cannot be written.
    """
    if not read_file(path):
        as_user.write(path, b"asked\n", PRIVATE)


class ProgressFile:
    """The file of one job for its readers: read when one ``stat`` shows that it was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._mark = (0, 0, 0)
        # The last valid report; a file that cannot be parsed changes nothing.
        self.newest: Progress | None = None

    @property
    def written_s(self) -> float | None:
        """When it was written, by the clock of its file system; None before the first read."""
        return self._mark[0] / 1e9 if self.newest is not None else None

    def fresh(self) -> Progress | None:
        """The report, if there is a new one."""
        try:
            status = os.stat(self._path)
            mark = (status.st_mtime_ns, status.st_ino, status.st_size)
            if mark == self._mark or not stat.S_ISREG(status.st_mode):
                return None
            with open(self._path, "rb", opener=as_user.opener) as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            return None
        self._mark = mark
        try:
            self.newest = Progress.model_validate_json(data)
        except ValidationError:
            return None
        return self.newest
