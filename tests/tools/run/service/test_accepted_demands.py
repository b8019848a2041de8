"""Jobs that were accepted when nothing looked at what they demand of nodes: a restart does not end them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.checks import Capacities
from pliant.tools.run.service import launching as runnable
from tests.builders import cluster, job
from tests.tools.run.simulated.world import POLICIES, World, trains

DEMANDS: dict[str, dict[str, Any]] = {
    "parameter servers": {"worker": {"bandwidth": 2e9}, "ps": {"bandwidth": 1e9}},
    "two GPUs for each worker": {"worker": {"gpu": 2.0}},
    "cores and memory that no node has": {"worker": {"cpu": 1e4, "memory": 1e15}},
    "next to no bandwidth of its servers": {"worker": {"bandwidth": 1e300}, "ps": {"bandwidth": 1e-300}},
}


@pytest.mark.parametrize(("what", "next_policy"), [*zip(DEMANDS, ("fifo", "fair-share") * 2, strict=True)])
def test_a_restart_ends_no_job_that_was_accepted(
    what: str, next_policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them runs, and one waits, when a launcher takes over that looks at demands."""
    plain = cluster(2, 2, 2)
    nodes = tuple(node.model_copy(update={"cpus": 8.0, "memory": 1 << 34}) for node in plain.nodes)
    world = World(tmp_path, POLICIES.index("fifo"), nodes=plain.model_copy(update={"nodes": nodes}))
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Capacities, "limits", lambda self, job: False)
            patched.setattr(runnable, "_unserved", lambda job: {})
            world.give(*(job(name, gpus=4, resources=DEMANDS[what], **trains(200.0)) for name in "ab"))
            world.turn()
            world.turn()
            world.end_loop(0)
        world.policy = next_policy
        assert told(world, "submit", "start") == ["submit a", "submit b", "start a"]
        world.accepted |= dict.fromkeys("ab", 200.0)
        world.settle()
        world.check()
        assert sorted(told(world, "finish", "fail", "reject")) == ["finish a", "finish b"]
    finally:
        world.close()


def told(world: World, *names: str) -> list[str]:
    return [f"{each.event} {each.job}" for each in world.events(*names)]
