"""The Gavel artifact's data: traces, and throughputs of job types alone and packed in pairs.

A trace is tab separated without a header: job type, command, [working folder,] name of the steps option,
needs a data folder, total steps, then arrival (s) and GPUs, or in the longer form GPUs, priority, deadline
(negative: none) and arrival. A job type is a model and, in brackets, the batch of each GPU.

Throughputs are the mini-batches of all workers together per second: n GPUs at r of them take n/r seconds a
step. Those of ``TYPE_unconsolidated`` are of one GPU a node, the others of one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.file_io.files import source_name
from pliant.schemas.job import Batch, Gpus, Job, SampleWork
from pliant.tools.replay.importers.conversion import Conversion, DroppedRowError
from pliant.tools.replay.importers.format import FolderFormat, Imported
from pliant.tools.replay.importers.formats.gavel_throughputs import FILE, model_and_batch, read_throughputs
from pliant.tools.replay.importers.input_row import InputRow, MalformedRowError, parse_number
from pliant.tools.replay.importers.text_input import open_text

SHORT: Final = ("type", "command", "option", "data", "steps", "arrival", "gpus")
LONG: Final = (
    "type", "command", "folder", "option", "data", "steps", "gpus", "priority", "deadline", "arrival",
)  # fmt: skip


def read(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    """Throughputs of a folder and, if one is wanted, the jobs of a trace."""
    found = read_throughputs(folder / FILE, conversion)
    return found if workload is None else replace(found, jobs=tuple(read_workload(workload, conversion)))


def read_workload(workload: Path, conversion: Conversion) -> Iterator[Job]:
    """The jobs of a trace."""
    conversion.summary.assume(
        "work is total steps times the batch of the type: a step is one worker's mini-batch"
    )
    conversion.summary.assume("jobs do not change size; their batch is that of their type on each GPU")
    return conversion.convert(_rows(workload, conversion), partial(_job, conversion))


def _rows(path: Path, conversion: Conversion) -> Iterator[InputRow]:
    with open_text(path) as stream:
        for line, content in enumerate(stream, 1):
            fields = [field.strip() for field in content.split("\t")]
            names = {len(SHORT): SHORT, len(LONG): LONG}.get(len(fields))
            if names is not None:
                yield InputRow(source_name(path), line, dict(zip(names, fields, strict=True)))
            elif content.strip():
                message = f"has {len(fields)} fields separated by tabs, expected {len(SHORT)} or {len(LONG)}"
                conversion.refuse_row(source_name(path), line, message)


def _job(conversion: Conversion, row: InputRow) -> Job:
    model, batch = model_and_batch(row.values["type"])
    steps, gpus = parse_number(row.values["steps"], "steps"), parse_number(row.values["gpus"], "gpus")
    if gpus != int(gpus) or not gpus:
        raise MalformedRowError("gpus", f"{row.values['gpus']!r}, expected a whole number above 0")
    if not steps:
        raise DroppedRowError("have no steps to do")
    deadline = row.values.get("deadline", "-1")
    labels = {"trace": "gavel", "job_type": row.values["type"]}
    return Job(
        id=conversion.new_id(f"gavel-{row.line}"),
        submit_time=parse_number(row.values["arrival"], "arrival"),
        model=model,
        gpus=Gpus(requested=int(gpus)),
        priority=parse_number(row.values.get("priority", "0"), "priority"),
        batch=Batch(size=int(gpus) * batch),
        work=SampleWork(samples=steps * batch),
        labels=labels if deadline.startswith("-") else {**labels, "deadline": deadline},
    )


FORMAT: Final = FolderFormat("gavel", read, read_workload)
