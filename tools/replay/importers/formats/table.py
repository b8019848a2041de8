"""Traces that are one CSV table: those that a mapping explains, Helios's and Tiresias's.

A mapping says which column means what, in which unit and time zone: ``csv`` is everybody's own export, with a
mapping on the command line or in a TOML file; Acme's traces are one that comes with pliant. Names of columns
are matched without regard to case.

Helios (SenseTime): ``cluster_log.csv`` of each cluster, with job_id, gpu_num, submit_time and duration. user,
vc, state, node_num and start_time are read where they are there.

Tiresias: the job list of its testbed (job_id, num_gpu, submit_time, iterations, model_name, duration), and
its distributions of GPU time, which have the one column duration: the GPU-seconds of one job a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, timezone, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pliant.schemas.errors import UsageError
from pliant.schemas.text import did_you_mean
from pliant.tools.replay.importers.blocks import RowBlock, RowIds, WordColumn, convert_blocks
from pliant.tools.replay.importers.conversion import (
    UNKNOWN_MODEL,
    Conversion,
    InputRow,
    MalformedRowError,
    Reason,
    TraceFormat,
    assume_no_models,
    assume_zone,
    later_reading,
    parse_number,
    time_zone,
)
from pliant.tools.replay.importers.job_lines import JobBlock, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks, first_line
from pliant.tools.replay.recorded import LABEL

if TYPE_CHECKING:
    from pliant.tools.replay.importers.blocks import Numbers

FIELDS: Final = {
    "id": "name of the job",
    "submit": "submission: seconds or a date",
    "start": "start of the job; empty: it never started",
    "end": "end of the job; empty: it had not finished",
    "wait": "time from submission to start",
    "duration": "time from start to end",
    "gpus": "GPUs of the job, or of each worker",
    "workers": "workers, each with those GPUs",
    "user": "who submitted it",
    "team": "team of the user",
    "model": "key into the profile",
    "priority": "a number, or a word that priorities gives a number",
}
"""Keys of a mapping; any other key is a label of the job."""
_NEEDED: Final = ("id", "submit", "gpus")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Table:
    """How to read one kind of table."""

    columns: Mapping[str, str]
    """Column by field; names that are not fields are labels."""
    unit: str = "s"
    """Unit of numbers that are times, waits or durations: ms, s, min, h or d."""
    zone: tzinfo | None = None
    """Zone of clock times that state none. Default: that of the conversion."""
    delimiter: str = ","
    priorities: Mapping[str, float] = field(default_factory=dict)
    """Numbers of priorities that are words, by word."""
    name: str = "csv"

    def read(self, paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
        if "model" not in self.columns:
            assume_no_models(conversion)
        if self.zone is None and conversion.zone is UTC:
            conversion.summary.assume("clock times without a zone are read as UTC; --time-zone names another")
        columns = {name: column.lower() for name, column in self.columns.items()}
        for path in paths:
            blocks = csv_blocks(path, conversion, columns.values(), delimiter=self.delimiter, any_case=True)
            yield from convert_blocks(blocks, partial(self._jobs, columns))

    def _jobs(self, columns: Mapping[str, str], block: RowBlock) -> JobBlock:
        keys = block.keys()
        block.renamed(columns)
        submit_time_s, gpus = self._times(block, "submit"), block.count("gpus")
        block.drop(np.isnan(submit_time_s), Reason.NO_SUBMISSION)
        if "workers" in block:
            gpus = gpus * block.positive_count("workers")
        block.drop(gpus == 0, Reason.NO_GPU)
        start_s, end_s = self._spans(block, submit_time_s)
        zone = self.zone or block.conversion.zone
        start_s = _not_before(start_s, submit_time_s, zone)
        end_s = _not_before(end_s, start_s, zone)
        if "duration" in block:
            seconds = self._lengths(block, "duration")
            block.drop(np.isnan(seconds), Reason.NOT_FINISHED)
            block.drop(seconds == 0, Reason.NO_DURATION)
        else:
            seconds = block.executed_seconds(start_s, end_s)
        labels = {name: block.optional_text(name) for name in columns if name not in FIELDS}
        user = block.optional_text("user")
        return executed_jobs(
            block,
            RowIds(block).of("id", keys),
            submit_time_s,
            gpus,
            seconds,
            user=user,
            team=block.optional_text("team"),
            model=block.optional_text("model").map(lambda text: text or UNKNOWN_MODEL),
            priority=block.read_words("priority", self._priority),
            labels={"trace": self.name, **labels},
            start_s=start_s if {"start", "wait"} & columns.keys() else None,
        )

    def _spans(self, block: RowBlock, submit_time_s: Numbers) -> tuple[Numbers, Numbers]:
        """Start and end, as far as the rows say."""
        start_s = self._times(block, "start")
        if "start" not in block and "wait" in block:
            start_s = submit_time_s + self._lengths(block, "wait")
        if "start" in block or "wait" in block:
            block.drop(np.isnan(start_s), Reason.NEVER_STARTED)
        return start_s, self._times(block, "end")

    def _times(self, block: RowBlock, name: str) -> Numbers:
        return block.optional_timestamp(name, self.zone, _SECONDS[self.unit])

    def _lengths(self, block: RowBlock, name: str) -> Numbers:
        return block.optional_number(name) * _SECONDS[self.unit]

    def _priority(self, row: InputRow) -> float:
        text = row.optional_text("priority")
        if text in self.priorities:
            return self.priorities[text]
        if text and self.priorities:
            raise MalformedRowError("priority", f"{text!r}, expected one of {', '.join(self.priorities)}")
        return parse_number(text, "priority") if text else 0.0


def _not_before(times_s: Numbers, earlier_s: Numbers, zone: tzinfo) -> Numbers:
    """Times, those before the other ones as clocks that were set back show them a second time."""
    rows = np.flatnonzero(times_s < earlier_s)
    if isinstance(zone, timezone) or not len(rows):
        return times_s
    shifted_s = times_s.copy()
    shifted_s[rows] = [later_reading(time_s, zone) for time_s in times_s[rows].tolist()]
    return shifted_s


def _unmapped(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    del paths, conversion
    raise UsageError("csv: say with --map what the columns mean: id=JobID,submit=Start,gpus=… or a TOML file")


CSV: Final = TraceFormat("csv", _unmapped, zoned=True)
ACME: Final = TraceFormat(
    "acme",
    Table(
        {
            "id": "job_id",
            "user": "user",
            "gpus": "gpu_num",
            "submit": "submit_time",
            "start": "start_time",
            "duration": "duration",
            "type": "type",
            "status": "state",
            "nodes": "node_num",
        },
        name="acme",
    ).read,
    zoned=True,
)


def mapped(mapping: str, zone: tzinfo | None = None) -> TraceFormat:
    """The format that ``--map`` explains: ``FIELD=COLUMN,…``, or the name of a TOML file.

    :param zone: instead of the one that it states.
    :raises UsageError: a needed field is missing, or a unit or time zone is unknown.
    """
    stated = _from_file(mapping) if mapping.endswith(".toml") else {"columns": _pairs(mapping)}
    columns = stated.pop("columns", {})
    if not isinstance(columns, dict) or not all(isinstance(name, str) for name in columns.values()):
        raise UsageError(f'--map {mapping}: expected columns by field, like id = "JobID"')
    settings = {name: columns.pop(name) for name in ("unit", "zone", "delimiter") if name in columns} | stated
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        listed = "; ".join(f"{name}: {FIELDS[name]}" for name in missing)
        raise UsageError(f"--map {mapping}: names no column for {', '.join(missing)} ({listed})")
    if "duration" not in columns and not {"start", "end"} <= columns.keys():
        raise UsageError(f"--map {mapping}: names no column for duration, nor for start and end")
    if own := sorted({"trace", LABEL} & columns.keys()):
        raise UsageError(f"--map {mapping}: {own[0]} is a label that the import itself writes")
    table = Table(columns, **_settings(mapping, settings))
    return TraceFormat("csv", (table if zone is None else replace(table, zone=zone)).read, zoned=True)


def _pairs(mapping: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in mapping.split(",")]
    if not all(name.strip() and equals and column.strip() for name, equals, column in pairs):
        raise UsageError(f"--map {mapping}: expected FIELD=COLUMN,… or a file that ends in .toml")
    return {name.strip(): column.strip() for name, _, column in pairs}


def _from_file(path: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--map {path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--map {path}: is not TOML: {error}") from None


def _settings(mapping: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    known = ("unit", "zone", "delimiter", "priorities")
    for name in stated:
        if name not in known:
            raise UsageError(f"--map {mapping}: {name} is none of {', '.join(known)}{_hint(name, known)}")
    settings = dict(stated)
    if settings.get("unit", "s") not in _SECONDS:
        raise UsageError(f"--map {mapping}: unit {settings['unit']!r}, expected one of {', '.join(_SECONDS)}")
    if "zone" in settings:
        settings["zone"] = _zone(mapping, str(settings["zone"]))
    if len(str(settings.get("delimiter", ","))) != 1:
        raise UsageError(f"--map {mapping}: delimiter {settings['delimiter']!r}, expected one character")
    words = settings.get("priorities", {})
    if not isinstance(words, dict) or not all(isinstance(value, int | float) for value in words.values()):
        raise UsageError(f"--map {mapping}: priorities, expected numbers by word")
    return settings


def _hint(name: str, known: Sequence[str]) -> str:
    meant = did_you_mean(name, known)
    return f"; {meant}" if meant else ""


def _zone(mapping: str, text: str) -> tzinfo:
    try:
        return time_zone(text)
    except ValueError as error:
        raise UsageError(f"--map {mapping}: zone {error}") from None


_HELIOS_COLUMNS: Final = ("job_id", "gpu_num", "submit_time", "duration")


def _read_helios(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    assume_no_models(conversion)
    assume_zone(conversion)
    for path in paths:
        yield from convert_blocks(csv_blocks(path, conversion, _HELIOS_COLUMNS), _helios_jobs)


def _helios_jobs(block: RowBlock) -> JobBlock:
    submit_time_s, gpus = block.timestamp("submit_time"), block.count("gpu_num")
    nodes = block.optional_number("node_num") if block.conversion.cpu_jobs else None
    block.drop_without_gpus(gpus, nodes)
    start_s = block.optional_timestamp("start_time") if "start_time" in block else None
    if start_s is not None:
        block.drop(np.isnan(start_s), Reason.NEVER_STARTED)
    seconds = block.optional_number("duration")
    block.drop(np.isnan(seconds), Reason.NOT_FINISHED)
    block.drop(seconds == 0, Reason.NO_DURATION)
    labels: dict[str, str | WordColumn] = {
        "trace": "helios",
        "status": block.optional_text("state"),
        "vc": block.optional_text("vc"),
        "nodes": block.optional_text("node_num"),
    }
    user = block.optional_text("user")
    return executed_jobs(
        block,
        RowIds(block).of("job_id", block.keys()),
        submit_time_s,
        gpus,
        seconds,
        user=user,
        labels=labels,
        start_s=start_s,
        cpus=block.optional_number("cpu_num") if block.conversion.cpu_jobs else None,
    )


HELIOS: Final = TraceFormat("helios", _read_helios, zoned=True, has_cpu_jobs=True)


_TIRESIAS_COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "model_name", "duration")


def _read_tiresias(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    for path in paths:
        if first_line(path).strip() == "duration":
            conversion.summary.assume(
                "a distribution states GPU time alone: every job has one GPU, the model 'unknown' and is "
                "submitted at 0; sample from it with `pliant trace synth`"
            )
            blocks = csv_blocks(path, conversion, ("duration",))
            yield from convert_blocks(blocks, _tiresias_samples)
        else:
            conversion.summary.assume("work is duration times GPUs; the iterations are kept as a label")
            yield from convert_blocks(csv_blocks(path, conversion, _TIRESIAS_COLUMNS), _tiresias_jobs)


def _tiresias_samples(block: RowBlock) -> JobBlock:
    gpu_seconds = block.number("duration")
    block.drop(gpu_seconds == 0, Reason.NO_DURATION)
    ids = RowIds(block).numbered("tiresias")
    times_s, gpus = np.zeros(len(block)), np.ones(len(block))
    return executed_jobs(block, ids, times_s, gpus, gpu_seconds, labels={"trace": "tiresias"})


def _tiresias_jobs(block: RowBlock) -> JobBlock:
    gpus = block.count("num_gpu")
    block.drop(gpus == 0, Reason.NO_GPU)
    ids, submit_time_s, seconds = (
        RowIds(block).of("job_id"),
        block.number("submit_time"),
        block.number("duration"),
    )
    block.drop(seconds == 0, Reason.NO_DURATION)
    model = block.text("model_name")
    labels: dict[str, str | WordColumn] = {"trace": "tiresias"}
    if "iterations" in block:
        labels["iterations"] = block.count_text("iterations")
    return executed_jobs(block, ids, submit_time_s, gpus, seconds, model=model, labels=labels)


TIRESIAS: Final = TraceFormat("tiresias", _read_tiresias, absolute=False)
