"""What the trainings say: figures of each way to train, and the papers' claims beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from experiments.accuracy.arms import DRAWN, LARGER, REFERENCE
from experiments.harness.spec import Findings
from pliant.tools.report.rendering.text import markdown_table

ROUNDING: Final = 1e-12
"""Losses that differ by less than this part are equal but for the rounding of 64-bit numbers."""
LIKE_REGROUPED: Final = 10.0
"""Rounding grows while a network trains: by the end, weights may differ as many times as much as those of a
training without any resize whose sums are only grouped in another way."""
MANY_EPOCHS: Final = 3
DRAWN_POINTS: Final = 0.5
"""The elastic-scaling paper, figure 2."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training. Epochs count from 0."""

    arm: str
    seed: int
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]
    loss_off: tuple[float, ...]
    """From the reference's, as a part of it."""
    weights_off: float
    """The largest difference from the reference's at the end, as a part of the largest weight."""
    first: int
    """The epoch of the first change."""

    @property
    def points(self) -> float:
        """Accuracy at the end, in percent."""
        return 100 * self.accuracy[-1]

    @property
    def rise(self) -> float:
        """The highest loss of an epoch after the first change, as a multiple of the one before it."""
        return max(self.loss[self.first :]) / self.loss[self.first - 1]

    @property
    def epochs_back(self) -> int:
        """Epochs after the first change until the loss is back where it was."""
        later = self.loss[self.first :]
        return next((n for n, loss in enumerate(later) if loss <= self.loss[self.first - 1]), len(later))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says, what came out here, and whether that is the same."""

    source: str
    words: str
    ours: str
    holds: bool


class Runs:
    """All trainings of a study."""

    def __init__(self, found: Findings) -> None:
        first = found["scale"]["first"]
        self.words: Mapping[str, str] = found["arms"]
        self.all = [
            Run(
                row["arm"],
                row["seed"],
                tuple(row["loss"]),
                tuple(row["accuracy"]),
                tuple(row["loss_off"]),
                row["weights_off"],
                first,
            )
            for row in found["runs"]
        ]

    def of(self, arm: str) -> list[Run]:
        """Those of one arm, by seed."""
        return sorted((run for run in self.all if run.arm == arm), key=lambda run: run.seed)

    def differences(self, arm: str, reference: str = REFERENCE) -> list[float]:
        """Points of accuracy at the end above the reference's, seed by seed."""
        pairs = zip(self.of(arm), self.of(reference), strict=True)
        return [run.points - other.points for run, other in pairs]

    @property
    def spread(self) -> float:
        """Points of accuracy between the best and the worst seed of the reference."""
        points = [run.points for run in self.of(REFERENCE)]
        return max(points) - min(points)


def facts(found: Findings) -> Mapping[str, Any]:
    """What the page's template wants to know."""
    runs = Runs(found)
    return {
        "table": _table(runs),
        "claims": claims(runs),
        "runs": runs,
        "rounding": ROUNDING,
        "like_regrouped": LIKE_REGROUPED,
        "many_epochs": MANY_EPOCHS,
        "drawn_points": DRAWN_POINTS,
    }


def most(values: Sequence[float]) -> float:
    """The largest, whatever the sign."""
    return max(abs(value) for value in values)


def claims(runs: Runs) -> list[Claim]:
    """The papers' words and ours."""
    return [_same_batch(runs), _larger_batch(runs), _drawn_batches(runs), _jump(runs), _steps(runs)]


