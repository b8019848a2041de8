"""The speeds of the experiment: those of RTX 2080 Ti, the GPU of the paper, measured and continued.

Sia's authors measured three nodes of eight, 24 GPUs at most. The cluster of the paper's simulations has 16
nodes of four. Beyond three nodes, speeds are those of the model of Pollux, its seven parameters fitted to all
measurements of an application.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.schedule.jobs import Observation
from pliant.tools.schedule.step_time_fit import Fit, fit

RTX: Final = "rtx"
"""RTX 2080 Ti, as Sia's files have it."""
T4: Final = "aws"
"""T4 on nodes of four, measured with up to 64."""
_MODELLED_NODES: Final = (4, 6, 8, 12, 16)
_ON_A_NODE: Final = (1.0, 1.5, 2.0, 3.0, 4.0)
"""GPUs of a modelled node, on average."""
CONTINUED: Final[Mapping[str, Fit]] = {
    "bert": Fit(0.159471036, 0.0225555199, 0.578241285, 0.0233629348, 0.350174798, 0.0680543049, 1.9713135),
    "cifar10": Fit(
        *(0.0354876753, 0.000259644041, 0.0903016311, 0.00150934279, 0.0664779005, 0.00452248758),
        gamma=3.29038397,
    ),
    "deepspeech2": Fit(
        0.381646931, 0.0124071153, 0.0141824216, 0.0141415977, 0.00665699861, 0.0255494339, 1.0
    ),
    "imagenet": Fit(
        0.11932738, 0.00186812166, 0.189008801, 0.00633897825, 0.097861496, 0.0245215179, 2.2542828
    ),
    "ncf": Fit(
        0.0141708215, 1.04576652e-07, 0.0098771692, 0.000492711705, 0.00586812817, 0.000973780642, 1.0
    ),
    "yolov3": Fit(0.366319203, 0.0134231311, 0.332412172, 0.00785527904, 0.200487906, 0.0185593407, 1.0),
}
"""The parameters of RTX 2080 Ti, written down: what a fit leaves open is not to move every replay here."""


def speeds_of(profile: Profile, gpu_type: str) -> Profile:
    """The rows of one GPU type, those of RTX 2080 Ti continued to 16 nodes of four."""
    rows = [row for row in profile.rows if row.gpu_type == gpu_type]
    return Profile((*rows, *(_continued(rows) if gpu_type == RTX else ())))


def fitted(rows: Sequence[ProfileRow]) -> Fit:
    """Pollux's parameters of one model, from its measured rows of one GPU type."""
    return fit([_observation(row) for row in rows])


def _models(rows: Sequence[ProfileRow]) -> list[str]:
    return sorted({row.model for row in rows})


def _observation(row: ProfileRow) -> Observation:
    place = tuple(map(int, row.placement.split(",")))
    return Observation(place, row.local_batch, 1, row.step_seconds or 0.0, row.sync_seconds)


def _continued(rows: Sequence[ProfileRow]) -> Iterator[ProfileRow]:
    """Modelled rows, even splits, at the local batches that were measured."""
    for model in _models(rows):
        found = CONTINUED.get(model) or fitted([row for row in rows if row.model == model])
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
