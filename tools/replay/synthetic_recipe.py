"""Recipes of synthetic traces: a small TOML or JSON file, or the options of ``pliant trace synth``.

Jobs may be as in OASiS (INFOCOM 2018), section V: workers, parameter servers, what finishing in time is
worth.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from pliant.schemas.errors import BadInputError, Problem, UsageError
from pliant.schemas.file_io.files import read_bytes, source_name
from pliant.schemas.file_io.json_lines import BOM, parse_json
from pliant.schemas.file_io.record import (
    MOST,
    MOST_GPUS,
    BatchSize,
    GpuCount,
    Location,
    NonNegativeInt,
    PositiveFloat,
    Record,
    SampleCount,
    WorkAmount,
    as_pointer,
    broken_rule,
    problems_of,
)
from pliant.schemas.job import Elasticity, Gpus, GpuTimeWork, Job, ResourceDemand, Utility
from pliant.schemas.text import TOO_MANY, did_you_mean, whole_number

if TYPE_CHECKING:
    import numpy as np


_COUNTED: Final = frozenset({"gpu", "cpu"})
_UNITS: Final = {"memory": 1e9, "disk": 1e9, "bandwidth": 1e9 / 8}
"""What the units of the ranges (GB, Gbps) are in those of a job file (bytes, bytes per second)."""


def _refuse_backwards(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        text = f"{bounds[1]:g} is below {bounds[0]:g}, expected [from, to]"
        raise PydanticCustomError("recipe", "{problem}", {"problem": text})
    return bounds


_Amount = Annotated[float, Field(ge=0, le=1e9)]
Bounds = Annotated[tuple[_Amount, _Amount], AfterValidator(_refuse_backwards)]
"""From, to; drawn evenly between them."""


class OasisRanges(Record):
    """Jobs with workers, parameter servers and a utility; the defaults are the paper's simulation."""

    slot_s: Annotated[float, Field(ge=1e-3, le=1e9)] = 1200.0
    """Seconds of one time slot."""
    epochs: Bounds = (50, 200)
    chunks: Bounds = (5, 100)
    """Data chunks, each trained by one worker at a time: the most workers that a job can use."""
    minibatches: Bounds = (10, 100)
    """In one chunk."""
    minibatch_slots: Bounds = (0.001, 0.1)
    """Time of one mini-batch, slots."""
    gradient_mb: Bounds = (30, 575)
    workers: Bounds = (1, 30)
    """Requested by a job for the policies that do not choose; never more than its chunks."""
    worker: dict[str, Bounds] = Field(
        default={"gpu": (0, 4), "cpu": (1, 10), "memory": (2, 32), "disk": (5, 10), "bandwidth": (0.1, 5)}
    )
    """Resources of one worker: gpu and cpu in numbers, memory and disk in GB, bandwidth in Gbps."""
    ps: dict[str, Bounds] = Field(
        default={"cpu": (1, 10), "memory": (2, 32), "disk": (5, 10), "bandwidth": (5, 20)}
    )
    """Resources of one parameter server."""
    value: Bounds = (1, 100)
    """Utility of a job that ends early enough."""
    target_slots: Bounds = (1, 15)
    """Time after its submission at which a job should end."""
    sensitive: Bounds = (0.01, 1)
    """Decay, per slot, of jobs that are sensitive to time."""
    critical: Bounds = (4, 6)
    """Decay, per slot, of jobs that are time-critical."""
    sensitive_share: Annotated[float, Field(ge=0, le=1)] = 0.55
    critical_share: Annotated[float, Field(ge=0, le=1)] = 0.35
    """The rest is insensitive: its decay is 0."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.sensitive_share + self.critical_share > 1:
            text = "sensitive_share and critical_share are more than 1 together"
            raise PydanticCustomError("recipe", "{problem}", {"problem": text})
        return self


def oasis_jobs(ranges: OasisRanges, submit_s: Iterable[float], rng: np.random.Generator) -> tuple[Job, ...]:
    """One job for each submission time, all else drawn independently. A GPU stands for one worker.

    Work is ``ceil(E·N·M·(τ + 2e/b))`` worker-slots; its factors are in the labels.
    """
    times_s = [round(float(time_s), 3) for time_s in submit_s]
    width = len(str(max(1, len(times_s) - 1)))
    return tuple(_job(f"job-{number:0{width}}", time_s, ranges, rng) for number, time_s in enumerate(times_s))


def _job(job_id: str, submit_s: float, ranges: OasisRanges, rng: np.random.Generator) -> Job:
    worker, ps = _demand(ranges.worker, rng), _demand(ranges.ps, rng)
    epochs, chunks, minibatches = (
        _whole(bounds, rng) for bounds in (ranges.epochs, ranges.chunks, ranges.minibatches)
    )
    train_slots = _even(ranges.minibatch_slots, rng)
    gradient_mb = _even(ranges.gradient_mb, rng)
    sync_s = 2 * gradient_mb * 1e6 / worker["bandwidth"] if worker.get("bandwidth") else 0.0
    slots = math.ceil(epochs * chunks * minibatches * (train_slots + sync_s / ranges.slot_s))
    return Job(
        id=job_id,
        submit_time=submit_s,
        model="parameter-server",
        gpus=Gpus(requested=min(chunks, _whole(ranges.workers, rng)), min=1, max=chunks),
        elastic="size",
        work=GpuTimeWork(gpu_seconds=slots * ranges.slot_s),
        utility=_utility(ranges, rng),
        resources=ResourceDemand(worker=worker, ps=ps),
        labels={
            "epochs": str(epochs),
            "chunks": str(chunks),
            "minibatches": str(minibatches),
            "minibatch_slots": str(train_slots),
            "gradient_mb": str(gradient_mb),
            "slot_s": f"{ranges.slot_s:g}",
        },
    )


def _utility(ranges: OasisRanges, rng: np.random.Generator) -> Utility:
    kind = rng.random()
    if kind < ranges.sensitive_share:
        decay = _even(ranges.sensitive, rng)
    elif kind < ranges.sensitive_share + ranges.critical_share:
        decay = _even(ranges.critical, rng)
    else:
        decay = 0.0
    return Utility(
        shape="sigmoid",
        value=_even(ranges.value, rng),
        decay=decay / ranges.slot_s,
        target=_even(ranges.target_slots, rng) * ranges.slot_s,
    )


def _demand(bounds: Mapping[str, Bounds], rng: np.random.Generator) -> dict[str, float]:
    """Resources of one worker or parameter server, in the units of a job file; GPUs and CPUs are whole."""
    return {
        name: float(_whole(one, rng)) if name in _COUNTED else _even(one, rng) * _UNITS.get(name, 1.0)
        for name, one in bounds.items()
    }


def _even(bounds: Bounds, rng: np.random.Generator) -> float:
    return round(float(rng.uniform(*bounds)), 6)


def _whole(bounds: Bounds, rng: np.random.Generator) -> int:
    return int(rng.integers(int(bounds[0]), int(bounds[1]) + 1))


GpuTimeClass = Literal["S", "M", "L", "XL"]
CLASS_HOURS: Final[dict[GpuTimeClass, tuple[float, float]]] = {
    "S": (1 / 60, 1.0),
    "M": (1.0, 10.0),
    "L": (10.0, 100.0),
    "XL": (100.0, 1000.0),
}
"""GPU-hours from and to. The classes of Ares, section 5.1, closed at a minute and at a thousand hours."""
_USUAL_CLASSES: Final[dict[GpuTimeClass, float]] = {"S": 0.6, "M": 0.3, "L": 0.1}
_USUAL_SIZES: Final = {"1": 0.5, "2": 0.2, "4": 0.2, "8": 0.1}
MOST_JOBS: Final = 100_000_000
"""Most jobs of one trace: no machine replays more."""
_USUAL_JOBS: Final = 160
_USUAL_WINDOW_H: Final = 8.0
_TOML_PLACE: Final = re.compile(r"\(at line (\d+), column \d+\)")
_MOST_BITS: Final = 1024
"""Most bits of an integer: TOML writes any number of hexadecimal digits, which JSON cannot."""
BUILT_IN: Final = ("poisson", "bursty", "diurnal")

_Rate = Annotated[float, Field(ge=1e-9, le=MOST)]
"""A rate or a length of time that arrivals can be computed with."""
Sizes = Annotated[dict[str, PositiveFloat], Field(min_length=1)]
"""Numbers of GPUs and how often each occurs, relative to each other."""


def _sizes_are_numbers(sizes: dict[str, float] | None) -> None:
    for size in sizes or ():
        if not 0 < (whole_number(size) or 0) <= MOST_GPUS:
            raise broken_rule(f'"{size}" is not a number of GPUs', "/gpus")


MOST_EPOCHS: Final = 1e9
"""Most epochs of a job: more cannot be meant, and random whole numbers have 64 bits."""


class Model(Record):
    """One kind of job among those of a trace. What it leaves out is drawn from what the recipe says."""

    name: Annotated[str, Field(min_length=1)]
    """Key into the profile."""
    weight: PositiveFloat = 1.0
    """How often it occurs, relative to the others of the same class."""
    classes: tuple[GpuTimeClass, ...] = ()
    """Classes of GPU time whose jobs train it. Default: all."""
    batch: BatchSize | None = None
    """Global batch of its jobs. Default: requested GPUs times the largest local batch in the profile."""
    batch_min: BatchSize | None = None
    batch_max: BatchSize | None = None
    per_gpu_max: BatchSize | None = None
    """Largest local batch."""
    lr: PositiveFloat | None = None
    gpus: Sizes | None = None
    """Requested GPUs. Default: the recipe's."""
    gpus_min: GpuCount | None = None
    gpus_max: GpuCount | None = None
    gpus_per_replica: GpuCount = 1
    """GPUs of a replica. Requested GPUs are rounded up to whole replicas."""
    gpu_seconds: PositiveFloat | None = None
    """Work of each of its jobs. Default: drawn from the recipe's classes."""
    epochs: tuple[PositiveFloat, PositiveFloat] | None = None
    """Work in whole epochs, drawn evenly between these, instead of GPU time."""
    dataset_size: SampleCount | None = None
    """Samples in an epoch."""
    convergence: str | None = None
    """Key into a convergence table."""
    elastic: Elasticity | None = None
    """Default: the recipe's."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if (self.epochs is None) != (self.dataset_size is None):
            raise broken_rule("epochs and dataset_size come together", "/epochs")
        if self.epochs and self.gpu_seconds:
            raise broken_rule("epochs and gpu_seconds are both given, expected one kind of work", "/epochs")
        low, high = self.epochs or (0.0, 0.0)
        if low > high:
            raise broken_rule(f"{high:g} is below {low:g}, expected [from, to]", "/epochs")
        if high > MOST_EPOCHS:
            raise broken_rule(f"{high:g} is too large, expected at most {MOST_EPOCHS:g}", "/epochs/1")
        _sizes_are_numbers(self.gpus)
        for name, limit in (("gpus_min", self.gpus_min), ("gpus_max", self.gpus_max)):
            if (limit or 0) % self.gpus_per_replica:
                text = f"{limit} is not a multiple of gpus_per_replica {self.gpus_per_replica}"
                raise broken_rule(text, f"/{name}")
        return self


class Lognormal(Record):
    """GPU time with a logarithm that is normally distributed."""

    median_s: PositiveFloat
    """Median, GPU-seconds."""
    sigma: PositiveFloat
    """Standard deviation of the natural logarithm."""


class Recipe(Record):
    """A synthetic trace: when jobs arrive (``kind`` and what belongs to it), and what they are."""

    kind: Literal["poisson", "bursty", "diurnal", "sample", "oasis"] = "poisson"
    """How jobs arrive: at a constant rate, at a high and a low rate in turn, at a rate that follows the hour
    of the day, or when the jobs of a window of another trace did. ``oasis``: at a constant rate, jobs with
    workers, parameter servers and a utility."""
    jobs: Annotated[int, Field(gt=0, le=MOST_JOBS)] | None = None
    """How many. Default: 160; where ``hours`` is given, as many as the rate brings."""
    hours: WorkAmount | None = None
    """Arrivals end after this many hours. Default: no limit; for a sample 8."""
    rate_per_hour: _Rate = 20.0
    """Mean arrivals an hour; of bursty arrivals the high rate."""
    low_rate_per_hour: _Rate | None = None
    """Low rate of bursty arrivals. Default: a quarter of the high one."""
    phase_minutes: _Rate = 60.0
    """How long each of the two rates lasts."""
    amplitude: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Swing of diurnal arrivals around their mean, as a part of it."""
    peak_hour: Annotated[float, Field(ge=0, lt=24)] = 14.0
    """Hour of the day at which diurnal arrivals are most frequent; the trace begins at midnight."""
    trace: str | None = None
    """The jobs that are sampled; a relative path starts at the recipe's folder."""
    from_hour: Annotated[float, Field(ge=0, le=MOST)] | None = None
    """Where the window of a sample begins. Default: the busiest one, looked for hour by hour."""
    seed: NonNegativeInt = 0
    models: Annotated[tuple[Model, ...], Field(min_length=1)] = (Model(name="model", batch=256),)
    gpus: Sizes = Field(default=_USUAL_SIZES)
    """Requested GPUs and how often, relative to each other; sampled jobs keep theirs."""
    classes: Annotated[dict[GpuTimeClass, PositiveFloat], Field(min_length=1)] = Field(default=_USUAL_CLASSES)
    """How often each class of GPU time; inside a class, its logarithm is uniform."""
    gpu_time: Lognormal | None = None
    """One distribution of GPU time instead of the classes."""
    elastic: Elasticity = "none"
    oasis: OasisRanges = OasisRanges()
    """What jobs of the kind ``oasis`` are drawn from."""

    @property
    def count(self) -> int | None:
        """How many jobs; None: as many as arrive in ``hours``."""
        return self.jobs or (None if self.hours and self.kind != "sample" else _USUAL_JOBS)

    @property
    def window_h(self) -> float:
        return self.hours or _USUAL_WINDOW_H

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        _sizes_are_numbers(self.gpus)
        if self.count is None and self.window_h * self.rate_per_hour > MOST_JOBS:
            problem = f"more than {MOST_JOBS:,} jobs arrive in {self.window_h:g} h at this rate"
            raise broken_rule(problem, "/hours")
        if (self.kind == "sample") != (self.trace is not None):
            raise broken_rule('kind "sample" and trace come together', "/trace")
        drawn = set(self.classes) if self.kind != "sample" and not self.gpu_time else set(CLASS_HOURS)
        for name in sorted(drawn):
            if not any(not model.classes or name in model.classes for model in self.models):
                raise broken_rule(f'no model is trained by jobs of class "{name}"', "/models")
        return self


