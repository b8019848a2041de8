"""The events of random replays, by their hashes: what makes a replay faster leaves them as they are.

After a change that is meant, with PLIANT_WRITE_GOLDEN=1 in the environment they are recorded again.
"""

import hashlib
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import scipy

from pliant.schemas.cluster import Cluster, Shares, Sharing
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput import CurveThroughput, Throughput
from pliant.tools.profile.throughput_model import ThroughputByPlacement, ThroughputBySize
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.schedule.registry import BUILT_IN
from tests.tools.profile.rows_builder import step
from tests.tools.replay.any_world import Progress, Scattered, any_policy, world
from tests.tools.replay.world import play

RECORDED: Final = Path(__file__).parent / "golden" / "digests.json"
POLICIES: Final = ("restless", *sorted({*BUILT_IN} - {"recorded"}))
"""All but ``recorded``, which repeats what a trace says that jobs did: of a random one, nothing."""
EACH: Final = 6
MORE: Final = {"pollux": 24, "sia": 10}
"""In few of them jobs measure so much that a fit matters."""
SOLVED: Final = ("dorm", "oasis-offline")
SCIPY: Final = "1.17"
"""Among optima as good as each other these take what HiGHS finds first, and that changes with its version.

All others give the same with scipy 1.15 to 1.17, with Python 3.11 to 3.13, and without AVX-512 and AVX2.
"""
_PLACES: Final = (
    *("1", "2", "4", "8", "1,1", "2,1", "2,2", "4,2"),
    *("1,1,1", "2,1,1", "2,2,2", "2,2,2,2", "4,2,1,1"),
)
_PROFILE: Final = Profile(
    tuple(
        step(place, local, 0.05 + local / 100 + 0.02 * gpus + 0.1 * nodes, model="m")
        for place in _PLACES
        for gpus, nodes in [(sum(map(int, place.split(","))), place.count(","))]
        for local in (8, 16, 32, 64, 128)
    )
)
_FAST: Final = {"fast": 2.5}
SPEEDS: Final[Sequence[Callable[[], Throughput]]] = (
    Scattered,
    lambda: ThroughputBySize(_PROFILE, _FAST),
    lambda: ThroughputByPlacement(_PROFILE, _FAST),
    lambda: CurveThroughput(speeds=_FAST),
)
"""By curves, that differ with the nodes; from a profile by sizes, and by placements; without a profile."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def replayed(policy: str, number: int) -> Engine:
    """One of the replays of a policy; the ways of speeds have their turns, all else is drawn."""
    drawn = world(f"{policy} {number}", (1,) if policy == "restless" else (1, 1, 1, 2))
    draw = random.Random(drawn.seed)
    measured = number >= len(SPEEDS)  # jobs measure their steps, and these policies fit them
    stated = {"knowledge": "measured"} if measured and policy in ("pollux", "sia") else {}
    made = any_policy(policy, drawn.seed, stated)
    return play(
        made,
        [_with_more(each, draw, drawn.progress) for each in drawn.trace],
        _in_company(drawn.nodes, draw),
        SPEEDS[number % len(SPEEDS)](),
        simulated=replace(drawn.simulated(), measured=measured),
        interval_s=made.traits.default_interval_s,
        seed=drawn.seed,
    )


def _with_more(plain: Job, draw: random.Random, progress: Progress) -> Job:
    """The job, and what few jobs have: no batch, a deadline, demands, a job that it waits for."""
    more: dict[str, Any] = {}
    if progress == "samples" and plain.elastic != "size+batch" and draw.random() < 0.4:
        more |= {"batch": {}, "convergence": None}
    if draw.random() < 0.4:
        shape = draw.choice(["step", "sigmoid"])
        more["utility"] = {"shape": shape, "value": draw.uniform(1, 9), "decay": 0.1, "target": 120.0}
    if draw.random() < 0.3:
        more["resources"] = {"worker": {"gpu": 1, "cpu": draw.choice([1, 2])}}
    if plain.id == "j3" and draw.random() < 0.5:
        more["after"] = {"j0": "any"}
    if draw.random() < 0.1:
        more["work"] = {"gpu_seconds": draw.uniform(5, 500)}
    return Job.model_validate(plain.model_dump(exclude_unset=True) | more)


def _in_company(nodes: Cluster, draw: random.Random) -> Cluster:
    """The cluster; with few cores, GPUs that two jobs may share, and users that are teams."""
    more: dict[str, Any] = {}
    if draw.random() < 0.5:
        more["nodes"] = tuple(each.model_copy(update={"cpus": each.gpus + 1.0}) for each in nodes.nodes)
    if draw.random() < 0.5:
        more["sharing"] = Sharing(unmeasured="together", speed=0.8)
    if draw.random() < 0.3:
        more["shares"] = Shares.by_label("user")
    return nodes.model_copy(update=more)


def digest_of(policy: str) -> str:
    replays = (replayed(policy, number) for number in range(MORE.get(policy, EACH)))
    return digest("".join(digest(engine.log.json_lines()) for engine in replays).encode())


@pytest.fixture(scope="module")
def recorded() -> Mapping[str, str]:
    if os.environ.get("PLIANT_WRITE_GOLDEN"):
        RECORDED.write_text(json.dumps({policy: digest_of(policy) for policy in POLICIES}, indent=1) + "\n")
    found: Mapping[str, str] = json.loads(RECORDED.read_text())
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_replays_give_the_recorded_events(policy: str, recorded: Mapping[str, str]) -> None:
    if policy in SOLVED and not scipy.__version__.startswith(f"{SCIPY}."):
        pytest.skip(f"recorded with scipy {SCIPY}, this is {scipy.__version__}")
    assert digest_of(policy) == recorded[policy]
