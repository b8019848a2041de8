"""Replaying as published simulators do: presets that switch all quirks of one on together.

docs/replay-compat.md says what each does and why one would not want it otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pliant.schemas.errors import UsageError
from pliant.schemas.job import Batch, Gpus, Job
from pliant.schemas.text.digits import whole_number
from pliant.tools.profile.by_placement import ThroughputByPlacement
from pliant.tools.replay.compat.epochs import SimulatorEpochs, SteppedCut
from pliant.tools.replay.compat.oracle import Truth
from pliant.tools.replay.compat.whole_seconds import whole_second_end
from pliant.tools.replay.engine.simulated_cluster import Quirks
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.progress.protocol import ProgressModel
from pliant.tools.schedule.oracle import Oracle
from pliant.tools.schedule.policy import Policy

ROW: Final = "row"
"""Label in which importers note the place of a job in its file."""


def file_order(job: Job) -> tuple[float, str]:
    """Sort key of a job by the row of its file; jobs without one come after, by arrival."""
    row = whole_number(job.labels.get(ROW, ""))
    return (0.0, f"{row:018}") if row is not None else (1 + job.submit_time, job.id)


@dataclass(frozen=True, slots=True)
class Compat:
    """What differs from our own semantics. Without arguments, nothing does."""

    name: str = ""
    interval_s: float | None = None
    """Seconds between decisions, unless the replay says otherwise; None: what the policy prefers."""
    cost_s: float = 0.0
    """Seconds without progress after a start and after every change, unless the replay says otherwise."""
    quirks: Quirks = field(default_factory=Quirks)
    """Of the simulated cluster."""
    max_epochs: Mapping[str, int] = field(default_factory=dict)
    """Epochs of the jobs of some models."""
    most_local: Mapping[str, int] = field(default_factory=dict)
    """Largest local batch of some models, below the measured ones."""
    most_gpus: Mapping[str, int] = field(default_factory=dict)
    """Largest size of some models, for policies that choose sizes."""
    settled: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """GPUs and global batch that jobs of some models keep, for policies that choose both."""
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters of policies, unless the replay says otherwise."""


POLLUX: Final = Compat(
    name="pollux",
    interval_s=60.0,
    cost_s=30.0,
    quirks=Quirks(free_rebatch=True, first_round=1, order=file_order, segment_end=whole_second_end),
    max_epochs={"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50},
    most_local={"yolov3": 8},
    most_gpus={"ncf": 1},
    settled={"ncf": (1, 32768)},
    parameters={
        "tiresias": {"placement": "emptiest"},
        "optimus": {"placement": "emptiest"},
        "pollux": {"knowledge": "measured", "retune": "free", "lone_accumulation": True},
        "shadow-price": {"retune": "free"},
    },
)
"""The simulator of Pollux (OSDI '21)."""

PRESETS: Final[Mapping[str, Compat]] = {POLLUX.name: POLLUX}
NONE: Final = Compat()


def simulator_model(
    compat: Compat, inputs: Inputs, times: ThroughputByPlacement, round_s: float | None, *, stepwise: bool
) -> tuple[ProgressModel, Oracle]:
    """How jobs train in the simulator, and what policies know in it.

    :param round_s: seconds between decisions.
    :param stepwise: the batch may change after each epoch.
    """
    cut = SteppedCut(times, inputs.tables)
    model = SimulatorEpochs(inputs.tables, cut, compat.max_epochs, round_s=round_s, stepwise=stepwise)
    return model, Truth(model, cut, times, inputs.cluster, compat.most_gpus)


def preset(name: str | None) -> Compat:
    """A preset by name.

    :raises UsageError: there is none of that name.
    """
    if name is None:
        return NONE
    if name not in PRESETS:
        raise UsageError(f'--compat "{name}": expected one of {", ".join(PRESETS)}')
    return PRESETS[name]


def settle(compat: Compat, jobs: Iterable[Job], policy: Policy) -> list[Job]:
    """The jobs as a policy that chooses sizes and batches finds them: those of settled models are rigid."""
    if policy.elasticity != "size+batch":
        return list(jobs)
    return [_settled(job, *compat.settled[job.model]) if job.model in compat.settled else job for job in jobs]


def _settled(job: Job, gpus: int, batch: int) -> Job:
    update = {"gpus": Gpus(requested=gpus), "batch": Batch(size=batch), "elastic": "none"}
    return job.model_copy(update=update)
