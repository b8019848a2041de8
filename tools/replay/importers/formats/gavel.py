"""The data of the Gavel and Shockwave artifacts: traces, and throughputs of job types alone and in pairs.

A trace is tab separated without a header: job type, command, [working folder,] name of the steps option,
needs a data folder, total steps, then arrival (s) and GPUs, or in the longer form GPUs, priority, deadline
(negative: none) and arrival. A job type is a model and, in brackets, the batch of each GPU.

Throughputs (``simulation_throughputs.json``) are the mini-batches of all workers together per second: n
GPUs at r of them take n/r seconds a step. Those of ``TYPE_unconsolidated`` are of one GPU a node, the
others of one node. A pair with the throughputs 0 does not fit the GPU's memory: its rows are not feasible.

The Shockwave artifact adds jobs that change their batch: its traces (tab separated) have job type, command,
working folder, name of the steps option, needs a data folder, total steps, GPUs, mode, priority, deadline
(negative: none), duration (s) and arrival (s). Its throughputs (``tacc_throughputs.json``) are as Gavel's.

The mode says who changes the batch: ``static`` no one; ``accordion`` takes the largest batch of the model
outside of critical epochs; ``gns`` doubles it where the gradient noise scale has grown. The trace does not
say when. The artifact (github.com/uw-mad-dash/shockwave, 8a44f4a, ``scheduler/utils.py``) states the epochs,
as measured for each model, batch and number of GPUs: the tables below repeat them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import read_bytes, source_name
from pliant.schemas.file_io.json_lines import parse_json
from pliant.schemas.file_io.record import LARGEST_BATCH
from pliant.schemas.job import Batch, Gpus, Job, Regime, SampleWork
from pliant.schemas.profile import PROFILE, ProfileRow
from pliant.schemas.text import whole_number
from pliant.tools.replay.importers.conversion import (
    MOST_ROW_GPUS,
    Conversion,
    DroppedRowError,
    FolderFormat,
    Imported,
    InputRow,
    MalformedRowError,
    checked,
    parse_number,
)
from pliant.tools.replay.importers.reading import open_text

SHORT: Final = ("type", "command", "option", "data", "steps", "arrival", "gpus")
LONG: Final = (
    "type", "command", "folder", "option", "data", "steps", "gpus", "priority", "deadline", "arrival",
)  # fmt: skip
FILE: Final = "simulation_throughputs.json"
ALONE: Final = "null"
_SPREAD: Final = "_unconsolidated"
_KEY: Final = re.compile(r"\('(.+)', (\d+)\)")
_TYPE: Final = re.compile(r"(.+) \(batch size (\d+)\)")


def read(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    trace = read_throughputs(folder / FILE, conversion)
    return trace if workload is None else replace(trace, jobs=tuple(read_workload(workload, conversion)))


def read_workload(workload: Path, conversion: Conversion) -> Iterator[Job]:
    conversion.summary.assume(
        "work is total steps times the batch of the type: a step is one worker's mini-batch"
    )
    conversion.summary.assume("jobs do not change size; their batch is that of their type on each GPU")
    return conversion.convert(tabbed_rows(workload, (SHORT, LONG), conversion), partial(_job, conversion))


def tabbed_rows(path: Path, forms: Sequence[Sequence[str]], conversion: Conversion) -> Iterator[InputRow]:
    """The lines of a trace.

    :param forms: the columns of each form that a line may have; they differ in their number.
    """
    by_width = {len(form): form for form in forms}
    with open_text(path, conversion.refuse_byte) as stream:
        for line, content in enumerate(stream, 1):
            fields = [field.strip() for field in content.split("\t")]
            names = by_width.get(len(fields))
            if names is not None:
                yield InputRow(source_name(path), line, dict(zip(names, fields, strict=True)))
            elif content.strip():
                expected = " or ".join(map(str, by_width))
                message = f"has {len(fields)} fields separated by tabs, expected {expected}"
                conversion.refuse_row(source_name(path), line, message)


def _job(conversion: Conversion, row: InputRow) -> Job:
    deadline = row.values.get("deadline", "-1")
    labels = {} if deadline.startswith("-") else {"deadline": deadline}
    return training_job("gavel", conversion, row, labels)


def training_job(trace: str, conversion: Conversion, row: InputRow, labels: Mapping[str, str]) -> Job:
    """The job of a line: its type, steps, GPUs and arrival. Its batch stays as its type says."""
    model, batch = model_and_batch(row.values["type"])
    steps, gpus = parse_number(row.values["steps"], "steps"), parse_number(row.values["gpus"], "gpus")
    if gpus != int(gpus) or not gpus:
        raise MalformedRowError("gpus", f"{row.values['gpus']!r}, expected a whole number above 0")
    if not steps:
        raise DroppedRowError("have no steps to do")
    return Job(
        id=conversion.new_id(f"{trace}-{row.line}"),
        submit_time=parse_number(row.values["arrival"], "arrival"),
        model=model,
        gpus=Gpus(requested=int(gpus)),
        priority=parse_number(row.values.get("priority", "0"), "priority"),
        batch=Batch(size=int(gpus) * batch),
        work=SampleWork(samples=steps * batch),
        labels={"trace": trace, "job_type": row.values["type"], **labels},
    )


GAVEL: Final = FolderFormat("gavel", read, read_workload)


def model_and_batch(job_type: str) -> tuple[str, int]:
    """``ResNet-18 (batch size 32)`` as model and samples per GPU; a type that states no batch has 1."""
    match = _TYPE.fullmatch(job_type)
    if match is None:
        return job_type, 1
    batch = whole_number(match[2])
    if not batch or batch > LARGEST_BATCH:
        raise MalformedRowError(job_type, f"expected a batch size from 1 to {LARGEST_BATCH:,}")
    return match[1], batch


def read_throughputs(path: Path, conversion: Conversion) -> Imported:
    conversion.summary.assume(
        "throughputs count the mini-batches of all workers; those that are not unconsolidated are of one node"
    )
    conversion.summary.assume("a job type without a batch size has a local batch of 1")
    document = _document(path)
    profile: list[ProfileRow] = []
    pairs: list[ProfileRow] = []
    for row, packed in conversion.convert(_entries(document, path), _alone):
        profile.append(row)
        pairs += packed
    return Imported(profile=[*profile, *pairs])


def _document(path: Path) -> Mapping[str, Any]:
    document = parse_json(read_bytes(path), str(path))
    if not isinstance(document, dict) or not all(isinstance(types, dict) for types in document.values()):
        raise BadInputError.one(str(path), "expected throughputs by GPU type and job type")
    return document


def _entries(document: Mapping[str, Any], path: Path) -> Iterator[InputRow]:
    """The entry of each job type; one GPU spread over nodes is one GPU, and not repeated."""
    for name, types in document.items():
        spread = name.endswith(_SPREAD)
        for key, entry in types.items():
            job_type, gpus = _parsed(key)
            if spread and gpus == 1:
                continue
            place = GavelPlacement(name.removesuffix(_SPREAD), gpus, spread)
            values = {"type": job_type, "place": place, "entry": entry, "types": types}
            yield InputRow(str(path), None, {**values, "name": f"{name}/{key}"})


def _parsed(key: str) -> tuple[str, int]:
    match = _KEY.fullmatch(key)
    gpus = whole_number(match[2]) if match else None
    return (match[1], gpus) if match and gpus and gpus <= MOST_ROW_GPUS else (key, 0)


class GavelPlacement(NamedTuple):
    """GPUs of one type, on one node or spread over as many nodes as GPUs."""

    gpu_type: str
    gpus: int
    spread: bool


def _alone(record: InputRow) -> tuple[ProfileRow, list[ProfileRow]]:
    place: GavelPlacement = record.values["place"]
    entry, name = record.values["entry"], record.values["name"]
    if not place.gpus:
        raise MalformedRowError(name, "expected a key like ('MODEL (batch size 32)', 1)")
    if not isinstance(entry, dict) or not _is_rate(entry.get(ALONE)):
        raise MalformedRowError(f"{name}/{ALONE}", "expected the throughput of the job type alone")
    row = _row(record.values["type"], place, float(entry[ALONE]))
    return row, list(_pairs(row, record))


def _pairs(row: ProfileRow, record: InputRow) -> Iterator[ProfileRow]:
    """Both jobs of each pair with this job type first; of a pair and its mirror the one in order of names."""
    place, types, name = (record.values[key] for key in ("place", "types", "name"))
    this_key, first = name.partition("/")[2], record.values["type"]
    for key, rates in record.values["entry"].items():
        if key == ALONE or (key < this_key and this_key in _entry(types, key)):
            continue
        other = _entry(types, key).get(ALONE)
        if not (isinstance(rates, list) and len(rates) == 2 and all(map(_is_rate, [*rates, other]))):
            what = "expected the throughputs of both job types, each of which also stands alone"
            raise MalformedRowError(f"{name}/{key}", what)
        second = _parsed(key)[0]
        fits = all(rates) and row.feasible and bool(other)
        yield _row(first, place, rates[0] if fits else 0.0, second)
        if key != this_key:
            yield _row(second, place, rates[1] if fits else 0.0, first)


def _entry(types: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The entry of a job type, empty where there is none."""
    entry = types.get(key)
    return entry if isinstance(entry, dict) else {}


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < float("inf")


