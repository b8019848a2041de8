"""All replays of the experiment under the physics of the Pollux simulator, by group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from experiments.shadow_price.ablations import NAMES
from experiments.shadow_price.runs import IN_PLACE_S, OURS, Replay

SHORT: Final = ("w6", "w1", "philly1", "saturn1")
"""Workloads of 160 jobs over 8 hours."""
LONG: Final = "newtrace1"
TWO: Final = SHORT[:2]
QUICK: Final = (
    *(OURS, "allox", "ares", "ares-goodput", "drf", "drl", "elastic-dp", "fair-share", "fifo", "gavel"),
    *("gavel-ftf", "gavel-makespan", "las", "lucid", "max-bs", "min-bs", "optimus", "random-bs", "sjf"),
    *("srtf", "themis", "tiresias", "tiresias-gittins"),
)
"""Policies whose replay of a workload takes a few seconds."""
SLOW: Final = ("dorm", "ones", "pollux")
ON_LONG: Final = (OURS, "ares", "ares-goodput", "pollux", "srtf", "tiresias", "themis", "fair-share")
RIVALS: Final = (OURS, "pollux", "ares-goodput", "ares", "srtf", "tiresias")
FIXED: Final = (OURS, "pollux", "elastic-dp", "optimus", "ares", "srtf", "themis", "tiresias", "fair-share")
"""Policies that change sizes, and the best of those that do not, where no batch may change."""
LOADS: Final = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
SIGMAS: Final = (0.0, 0.5, 1.0)
ERRORS: Final = (0, 1, 2)
"""Seeds of the errors of estimates."""
SAMPLES: Final = (1, 2, 3, 4, 5)
PARAMETERS: Final[dict[str, tuple[float, ...]]] = {
    "rescale_s": (0.0, 15.0, 30.0, 60.0, 120.0),
    "dwell_s": (125.0, 250.0, 500.0, 1000.0, 2000.0),
    "ahead_s": (60.0, 300.0, 900.0, 1800.0, 3600.0),
    "sweeps": (0.0, 1.0, 3.0, 10.0),
    "future": (0.0, 0.2, 0.5, 0.7, 1.0),
}
GRACES: Final[dict[str, tuple[float, ...]]] = {
    "grace": (0.5, 1.0, 2.0, 4.0, 6.0),
    "grace_s": (0.0, 600.0, 3600.0),
}
"""Tried with fixed batches: where they are free, jobs of these workloads hardly come near the bound."""
GROUPS: Final = (
    "policies",
    "slow",
    "long",
    "fixed",
    "in-place",
    "estimates",
    "load",
    "samples",
    "parameters",
    "grace",
    "ablations",
)


def matrix(group: str) -> list[Replay]:
    """The replays of a group."""
    made: Iterator[Replay] = {
        "policies": _policies,
        "slow": _slow,
        "long": _long,
        "fixed": _fixed,
        "in-place": _in_place,
        "estimates": _estimates,
        "load": _load,
        "samples": _samples,
        "parameters": _parameters,
        "grace": _graces,
        "ablations": _ablations,
    }[group]()
    return list(made)


def _policies() -> Iterator[Replay]:
    yield from (Replay("policies", trace, policy) for trace in SHORT for policy in QUICK)


def _slow() -> Iterator[Replay]:
    yield from (Replay("policies", trace, policy) for trace in SHORT for policy in SLOW)


def _long() -> Iterator[Replay]:
    yield from (Replay("policies", LONG, policy) for policy in ON_LONG)


def _fixed() -> Iterator[Replay]:
    yield from (Replay("fixed", trace, policy, batch="fixed") for trace in SHORT for policy in FIXED)


def _in_place() -> Iterator[Replay]:
    rivals = (*RIVALS, "elastic-dp", "ones", "themis")
    for trace in SHORT:
        for policy in rivals:
            yield Replay("in-place", trace, policy, rescale_s=IN_PLACE_S)
        yield Replay("in-place-fixed", trace, batch="fixed", rescale_s=IN_PLACE_S)


def _estimates() -> Iterator[Replay]:
    for trace in TWO:
        for batch in ("free", "fixed"):
            for sigma in SIGMAS:
                for error in ERRORS if sigma else ERRORS[:1]:
                    parameters = {"sigma": sigma, "error_seed": error}
                    words = f"{batch}, sigma {sigma:g}"
                    yield Replay(
                        "estimates",
                        trace,
                        variant=words,
                        parameters=parameters,
                        batch=batch,  # type: ignore[arg-type]
                        work="mistaken",
                        seed=error,
                    )
        yield Replay("estimates", trace, variant="free, unknown", work="unknown")
        yield Replay("estimates", trace, variant="fixed, unknown", batch="fixed", work="unknown")
        for policy in (OURS, "srtf"):
            yield Replay("estimates", trace, policy, variant="free, predicted", work="predicted")


def _load() -> Iterator[Replay]:
    for trace in TWO:
        for load in LOADS:
            for policy in RIVALS:
                yield Replay("load", trace, policy, variant=f"{load:g}", load=load)


def _samples() -> Iterator[Replay]:
    for trace in ("w6", "philly1"):
        for sample in SAMPLES:
            for policy in RIVALS:
                yield Replay("samples", trace, policy, sample=sample)


def _parameters() -> Iterator[Replay]:
    for trace in TWO:
        for name, values in PARAMETERS.items():
            for value in values:
                parameters = {name: int(value) if name == "sweeps" else value}
                yield Replay("parameters", trace, variant=f"{name} {value:g}", parameters=parameters)
        yield Replay("parameters", trace, variant="retune paid", parameters={"retune": "paid"})


def _graces() -> Iterator[Replay]:
    for trace in TWO:
        for name, values in GRACES.items():
            for value in values:
                variant = f"{name} {value:g}"
                yield Replay("grace", trace, variant=variant, parameters={name: value}, batch="fixed")
        yield Replay("grace", trace, variant="grace none", parameters={"grace": None}, batch="fixed")


def _ablations() -> Iterator[Replay]:
    for trace in TWO:
        for name in ("", *NAMES):
            for batch in ("free", "fixed"):
                variant = f"{batch}, {name or 'whole'}"
                yield Replay("ablations", trace, variant=variant, batch=batch, ablation=name)  # type: ignore[arg-type]
