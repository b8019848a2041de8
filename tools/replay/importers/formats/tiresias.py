"""Tiresias's inputs: the job list of its testbed, and its distributions of GPU time.

A job list has the columns job_id, num_gpu, submit_time, iterations, model_name, duration; a distribution has
the one column duration: the GPU-seconds of one job a row, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, convert_blocks
from pliant.tools.replay.importers.conversion import Conversion, Reason, TraceFormat
from pliant.tools.replay.importers.job_lines import JobBlock, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks, first_line

COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "model_name", "duration")


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    for path in paths:
        if first_line(path).strip() == "duration":
            conversion.summary.assume(
                "a distribution states GPU time alone: every job has one GPU, the model 'unknown' and is "
                "submitted at 0; sample from it with `pliant trace synth`"
            )
            blocks = csv_blocks(path, conversion, ("duration",))
            yield from convert_blocks(blocks, _samples)
        else:
            conversion.summary.assume("work is duration times GPUs; the iterations are kept as a label")
            yield from convert_blocks(csv_blocks(path, conversion, COLUMNS), _jobs)


def _samples(block: RowBlock) -> JobBlock:
    gpu_seconds = block.number("duration")
    block.drop(gpu_seconds == 0, Reason.NO_DURATION)
    ids = block.numbered_ids("tiresias")
    times_s, gpus = np.zeros(len(block)), np.ones(len(block))
    return executed_jobs(block, ids, times_s, gpus, gpu_seconds, labels={"trace": "tiresias"})


def _jobs(block: RowBlock) -> JobBlock:
    gpus = block.count("num_gpu")
    block.drop(gpus == 0, Reason.NO_GPU)
    ids, submit_time_s, seconds = (
        block.ids("job_id"),
        block.number("submit_time"),
        block.number("duration"),
    )
    block.drop(seconds == 0, Reason.NO_DURATION)
    model = block.text("model_name")
    labels: dict[str, str | WordColumn] = {"trace": "tiresias"}
    if "iterations" in block:
        labels["iterations"] = block.count_text("iterations")
    return executed_jobs(block, ids, submit_time_s, gpus, seconds, model=model, labels=labels)


FORMAT: Final = TraceFormat("tiresias", read, absolute=False)
