"""The options of a replay, each declared once: a field with its type, default, bounds and words.

The command makes its options of these dataclasses without loading what a replay needs; recipes of sweeps
and their tasks inherit the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt

from pliant.schemas.errors import UsageError
from pliant.schemas.quantities import Duration

SHORTEST_INTERVAL_S: Final = 0.001
"""Seconds between rounds; a shorter interval would hardly move the clock."""
_SHORTEST_H: Final = 0.001
_COST: Final = "a DURATION, MODEL=DURATION,…, profile for its costs, or a run's event file for the run's."

DEFAULT_COST_S: Final = 30.0
"""Seconds of a start, and of a change, where neither an option nor the profile says more.

What the simulator of Pollux charges for both. A relaunch takes 6 to 8 s here with the smallest of models, and
most of its time is of loading and of imports; real models took the authors of Ares 1 to 73 s.
"""
_UNSTATED: Final = f"what the profile measured, else {DEFAULT_COST_S:g} s"

ProgressName = Literal["samples", "goodput", "epochs"]
SpeedsName = Literal["additive", "placement", "learned"]
DemandName = Literal["stated", "predicted", "oracle"]
PreemptibleName = Literal["all", "stated"]

INPUTS: Final = "What is replayed"
POLICIES: Final = "Policies"
CLUSTER: Final = "The simulated cluster"


@dataclass(frozen=True, slots=True)
class Option:
    """How a command shows a field as an option."""

    help: str
    panel: str | None = None
    """Heading of the help under which it stands; None: the last one."""
    metavar: str | None = None
    default: str | None = None
    """The default in words, where it is not a value."""
    names: tuple[str, ...] = ()
    """On the command line; empty: the field's name."""
    given_as: object = None
    """Type on the command line; None: that of the field."""
    is_argument: bool = False
    """Whether it is given without a name: the main file of a command."""


