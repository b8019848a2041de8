"""The ``profile`` kind: one row per measured configuration; and the ``convergence`` kind: how a model
learns at a batch size, epoch by epoch. Both are Parquet files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Final, Literal

from pliant.schemas.file_io.columns import About, Broken, TableKind
from pliant.schemas.text import whole_number

MEASURED: Final = (
    "step_seconds", "compute_seconds", "sync_seconds", "samples_per_second", "stdev_seconds", "peak_memory",
)  # fmt: skip
"""The columns that a row which did not fit leaves null."""
_RATE_TOLERANCE: Final = 0.01
"""Between samples_per_second and the rest of its row: files from elsewhere round their numbers."""
OF_TRUST: Final = ("visits", "spread", "model_error")
"""The columns that say how far a row can be trusted; profiles of earlier versions lack them."""
OF_PAIRS: Final = ("beside_model", "beside_batch")
"""The columns that rows of pairs have, and no others."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One row of a profile."""

    kind: Annotated[
        Literal["train", "allreduce", "pair"],
        About(
            "train: a training step; allreduce: one all-reduce of `parameters` weights; pair: a training step while another job trains on the same GPUs"
        ),
    ]
    model: Annotated[str, About("key that jobs name in `model`; empty in allreduce rows")]
    gpu_type: Annotated[str, About("type of GPU (or CPU slot) measured on")]
    nodes: Annotated[int, About("nodes used", least=1)]
    gpus: Annotated[int, About("GPUs used", least=1)]
    placement: Annotated[str, About('GPUs per node, descending, comma separated: "4,2"')]
    local_batch: Annotated[int, About("samples per GPU per micro-step; 0 in allreduce rows", least=0)]
    accum_steps: Annotated[int, About("micro-steps per optimizer step", least=1)] = 1
    step_seconds: Annotated[
        float | None, About("mean time of one optimizer step (or of one all-reduce)", least=0)
    ] = None
    compute_seconds: Annotated[
        float | None, About("part of step_seconds without synchronisation; null where not separable", least=0)
    ] = None
    sync_seconds: Annotated[
        float | None,
        About("part of step_seconds that waits for the all-reduce; null where not separable", least=0),
    ] = None
    samples_per_second: Annotated[
        float | None, About("gpus × local_batch × accum_steps / step_seconds", least=0)
    ] = None
    iterations: Annotated[int, About("steps measured, warm-up not counted", least=0)] = 0
    stdev_seconds: Annotated[float | None, About("standard deviation of the measured steps", least=0)] = None
    peak_memory: Annotated[int | None, About("largest memory of one worker, bytes", least=0)] = None
    parameters: Annotated[int | None, About("weights of the model (or of the all-reduce)", least=0)] = None
    feasible: Annotated[bool, About("false: did not fit in memory; the measured columns are null")] = True
    source: Annotated[Literal["measured", "imported", "modelled"], About("where the row comes from")] = (
        "measured"
    )
    measured_at: Annotated[float | None, About("UTC seconds since the epoch; null if unknown", least=0)] = (
        None
    )
    node_order: Annotated[
        str | None,
        About(
            'placement in the order in which the nodes were linked: "1,4,2"; null: not known (an imported row without it may state only the number of nodes; its placement is then an even split)',
            added=True,
        ),
    ] = None
    start_seconds: Annotated[
        float | None,
        About(
            "from launching the workers to the end of their first step; null: not measured",
            least=0,
            added=True,
        ),
    ] = None
    relaunch_seconds: Annotated[
        float | None,
        About(
            "from a checkpoint, through the exit of the workers and the launch of new ones, to the end of their first step; null: not measured",
            least=0,
            added=True,
        ),
    ] = None
    rescale_seconds: Annotated[
        float | None,
        About(
            "time without training when workers join or leave a job in place, by the number of workers afterwards; null: not measured",
            least=0,
            added=True,
        ),
    ] = None
    busy_share: Annotated[
        float | None,
        About(
            "part of the measured time in which other processes kept the workers from their cores; on CPU slots it is taken off the times; above 0.1 the step is that of a busy machine; null: not known",
            least=0,
            added=True,
        ),
    ] = None
    across: Annotated[
        str | None,
        About(
            'level of the cluster\'s network in several of whose domains its nodes were: "rack": the step as measured across racks; null: within one domain, or not known',
            added=True,
        ),
    ] = None
    beside_model: Annotated[
        str | None, About("pair: the model of the other job on these GPUs; else null", added=True)
    ] = None
    beside_batch: Annotated[
        int | None,
        About("pair: samples per GPU per micro-step of the other job; else null", least=1, added=True),
    ] = None
    visits: Annotated[
        int | None,
        About(
            "how often it was measured, at different times; the row is the fastest undisturbed visit; null: not known",
            least=1,
            added=True,
        ),
    ] = None
    spread: Annotated[
        float | None,
        About(
            "how much longer a step took in the second fastest visit, as a fraction; above 0.1 the step is uncertain; null: not known",
            least=0,
            added=True,
        ),
    ] = None
    model_error: Annotated[
        float | None,
        About(
            "what the throughput model, made without this row, predicts for it: 0.1 means 10 % slower than measured; null: not known",
            added=True,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Profile:
    """All rows of a profile and the file's own metadata (tool version, host, torch, command, seed)."""

    rows: tuple[ProfileRow, ...]
    metadata: tuple[tuple[str, str], ...] = ()
    source: str = field(default="the profile", compare=False)
    """Where it was read from, for messages."""


def _broken(row: ProfileRow) -> Broken:
    if not row.feasible:
        return [
            (f"/{name}", f"is {getattr(row, name)} in a row that is not feasible, expected null")
            for name in MEASURED
            if getattr(row, name) is not None
        ] + _rules(row)
    broken = _rules(row)
    if row.step_seconds is None:
        broken.append(("/step_seconds", "is null in a feasible row, expected a number"))
    elif row.kind != "allreduce" and row.step_seconds == 0:
        broken.append(("/step_seconds", "0.0 is not above 0, expected more than 0 in a training row"))
    if row.kind != "allreduce" and row.local_batch == 0:
        broken.append(("/local_batch", "0 is below 1, expected 1 or more in a training row"))
    return broken + _rate_rules(row)


def _rate_rules(row: ProfileRow) -> Broken:
    """Whether the samples per second of a training row are those of its batch and its step."""
    stated, step_s, local_batch = row.samples_per_second, row.step_seconds, row.local_batch
    if stated is None or not step_s or not local_batch or row.kind == "allreduce":
        return []
    expected = row.gpus * local_batch * row.accum_steps / step_s
    if math.isclose(stated, expected, rel_tol=_RATE_TOLERANCE):
        return []
    text = f"{stated:g} contradicts the row, expected {expected:g}"
    return [("/samples_per_second", f"{text} (gpus × local_batch × accum_steps / step_seconds)")]


def _rules(row: ProfileRow) -> Broken:
    """Where its GPUs are, and what ran beside it."""
    problem = _placement_problem(row.placement, row.nodes, row.gpus, row.node_order)
    broken = [] if problem is None else [problem]
    if row.across is not None and row.nodes < 2:
        broken.append(("/across", f'is "{row.across}" in a row of one node, expected null'))
    if row.kind == "pair" or row.beside_model is not None or row.beside_batch is not None:
        broken += [
            (f"/{name}", f"contradicts kind {row.kind!r}, expected it in rows of pairs alone")
            for name in OF_PAIRS
            if (getattr(row, name) is None) == (row.kind == "pair")
        ]
    return broken


@lru_cache(maxsize=4096)
def _placement_problem(
    placement: str, nodes: int, gpus: int, node_order: str | None
) -> tuple[str, str] | None:
    """What is wrong with a placement; kept, because most rows of a profile repeat those of others."""
    shares = _shares(placement)
    fits = len(shares) == nodes and sum(shares) == gpus and min(shares) >= 1
    if not fits or shares != sorted(shares, reverse=True):
        expected = f'{gpus} GPUs on {nodes} nodes, largest first, like "4,2"'
        return "/placement", f'"{placement}" does not fit, expected {expected}'
    if node_order is not None and sorted(_shares(node_order), reverse=True) != shares:
        expected = f'the nodes of placement "{placement}" in any order, or null'
        return "/node_order", f'"{node_order}" does not fit, expected {expected}'
    return None


def _shares(placement: str) -> list[int]:
    """GPUs per node; 0 for what is not a number."""
    return [whole_number(part) or 0 for part in placement.split(",")]


PROFILE: Final = TableKind("profile", ProfileRow, broken=_broken)


@dataclass(frozen=True, slots=True)
class ConvergenceRow:
    """One epoch of one validation run."""

    model: Annotated[str, About("key that jobs name in `convergence`")]
    batch: Annotated[int, About("global batch of the validation run", least=1)]
    epoch: Annotated[int, About("epoch, from 0", least=0)]
    iterations: Annotated[float, About("optimizer steps done at the end of the epoch, cumulative", least=0)]
    progress: Annotated[float, About("statistical progress at the end of the epoch", least=0)]
    metric: Annotated[float | None, About("validation metric")] = None
    grad_sqr: Annotated[float | None, About("squared norm of the mean gradient", least=0)] = None
    grad_var: Annotated[float | None, About("variance of the gradient", least=0)] = None
    loss: Annotated[float | None, About("training loss, mean over the epoch", added=True)] = None
    initial_loss: Annotated[float | None, About("training loss before the first epoch", added=True)] = None


CONVERGENCE: Final = TableKind("convergence", ConvergenceRow)
