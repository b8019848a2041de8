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
_FEW: Final = {"generations": [2], "population": [32]}
"""How much ``ones`` searches; the row "searches more" says what its defaults change."""


def _request(most: int) -> dict[str, int]:
    """Jobs request what the trace states, up to so many GPUs."""
    return {"most_requested": most}


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
    ones: Mapping[str, Any] = field(default_factory=lambda: dict(_FEW))
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


MAIN: Final = Scene("main", seeds=(0, 1, 2))
ALSO: Final = Scene("also", policies=OTHERS)
SCALING: Final = tuple(Scene(f"gpus{size}", gpus=size) for size in (16, 32, 48))
ROWS: Final = (
    Scene("more", "ones searches more: its defaults, 8 generations of 64 genomes", ones={}, policies=_ONES),
    Scene(
        "each",
        "ones changes each job after its epoch, not all",
        ones={**_FEW, "update": ["each"]},
        policies=_ONES,
    ),
    Scene("sigma", "ones scales no job down", ones={**_FEW, "sigma": [0.0]}, policies=_ONES),
    Scene("even", "all jobs of a kind take the recorded epochs", jobs={"spread": 0.0}),
    Scene(
        "node8", "speeds recorded on, and jobs requesting, up to 8 GPUs", World(recorded_on=8), _request(8)
    ),
    Scene("literal", "the same, up to the 16 GPUs of the trace", World(recorded_on=16), _request(16)),
    Scene("asking", "jobs alone request up to the 16 GPUs of the trace", jobs=_request(16)),
    Scene("one", "jobs request one GPU", jobs=_request(1)),
    Scene("two", "jobs request up to two GPUs", jobs=_request(2)),
    Scene("stated", "the trace's batch is that of the whole job", jobs={"stated_batch": True}),
    Scene("linear", "no part of a step is without samples", World(fixed=0.0)),
    Scene("cheap", "another GPU adds a quarter as much to a step", World(sync=0.25)),
    Scene("dear", "another GPU adds twice as much to a step", World(sync=2.0)),
    Scene("noise", "larger batches take more epochs: a gradient noise scale of 1,000", noise="1000"),
    Scene("busy", "jobs arrive every 20 s", arrivals=2 / 3),
    Scene("free", "starts and changes cost nothing", start_s=0, in_place_s=0, checkpoint_s=0),
    Scene("slow", "checkpoints cost 40 s", checkpoint_s=40.0),
    Scene("equal", "all schedulers change sizes in place", checkpoint_s=1.0),
    Scene("rounds", "Optimus decides every minute", optimus_s=60.0, policies=("optimus",)),
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
