"""The events of random replays, by their hashes: what makes a replay faster leaves them as they are.

``python -m tests.tools.replay.test_digests`` records them again, after a change that is meant.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from pliant.schemas.job import Job
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.schedule.policies.ares.policy import Ares
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.session import Session
from tests.builders import job
from tests.tools.replay.any_world import CLUSTERS, Scattered, World
from tests.tools.replay.world import play

RECORDED: Final = Path(__file__).parent / "golden" / "digests.json"
POLICIES: Final = (
    "restless",
    "fifo",
    "las",
    "srtf",
    "tiresias",
    "ares",
    "edf-elastic",
    "max-bs",
    "drf",
    "slurm",
)
"""They start, grow, shrink, move, pause and rebatch jobs; of the others the golden files say what they do."""
EACH: Final = 4


def world(seed: int, replicas: tuple[int, ...] = (1, 1, 1, 2)) -> World:
    """:param replicas: numbers of GPUs of one, to draw from."""
    draw = random.Random(seed)
    outages = [
        (draw.randrange(1600) / 4, draw.randrange(4), draw.choice([0.5, 40.0]))
        for _ in range(draw.choice([0, 1, 3]))
    ]
    return World(
        trace=tuple(_job(n, draw, replicas) for n in range(draw.randint(4, 16))),
        where=draw.choice(sorted(CLUSTERS)),
        progress=draw.choice(["samples", "samples", "goodput", "epochs", "stepwise epochs"]),
        start_cost_s=draw.choice([0.0, 0.5, 3.0]),
        rescale_cost_s=draw.choice([0.0, 1.0, 5.0]),
        outages=tuple(outages),
        interference=draw.choice([0.0, 0.0, 0.5]),
        seed=seed,
        min_run_s=draw.choice([0.0, 0.0, 30.0]),
        cooldown_s=draw.choice([0.0, 0.0, 20.0]),
    )


def _job(number: int, draw: random.Random, replicas: tuple[int, ...]) -> Job:
    each = draw.choice(replicas)
    gpus, elastic = each * draw.randint(1, 4 // each), draw.choice(["none", "size", "size+batch"])
    limits: dict[str, Any] = {}
    if elastic != "none":
        limits = {"low": each * draw.randint(1, gpus // each), "high": 8}
    return job(
        f"j{number}",
        at=draw.randrange(30) * draw.choice([10.0, 0.37]),
        gpus=gpus,
        each=each,
        work={"samples": draw.uniform(0.5, 5000.0)},
        model="m",
        elastic=elastic,
        batch={"size": 64, "min": 32, "max": 128} if elastic == "size+batch" else 64,
        convergence="m",
        user=draw.choice(["", "u"]),
        priority=draw.choice([0.0, 0.0, 2.0]),
        checkpoint_seconds=draw.choice([None, 16.0]),
        **limits,
    )


def digest(engine: Engine) -> str:
    return hashlib.sha256(engine.log.json_lines()).hexdigest()


def digests(policy: str) -> list[str]:
    first = 100 * POLICIES.index(policy)
    replicas = (1,) if policy == "restless" else (1, 1, 1, 2)
    return [digest(world(first + number, replicas).play(policy)) for number in range(EACH)]


@pytest.mark.parametrize("policy", POLICIES)
def test_replays_give_the_recorded_events(policy: str) -> None:
    assert digests(policy) == json.loads(RECORDED.read_text())[policy]


@pytest.mark.parametrize(
    "policy",
    [Fifo, lambda: Fifo("easy"), lambda: Fifo("skip"), Ares],
    ids=["fifo", "fifo easy", "fifo skip", "ares"],
)
def test_a_policy_that_is_left_unasked_would_have_decided_nothing(
    policy: Callable[[], Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no job waits under fifo, or could use more GPUs under ares, an end changes nothing."""

    def events() -> list[tuple[str, int]]:
        engines = [
            play(policy(), each.trace, each.nodes, Scattered(), simulated=each.simulated())
            for each in map(world, range(40))
        ]
        return [(digest(each), each.counters.decisions) for each in engines]

    unasked, leave = [], Session.leaves_unasked
    monkeypatch.setattr(
        Session, "leaves_unasked", lambda *given: unasked.append(leave(*given)) or unasked[-1]
    )
    found = events()
    assert any(unasked)
    monkeypatch.setattr(Session, "leaves_unasked", lambda *_: False)
    assert events() == found


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({policy: digests(policy) for policy in POLICIES}, indent=1) + "\n")
