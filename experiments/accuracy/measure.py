"""Train in every way and with every seed, and keep what shows how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.accuracy.arms import Arm, Scale
from experiments.accuracy.gang import Gang
from experiments.accuracy.script import Task
from experiments.harness.spec import Findings, Tell
from pliant.schemas.io import read_events


def measured(
    scale: Scale, known: Sequence[Arm], folder: Path, workers: int = 1, tell: Tell = lambda _text: None
) -> Findings:
    """Every arm with every seed: loss and accuracy by epoch, and how far off the reference they are.

    :param known: the arms, their references among them.
    :param workers: trainings at a time.
    :raises JobsFailedError: a training failed.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tasks = [Task(arm, scale, seed, folder / f"{arm.name}-{seed}") for seed in scale.seeds for arm in known]
    with ThreadPoolExecutor(workers) as pool:
        curves = dict(zip(tasks, pool.map(partial(_trained, device=device, tell=tell), tasks), strict=True))
    return {
        "device": device,
        "scale": asdict(scale),
        "arms": {arm.name: arm.words for arm in known},
        "runs": [_run(task, curves) for task in tasks],
    }


@dataclass(frozen=True, slots=True)
class _Curves:
    """What one training tells by epoch."""

    loss: tuple[float, ...]
    accuracy: tuple[float, ...]


def _trained(task: Task, device: str, tell: Tell) -> _Curves:
    job = Gang(task, device).run()
    epochs = [event for event in read_events(job.attempt(1).progress) if event.event == "epoch"]
    found = _Curves(
        tuple(event.loss for event in epochs if event.loss is not None),
        tuple(event.metric for event in epochs if event.metric is not None),
    )
    tell(f"{task.arm.name}, seed {task.seed}: accuracy {found.accuracy[-1]:.3f}")
    return found


def _run(task: Task, curves: Mapping[Task, _Curves]) -> Mapping[str, Any]:
    """What is kept of one training, and how far it is from its reference.

    Losses of every epoch and weights at the end: the largest difference as a part of the largest weight.
    """
    reference = next(
        each for each in curves if each.arm.name == task.arm.reference and each.seed == task.seed
    )
    found, other = curves[task], curves[reference]
    weights, others = _weights(task), _weights(reference)
    off = [abs(one / two - 1) for one, two in zip(found.loss, other.loss, strict=True)]
    return {
        "arm": task.arm.name,
        "seed": task.seed,
        "loss": _rounded(found.loss, 6),
        "accuracy": _rounded(found.accuracy, 6),
        "loss_off": _rounded(off, 3),
        "weights_off": _rounded([float((weights - others).abs().max() / others.abs().max())], 3)[0],
    }


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    """To this number of significant digits, which is more than a figure shows."""
    return [float(f"{value:.{digits}g}") for value in values]


def _weights(task: Task) -> torch.Tensor:
    saved = torch.load(task.weights, map_location="cpu")
    return torch.cat([tensor.flatten() for tensor in saved.values()]).double()