JobsFile = Annotated[
    str | None,
    Option(
        "The trace (JSON Lines; - is stdin), or a folder that trace import wrote.",
        INPUTS,
        metavar="JOBS",
        is_argument=True,
    ),
]
ProfileFile = Annotated[str | None, Option("Measured speeds (Parquet).", INPUTS, default="1 sample/s a GPU")]
ConvergenceFile = Annotated[
    str | None,
    Option(
        "Validation runs (Parquet); jobs that name one of its models train by its epochs, or with --progress "
        "samples report its losses and metrics.",
        INPUTS,
    ),
]
JobsLimit = Annotated[int | None, Ge(1), Option("Replay only this many jobs, the first to arrive.", INPUTS)]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is the same for all replays of a sweep: how often policies decide, how the cluster behaves."""

    interval: Annotated[
        float | None,
        Ge(0),
        Duration(),
        Option("Time between decisions; 0: at every change.", POLICIES, default="what each policy prefers"),
    ] = None
    demand: Annotated[
        DemandName,
        Option(
            "What policies see of jobs' work: what the trace states; predictions, which learn as jobs end; "
            "or when each job will end, which no scheduler knows.",
            POLICIES,
        ),
    ] = "stated"
    preemptible: Annotated[
        PreemptibleName,
        Option(
            "Whose GPUs policies may take or change: of all jobs; or of those that state or show that they "
            "can save (elastic, resize, checkpoint_seconds, preemptible).",
            POLICIES,
        ),
    ] = "all"
    predictor: Annotated[
        str | None,
        Option(
            "Predictor to start from (JSON, by pliant predictor fit).",
            POLICIES,
            default="nothing is known",
        ),
    ] = None
    rescale_cost: Annotated[
        str | None,
        Option(f"Time without training when a job's GPUs change: {_COST}", CLUSTER, default=_UNSTATED),
    ] = None
    start_cost: Annotated[
        str | None, Option(f"Time without training at a first start: {_COST}", CLUSTER, default=_UNSTATED)
    ] = None
    resume_cost: Annotated[
        str | None,
        Option(
            "Time without training at a start after a preemption or a failure.",
            CLUSTER,
            default="what --rescale-cost says or has measured",
        ),
    ] = None
    progress: Annotated[
        ProgressName | None,
        Option(
            "How work advances: by samples; by samples less the gradient noise of large batches; or by the "
            "epochs of --convergence.",
            CLUSTER,
            default="epochs where there is a table, else samples",
        ),
    ] = None
    noise_scale: Annotated[
        Mapping[str, Annotated[float, Gt(0)]] | None,
        Option(
            "Gradient noise scale for --progress goodput where there is no table: SAMPLES or MODEL=SAMPLES,…",
            CLUSTER,
            metavar="SAMPLES",
            given_as=str | None,
        ),
    ] = None
    """By model; "" stands for all others."""
    speeds: Annotated[
        SpeedsName,
        Option(
            "Between what the profile measured: a model of computing and sync by size, or step times "
            "interpolated over placements. learned: jobs train as under additive (--compat: placement), and "
            "policies know no more of that than what jobs have measured by then.",
            CLUSTER,
        ),
    ] = "additive"
    compat: Annotated[
        str | None,
        Option(
            "Replay with the quirks of a published simulator: pollux, sia or shockwave. See "
            "docs/replay-compat.md.",
            CLUSTER,
            metavar="NAME",
        ),
    ] = None
    failures: Annotated[
        str | None,
        Option(
            'Nodes that go down and up: JSON Lines, {"time": 60, "node": "n0", "event": "down"}.', CLUSTER
        ),
    ] = None
    mtbf: Annotated[
        float | None,
        Ge(_SHORTEST_H),
        Duration("h"),
        Option(
            "Mean time between failures of a node; they are drawn with --seed. A plain number is in hours.",
            CLUSTER,
            default="no failures",
        ),
    ] = None
    repair: Annotated[
        float,
        Ge(_SHORTEST_H),
        Duration("h"),
        Option("Mean time until a failed node is back. A plain number is in hours.", CLUSTER, default="1h"),
    ] = 1.0
    interference: Annotated[
        float,
        Option(
            "Part of their speed, 0 to below 1, that jobs lose to each other where they span several nodes "
            "and share one.",
            CLUSTER,
            metavar="PART",
        ),
    ] = 0.0
    strict: Annotated[bool, Option("Fail where the inputs leave something open, instead of assuming it.")] = (
        False
    )

    def wrong(self) -> Iterator[tuple[str, str]]:
        """(field, what is wrong with it), beyond the bounds of its type."""
        if self.interval and not SHORTEST_INTERVAL_S <= self.interval < inf:
            yield "interval", f"{self.interval:g}: expected 0, or {SHORTEST_INTERVAL_S:g} s or more"
        if self.predictor is not None and self.demand != "predicted":
            yield "predictor", f"{self.predictor}: it predicts with --demand predicted only"
        if not 0 <= self.interference < 1:
            yield "interference", f"{self.interference:g}: expected a part of the speed, from 0 to below 1"
        if self.mtbf is None and self.repair != Conditions.repair:
            yield "repair", f"{self.repair:g}: no node fails without mtbf"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Conditions):
    """What replays of one trace share, under whichever policies."""

    jobs: JobsFile = None
    cluster: Annotated[
        str | None,
        Option(
            "The cluster (JSON).",
            INPUTS,
            default="as many GPUs as the trace recorded at a time, where it did",
        ),
    ] = None
    profile: ProfileFile = None
    convergence: ConvergenceFile = None
    jobs_limit: JobsLimit = None
    shares: Annotated[
        str | None,
        Option(
            "Teams that share the cluster: a JSON file as the shares of a cluster, user for a team for each "
            "user, or label:NAME for one for each value of that label.",
            CLUSTER,
            metavar="FILE|user|label:NAME",
            default="what the cluster says",
        ),
    ] = None
    seed: Annotated[int, Ge(0), Option("Seed of policies that decide at random.", POLICIES)] = 0


def parse_noise_scales(text: str | None) -> dict[str, float]:
    """Noise scales by model from ``SAMPLES`` or ``MODEL=SAMPLES,…``; "" stands for all other models."""
    expected = "expected samples above 0, or MODEL=SAMPLES"
    parts = stated_numbers(text, "--noise-scale", _samples, expected) if text else ()
    return {model or "": samples for model, samples in parts}


def _samples(text: str) -> float:
    samples = float(text)
    if not 0 < samples < inf:
        raise ValueError
    return samples


def stated_numbers(
    text: str, option: str, read: Callable[[str], float], expected: str
) -> Iterator[tuple[str | None, float]]:
    """(model, number) of each part of ``NUMBER`` or ``MODEL=NUMBER,…``; the model of a bare number is None.

    :param read: raises ValueError for what does not fit.
    :raises UsageError: a number is missing or does not fit, or a model has no name.
    """
    for part in text.split(","):
        model, equals, number = part.rpartition("=")
        try:
            value = read(number)
        except ValueError:
            value = None
        if value is None or (equals and not model.strip()):
            raise UsageError(f'{option} "{part}": {expected}')
        yield model if equals else None, value
