"""Changes of the batch alone: what they cost, and jobs of models that keep theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from pliant.schemas.job import Elasticity
from pliant.tools.replay.compat import NONE, POLLUX, settle
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import Quirks, SimulatedCluster
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.pollux.policy import Pollux
from pliant.tools.schedule.policy import Decision, Policy, Target
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import cluster, job
from tests.tools.replay.world import ends, play

if TYPE_CHECKING:
    import numpy as np

BATCH = {"size": 32, "min": 32, "max": 64}


class Rebatches(Policy):
    """Starts its job at once and doubles its batch at a given time."""

    name: ClassVar[str] = "rebatches"
    elasticity: ClassVar[Elasticity] = "size+batch"

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        batch = 64 if snapshot.time_s >= self.at_s else 32
        return Decision({name: Target(1, None, batch) for name in snapshot.jobs}, ask_again_s=self.at_s)


@pytest.mark.parametrize(("free", "end_s"), [(True, 5 + 100), (False, 5 + 100 + 5)])
def test_another_batch_costs_a_rescale_unless_it_is_free(free: bool, end_s: float) -> None:
    simulated = SimulatedCluster(Cost(5), Cost(5), quirks=Quirks(free_rebatch=free))
    trace = [job("a", elastic="size+batch", batch=BATCH, gpu_seconds=100)]
    assert ends(play(Rebatches(50), trace, cluster(1), simulated=simulated)) == {"a": end_s}


def test_a_free_change_still_waits_for_the_start_to_be_paid() -> None:
    simulated = SimulatedCluster(Cost(5), Cost(5), quirks=Quirks(free_rebatch=True))
    trace = [job("a", elastic="size+batch", batch=BATCH, gpu_seconds=100)]
    engine = play(Rebatches(2), trace, cluster(1), simulated=simulated)
    assert ends(engine) == {"a": 5 + 100}
    assert [event.overhead_seconds for event in engine.log.events() if event.overhead_seconds] == [2, 3]


def test_settled_models_are_rigid_for_policies_that_choose_both() -> None:
    trace = [
        job("ncf-0", gpus=2, elastic="size+batch", batch=BATCH, model="ncf"),
        job("bert-1", gpus=2, elastic="size+batch", batch=BATCH, model="bert"),
    ]
    first, second = settle(POLLUX, trace, Pollux())
    assert (first.gpus.requested, first.batch.size, first.elastic) == (1, 32768, "none")
    assert second == trace[1]
    assert settle(POLLUX, trace, Fifo()) == trace
    assert settle(NONE, trace, Pollux()) == trace
