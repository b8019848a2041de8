"""Experiment trackers through 1 → 2 → 1 workers, a kill, and a resume: what each has twice."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from unittest.mock import patch

from benchmarks.parts.figure import NotMeasurableError
from pliant.tools.run.service.commands import for_trackers
from tests.tools.run.elastic import gang

NAMES: Final = ("wandb", "mlflow", "tensorboard")
RUN: Final = "a-1"
_SAMPLES: Final = 200
_WANDB_HEAD: Final = 7
_BLOCK: Final = 1 << 15
_RECORD_HEAD: Final = struct.Struct("<IHB")
"""Checksum, length, part."""
_WHOLE, _LAST = 1, 4
Point = tuple[str, int]
"""Name of a value, and the samples at which it was logged."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """What one tracker has."""

    runs: int
    points: Counter[Point]

    @property
    def twice(self) -> int:
        return sum(count - 1 for count in self.points.values())


def tracked(folder: Path) -> dict[str, Tracked]:
    """What each tracker has of a job whose workers change, stop, die, and go on from a checkpoint.

    :raises NotMeasurableError: a tracker is not installed.
    """
    if missing := [name for name in (*NAMES, "sqlalchemy") if find_spec(name) is None]:
        raise NotMeasurableError(f"not installed: {', '.join(missing)}")
    here = {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    here |= {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    job = gang.Gang(folder, **gang.ENDLESS, step_s=0.02, track=NAMES)
    env = {**gang.BASE, **here, **for_trackers(job.dir.path, RUN)}
    with patch.object(gang, "BASE", env):
        job.start(1)
        _train(job)
        job.goes_through([0, 1], [0])
        _stop(job)
        job.start(1, checkpoint_s=0.3)
        _train(job)
        job.publish(1, checkpoint_s=1e6)
        job.reaches()
        _train(job)
        job.signal(0, signal.SIGKILL)
        job.end()
        job.start(1)
        _train(job)
        _stop(job)
    with patch.dict(os.environ, here):
        return {"wandb": _wandb(folder), "mlflow": _mlflow(), "tensorboard": _tensorboard(job.dir.path)}


def _train(job: gang.Gang) -> None:
    """Let it train further than any attempt so far."""
    wanted = _samples(job) + _SAMPLES
    job.until(lambda: _samples(job) >= wanted, f"{wanted} samples")


def _samples(job: gang.Gang) -> float:
    path = job.dir.progress
    return float(json.loads(path.read_bytes())["samples_done"]) if path.exists() else 0.0


def _stop(job: gang.Gang) -> None:
    job.publish(1, abort=True)
    job.end()


def _wandb(folder: Path) -> Tracked:
    from wandb.proto.wandb_internal_pb2 import Record

    runs, points = set[str](), Counter[Point]()
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in _leveldb_records(path.read_bytes()[_WANDB_HEAD:]):
            record = Record.FromString(data)
            runs |= {record.run.run_id} - {""}
            names = [item.key or ".".join(item.nested_key) for item in record.history.item]
            points.update((name, record.history.step.num) for name in names if name[0] != "_")
    return Tracked(len(runs), points)


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB, in which no head of 7 bytes is cut."""
    at, record = 0, b""
    while len(data) - at >= _RECORD_HEAD.size:
        if _BLOCK - (at + _WANDB_HEAD) % _BLOCK < _RECORD_HEAD.size:
            at += _BLOCK - (at + _WANDB_HEAD) % _BLOCK
            continue
        _, length, part = _RECORD_HEAD.unpack_from(data, at)
        at += _RECORD_HEAD.size
        record += data[at : at + length]
        at += length
        if part in (_WHOLE, _LAST):
            yield record
            record = b""


def _mlflow() -> Tracked:
    from mlflow import MlflowClient

    client = MlflowClient()
    runs = client.search_runs(["0"])
    points = Counter(
        (name, metric.step)
        for run in runs
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    )
    return Tracked(len(runs), points)


def _tensorboard(job: Path) -> Tracked:
    folders = [path for path in job.glob("tensorboard/*") if path.is_dir()]
    return Tracked(len(folders), Counter(point for folder in folders for point in _events(folder)))


def _events(folder: Path) -> Iterator[Point]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in sorted(folder.iterdir()):
        for event in EventFileLoader(str(path)).Load():
            yield from ((value.tag, event.step) for value in event.summary.value)
