"""SenseTime's Helios traces: ``cluster_log.csv`` of each cluster.

Columns that are needed: job_id, gpu_num,
submit_time and duration. user, vc, state, node_num and start_time are read where they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, convert_blocks
from pliant.tools.replay.importers.conversion import (
    Conversion,
    Reason,
    TraceFormat,
    assume_no_models,
    assume_utc,
)
from pliant.tools.replay.importers.job_lines import JobBlock, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks

COLUMNS: Final = ("job_id", "gpu_num", "submit_time", "duration")


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    assume_no_models(conversion)
    assume_utc(conversion)
    for path in paths:
        yield from convert_blocks(csv_blocks(path, conversion, COLUMNS), _jobs)


def _jobs(block: RowBlock) -> JobBlock:
    submit_time_s, gpus = block.timestamp("submit_time"), block.count("gpu_num")
    block.drop(gpus == 0, Reason.NO_GPU)
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
    return executed_jobs(
        block,
        block.ids("job_id"),
        submit_time_s,
        gpus,
        seconds,
        user=block.optional_text("user"),
        labels=labels,
        start_s=start_s,
    )


FORMAT: Final = TraceFormat("helios", read)
