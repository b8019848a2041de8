"""Tests of whether jobs fare differently, as data for the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from experiments.harness.replays import Outcome, matching
from experiments.harness.spec import Experiment, Paired
from pliant.schemas.errors import BadInputError
from pliant.tools.report.report import wilcoxon


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Wilcoxon's test of two replays; fields as those of ``pliant.tools.report.report``."""

    what: str
    first: str
    second: str
    pairs: int
    two_sided: float
    greater: float
    less: float


def paired_tests(experiment: Experiment, outcomes: Mapping[str, Outcome]) -> list[PairedTest]:
    """All tests of an experiment, a row for each pair of replays.

    :raises BadInputError: a test names replays that are not there, or are not of one trace.
    """
    return [row for test in experiment.tests for row in _rows(test, outcomes)]


def _rows(test: Paired, outcomes: Mapping[str, Outcome]) -> Iterator[PairedTest]:
    firsts, seconds = matching(test.run, outcomes), matching(test.over, outcomes)
    if [each.trace_hash for each in firsts] != [each.trace_hash for each in seconds]:
        raise BadInputError(f'"{test.what}": {test.run} and {test.over} are not replays of the same traces')
    for first, second in zip(firsts, seconds, strict=True):
        both = [job for job in first.jobs if job in second.jobs]
        found = wilcoxon([first.jobs[job].jct_s for job in both], [second.jobs[job].jct_s for job in both])
        yield PairedTest(test.what, first.name, second.name, **found.model_dump())