def read_recipe(name: str, overrides: dict[str, Any]) -> Recipe:
    """The recipe of a built-in name or a file, with some fields replaced."""
    if name in BUILT_IN:
        return _checked({"kind": name, **overrides}, "options")
    if not Path(name).exists() and name != "-":
        hint = did_you_mean(name, BUILT_IN)
        known = f"neither a recipe ({', '.join(BUILT_IN)}) nor a file (TOML or JSON)"
        raise UsageError(f'"{name}" is {known}{hint and "; "}{hint}')
    source = source_name(name)
    return _checked({**parse_table(read_bytes(name), source), **overrides}, source)


def parse_table(data: bytes, source: str) -> dict[str, Any]:
    """The table of a TOML or JSON file, of values that JSON has."""
    data = data.removeprefix(BOM)
    if data.lstrip().startswith(b"{"):
        return dict(parse_json(data, source))
    try:
        table = tomllib.loads(data.decode())
    except RecursionError:
        raise BadInputError.one(source, "is not readable TOML: nested too deeply") from None
    except ValueError as error:
        raise _not_toml(error, source) from error
    problems = [Problem(source, None, as_pointer(path), text) for path, text in _strange(table)]
    if problems:
        raise BadInputError(problems)
    return table


def _not_toml(error: ValueError, source: str) -> BadInputError:
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return BadInputError.one(
            source, f"not valid UTF-8 (byte {byte:#04x}), expected TOML or JSON in UTF-8"
        )
    if not isinstance(error, tomllib.TOMLDecodeError):
        return BadInputError.one(source, f"is not readable TOML: {TOO_MANY}")
    place = _TOML_PLACE.search(str(error))
    line = whole_number(place[1]) if place else None
    return BadInputError.one(source, f"is neither TOML nor JSON: {error}", line=line)


def _strange(value: object, path: Location = ()) -> Iterator[tuple[Location, str]]:
    """Where a TOML table holds a value that JSON does not have."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _strange(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strange(item, (*path, index))
    elif isinstance(value, date | time):
        yield path, f"{value} is a date or a time, expected a number or a quoted text"
    elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
        yield path, f"{TOO_MANY}, expected an integer of 64 bits"


def _checked(fields: dict[str, Any], source: str) -> Recipe:
    try:
        recipe = Recipe.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise BadInputError(problems_of(error, source)) from error
    if recipe.trace is None or Path(recipe.trace).is_absolute():
        return recipe
    return recipe.model_copy(update={"trace": str(Path(source).parent / recipe.trace)})