def _row(
    job_type: str, place: GavelPlacement, steps_per_second: float, beside: str | None = None
) -> ProfileRow:
    """A job type alone, or beside another one; no steps: it does not fit there."""
    model, local = model_and_batch(job_type)
    fits = steps_per_second > 0
    other, other_batch = (None, None) if beside is None else model_and_batch(beside)
    return checked(
        ProfileRow(
            kind="train" if beside is None else "pair",
            model=model,
            gpu_type=place.gpu_type,
            nodes=place.gpus if place.spread else 1,
            gpus=place.gpus,
            placement=",".join(["1"] * place.gpus) if place.spread else str(place.gpus),
            local_batch=local,
            step_seconds=place.gpus / steps_per_second if fits else None,
            samples_per_second=local * steps_per_second if fits else None,
            feasible=fits,
            source="imported",
            beside_model=other,
            beside_batch=other_batch,
        ),
        PROFILE,
    )


_SHOCKWAVE_COLUMNS: Final = (
    "type", "command", "folder", "option", "data", "steps", "gpus", "mode", "priority", "deadline",
    "duration", "arrival",
)  # fmt: skip
_SHOCKWAVE_FILE: Final = "tacc_throughputs.json"
DATASET_SAMPLES: Final[Mapping[str, int]] = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
    "A3C": 4,
    "CycleGAN": 6_287,
}
"""Samples of an epoch."""
_LARGEST_BATCHES: Final[Mapping[str, int]] = {
    "ResNet-18": 256,
    "ResNet-50": 128,
    "Transformer": 128,
    "LM": 80,
    "Recommendation": 8_192,
}
"""On one GPU, of the models that change their batch."""
_GNS: Final[Mapping[tuple[str, int, int], Sequence[int]]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71),
    ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61),
    ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,),
    ("ResNet-50", 32, 2): (101, 111),
    ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41),
    ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41),
    ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61),
    ("LM", 20, 4): (11, 61),
    ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91),
    ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41),
    ("Recommendation", 4096, 1): (41,),
}
"""Epochs, from 0, that begin with twice the batch, by model, first batch on a GPU, and GPUs."""


