"""The ``job`` kind: one training job a line (JSON Lines); and one hash for all jobs of a trace, by which
results say which jobs they are about.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import dropwhile, islice, pairwise
from json.encoder import encode_basestring_ascii
from pathlib import PurePath
from sys import intern
from typing import Annotated, Any, Final, Literal, Self, cast, get_args

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails

from pliant.schemas.container import Container
from pliant.schemas.file_io.record import (
    FORM,
    MOST,
    MOST_GPUS,
    NODE_NAME,
    BatchSize,
    BoundedFloat,
    GpuCount,
    Identifier,
    NonNegativeFloat,
    NonNegativeInt,
    PlainText,
    PositiveFloat,
    Record,
    SampleCount,
    Seed,
    VariableName,
    WorkAmount,
    broken_rule,
)
from pliant.schemas.node_labels import condition
from pliant.schemas.output_files import pattern_fault

Elasticity = Literal["none", "size", "size+batch"]
Resize = Literal["in-place", "relaunch"]
Awaited = Literal["ok", "any", "failed"]
ExitCode = Annotated[int, Field(ge=-64, le=255)]
Launcher = Literal["program", "python", "torchrun"]
Tasks = Literal["node", "slot"]
RequestedGpus = Annotated[int, Field(ge=0, le=MOST_GPUS)]
TypeName = Annotated[str, Field(min_length=1)]
NodeName = Annotated[str, Field(pattern=NODE_NAME)]
PowersOfTwo = Literal["powers-of-two"]
POWERS_OF_TWO: Final = "powers-of-two"
LONGEST_TEXT: Final = 100_000
"""Bytes of one argument or variable; Linux takes 131,072."""
MOST_TEXT: Final = 500_000
"""Bytes of all arguments, and of all variables; Linux takes a quarter of the stack, 2,097,152 by default."""
IMAGE_PYTHON: Final = "python3"
_PYTHON: Final = re.compile(r"(?s:.*/)?python[\d.]*")
_REQUIRED: Final = object()
_HASHED: Final = 1024
"""Texts that are hashed at a time."""


def _refuse_crossed(field: str, name: str, value: int | None, low: int | None, high: int | None) -> None:
    """Refuse min > max, and a value outside of both."""
    if low is not None and high is not None and high < low:
        name, text = "max", f"{high} is below {field}.min {low}"
    elif value is not None and low is not None and value < low:
        text = f"{value} is below {field}.min {low}"
    elif value is not None and high is not None and value > high:
        text = f"{value} is above {field}.max {high}"
    else:
        return
    raise broken_rule(text, f"/{name}")


def _refuse_pattern(field: str, pattern: str | None) -> None:
    if pattern is not None and (fault := pattern_fault(pattern)) is not None:
        raise broken_rule(fault, f"/{field}")


def _filled_in() -> Any:
    """Default of a field that validation fills in; no value equals it, so the field is always written."""
    return None


def _form_of_sizes(value: object) -> str | None:
    """The tag of the form. Returns None if it is neither."""
    if value == POWERS_OF_TWO:
        return f"{FORM}word"
    return f"{FORM}list" if isinstance(value, list | tuple) else None


_Sizes = Annotated[
    Annotated[PowersOfTwo, Tag(f"{FORM}word")] | Annotated[tuple[GpuCount, ...], Tag(f"{FORM}list")],
    Discriminator(
        _form_of_sizes,
        custom_error_type="sizes_form",
        custom_error_message="expected 'powers-of-two' or a list of numbers of GPUs, like [1, 2, 4]",
    ),
]


class Gpus(Record):
    """How many GPUs (or CPU slots) a job asks for and can use."""

    requested: RequestedGpus = Field(default_factory=_filled_in)
    """The default size: what a scheduler that does not resize jobs gives, and the base of the demand. 0: it
    needs cores and memory only (``resources.worker``), of one node. Default: min, else per_replica."""
    min: GpuCount | None = None
    """Smallest size that runs. Default: requested for a job that is not elastic, else per_replica."""
    max: GpuCount | None = None
    """Largest size that runs. Default: requested for a job that is not elastic, else the whole cluster."""
    per_replica: GpuCount = 1
    """GPUs that hold one replica of the model together (sharded, or tensor or pipeline parallel). Every size
    is a whole number of replicas, a replica stays on one node if it fits one, and the batch is divided over
    the replicas."""
    sizes: _Sizes | None = None
    """The only sizes that run, rising, in whole replicas: a list, or "powers-of-two" (of replicas). Default:
    every number of replicas."""
    types: tuple[TypeName, ...] | None = None
    """The only GPU types that it may run on; its workers are on one of them. Default: every type; in a replay
    the type that the trace recorded (label gpu_type), where the cluster has it."""
    memory: NonNegativeInt | None = None
    """Least memory of one GPU, bytes: it runs on nodes whose gpu_memory is as large. Default: any."""

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        values = self.__dict__
        if self.types == ():
            raise broken_rule("is empty, expected at least one GPU type", "/types")
        if isinstance(self.sizes, tuple):
            self._refuse_wrong_sizes(self.sizes)
        if values["requested"] is None:
            values["requested"] = self.min or self.least
        if self.requested == 0:
            for name in ("min", "max", "sizes", "types", "memory"):
                if values[name] is not None:
                    raise broken_rule("is about GPUs, and gpus.requested is 0: leave it out", f"/{name}")
        _refuse_crossed("gpus", "requested", self.requested, self.min, self.max)
        if self.per_replica > 1:
            for name in ("requested", "min", "max"):
                if (values[name] or 0) % self.per_replica:
                    text = f"{values[name]} is not a multiple of gpus.per_replica {self.per_replica}"
                    raise broken_rule(text, f"/{name}")
        for name in ("min", "max", "requested") if self.sizes is not None else ():
            if values[name] is not None and not self.allows(values[name]):
                raise broken_rule(f"{values[name]} is not among gpus.sizes", f"/{name}")
        return self

    def _refuse_wrong_sizes(self, sizes: tuple[int, ...]) -> None:
        if not sizes:
            raise broken_rule("is empty, expected at least one size", "/sizes")
        before = 0
        for at, size in enumerate(sizes):
            if size <= before:
                raise broken_rule(f"{size} is not above the size before it, {before}", f"/sizes/{at}")
            if size % self.per_replica:
                text = f"{size} is not a multiple of gpus.per_replica {self.per_replica}"
                raise broken_rule(text, f"/sizes/{at}")
            before = size

    @property
    def least(self) -> int:
        """The smallest size, whatever ``min`` says."""
        return self.sizes[0] if isinstance(self.sizes, tuple) else self.per_replica

    @property
    def any_number(self) -> bool:
        """Whether every number of GPUs is a size, within the limits."""
        return self.sizes is None and self.per_replica == 1

    def allows(self, gpus: int) -> bool:
        """Whether that is a size, the limits aside."""
        return gpus > 0 and self.whole(gpus) == gpus

    def whole(self, gpus: int) -> int:
        """The largest size up to ``gpus``: in whole replicas, and one of ``sizes``; 0 if there is none."""
        if self.sizes is None:
            return gpus - gpus % self.per_replica
        if isinstance(self.sizes, tuple):
            at = bisect_right(self.sizes, gpus)
            return self.sizes[at - 1] if at else 0
        replicas = gpus // self.per_replica
        return self.per_replica << replicas.bit_length() - 1 if replicas > 0 else 0

    def above(self, gpus: int) -> int:
        """The smallest size above ``gpus``; 0 if there is none."""
        if isinstance(self.sizes, tuple):
            at = bisect_right(self.sizes, gpus)
            return self.sizes[at] if at < len(self.sizes) else 0
        size = self.whole(gpus)
        return size + self.per_replica if self.sizes is None or not size else 2 * size

    def between(self, least: int, most: int) -> Sequence[int]:
        """All sizes from ``least`` to ``most``, ascending."""
        first = self.above(max(0, least - 1))
        if self.sizes is None:
            return range(first, most + 1, self.per_replica)
        sizes = []
        while 0 < first <= most:
            sizes.append(first)
            first = self.above(first)
        return tuple(sizes)

    def replicas(self, gpus: int) -> int:
        """Data-parallel workers on that many GPUs."""
        return gpus // self.per_replica


class Regime(Record):
    """A batch that a job takes by itself at a point of its work (Accordion, gradient noise scale)."""

    after: Annotated[float, Field(gt=0, lt=1)]
    """The part of all the work, between 0 and 1, after which it has this batch."""
    size: BatchSize
    """Global batch."""


class Batch(Record):
    """Samples per optimizer step over all workers, and the limits that a policy may move it in."""

    size: BatchSize | None = None
    """Global batch. Default: requested GPUs times the largest local batch in the profile."""
    min: BatchSize | None = None
    """Smallest global batch. Default: size."""
    max: BatchSize | None = None
    """Largest global batch. Default: size."""
    per_gpu_max: BatchSize | None = None
    """Largest local batch that fits one GPU, or one replica of several. Default: the largest feasible one in
    the profile."""
    regimes: tuple[Regime, ...] = ()
    """Batches that the job changes to by itself, in order of ``after``; size is what it begins with. Neither
    policies nor the scheduler choose them: a replay follows them, and policies see the present one alone.
    Default: the batch stays."""

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        _refuse_crossed("batch", "size", self.size, self.min, self.max)
        if self.regimes:
            self._refuse_wrong_regimes()
        return self

    def _refuse_wrong_regimes(self) -> None:
        if self.size is None:
            raise broken_rule("is missing, expected the batch before the first of batch.regimes", "/size")
        for name in ("min", "max"):
            if getattr(self, name) is not None:
                raise broken_rule("contradicts batch.regimes, which the job alone chooses", f"/{name}")
        for at, (before, regime) in enumerate(pairwise(self.regimes), 1):
            if regime.after <= before.after:
                text = f"{regime.after:g} is not above that of the regime before it, {before.after:g}"
                raise broken_rule(text, f"/regimes/{at}/after")


class SampleWork(Record):
    """Total work as training samples, repetitions counted."""

    samples: WorkAmount


class EpochWork(Record):
    """Total work as passes over a data set."""

    epochs: WorkAmount
    dataset_size: SampleCount | None = None
    """Samples of the data set; null = not known, so that all the work is not known either."""


class IterationWork(Record):
    """Total work as optimizer steps at the job's own batch size."""

    iterations: WorkAmount


