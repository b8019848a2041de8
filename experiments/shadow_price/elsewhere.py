"""shadow-price in the worlds of other experiments, whose own results hold what the others do there."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
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
_ON_OASIS: Final = (OURS, "oasis", "drf", "fair-share", "fifo", "rrh", "srtf", "tiresias")
_SLOT_S: Final = 1200.0
RECORDED: Final = "recorded"
_SHOWN: Final = {
    "ares": ("*-0-[!a]*", "*-0-a[!r]*", "*-0-ares", "*-0-ares-goodput"),
    "ones": ("main-*", "also-*"),
    "elastic-scaling": ("mixed-40-t?-*-modequeue*",),
}
"""Replays of other experiments that are shown beside ours."""


def elsewhere(group: str, folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Rows of a group: copies of those of the other experiment, and one for each replay that it lacks."""
    experiment, recipes = _WORLDS[group]()
    yield from _recorded(group, experiment)
    for name, recipe in recipes.items():
        for trace in recipe["traces"]:
            for policy in recipe["policies"]:
                one = recipe | {"traces": [trace], "policies": [policy]}
                yield (
                    f"{group}/{name}/{trace['name']}/{policy}",
                    partial(_row, group, name, one, folder),
                )


def _recorded(group: str, experiment: Experiment) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What the other experiment has replayed, as it is now: its results may be renewed without ours."""
    replays = json.loads(experiment.results.read_bytes())["replays"] if group in _SHOWN else {}
    for replay, figures in replays.items():
        if any(fnmatchcase(replay, pattern) for pattern in _SHOWN[group]):
            kept = {key: round(figures[key], 4) for key in KEPT if key in figures}
            words = {"group": group, "trace": "", "policy": "", "variant": RECORDED, "replay": replay}
            yield f"{group}/{RECORDED}/{replay}", partial(dict, {**words, **kept})


def _row(group: str, name: str, recipe: dict[str, Any], folder: Path) -> dict[str, Any]:
    experiment, _ = _WORLDS[group]()
    trace, policy = recipe["traces"][0]["name"], recipe["policies"][0]

    def prepare(into: Path, smoke: bool) -> None:
        experiment.prepare(into, smoke)
        (into / "ours.json").write_text(json.dumps(recipe))

    ours = replace(experiment, prepare=prepare)
    found = carry_out(ours, folder / f"{group}-{name}-{trace}-{policy}", sweeps=["ours.json"])
    (outcome,) = found.values()
    kept = {key: round(outcome.metrics[key], 4) for key in KEPT if key in outcome.metrics}
    words = {"group": group, "trace": trace, "policy": policy, "variant": name}
    return {**words, "seed": outcome.seed, "trace_hash": outcome.trace_hash, **kept}


def _ares() -> tuple[Experiment, Recipes]:
    """The three families and the testbed, decisions every minute, rescale costs of the paper."""
    ours = {
        Path(name).stem.removesuffix("-60"): recipe | {"policies": [OURS]}
        for name, recipe in sweeps()
        if name.endswith("-60.json")
    }
    return load("ares"), ours


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
    (trace,) = recipe["traces"]
    traces = [trace | {"name": f"{trace['name']}-t{seed}", "seeds": [seed]} for seed in trace["seeds"]]
    return experiment, {"queue": recipe | {"policies": [OURS], "traces": traces}}


def _oasis() -> tuple[Experiment, Recipes]:
    """Its mix of jobs with utilities on 128 GPUs of 16 servers, decisions once a slot, two seeds."""

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
        "traces": [{"name": f"mix-{seed}", "synth": "mix.json", "seeds": [seed]} for seed in (0, 1)],
        "clusters": [{"name": "servers", "path": "servers.json"}],
    }
    return experiment, {"mix": recipe}


_WORLDS: Final[dict[str, Callable[[], tuple[Experiment, Recipes]]]] = {
    "ares": _ares,
    "ones": _ones,
    "elastic-scaling": _elastic,
    "oasis": _oasis,
}
