"""The figures of the shapes: how many there are, which are wrong without a word, what the guard finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.shapes.driver import MODES, results
from benchmarks.parts.shapes.faults import all_found, faults
from benchmarks.parts.shapes.table import shapes

BY_TOKENS: Final = ("ignore_index, weighed", "class weights, weighed", "padding masked by hand, weighed")
"""Shapes whose loss is a mean over something else than samples."""
LEAST: Final = 90
LARGEST_ERROR: Final = 1e-6


def of_shapes(names: Sequence[str] = (), modes: Sequence[str] = tuple(MODES)) -> list[Figure]:
    """Each shape in each mode, beside one process of PyTorch.

    :param names: of the shapes; all if there are none.
    """
    table = shapes()
    chosen = [table[name] for name in names] if names else list(table.values())
    judged = results(chosen, {mode: MODES[mode] for mode in modes})
    ran = [
        name for name, by_mode in judged.items() if not any(one.kind == "not run" for one in by_mode.values())
    ]
    silent = [
        name
        for name, by_mode in judged.items()
        if any(one.kind == "wrong" for one in by_mode.values()) and not table[name].is_documented
    ]
    tokens = [one for name in BY_TOKENS if name in judged for one in judged[name].values()]
    found = [
        Figure("shapes_in_suite", float(len(ran)), "shapes", float(LEAST), at_least=True),
        Figure("silent_wrong", float(len(silent)), "shapes", 0.0),
    ]
    if tokens:
        error = max(one.distance for one in tokens)
        found.append(Figure("token_loss_error", error, "ratio", LARGEST_ERROR))
    return found


def of_faults(names: Sequence[str] = ()) -> list[Figure]:
    """The share of the planted faults that two workers report within an epoch.

    :param names: of the faults; all if there are none.
    """
    found = all_found(list(names) or list(faults()))
    share = sum(map(bool, found.values())) / len(found)
    return [Figure("guard_finds", share, "ratio", 1.0, at_least=True)]
