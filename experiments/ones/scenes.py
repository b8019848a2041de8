"""What is replayed: the paper's comparison, other sizes of the cluster, and each assumption varied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from experiments.ones.model import World

PAPER: Final = ("ones", "drl", "tiresias", "optimus")
"""The schedulers that the paper compares."""
OTHERS: Final = ("pollux", "ares", "elastic-dp", "fair-share")
"""Those that pliant has besides."""
GPUS: Final = 64
TAUGHT: Final = Path(__file__).with_name("taught.json")
"""Another network of drl: ``train-published.toml`` makes it."""
HISTORY: Final = "recorded-epochs.parquet"
"""Losses and accuracies of the recorded jobs, by kind and size of the dataset."""
NARROW: Final = "narrow.json"
"""A predictor that does not widen its distributions."""
_ONES: Final = ("ones",)
_PREDICTING: Final = ("ones", "drl", "optimus")
"""The schedulers that ask how much work is left."""


def _request(most: int) -> dict[str, int]:
    """Jobs request what the trace states, up to this many GPUs."""
    return {"most_requested": most}


def _with(**parameters: Any) -> dict[str, list[Any]]:
    """Parameters of a policy, as a sweep has them."""
    return {name: [value] for name, value in parameters.items()}


@dataclass(frozen=True, slots=True)
class Scene:
    """One comparison: a workload, a cluster, costs, and who takes part."""

    name: str
    words: str = ""
    """What differs from the base; empty where it is no row of the table of assumptions."""
    world: World = field(default_factory=World)
    jobs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``workloads.jobs_of``."""
    arrivals: float = 1.0
    """Factor of all times between arrivals."""
    gpus: int = GPUS
    start_s: float = 10.0
    in_place_s: float = 1.0
    """A change of size under ``ones``."""
    checkpoint_s: float = 20.0
    """A change of size under all others, and a resume."""
    optimus_s: float = 400.0
    demand: Literal["stated", "predicted"] = "predicted"
    """What schedulers see of the work of jobs."""
    queue_gpu_hours: str = "0.25,1"
    """Thresholds of Tiresias's queues."""
    noise: str = ""
    """Gradient noise scale: larger batches take more epochs; empty: they do not."""
    reports: bool = True
    """Whether jobs report losses and accuracies, as the recorded ones; with gradient noise they do not."""
    widened: bool = True
    """Whether the predicted Beta distribution is widened."""
    ones: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of ``ones``."""
    drl: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of ``drl``."""
    policies: tuple[str, ...] = PAPER
    like: str = "main"
    """The scene whose replays stand for the schedulers that this one does not touch."""
    seeds: tuple[int, ...] = (0,)

    def sweeps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(file, recipe) of each sweep; costs and intervals are those of all policies of a sweep."""
        parameters = {
            "ones": self.ones,
            "drl": self.drl,
            "tiresias": {"queue_gpu_hours": [self.queue_gpu_hours]},
        }
        groups = {
            "in-place": (("ones",), self.in_place_s, None),
            "rounds": (("optimus",), self.checkpoint_s, self.optimus_s),
            "others": (
                tuple(name for name in self.policies if name not in ("ones", "optimus")),
                self.checkpoint_s,
                None,
            ),
        }
        for group, (names, rescale_s, interval_s) in groups.items():
            chosen = [name for name in names if name in self.policies]
            if not chosen:
                continue
            recipe: dict[str, Any] = {
                "policies": chosen,
                "demand": self.demand,
                "start_cost": f"{self.start_s:g}",
                "rescale_cost": f"{rescale_s:g}",
                "resume_cost": f"{self.checkpoint_s:g}",
                "traces": [self._trace(seed) for seed in self.seeds],
                "clusters": [{"name": f"c{self.gpus}", "path": f"cluster-{self.gpus}.json"}],
                "parameters": {name: parameters[name] for name in chosen if parameters.get(name)},
            }
            if interval_s is not None:
                recipe["interval"] = interval_s
            if self.noise:
                recipe |= {"progress": "goodput", "noise_scale": {"": float(self.noise)}}
            else:
                recipe["progress"] = "samples"
            if not self.widened:
                recipe["predictor"] = NARROW
            yield f"{self.name}-{group}.json", recipe

    def _trace(self, seed: int) -> dict[str, str]:
        files = {"jobs": f"{self.name}-{seed}.jsonl", "profile": f"{self.name}.parquet"}
        if self.reports and not self.noise:
            files["convergence"] = HISTORY
        return {"name": f"{self.name}-s{seed}", **files}


_SEEDS: Final = (0, 1, 2)
MAIN: Final = Scene("main", seeds=_SEEDS)
ALSO: Final = Scene("also", policies=OTHERS, seeds=_SEEDS)
SCALING: Final = tuple(Scene(f"gpus{size}", gpus=size, seeds=_SEEDS) for size in (16, 32, 48))
_HOLDING: Final = _with(update="all", idle_gpus="hold")
ROWS: Final = (
    Scene(
        "all",
        "ones waits until all jobs that run have done an epoch",
        ones=_with(update="all"),
        policies=_ONES,
    ),
    Scene("hold", "ones waits so, and GPUs that nothing holds wait with it", ones=_HOLDING, policies=_ONES),
    Scene(
        "epochs",
        "ones waits for an epoch below the submitted batch, too",
        ones=_with(below_submitted="epochs"),
        policies=_ONES,
    ),
    Scene(
        "down", "ones scales every long job down while others wait", ones=_with(convoy=0.0), policies=_ONES
    ),
    Scene(
        "taught",
        "drl has learnt from jobs like these",
        drl=_with(network=TAUGHT.name),
        policies=("drl",),
        seeds=_SEEDS,
    ),
    Scene("rounds", "Optimus decides every 600 s", optimus_s=600.0, policies=("optimus",), seeds=_SEEDS),
    Scene(
        "queues",
        "Tiresias has one threshold: 16 GPU-hours",
        queue_gpu_hours="16",
        policies=("tiresias",),
        seeds=_SEEDS,
    ),
    Scene("knowing", "jobs state their work", demand="stated", policies=_PREDICTING, seeds=_SEEDS),
    Scene("silent", "jobs report neither losses nor accuracies", reports=False, policies=_PREDICTING),
    Scene("narrow", "the predicted distribution is not widened", widened=False, policies=_PREDICTING),
    Scene("history", "jobs take the recorded epochs", jobs={"shorter": None}),
    Scene("unscaled", "jobs take the artifact's execution times as they are", jobs={"shorter": 1.0}),
    Scene("even", "no factor is drawn (σ = 0)", jobs={"spread": 0.0}),
    Scene("uneven", "the factor is wider (σ = 0.5)", jobs={"spread": 0.5}),
    Scene("one", "jobs request 1 GPU", jobs=_request(1), seeds=_SEEDS),
    Scene(
        "often",
        "jobs request 1 GPU, and Optimus decides every 200 s",
        jobs=_request(1),
        optimus_s=200.0,
        policies=("optimus",),
        like="one",
        seeds=_SEEDS,
    ),
    Scene("two", "jobs request up to 2 GPUs", jobs=_request(2), seeds=_SEEDS),
    Scene(
        "twohold",
        "jobs request up to 2 GPUs, and ones waits with idle GPUs, too",
        jobs=_request(2),
        ones=_HOLDING,
        policies=_ONES,
        like="two",
        seeds=_SEEDS,
    ),
    Scene("eight", "jobs request up to 8 GPUs", jobs=_request(8)),
    Scene("asking", "jobs request up to the 16 GPUs of the trace", jobs=_request(16)),
    Scene("batch1", "jobs are submitted with the trace's batch for all their GPUs", jobs={"batch_of": 1}),
    Scene("batch16", "jobs are submitted with the recorded batch", jobs={"batch_of": 16}),
    Scene("busier", "arrivals are 1.25 times as many", arrivals=0.8),
    Scene("calmer", "arrivals are 0.8 times as many", arrivals=1.25),
    Scene("held", "recorded jobs had 4 GPUs at most, which held as much more", World(recorded_on=4)),
    Scene("slower", "GPUs are those of the recorded run", World(faster=1.0)),
    Scene("fastsync", "another GPU adds half as much to a step", World(sync=0.5)),
    Scene("slowsync", "another GPU adds twice as much to a step", World(sync=2.0)),
    Scene("nofixed", "every part of a step on one GPU depends on the samples", World(fixed=0.0)),
    Scene("fixed", "half of a step on one GPU depends on no sample", World(fixed=0.5)),
    Scene("noise", "larger batches take more epochs (gradient noise scale 1000)", noise="1000"),
    Scene("starts", "starting costs 30 s", start_s=30.0),
    Scene("equal", "ones pays 20 s for a change of size, too", in_place_s=20.0, policies=_ONES),
    Scene("cheap", "resuming costs 1 s, and a change of size under all schedulers", checkpoint_s=1.0),
)
SCALED: Final = {
    row.name: tuple(
        replace(
            row,
            name=f"{row.name}{each.gpus}",
            words="",
            gpus=each.gpus,
            like=each.name if row.like == MAIN.name else f"{row.like}{each.gpus}",
        )
        for each in SCALING
    )
    for row in ROWS
    if row.name in ("knowing", "one", "often", "two")
}
"""Figure 17 under some of the rows."""
SCENES: Final = (MAIN, ALSO, *ROWS, *SCALING, *(scene for scenes in SCALED.values() for scene in scenes))


def sweep_files() -> tuple[str, ...]:
    """The recipes of all scenes."""
    return tuple(name for scene in SCENES for name, _ in scene.sweeps())


def write_sweeps(folder: Path) -> None:
    """Write all recipes."""
    for scene in SCENES:
        for name, recipe in scene.sweeps():
            (folder / name).write_text(json.dumps(recipe, indent=1))
