"""Nodes that jobs do not allow: random worlds, of which a benchmark tries more."""

import pytest

from benchmarks.parts.jobs.where import mistakes_of_checks, violations, worlds
from pliant.tools.schedule.registry import policy_names
from tests.effort import examples


@pytest.mark.parametrize("policy", policy_names())
def test_no_job_is_where_it_may_not_be_and_all_that_can_run_end(policy: str) -> None:
    assert [each for given in worlds(examples(12), seed=11) for each in violations(given, policy)] == []


def test_what_no_node_can_run_is_refused_and_nothing_else() -> None:
    assert {mistakes_of_checks(given) for given in worlds(200)} == {(0, 0)}