class GpuTimeWork(Record):
    """Total work as GPU-seconds at the requested number of GPUs (what production traces state)."""

    gpu_seconds: WorkAmount


Work = SampleWork | EpochWork | IterationWork | GpuTimeWork
_FORM_TYPES: Final[dict[str, type[Record]]] = {
    "samples": SampleWork,
    "epochs": EpochWork,
    "iterations": IterationWork,
    "gpu_seconds": GpuTimeWork,
}
_FORMS: Final[dict[object, str]] = {
    key: FORM + name for name, form in _FORM_TYPES.items() for key in (form, *form.model_fields)
}
"""Tags of the forms of work, by record and by key."""


def _form(value: object) -> str | None:
    """The tag of the form. Returns None if keys of no form or of several are there."""
    if not isinstance(value, dict):
        return _FORMS.get(type(value))
    forms = {_FORMS[key] for key in value if key in _FORMS}
    return forms.pop() if len(forms) == 1 else None


_TaggedWork = Annotated[
    Annotated[SampleWork, Tag(f"{FORM}samples")]
    | Annotated[EpochWork, Tag(f"{FORM}epochs")]
    | Annotated[IterationWork, Tag(f"{FORM}iterations")]
    | Annotated[GpuTimeWork, Tag(f"{FORM}gpu_seconds")],
    Discriminator(
        _form,
        custom_error_type="work_form",
        custom_error_message="expected exactly one of {samples}, {epochs, dataset_size}, {iterations}, "
        "{gpu_seconds}, or null",
    ),
]