def _read_shockwave(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    trace = read_throughputs(folder / _SHOCKWAVE_FILE, conversion)
    return (
        trace if workload is None else replace(trace, jobs=tuple(_read_shockwave_jobs(workload, conversion)))
    )


def _read_shockwave_jobs(workload: Path, conversion: Conversion) -> Iterator[Job]:
    conversion.summary.assume(
        "work is total steps times the batch of the type: a step is one worker's mini-batch"
    )
    conversion.summary.assume(
        "jobs do not change size; when they change their batch is what the artifact states for their model, "
        "batch and GPUs, since the trace names the mode alone"
    )
    return conversion.convert(
        tabbed_rows(workload, (_SHOCKWAVE_COLUMNS,), conversion), partial(_shockwave_job, conversion)
    )


def _shockwave_job(conversion: Conversion, row: InputRow) -> Job:
    mode, deadline = row.values["mode"], row.values["deadline"]
    if mode not in ("static", "accordion", "gns"):
        raise MalformedRowError("mode", f"{mode!r}, expected static, accordion or gns")
    labels = {"mode": mode} if deadline.startswith("-") else {"mode": mode, "deadline": deadline}
    job = training_job("shockwave", conversion, row, labels)
    model, batch = model_and_batch(row.values["type"])
    batch_regimes = regimes(mode, model, batch, job.gpus.requested, row.number("steps"))
    return (
        job
        if not batch_regimes
        else job.model_copy(update={"batch": job.batch.model_copy(update={"regimes": batch_regimes})})
    )


SHOCKWAVE: Final = FolderFormat("shockwave", _read_shockwave, _read_shockwave_jobs)


def regimes(mode: str, model: str, batch: int, gpus: int, steps: float) -> tuple[Regime, ...]:
    """The batches that a job changes to.

    :param batch: on each GPU, at the beginning.
    :param steps: all of them, at that batch.
    """
    if model not in DATASET_SAMPLES or mode == "static":
        return ()
    epoch_steps = math.ceil(DATASET_SAMPLES[model] / batch)
    epochs = math.ceil(steps / epoch_steps)
    by_epoch = (_accordion if mode == "accordion" else _gns)(model, batch, gpus, epochs)
    return tuple(
        Regime(after=epoch * epoch_steps / steps, size=gpus * now)
        for epoch, (before, now) in enumerate(pairwise(by_epoch), 1)
        if now != before and epoch * epoch_steps < steps
    )


def _accordion(model: str, batch: int, gpus: int, epochs: int) -> list[int]:
    """The batch on a GPU in each epoch: the first in critical epochs, else the largest.

    The artifact predicts batches as if jobs kept the first for 0.3 of their epochs, too, and neither its
    simulator nor its runs do so.
    """
    del gpus
    largest = batch if model == "Transformer" else _LARGEST_BATCHES.get(model, batch)
    return [batch if _is_critical(model, batch, epoch) else largest for epoch in range(epochs)]


def _is_critical(model: str, batch: int, epoch: int) -> bool:
    match model:
        case "ResNet-18":
            return (
                epoch < (20 if batch == 256 else 10) or epoch in range(150, 160) or epoch in range(250, 260)
            )
        case "ResNet-50":
            return epoch < 600 and epoch % 30 < 10
        case "LM":
            return epoch < 10
        case "Recommendation":
            first = {512: 30, 1024: 30, 2048: 40}.get(batch, 10)
            return epoch < first or epoch in range(60, 70) or epoch in range(80, 90)
        case _:
            return True


def _gns(model: str, batch: int, gpus: int, epochs: int) -> list[int]:
    """The batch on a GPU in each epoch."""
    doubled = _GNS.get((model, batch, gpus), ())
    most = max(batch, _LARGEST_BATCHES.get(model, batch))
    return [min(most, batch * 2 ** sum(epoch >= at for at in doubled)) for epoch in range(epochs)]
