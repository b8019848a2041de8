"""The speeds of the experiment: those of RTX 2080 Ti, the GPU of the paper, measured and continued.

Sia's authors measured three nodes of eight, 24 GPUs at most. The cluster of the paper's simulations has 16
nodes of four. Beyond three nodes, speeds are those of the model of Pollux, its seven parameters fitted to all
measurements of an application.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.schedule.jobs import Observation
from pliant.tools.schedule.policies.pollux.goodput import Fit, fit

RTX: Final = "rtx"
"""RTX 2080 Ti, as Sia's files have it."""
T4: Final = "aws"
"""T4 on nodes of four, measured with up to 64."""
_MODELLED_NODES: Final = (4, 6, 8, 12, 16)
_ON_A_NODE: Final = (1.0, 1.5, 2.0, 3.0, 4.0)
"""GPUs of a modelled node, on average."""


def speeds_of(profile: Profile, gpu_type: str) -> Profile:
    """The rows of one GPU type, those of RTX 2080 Ti continued to 16 nodes of four."""
    rows = [row for row in profile.rows if row.gpu_type == gpu_type]
    return Profile((*rows, *(_continued(rows) if gpu_type == RTX else ())))


def fits(rows: Sequence[ProfileRow]) -> dict[str, Fit]:
    """Pollux's parameters of each model, from its measured rows of one GPU type."""
    return {model: _fit([row for row in rows if row.model == model]) for model in _models(rows)}


def log_error(rows: Sequence[ProfileRow], found: Fit) -> float:
    """Root of the mean squared logarithm of modelled over measured step times of one model."""
    modelled = found.step_seconds(
        np.array([row.nodes > 1 for row in rows]),
        np.array([row.gpus for row in rows]),
        np.array([row.local_batch for row in rows]),
        np.ones(len(rows)),
    )
    measured = np.array([row.step_seconds for row in rows])
    return float(np.sqrt(np.mean(np.log(modelled / measured) ** 2)))


def _models(rows: Sequence[ProfileRow]) -> list[str]:
    return sorted({row.model for row in rows})


def _fit(rows: Sequence[ProfileRow]) -> Fit:
    return fit([_observation(row) for row in rows])


def _observation(row: ProfileRow) -> Observation:
    place = tuple(map(int, row.placement.split(",")))
    return Observation(place, row.local_batch, 1, row.step_seconds or 0.0, row.sync_seconds)


def _continued(rows: Sequence[ProfileRow]) -> Iterator[ProfileRow]:
    """Modelled rows, even splits, at the local batches that were measured."""
    for model, found in fits(rows).items():
        locals_ = sorted({row.local_batch for row in rows if row.model == model})
        like = next(row for row in rows if row.model == model)
        for nodes in _MODELLED_NODES:
            for gpus in (round(nodes * each) for each in _ON_A_NODE):
                yield from (_modelled(like, found, nodes, gpus, local) for local in locals_)


def _rounded(seconds: float) -> float:
    """To four digits: the last ones of a fit depend on the machine, and the traces' results on every bit."""
    return float(f"{seconds:.4g}")


def _modelled(like: ProfileRow, found: Fit, nodes: int, gpus: int, local: int) -> ProfileRow:
    one = np.array([local])
    step_s = _rounded(found.step_seconds(np.array([True]), np.array([gpus]), one, np.array([1]))[0])
    compute_s = _rounded(found.compute_seconds(one)[0])
    share, more = divmod(gpus, nodes)
    shares = [share + 1] * more + [share] * (nodes - more)
    return replace(
        like,
        nodes=nodes,
        gpus=gpus,
        placement=",".join(map(str, shares)),
        node_order=None,
        local_batch=local,
        step_seconds=step_s,
        compute_seconds=compute_s,
        sync_seconds=step_s - compute_s,
        samples_per_second=gpus * local / step_s,
    )
