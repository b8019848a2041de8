"""shadow-price in the worlds of other experiments, whose own results hold what the others do there."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from experiments.ares.workloads import sweeps
from experiments.harness.replays import carry_out
from experiments.harness.spec import Experiment, load
from experiments.ones.scenes import MAIN
from experiments.shadow_price.runs import KEPT, OURS
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster

ELSEWHERE: Final = ("ares", "ones", "elastic-scaling", "oasis")
Recipes = dict[str, dict[str, Any]]
Rows = dict[str, dict[str, Any]]
_ON_OASIS: Final = (OURS, "oasis", "drf", "fair-share", "fifo", "rrh", "srtf", "tiresias")
_SLOT_S: Final = 1200.0
_SHOWN: Final = {
    "ares": ("philly-[0-9]-*", "saturn-[0-9]-*", "newtrace-0-*", "testbed-0-*"),
    "ones": ("main-*", "also-*"),
    "elastic-scaling": ("mixed-40-t?-*-modequeue*",),
}
"""Replays of other experiments that are shown beside ours, but for other parameters of a policy."""


def elsewhere(group: str, folder: Path, *, smoke: bool = False) -> Iterator[tuple[str, Callable[[], Rows]]]:
    """For each recipe what makes our rows, by name; in the smoke form of few jobs."""
    _, recipes = _WORLDS[group]()
    for name, recipe in recipes.items():
        yield f"{group}/{name}", partial(_ours, group, name, recipe, folder, smoke)


@lru_cache
def theirs(group: str) -> Rows:
    """What the results of the other experiment hold of the replays that are shown, by replay."""
    replays: Rows = json.loads(load(group).results.read_bytes())["replays"]
    return {
        replay: figures
        for replay, figures in replays.items()
        if "alpha" not in replay and any(fnmatchcase(replay, pattern) for pattern in _SHOWN[group])
    }


def _ours(group: str, name: str, recipe: dict[str, Any], folder: Path, smoke: bool) -> Rows:
    experiment, _ = _WORLDS[group]()

    def prepare(into: Path, smoke: bool) -> None:
        experiment.prepare(into, smoke)
        (into / "ours.json").write_text(json.dumps(recipe))

    ours = replace(experiment, prepare=prepare)
    found = carry_out(ours, folder / f"{group}-{name}", sweeps=["ours.json"], smoke=smoke)
    rows = {}
    for replay, outcome in found.items():
        policy = max((each for each in recipe["policies"] if replay.endswith(f"-{each}")), key=len)
        trace = replay.removesuffix(f"-{policy}")
        kept = {key: round(outcome.metrics[key], 4) for key in KEPT if key in outcome.metrics}
        words = {"group": group, "trace": trace, "policy": policy, "variant": name}
        rows[f"{group}/{name}/{replay}"] = {
            **words,
            "seed": outcome.seed,
            "trace_hash": outcome.trace_hash,
            **kept,
        }
    return rows


def _ares() -> tuple[Experiment, Recipes]:
    """The samples of the three families, of newTrace one, and the testbed; decisions every minute."""
    made = dict(sweeps())
    found = {}
    for family in ("philly", "saturn", "newtrace", "testbed"):
        recipe = made[f"{family}-60.json"] | {"policies": [OURS]}
        found[family] = recipe | {"traces": recipe["traces"][: 1 if family == "newtrace" else None]}
    return load("ares"), found


def _ones() -> tuple[Experiment, Recipes]:
    """The seeds of the paper's comparison, with the costs of ``ones`` and with those of the others."""
    made = {name: recipe | {"policies": [OURS]} for name, recipe in MAIN.sweeps()}
    for recipe in made.values():
        recipe.pop("parameters", None)
    in_place, others = made[f"{MAIN.name}-in-place.json"], made[f"{MAIN.name}-others.json"]
    return load("ones"), {
        "in-place": in_place,
        "at-change": in_place | {"interval": 0.0},
        "others": others,
    }


def _elastic() -> tuple[Experiment, Recipes]:
    """The mixed runs on 40 GPUs, jobs queued, five seeds."""
    experiment = load("elastic-scaling")
    recipe = tomllib.loads((experiment.folder / "queue-40.toml").read_text())
    del recipe["parameters"]
    return experiment, {"queue": recipe | {"policies": [OURS]}}


def _oasis() -> tuple[Experiment, Recipes]:
    """Its mix of jobs with utilities on 128 GPUs of 16 servers, decisions once a slot."""

    def prepare(into: Path, smoke: bool) -> None:
        fields = {"kind": "oasis", "jobs": 6 if smoke else 100, "hours": 100 * _SLOT_S / 3600}
        fields["oasis"] = {"slot_s": _SLOT_S, "minibatches": [1, 1]}
        (into / "mix.json").write_text(json.dumps(fields))
        servers = {"name": "w{}", "gpus": 8, "count": 16, "cpus": 64, "memory": 512 * 10**9}
        ps = {"name": "p{}", "gpus": 0, "count": 16, "cpus": 36, "memory": 60 * 10**9}
        nodes = ({**servers, "bandwidth": 6.25e9}, ps)
        write_cluster(Cluster.model_validate({"nodes": nodes}), into / "servers.json")

    experiment = Experiment(name="oasis", title="", paper="", sweeps=(), prepare=prepare)
    recipe = {
        "policies": list(_ON_OASIS),
        "interval": _SLOT_S,
        "traces": [{"name": "mix", "synth": "mix.json", "seeds": [0]}],
        "clusters": [{"name": "servers", "path": "servers.json"}],
    }
    return experiment, {"mix": recipe}


_WORLDS: Final[dict[str, Callable[[], tuple[Experiment, Recipes]]]] = {
    "ares": _ares,
    "ones": _ones,
    "elastic-scaling": _elastic,
    "oasis": _oasis,
}
