"""Whatever happens in whatever order: nothing is lost, nothing runs twice, and every job comes to its end.

The loop is the real one, on the files of a real state directory; nodes, workers and clocks are simulated.
``make bench NAME=operate`` lives through a thousand such sequences.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.run.simulated.world import DEEDS, MEMORY, POLICIES, live_through

SEQUENCES = 150
deeds = st.tuples(st.sampled_from(("submit", "submit", "submit", *DEEDS)), st.integers(0, 999))


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=SEQUENCES, deadline=None)
@given(st.integers(0, len(POLICIES) - 1), st.lists(deeds, min_size=3, max_size=25))
def test_no_sequence_of_faults_breaks_a_promise(policy: int, story: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        live_through(Path(folder).resolve(), policy, story)