class Utility(Record):
    """What finishing a time t after the submission is worth; ``report`` sums it, admission goes by it.

    constant: value, whenever. sigmoid: value / (1 + exp(decay · (t - target))). step: value until the target.
    """

    shape: Literal["constant", "sigmoid", "step"] = "constant"
    value: WorkAmount = 1.0
    """What finishing early enough is worth, in units of the owner's choice (γ1 of OASiS)."""
    decay: NonNegativeFloat = 0.0
    """Slope of a sigmoid, per second: 0 ignores the time (γ2)."""
    target: NonNegativeFloat | None = None
    """Seconds from the submission in which it is to finish (γ3). Default: 0."""

    def worth(self, seconds: float) -> float:
        """:param seconds: from submission to completion."""
        late_s = seconds - (self.target or 0.0)
        if self.shape == "sigmoid":
            return self.value / (1 + math.exp(min(700.0, self.decay * late_s)))
        if self.shape == "step":
            return self.value if late_s <= 0 else 0.0
        return self.value


class Limits(Record):
    """When a job ends, whether it is done or not; a replay ends no job by them.

    It is asked to save and to leave, then it gets SIGTERM, as in any stop.
    """

    run_seconds: PositiveFloat | None = None
    """Seconds for which it may hold GPUs, in all attempts together. Default: any time."""
    until: PositiveFloat | None = None
    """When it ends, even while it waits: UTC seconds, or seconds from its submission. Default: never."""


