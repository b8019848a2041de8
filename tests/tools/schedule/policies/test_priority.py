"""What the priority of a job means to the policies that say that they look at it, and to the others."""

import sys
from typing import ClassVar

import pytest

from pliant.cli.reference import page
from pliant.tools.schedule.assumptions import priorities_ignored, weights_ignored
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.registry import BUILT_IN, describe, make_policy, policy_class
from pliant.tools.schedule.session.session import Session
from tests import builders
from tests.builders import cluster, decided, job

FIRST = ["fifo", "las", "lucid", "srtf", "sjf", "fair-share", "optimus", "slurm"]


def opened(policy: str, **priorities: float) -> Session:
    """One GPU, and jobs of that size in order of arrival."""
    jobs = [
        job(name, at=float(at), gpus=1, gpu_seconds=100 + at, priority=priority)
        for at, (name, priority) in enumerate(priorities.items())
    ]
    return builders.opened(make_policy(policy), cluster(1), *jobs)


def running(held: Session, now_s: float) -> list[str]:
    return [*decided(held, now_s)]


@pytest.mark.parametrize("policy", FIRST)
def test_the_most_important_job_starts_first(policy: str):
    held = opened(policy, a=0.0, b=2.0, c=2.0, d=1.0)
    assert running(held, 1000.0) == ["b"]
    held.admission.prioritize("d", 1001.0, 30.0)
    for turn, (ends, then) in enumerate(("bd", "dc", "ca"), start=2):
        held.end(ends, 1000.0 * turn - 1)
        assert running(held, 1000.0 * turn) == [then]


@pytest.mark.parametrize(("policy", "then"), [("las", "b"), ("srtf", "b"), ("fifo", "a"), ("sjf", "a")])
def test_a_running_job_gives_way_where_the_policy_preempts(policy, then):
    held = opened(policy, a=0.0, b=0.0)
    assert running(held, 10) == ["a"]
    held.admission.prioritize("b", 20, 1.0)
    assert running(held, 100) == [then]


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_each_policy_says_what_priorities_mean_to_it(policy: str):
    (line,) = [line for line in page(describe(policy)) if line.startswith("priorities of jobs: ")]
    jobs = [job("a"), job("b", priority=2.0)]
    ignored = priorities_ignored(jobs, policy_class(policy))
    assert bool(ignored) == line.endswith("it ignores them")
    text = f'policy "{policy}" ignores priorities: job "b" states one'
    assert [each.text for each in ignored] in ([], [text])
    assert priorities_ignored(jobs[:1], policy_class(policy)) == []
    assert not line.endswith("the policy does not say")


def test_a_foreign_policy_is_not_said_to_ignore_priorities(monkeypatch: pytest.MonkeyPatch):
    class Strangers(Fifo):
        """First come, first served."""

        priority_means: ClassVar[str | None] = None

    monkeypatch.setitem(BUILT_IN, "strangers", f"{__name__}:Strangers")
    monkeypatch.setattr(sys.modules[__name__], "Strangers", Strangers, raising=False)
    assert priorities_ignored([job("b", priority=2.0)], policy_class("strangers")) == []
    assert "priorities of jobs: the policy does not say" in page(describe("strangers"))
    assert Policy.traits.priority_means is None


@pytest.mark.parametrize("policy", ["ares", "shadow-price"])
def test_weights_count_under_ares_and_shadow_price(policy: str):
    """Both jobs need all GPUs for as long; the one of weight 3 comes last, and is served first."""
    jobs = job("a", gpus=2, gpu_seconds=200.0), job("b", gpus=2, gpu_seconds=200.0, weight=3.0)
    assert decided(builders.opened(make_policy(policy), cluster(2), *jobs), 0.0) == {"b": 2}
    assert not weights_ignored(jobs, policy_class(policy))
    (statement,) = weights_ignored(jobs, policy_class("fifo"))
    assert statement.text == 'policy "fifo" ignores weights: job "b" has one'
