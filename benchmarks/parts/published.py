"""Figures of an experiment beside the published ones, replayed again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.parts.figure import Figure
from experiments.harness.published import compare, read_numbers
from experiments.harness.replays import carry_out
from experiments.harness.spec import load


def published(
    name: str, sweeps: Sequence[str], tables: Sequence[str], *, smoke: bool = False
) -> Iterator[Figure]:
    """Three figures for each number of some tables of an experiment: ours, the published one, their ratio.

    :param sweeps: those that the tables are made from.
    """
    experiment = load(name)
    wanted = [number for number in read_numbers(experiment.numbers) if number.table in tables]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = carry_out(experiment, Path(folder) / "out", sweeps=sweeps, smoke=smoke)
    for each in compare(wanted, outcomes):
        unit = each.unit or "ratio"
        yield Figure(f"{each.name}_ours", each.ours, unit)
        yield Figure(f"{each.name}_published", each.published, unit)
        yield Figure(f"{each.name}_ratio", each.ratio, "ratio")
