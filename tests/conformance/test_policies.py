"""Every registered policy, held to what every policy must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.testing import conformance
from pliant.tools.schedule.testing.conformance import CHECKS, check_drawn_parameters
from pliant.tools.schedule.testing.harness import Factory
from tests.effort import THOROUGH

VARIANTS: dict[str, Factory] = {
    **{name: lambda name=name: make_policy(name) for name in policy_names()},
    "elastic-dp-drop": lambda: make_policy("elastic-dp", {"mode": "drop", "strict": True, "interval_s": 0}),
    "elastic-dp-charged": lambda: make_policy(
        "elastic-dp", {"interval_s": 60.0, "rescale_s": 30.0, "quota": 5}
    ),
    "fifo-easy": lambda: make_policy("fifo", {"backfill": "easy"}),
    "fifo-skip": lambda: make_policy("fifo", {"backfill": "skip"}),
    "tiresias-gittins-queues": lambda: make_policy(
        "tiresias-gittins",
        {"queue_gpu_hours": "0.01,0.05", "history_gpu_hours": "0.01,0.03,0.1", "promote_after": 2.0},
    ),
}


SLOW = {"sia", "pollux", "dorm", "shockwave", "gavel-throughput", "gavel-ftf", "shadow-price", "ones"}
"""Policies whose decisions take longest."""


def shorten(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Shorter random stories, fewer parameters, smaller crowds, and for slow policies fewer jobs."""
    ops, at_once, jobs_for = conformance.random_ops, conformance._at_once, conformance.jobs_for
    part, jobs = (4, 0.6) if name in SLOW else (2, 1.0)
    monkeypatch.setattr(conformance, "_DRAWS", conformance._DRAWS // 2)
    monkeypatch.setattr(conformance, "random_ops", lambda rng, count: ops(rng, max(count // part, 40)))
    monkeypatch.setattr(conformance, "_at_once", lambda make, count: at_once(make, min(count, 1000)))
    monkeypatch.setattr(conformance, "jobs_for", lambda policy, count: jobs_for(policy, int(count * jobs)))


@pytest.mark.parametrize("name", list(VARIANTS))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_policy(check: Callable[[Factory], None], name: str, monkeypatch: pytest.MonkeyPatch):
    if check is check_drawn_parameters and name not in policy_names():
        pytest.skip("draws the parameters of the class, whatever those of the variant")
    if not THOROUGH:
        shorten(monkeypatch, name)
    check(VARIANTS[name])


class Unsteady(Fifo):
    """Every second object that sees a whole history at once starts no job."""

    name = "unsteady"
    rebuilds_state = False
    rebuilt = 0

    def __init__(self) -> None:
        super().__init__()
        self.idle: bool | None = None

    def dump_state(self) -> bool | None:
        return self.idle or False

    def load_state(self, state: bool, jobs: Mapping[str, JobState]) -> None:
        self.idle = state

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if self.idle is None:
            Unsteady.rebuilt += len(snapshot.changes) > 1
            self.idle = len(snapshot.changes) > 1 and Unsteady.rebuilt % 2 == 1
        return Decision() if self.idle else super().decide(snapshot, rng)


def test_state_not_in_the_history_is_rebuilt_one_way():
    with pytest.raises(AssertionError, match="state rebuilt twice decides in two ways after 5 jobs"):
        conformance.check_state_survives(Unsteady)


class Sleepy(Fifo):
    """Wants to be left alone when jobs end, though others wait."""

    name = "sleepy"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        return replace(super().decide(snapshot, rng), outlasts_ends=True)


def test_a_decision_that_ends_would_change_does_not_outlast_them():
    with pytest.raises(AssertionError, match="outlasts_ends was said, but mere ends change j3, j4"):
        conformance.check_everything_ends(Sleepy)
