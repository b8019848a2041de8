"""What the launcher tells the workers of a job, and what they tell back: files only, no connection needed.

A worker finds its plan by two environment variables, :data:`ENV_JOB_DIR` (the job's folder) and
:data:`ENV_SLOT` (which member of the plan it is). Plans are immutable and numbered by generation; the file
``plan.json`` is replaced atomically, and workers look at its number at step boundaries; a copy of every plan
stays in the attempt's folder, so that all workers act on the very plan that they agreed on. A newer plan of
the same attempt changes who trains, or how the batch is cut, while training goes on; workers that it does
not name leave. It takes effect as soon as all workers that it adds are ready. A plan with ``abort`` asks
them to agree on a step, save a checkpoint and exit 0.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from pliant.schemas.file_io.record import Identifier, NonNegativeInt, PositiveFloat, PositiveInt, Record

ENV_JOB_DIR: Final = "PLIANT_JOB_DIR"
ENV_SLOT: Final = "PLIANT_SLOT"
ENV_WORKER: Final = "PLIANT_WORKER"
"""The worker's number in its attempt, where one unit starts one worker."""
ENV_ADDRESS: Final = "PLIANT_ADDRESS"
"""What the others reach this worker at, where only its node knows that; it goes before the plan."""
ENV_NOISE: Final = "PLIANT_NOISE"
"""Set where the batch may move: the worker then measures the noise of its gradients."""
ENV_LOG_BYTES: Final = "PLIANT_LOG_BYTES"
"""Most bytes of each of a unit's output files that its keeper leaves on disk."""
PROTOCOL: Final = 2
"""What workers exchange with each other while they train; to be raised where that changes (2: a vote of five
numbers). Workers of one attempt have the same; see :attr:`Plan.protocol`."""
SLOT_FROM_RANK: Final = "rank"
"""Value of :data:`ENV_SLOT` where one torchrun starts several workers: member i of the plan is its RANK i."""


class Member(Record):
    """One worker of a plan: a slot is ``node/index``, unique in the cluster; rank = position in the plan."""

    slot: str
    node: str
    address: str
    """Address that the other members reach this one at."""
    device: Literal["cpu", "cuda"] = "cpu"
    worker: NonNegativeInt | None = None
    """Number of the worker, given once in an attempt; None: its rank, in plans that are never followed by
    another one of their attempt."""

    @model_validator(mode="before")
    @classmethod
    def _without_gpu(cls, value: Any) -> Any:
        """Plans of former versions say a second time which GPU of its node a slot is."""
        return {key: of for key, of in value.items() if key != "gpu"} if isinstance(value, dict) else value


class Plan(Record):
    """Who trains this job from now on, and how the batch is cut."""

    former_fields: ClassVar[frozenset[str]] = frozenset({"token"})
    job: Identifier
    generation: PositiveInt
    """Grows by one with every plan of the job, over all attempts."""
    attempt: PositiveInt
    """Folder under attempts/ that workers of this plan write to."""
    members: tuple[Member, ...]
    """Survivors of the generation before first."""
    global_batch: PositiveInt | None = None
    """Samples per optimizer step; None: what the script says."""
    accum: PositiveInt = 1
    """Micro-steps per optimizer step, the same for all members."""
    lr_scale: PositiveFloat = 1.0
    """Factor on the author's learning rate."""
    seed: NonNegativeInt | None = None
    """None: what the script says."""
    checkpoint_s: PositiveFloat = 60.0
    """Seconds between checkpoints."""
    progress_s: PositiveFloat = 1.0
    """Least seconds between two reports on the training."""
    history_s: PositiveFloat = 300.0
    """Least seconds between two that are kept as events, those that a change brings aside."""
    timeout_s: PositiveFloat = 300.0
    """How long workers wait for each other at the start, and for a newer plan to appear."""
    patience_s: PositiveFloat = 30.0
    """How long workers wait for a plan without a worker that died, before they save and leave."""
    abort: bool = False
    """Stop at a step boundary: save a checkpoint, exit 0."""
    reason: str = ""
    """Why the attempt before this one had to be left; of a plan with ``abort``: why this one has to be."""
    protocol: PositiveInt | None = None
    """:data:`PROTOCOL` of the version that began the attempt; None: one that did not number it. Workers of
    another one cannot join those that train."""

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Workers of former versions know these fields not at all, or only with a number."""
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
