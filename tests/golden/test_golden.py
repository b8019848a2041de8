"""The decisions of every built-in policy in one fixed moment, byte by byte."""

import pytest

from pliant.schemas.io import read_schedule
from pliant.tools.schedule.registry import BUILT_IN
from tests.golden.scenario import golden_bytes, golden_file


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_decisions_are_what_they_were(policy: str):
    assert golden_bytes(policy).decode() == golden_file(policy).read_text(), (
        "the decision changed; if that is meant: python -m tests.golden.scenario"
    )
    assert read_schedule(golden_file(policy)).policy.name == policy
