from __future__ import annotations

from benchmarks.parts import mistaken_work
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.registry import make_policy, policy_names
from tests.builders import cluster, job, session


def test_mistaken_work_is_wrong_in_the_same_way_each_time_and_only_while_it_is_asked_for():
    with mistaken_work.registered() as name:
        held = session(make_policy(name), cluster(4))
        for each in "abc":
            held.submit(job(each, low=1, high=4, work={"samples": 1000}), 0.0)
        known, again = (mistaken_work.MistakenWork(ShadowPrice(), 1.0, 0) for _ in range(2))
        left = [known.left(state, 0.0) for state in held.jobs.values()]
        assert left == [again.left(state, 0.0) for state in held.jobs.values()]
        assert 1000.0 not in left
        assert len(set(left)) == 3
        held.decide(0.0)
        assert any(state.gpus for state in held.jobs.values())
    assert name not in policy_names()
