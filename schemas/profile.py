"""The ``profile`` kind: one row per measured configuration (Parquet)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from pliant.schemas.formats.columns import Column, Table

PROFILE: Final = Table(
    "profile",
    (
        Column("kind", "string", "train: a training step; allreduce: one all-reduce of `parameters` weights", False, words=("train", "allreduce")),
        Column("model", "string", "key that jobs name in `model`; empty in allreduce rows", False),
        Column("gpu_type", "string", "type of GPU (or CPU slot) measured on", False),
        Column("nodes", "int64", "nodes used", False, least=1),
        Column("gpus", "int64", "GPUs used", False, least=1),
        Column("placement", "string", "GPUs per node, descending, comma separated: \"4,2\"", False),
        Column("local_batch", "int64", "samples per GPU per micro-step; 0 in allreduce rows", False, least=0),
        Column("accum_steps", "int64", "micro-steps per optimizer step", False, least=1),
        Column("step_seconds", "float64", "mean time of one optimizer step (or of one all-reduce)", least=0),
        Column("compute_seconds", "float64", "part of step_seconds without synchronisation; null where not separable", least=0),
        Column("sync_seconds", "float64", "part of step_seconds that waits for the all-reduce; null where not separable", least=0),
        Column("samples_per_second", "float64", "gpus × local_batch × accum_steps / step_seconds", least=0),
        Column("iterations", "int64", "steps measured, warm-up not counted", False, least=0),
        Column("stdev_seconds", "float64", "standard deviation of the measured steps", least=0),
        Column("peak_memory", "int64", "largest memory of one worker, bytes", least=0),
        Column("parameters", "int64", "weights of the model (or of the all-reduce)", least=0),
        Column("feasible", "bool", "false: did not fit in memory; the measured columns are null", False),
        Column("source", "string", "where the row comes from", False, words=("measured", "imported", "modelled")),
        Column("measured_at", "float64", "UTC seconds since the epoch; null if unknown", least=0),
        Column("node_order", "string", "placement in the order in which the nodes were linked: \"1,4,2\"; null: not known (an imported row without it may state the number of nodes alone, its placement being an even split)", added=True),
        Column("start_seconds", "float64", "from launching the workers to the end of their first step; null: not measured", least=0, added=True),
        Column("relaunch_seconds", "float64", "from a checkpoint over its workers' leaving and launching new ones to the end of their first step; null: not measured", least=0, added=True),
        Column("rescale_seconds", "float64", "what those that train lose when workers come or go while they do and they are so many afterwards; null: not measured", least=0, added=True),
    ),
)  # fmt: skip

MEASURED: Final = (
    "step_seconds", "compute_seconds", "sync_seconds", "samples_per_second", "stdev_seconds", "peak_memory",
)  # fmt: skip
"""The columns that a row which did not fit leaves null."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One row of a profile; the columns and units of :data:`PROFILE`."""

    kind: Literal["train", "allreduce"]
    model: str
    gpu_type: str
    nodes: int
    gpus: int
    placement: str
    local_batch: int
    accum_steps: int = 1
    step_seconds: float | None = None
    compute_seconds: float | None = None
    sync_seconds: float | None = None
    samples_per_second: float | None = None
    iterations: int = 0
    stdev_seconds: float | None = None
    peak_memory: int | None = None
    parameters: int | None = None
    feasible: bool = True
    source: Literal["measured", "imported", "modelled"] = "measured"
    measured_at: float | None = None
    node_order: str | None = None
    start_seconds: float | None = None
    relaunch_seconds: float | None = None
    rescale_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """All rows of a profile and the file's own metadata (tool version, host, torch, command, seed)."""

    rows: tuple[ProfileRow, ...]
    metadata: tuple[tuple[str, str], ...] = ()
    source: str = field(default="the profile", compare=False)
    """Where it was read from, for messages."""
