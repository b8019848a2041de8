"""Whatever happens in whatever order: nothing is lost, nothing runs twice, and every job comes to its end.

The loop is the real one, on the files of a real state directory; nodes, workers and clocks are simulated.
``make bench NAME=operate`` lives through a thousand such sequences.
"""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.io import read_events
from tests.tools.run.simulated.world import DEEDS, MEMORY, POLICIES, live_through

deeds = st.tuples(st.sampled_from(("submit", "submit", "submit", *DEEDS)), st.integers(0, 999))


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(POLICIES) - 1), st.lists(deeds, min_size=3, max_size=25))
def test_no_sequence_of_faults_breaks_a_promise(policy: int, story: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        live_through(Path(folder).resolve(), policy, story)


@pytest.mark.parametrize("seed", range(2))
def test_no_faults_break_a_promise_while_jobs_share_slots(seed: int, tmp_path: Path) -> None:
    drawn = random.Random(seed)
    crowd = [
        ("submit", 140 * drawn.randrange(4) + drawn.choice((13, 20, 21, 40, 41, 60, 61))) for _ in range(12)
    ]
    names = ("submit", "wait", *DEEDS)
    faults = [(drawn.choice(names), drawn.randrange(1000)) for _ in range(20)]
    world = live_through(tmp_path, POLICIES.index("lucid"), [*crowd, *[("wait", 5)] * 3, *faults])
    assert any("beside" in (event.detail or {}) for event in read_events(world.dirs.events))