def _same_batch(runs: Runs) -> Claim:
    found = runs.of("elastic")
    first = max(run.loss_off[run.first] for run in found)
    off, regrouped = (max(run.weights_off for run in runs.of(arm)) for arm in ("elastic", "regrouped"))
    points = most(runs.differences("elastic"))
    return Claim(
        "Ares, 3.1 and figure 2",
        "With a constant global batch, the number of GPUs changes the accuracy by 2 % at most; the seed "
        "changes it by up to 4.5 %.",
        f"The resized gang ends {points:.1f} points of accuracy from the fixed one; seeds differ by up to "
        f"{runs.spread:.1f} points. In the first epoch with two workers its loss is off by a part of "
        f"{first:.0e}; at the end its weights are by {off:.0e} of the largest, those of the regrouped "
        f"training by {regrouped:.0e}.",
        first <= ROUNDING and off <= LIKE_REGROUPED * regrouped and points <= runs.spread,
    )


def _larger_batch(runs: Runs) -> Claim:
    points = {k: most(runs.differences(f"larger-{k}")) for k in LARGER}
    listing = ", ".join(f"{value:.1f} at × {k}" for k, value in points.items())
    return Claim(
        "Ares, 3.1 and figure 2",
        "A global batch that grows with the GPUs changes it by up to 23 %.",
        f"Up to {max(points.values()):.1f} points ({listing}).",
        max(points.values()) > max(runs.spread, most(runs.differences("elastic"))),
    )


def _drawn_batches(runs: Runs) -> Claim:
    means = [fmean(runs.differences(arm)) for arm in DRAWN]
    return Claim(
        "Elastic scaling, II-C and figure 2",
        "Batches between a quarter and twice the fixed one, changed at random epochs, end within 0.5 % of "
        "its accuracy.",
        f"In the mean over the seeds they end {', '.join(f'{mean:+.1f}' for mean in means)} points from it; "
        f"seeds alone differ by up to {runs.spread:.1f}.",
        most(means) <= DRAWN_POINTS,
    )


def _jump(runs: Runs) -> Claim:
    found = runs.of("abrupt")
    back = [run.epochs_back for run in found]
    rises = [run.rise for run in found]
    return Claim(
        "ONES, 3.3.2 and figure 13",
        "From 256 to 4k at once, the loss rises suddenly, and many epochs go by until it is back.",
        f"The loss rises to {min(rises):.1f} to {max(rises):.1f} times that before; it is back after "
        f"{min(back)} to {max(back)} epochs.",
        min(rises) > 2 and min(back) >= MANY_EPOCHS,
    )


def _steps(runs: Runs) -> Claim:
    rises = [run.rise for run in runs.of("stepwise")]
    points = most(runs.differences("stepwise"))
    return Claim(
        "ONES, 3.3.2 and figure 14",
        "Grown gradually, the batch leaves the training's performance basically as it was.",
        f"The highest loss after the first change is {max(rises):.2f} times that before, and the accuracy at "
        f"the end {points:.1f} points from that of the fixed batch at most.",
        max(rises) <= 1 and points <= runs.spread,
    )


def _table(runs: Runs) -> str:
    head = (
        *("", "loss at the end", "accuracy at the end, %", "against fixed, points"),
        *("highest loss after the change / before", "epochs until it is back", "weights off by"),
    )
    return markdown_table(head, [(words, *_row(runs, arm)) for arm, words in runs.words.items()])


def _row(runs: Runs, arm: str) -> Sequence[str]:
    found = runs.of(arm)
    reference = f"{REFERENCE}-32" if arm.endswith("-32") else REFERENCE
    whole = arm.startswith(("larger", "drawn", REFERENCE))
    return (
        _range([run.loss[-1] for run in found], "#.2g"),
        _range([run.points for run in found], ".1f"),
        "" if arm == reference else _range(runs.differences(arm, reference), "+.1f"),
        "" if whole else _range([run.rise for run in found], ".2f"),
        "" if whole else _range([run.epochs_back for run in found], ".1f"),
        f"{max(run.weights_off for run in found):.0e}" if arm.startswith(("elastic", "regrouped")) else "",
    )


def _range(values: Sequence[float], form: str) -> str:
    return f"{fmean(values):{form}} ({min(values):{form}} to {max(values):{form}})"