class ResourceDemand(Record):
    """What each worker and each parameter server needs of its node; every policy's placement respects it.

    By name: gpu and cpu in numbers, memory and disk in bytes, bandwidth in bytes per second. A demand that a
    node states no capacity for is not limited there.
    """

    worker: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Demand of one worker, which holds one of the job's GPUs (or CPU slots); of a whole job without GPUs,
    by default one cpu."""
    ps: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Demand of one parameter server; there are enough for the bandwidth of all workers, at least one, and
    at most as many as workers. Default: the job has none."""


_NO_DEMAND: Final = ResourceDemand.model_construct()


class ArrayPlace(Record):
    """A job's place in an array of jobs that differ in a number alone."""

    name: Identifier
    """Name of the array."""
    index: NonNegativeInt
    """The number; the workers find it in ``PLIANT_ARRAY_INDEX``."""
    limit: GpuCount | None = None
    """The most jobs of the array that are given GPUs at a time. Default: all of them."""
    max_failures: NonNegativeInt | None = None
    """Once more of its jobs have failed, the others are cancelled. Default: none is."""


class Job(Record):
    """One training job: what it is, what it needs, and when it was submitted.

    Only ``id`` is required, and ``model`` of a job without a command.
    """

    id: Identifier
    """Unique name of the job, also its folder's name in a state directory."""
    name: Identifier | None = None
    """The id that it was submitted with, if a job of that id had ended before; commands take it for the
    newest such job. Set by ``submit``, which takes none. Default: its id."""
    submit_time: Annotated[float, Field(ge=0, le=MOST)] = Field(default_factory=_filled_in)
    """Seconds since the start of the trace (UTC seconds since the epoch in a live state directory). Default:
    the moment of ``submit`` or of ``schedule``; in a trace the earliest time that its file states, else 0."""
    model: Annotated[str, Field(min_length=1)] = Field(default_factory=_filled_in)
    """Key into the profile. Default: the name of the command's script, as ``train`` of ``src/train.py``."""
    gpus: Gpus = Field(default_factory=_filled_in)
    """Default: one."""
    nodes: tuple[str, ...] = ()
    """Expressions over the labels of nodes, as ["nvlink", "rack in (a,b)"]: it runs on nodes of which all of
    them hold (docs/running.md). Default: any node."""
    only: tuple[NodeName, ...] | None = None
    """The only nodes that it may run on, by name. Default: all."""
    exclude: tuple[NodeName, ...] = ()
    """Nodes that it may not run on, by name."""
    user: str = ""
    """Who submitted it; empty if not stated."""
    team: str = ""
    """The team of the cluster's ``shares`` that it counts for. Default: the first that lists its user."""
    weight: Annotated[float, Field(gt=0, le=MOST)] = 1.0
    """How much it counts beside other jobs of its team, for the policies that weigh jobs."""
    priority: BoundedFloat = 0.0
    """Larger is more important, for the policies that look at it (``pliant policies NAME`` says how)."""
    command: tuple[PlainText, ...] | None = None
    """A Python script and its arguments, with ``python``, ``torchrun`` or neither before them; or, of a job
    that is not elastic, any program and its arguments. Absent in a pure trace."""
    launcher: Launcher | None = None
    """What starts the command. program: nothing, it is run as it is, once; python: Python, once; torchrun: a
    worker for each of its GPUs. Default: what ``submit`` and ``run`` find out (docs/running.md)."""
    tasks: Tasks | None = None
    """Unit for which its command is started: node, with its GPUs there, or slot, with one GPU. Each process
    finds its number and their number in ``PLIANT_TASK`` and ``PLIANT_TASKS``. Default: it is started once."""
    python: PlainText | None = None
    """The Python that its script runs by. Default: the command's first word if it is one; else that of the
    environment that was active at ``submit``; else that of the run."""
    workdir: PlainText | None = None
    """Folder to start in. Default: the folder that the command is given from."""
    output: PlainText | None = None
    """File for what its workers print, seen from workdir, with placeholders: %j its id, %a its number in an
    array, else the attempt, %r the rank (docs/output.md). Default: files in the state directory alone."""
    error: PlainText | None = None
    """File for what its workers print on stderr, likewise. Default: that of output."""
    env: dict[VariableName, PlainText] = Field(default_factory=dict)
    """Extra environment variables of the workers."""
    container: Container | None = None
    """Runs each of its processes in an image. Default: on the node itself."""
    batch: Batch = Batch.model_construct()
    lr: PositiveFloat | None = None
    """Base learning rate at batch.size; belongs to the author, scaled only with the batch."""
    elastic: Elasticity = "none"
    """What a policy may change: nothing, the number of GPUs, or that and the global batch. Default: size for
    a job that is resized by a relaunch, else none."""
    resize: Resize = "in-place"
    """How its GPUs change. in-place: between two steps, by the elastic library. relaunch: any script that
    torchrun starts is asked to save and to leave, and is started with the new size (docs/relaunch.md)."""
    work: _TaggedWork | None = None
    """Total work; null = unknown."""
    convergence: str | None = None
    """Key into a convergence table."""
    utility: Utility = Utility.model_construct()
    resources: ResourceDemand = Field(default_factory=lambda: _NO_DEMAND)
    after: dict[Identifier, Awaited] = Field(default_factory=dict)
    """Jobs that end before this one gets GPUs, by id. ok: it has to finish, else this job is cancelled; any:
    it may end in any way; failed: it must not finish, but fail or be cancelled or rejected."""
    array: ArrayPlace | None = None
    """Its place in an array of jobs. Default: it is in none."""
    hold: bool = False
    """Whether it is held from its submission on, until ``pliant release``; a replay holds no job."""
    shares_gpus: bool = True
    """Whether another job may train on its GPUs at the same time, under a policy that packs jobs."""
    checkpoint_seconds: PositiveFloat | None = None
    """Seconds between checkpoints while running. Default: 60."""
    preemptible: bool | None = None
    """Whether it can save and go on later, so that a policy may take its GPUs. Default: whether it shows it,
    by being elastic or relaunched, or by checkpoint_seconds."""
    limits: Limits | None = None
    """When it ends in any case. Default: never."""
    retries: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Failures in a row that are retried. Default: ``--retries`` of the run."""
    retry_on: tuple[ExitCode, ...] = ()
    """The only exit codes that are retried, negative for a signal; they are however certain the failure is.
    Default: all, unless it is certain."""
    no_retry_on: tuple[ExitCode, ...] = ()
    """Exit codes that are not retried."""
    seed: Seed | None = None
    """Seed of the job's own randomness: initial weights, sample order. Default: what its script says."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free map, carried through untouched."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """One validator for all rules: pydantic's way into each takes as long as a rule."""
        values = self.__dict__
        if values["submit_time"] is None:
            values["submit_time"] = 0.0
        if values["gpus"] is None:
            values["gpus"] = Gpus()
        if self.on_cpus:
            self._settle_on_cpus(values)
        if values["model"] is None:
            if not (name := _script_name(self.script)):
                raise broken_rule("is missing, expected a key into the profile, or a command", "/model")
            values["model"] = name
        self._refuse_what_cannot_be_passed_on()
        if self.resize == "relaunch":
            self._settle_relaunch(values)
        self._refuse_contradictions()
        return self

    def _refuse_contradictions(self) -> None:
        _refuse_pattern("output", self.output)
        _refuse_pattern("error", self.error)
        if self.launcher is not None or self.tasks is not None:
            self._refuse_two_starters()
        if self.nodes or self.only is not None:
            self._refuse_wrong_nodes()
        if self.id in self.after:
            raise broken_rule("names the job itself, expected other jobs", "/after")
        if both := {*self.retry_on} & {*self.no_retry_on}:
            raise broken_rule(f"has {min(both)}, which is in retry_on, too", "/no_retry_on")
        if self.batch.regimes:
            self._refuse_wrong_company_of_regimes()
        gpus = self.gpus
        if self.elastic == "none" and {gpus.min, gpus.max} - {None, gpus.requested}:
            text = "'none' contradicts gpus.min and gpus.max, expected them to equal gpus.requested"
            raise broken_rule(text, "/elastic")

    def _refuse_two_starters(self) -> None:
        if self.launcher is not None and self.elastic != "none":
            text = (
                f"'{self.launcher}' contradicts the elasticity '{self.elastic}', expected none, leave it out"
            )
            raise broken_rule(text, "/launcher")
        if self.tasks and (self.elastic != "none" or self.launcher == "torchrun" or self.names_torchrun):
            text = f"'{self.tasks}' contradicts torchrun and elastic jobs, which start their own workers"
            raise broken_rule(text, "/tasks")

    def _settle_on_cpus(self, values: dict[str, Any]) -> None:
        """It is one process, on one core if it does not say otherwise."""
        for name, plain in (("elastic", "none"), ("resize", "in-place"), ("tasks", None)):
            if values[name] != plain:
                raise broken_rule("is about GPUs, and gpus.requested is 0: leave it out", f"/{name}")
        if self.launcher == "torchrun" or self.names_torchrun:
            raise broken_rule("is for workers on GPUs, and gpus.requested is 0", "/launcher")
        if self.resources.ps:
            raise broken_rule("is about workers on GPUs, and gpus.requested is 0", "/resources/ps")
        if not self.resources.worker.get("cpu"):
            values["resources"] = ResourceDemand(worker={**self.resources.worker, "cpu": 1.0})

    def _refuse_wrong_nodes(self) -> None:
        if self.only == ():
            raise broken_rule("is empty, expected at least one node", "/only")
        for at, text in enumerate(self.nodes):
            try:
                condition(text)
            except ValueError as error:
                raise broken_rule(str(error), f"/nodes/{at}") from error

    def _refuse_wrong_company_of_regimes(self) -> None:
        """Other fields that would choose the batch, too; and regimes with fewer samples than workers."""
        if self.elastic == "size+batch":
            text = "'size+batch' contradicts batch.regimes, which the job alone chooses, expected 'size'"
            raise broken_rule(text, "/elastic")
        if self.convergence is not None:
            raise broken_rule("contradicts batch.regimes, expected one of them", "/convergence")
        least = self.gpus.replicas(self.min_gpus)
        for at, regime in enumerate(self.batch.regimes):
            if regime.size < least:
                text = f"{regime.size} is below the {least} workers of the smallest size"
                raise broken_rule(text, f"/batch/regimes/{at}/size")

    def _settle_relaunch(self, values: dict[str, Any]) -> None:
        """Its elasticity if it states none; the batch belongs to its script."""
        if "elastic" not in self.model_fields_set:
            values["elastic"] = "size"
        elif self.elastic != "size":
            text = f"'{self.elastic}' contradicts the resize 'relaunch', expected 'size', or leave it out"
            raise broken_rule(text, "/elastic")

    def _refuse_what_cannot_be_passed_on(self) -> None:
        """The system limits the bytes of the arguments and variables of a process."""
        if not self.env and 4 * sum(map(len, (*(self.command or ()), self.workdir or ""))) < LONGEST_TEXT:
            return  # a character has four bytes at most
        texts_of_fields = {
            "command": self.command or (),
            "env": [f"{name}={value}" for name, value in self.env.items()],
            "workdir": [self.workdir or ""],
        }
        for field, texts in texts_of_fields.items():
            sizes = [len(text.encode()) for text in texts]
            if sum(sizes) > MOST_TEXT or max(sizes, default=0) > LONGEST_TEXT:
                text = f"is too long, expected at most {LONGEST_TEXT:,} bytes each and {MOST_TEXT:,} in all"
                raise broken_rule(text, f"/{field}")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy is of no known form: see :mod:`pliant.schemas.job_table`."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("form", None)
        return copied

    @property
    def minor(self) -> int:
        """1: it refuses to share its GPUs; 2: its epochs are of a data set of unknown size; 3: its replicas
        have several GPUs, or it is resized by a relaunch; 4: it names its team, has a weight, waits for other
        jobs, belongs to an array, or is held from the start; 5: it has certain sizes only; 6: it changes its
        batch by itself; 7: it may run on some GPUs only, or says whether it may be preempted; 8: it starts
        only if another job does not finish, its array ends by failures, it has limits, says when it is
        retried, names its launcher, tasks, Python, container or output, has a name, says on which nodes it
        may run, or needs no GPU.
        """
        says_when = self.limits is not None or self.retries is not None or self.retry_on or self.no_retry_on
        starts = (self.launcher, self.tasks, self.python, self.container, self.output, self.error, self.name)
        if says_when or self.names_nodes or self.on_cpus or any(each is not None for each in starts):
            return 8
        if "failed" in self.after.values() or (self.array and self.array.max_failures is not None):
            return 8
        if self.preemptible is not None or self.gpus.types is not None or self.gpus.memory is not None:
            return 7
        if self.batch.regimes:
            return 6
        if self.gpus.sizes is not None:
            return 5
        if self.team or self.weight != 1.0 or self.after or self.array is not None or self.hold:
            return 4
        if self.gpus.per_replica > 1 or self.resize != "in-place":
            return 3
        unsized = self.work is not None and self.work_gap is not None
        return 2 if unsized else int(not self.shares_gpus)

    @property
    def on_cpus(self) -> bool:
        """Whether it needs no GPU."""
        return self.gpus.requested == 0

    @property
    def takes_room(self) -> bool:
        """Whether it demands more of a node than one GPU for each worker."""
        return bool(self.resources.worker or self.resources.ps) or self.gpus.per_replica > 1

    @property
    def names_nodes(self) -> bool:
        """Whether it may run on some nodes only, by their labels or names."""
        return bool(self.nodes or self.exclude or self.only is not None)

    @property
    def can_save(self) -> bool:
        """Whether it states or shows that it saves what it has trained: it goes on after a preemption."""
        if self.preemptible is not None:
            return self.preemptible
        return self.elastic != "none" or self.resize == "relaunch" or self.checkpoint_seconds is not None

    @property
    def changes_in_place(self) -> bool:
        """Whether its workers may change while it trains, so that each is a process of its own."""
        return self.elastic != "none" and self.resize == "in-place"

    @property
    def work_gap(self) -> str | None:
        """What it does not say of its work, as a clause; None if all its work is stated."""
        if self.work is None:
            return "states no work"
        unsized = isinstance(self.work, EpochWork) and self.work.dataset_size is None
        return "states its epochs without work.dataset_size" if unsized else None

    @property
    def names_torchrun(self) -> bool:
        """Whether its command begins with ``torchrun`` and a script, without options of torchrun."""
        first, second = (*(self.command or ()), "", "")[:2]
        return first == "torchrun" and bool(second) and (second == "-m" or not second.startswith("-"))

    @property
    def names_python(self) -> bool:
        """Whether its command begins with a Python, by name or path, and what it is to do."""
        command = self.command or ()
        return len(command) > 1 and _PYTHON.fullmatch(command[0]) is not None

    @property
    def own_python(self) -> str | None:
        """The Python that its script runs by, a path or a name on PATH. Returns None for that of the run.

        In a container it is the image's.
        """
        default = None if self.container is None else IMAGE_PYTHON
        return self.command[0] if self.command and self.names_python else self.python or default

    @property
    def is_one_process(self) -> bool:
        """Whether its command is started once, however many GPUs it has, or once for each of its tasks."""
        return self.launcher in ("program", "python")

    @property
    def script(self) -> tuple[str, ...]:
        """What Python starts: its command, without ``torchrun`` or ``python``."""
        if self.names_python:
            return tuple(dropwhile("-u".__eq__, (self.command or ())[1:]))
        return (self.command or ())[int(self.names_torchrun) :]

    @property
    def min_gpus(self) -> int:
        """The smallest size, defaults applied."""
        gpus = self.gpus
        return gpus.min or (gpus.requested if self.elastic == "none" else gpus.least)

    def can_train_on(self, gpus: int) -> bool:
        """Whether that is one of its sizes, and at least the smallest."""
        return gpus >= self.min_gpus and self.gpus.allows(gpus)

    def max_gpus(self, cluster_gpus: int) -> int:
        """The largest size in a cluster of ``cluster_gpus``, defaults applied."""
        default = self.gpus.requested if self.elastic == "none" else cluster_gpus
        return self.gpus.whole(min(self.gpus.max or default, cluster_gpus))

    def sizes(self, cluster_gpus: int) -> Sequence[int]:
        """Every size in a cluster of ``cluster_gpus``, ascending, defaults applied."""
        if self.elastic == "none":
            return (self.gpus.requested,) if self.gpus.requested <= cluster_gpus else ()
        return self.gpus.between(self.min_gpus, self.max_gpus(cluster_gpus))


def _script_name(script: tuple[str, ...]) -> str:
    """``train`` of ``src/train.py``, ``pkg.train`` of ``-m pkg.train``; empty if no script is named."""
    if script[:1] == ("-m",):
        return "".join(script[1:2])
    name = PurePath(script[0]) if script else PurePath()
    return name.stem if name.suffix == ".py" else name.name


Changeable = Literal["gpus", "nodes", "only", "exclude", "resources", "batch", "limits", "retries"]
CHANGEABLE: Final[tuple[Changeable, ...]] = get_args(Changeable)
Changes = dict[Changeable, Any]
"""New values of fields of a job; of a field with parts those that are named. None is the default."""


def updated(job: Job, changes: Changes) -> Job:
    """The job with other values of some fields.

    :raises ValidationError: together they make no job.
    """
    values = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    new = type(job).model_validate(_merged(values, cast(Mapping[str, Any], changes)), strict=False)
    if new.on_cpus != job.on_cpus:
        text = "is 0 for a job without GPUs and for no other, which stays so: submit it anew"
        fault = InitErrorDetails(type=broken_rule(text, ""), loc=("gpus", "requested"), input=changes)
        raise ValidationError.from_exception_data(type(job).__name__, [fault])
    return new


def updated_if_valid(job: Job, changes: Changes) -> Job:
    """As :func:`updated`; as it was where they make no job."""
    try:
        return updated(job, changes)
    except ValidationError:
        return job


def _merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values with changes of some of them, and of parts of these; without those that are None then."""
    merged = dict(before)
    for name, change in changes.items():
        own = merged.get(name)
        parts = own if isinstance(own, Mapping) else {}
        merged[name] = _merged(parts, change) if isinstance(change, Mapping) else change
    return {name: value for name, value in merged.items() if value is not None}


