"""What is replayed: the paper's comparison, other sizes of the cluster, and each assumption varied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments.ones.model import World

PAPER: Final = ("ones", "drl", "tiresias", "optimus")
"""The schedulers that the paper compares."""
OTHERS: Final = ("pollux", "ares", "elastic-dp", "fair-share")
"""Those that pliant has besides."""
GPUS: Final = 64
_ONES: Final = ("ones",)


def _request(most: int) -> dict[str, int]:
    """Jobs request what the trace states, up to so many GPUs."""
    return {"most_requested": most}


def _with(**parameters: Any) -> dict[str, list[Any]]:
    """Parameters of ``ones``, as a sweep has them."""
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
    optimus_s: float = 600.0
    queue_gpu_hours: str = "0.25,1"
    """Thresholds of Tiresias's queues."""
    noise: str = ""
    """Gradient noise scale: larger batches take more epochs; empty: they do not."""
    ones: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of ``ones``."""
    policies: tuple[str, ...] = PAPER
    seeds: tuple[int, ...] = (0,)

    def sweeps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(file, recipe) of each sweep; costs and intervals are those of all policies of a sweep."""
        parameters = {"ones": self.ones, "tiresias": {"queue_gpu_hours": [self.queue_gpu_hours]}}
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
            yield f"{self.name}-{group}.json", recipe

    def _trace(self, seed: int) -> dict[str, str]:
        return {
            "name": f"{self.name}-s{seed}",
            "jobs": f"{self.name}-{seed}.jsonl",
            "profile": f"{self.name}.parquet",
        }


_SEEDS: Final = (0, 1, 2)
MAIN: Final = Scene("main", seeds=_SEEDS)
ALSO: Final = Scene("also", policies=OTHERS, seeds=_SEEDS)
SCALING: Final = tuple(Scene(f"gpus{size}", gpus=size) for size in (16, 32))
ROWS: Final = (
    Scene(
        "all",
        "ones waits until all running jobs have done an epoch",
        ones=_with(update="all"),
        policies=_ONES,
    ),
    Scene(
        "epochs",
        "ones waits for an epoch below the submitted batch, too",
        ones=_with(below_submitted="epochs"),
        policies=_ONES,
    ),
    Scene(
        "down", "ones scales every long job down while others wait", ones=_with(convoy=0.0), policies=_ONES
    ),
    Scene("faster", "GPUs are 1.75 times as fast as the recorded ones", World(faster=1.75)),
    Scene("recorded", "jobs are submitted with the recorded batch", jobs={"batch_of": 16}),
    Scene("stated", "jobs are submitted with the trace's batch for all their GPUs", jobs={"batch_of": 1}),
    Scene("asking", "jobs request up to the 16 GPUs of the trace", jobs=_request(16)),
    Scene("two", "jobs request up to two GPUs", jobs=_request(2)),
    Scene("rounds", "Optimus decides every 400 s", optimus_s=400.0, policies=("optimus",)),
    Scene("queues", "Tiresias has one threshold: 16 GPU-hours", queue_gpu_hours="16", policies=("tiresias",)),
)
SCENES: Final = (MAIN, ALSO, *SCALING, *ROWS)


def sweep_files() -> tuple[str, ...]:
    """The recipes of all scenes."""
    return tuple(name for scene in SCENES for name, _ in scene.sweeps())


def write_sweeps(folder: Path) -> None:
    """Write all recipes."""
    for scene in SCENES:
        for name, recipe in scene.sweeps():
            (folder / name).write_text(json.dumps(recipe, indent=1))