def arriving_at(jobs: Iterable[Job], time_s: float) -> tuple[Job, ...]:
    """The jobs; those that state no ``submit_time`` get this one."""
    return tuple(
        job if "submit_time" in job.model_fields_set else job.model_copy(update={"submit_time": time_s})
        for job in jobs
    )


class SharedParts:
    """Keeps equal parts of many jobs once, which saves two thirds of their memory.

    Records never change, so sharing them has no effect.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[object, ...], Record] = {}
        self._names: dict[frozenset[str], set[str]] = {}

    def share(self, job: Job) -> Job:
        values = job.__dict__
        for name in ("gpus", "batch", "utility"):
            record = values[name]
            values[name] = self._records.setdefault((name, *record.__dict__.values()), record)
        for name in ("model", "user", "team", "elastic", "resize"):
            values[name] = intern(values[name])
        values["labels"] = {intern(name): intern(text) for name, text in values["labels"].items()}
        self._share_names(job)
        if job.work is not None:
            self._share_names(job.work)
        return job

    def _share_names(self, record: Record) -> None:
        """Pydantic keeps the names of the given fields for each record."""
        names = record.model_fields_set
        shared = self._names.setdefault(frozenset(names), names)
        object.__setattr__(record, "__pydantic_fields_set__", shared)


def trace_hash(jobs: Iterable[Job]) -> str:
    """SHA-256, in hexadecimal, of the jobs as canonical JSON in (submit_time, id) order.

    It does not depend on the order and layout of a file. Fields that equal their default are left out, so
    that a field that a later version adds keeps the hashes of older traces.
    """
    return hash_of_texts(map(canonical_json, sorted(jobs, key=lambda job: (job.submit_time, job.id))))


def hash_of_texts(texts: Iterable[str]) -> str:
    """:func:`trace_hash` of jobs in canonical JSON, in their order."""
    import hashlib

    digest, ahead = hashlib.sha256(), iter(texts)
    while block := list(islice(ahead, _HASHED)):
        digest.update("\n".join([*block, ""]).encode())
    return digest.hexdigest()


def canonical_json(record: Record) -> str:
    """A record as JSON: sorted keys, ASCII, no spaces, no fields that equal their default.

    Equal to ``json.dumps`` of :func:`~pliant.schemas.file_io.documents.job_fields`, five times as fast.
    """
    return f"{{{','.join(text for _, text in canonical_parts(record))}}}"


def canonical_parts(record: Record) -> Iterator[tuple[str, str]]:
    """(name, text) of the fields in :func:`canonical_json`."""
    values = record.__dict__
    for name, key, default in _fields(type(record)):
        if (value := values[name]) is not default and value != default:
            yield name, f"{key}{_text(value)}"


def _text(value: object) -> str:
    if type(value) is str:
        return encode_basestring_ascii(value)
    if type(value) is float or type(value) is int:
        return repr(value)
    if isinstance(value, Record):
        return canonical_json(value)
    if isinstance(value, tuple):
        return f"[{','.join(map(_text, value))}]"
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@cache
def _fields(record: type[Record]) -> tuple[tuple[str, str, object], ...]:
    """Name, key in the text and default of each field, sorted by name."""
    return tuple(
        (name, f"{encode_basestring_ascii(name)}:", _default(field))
        for name, field in sorted(record.model_fields.items())
    )


def _default(field: FieldInfo) -> object:
    """The object that records share."""
    if field.is_required():
        return _REQUIRED
    return field.default if field.default_factory is None else field.get_default(call_default_factory=True)
