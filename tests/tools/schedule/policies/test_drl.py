import json
from pathlib import Path

import numpy as np
import pytest

from pliant.schemas.errors import BadInputError
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies import drl
from pliant.tools.schedule.session.session import Session
from tests import builders
from tests.builders import cluster, curves, decided, job, mixed_cluster, session, sizes
from tests.tools.schedule.policies.started import joined, started

SPEEDS = curves(good={1: 1, 2: 2, 4: 4}, poor={1: 1, 2: 1.1, 4: 1.1})


def network(path: Path, **wishes: float) -> str:
    """A network that prefers actions by a weighted sum of their features."""
    hidden = np.zeros((len(drl.FEATURES), 1))
    for name, wish in wishes.items():
        hidden[drl.FEATURES.index(name), 0] = wish / 100
    drl.write_network(path, drl.Weights(hidden, np.zeros(1), np.array([100.0])), "by hand", {}, 0)
    return str(path)


def opened(tmp_path: Path, size: int, /, *jobs, **wishes: float) -> Session:
    policy = drl.Drl(network=network(tmp_path / "net.json", **wishes))
    return builders.opened(policy, cluster(size), *jobs, throughput=SPEEDS)


def elastic(name: str, model: str = "good", at: float = 0.0, samples: float = 6000.0):
    return job(name, at=at, gpus=2, low=1, high=4, model=model, work={"samples": samples})


def test_preferences_are_done_and_a_settled_job_changes_its_size(tmp_path: Path) -> None:
    jobs = [elastic(name) for name in "abcd"]
    assert decided(opened(tmp_path, 4, *jobs[:2], gpus=1.0), 0) == {"a": 4}
    short_first = opened(tmp_path, 4, elastic("a"), elastic("b", samples=60.0), remaining=-1.0, starts=3.0)
    assert decided(short_first, 0) == {"b": 4}, "least time is left for b, and least of all on four GPUs"
    assert decided(opened(tmp_path, 3, *jobs, starts=1.0), 0) == {"a": 1, "b": 1, "c": 1}

    held = opened(tmp_path, 4, *jobs[:2], waits=1.0)
    assert decided(held, 0) == {"a": 1}, "an idle cluster is no choice"
    assert (decided(held, 1), held.decided.due_s) == ({"a": 1}, 60.0), (
        "asked again when a may change its size"
    )
    # A job doubles or halves once it has settled.
    held = opened(tmp_path, 4, elastic("a"), grows=2.0, starts=1.0)
    for time_s, expected in ((0, 1), (59, 1), (60, 2), (119, 2), (120, 4)):
        assert decided(held, time_s) == {"a": expected}
    shrinking = opened(tmp_path, 4, elastic("a"), elastic("b", at=100), shrinks=2.0, gpus=0.5, starts=0.1)
    assert decided(shrinking, 0) == {"a": 4}
    for time_s in (100, 101, 160, 220, 280, 400):
        shrinking.decide(time_s)
        assert sizes(shrinking).get("a", 0) >= 1
    assert shrinking.jobs["a"].preemptions == 0


def test_rigid_jobs_get_what_they_asked_for(tmp_path: Path) -> None:
    rigid = job("rigid", gpus=2, model="good", work={"samples": 100})
    held = opened(tmp_path, 4, rigid, job("unknown", low=1, high=2, model="good"), starts=1.0)
    held.decide(0)
    assert decided(held, 1) == {"rigid": 2, "unknown": 1}

    held = opened(tmp_path, 4, elastic("a"), shrinks=1.0, gpus=0.5)
    assert decided(held, 0) == {"a": 4}
    held.jobs["a"].spec = job("a", gpus=1, low=1, high=1, model="good", work={"samples": 6000.0})
    assert decided(held, 60) == {"a": 1}

    policy = drl.Drl(network=network(tmp_path / "net.json", starts=1.0))
    speeds = CurveThroughput({"good": {1: 1, 2: 2, 4: 4}}, {"quick": 2.0})
    held = started(policy, mixed_cluster(plain=(4,), quick=(4,)), elastic("a"), throughput=speeds)
    assert held.jobs["a"].gpu_type == "quick"


def test_features_are_of_the_size_that_units_take(tmp_path: Path) -> None:
    held = opened(tmp_path, 4, elastic("a"), elastic("b", "poor", samples=1e7), starts=1.0)
    held.decide(0)
    seen = drl.Situation(held.snapshot(5000.0), [held.jobs["b"]], 60.0)
    actions = seen.actions()
    features = seen.features(actions)
    assert features.shape == (len(actions), len(drl.FEATURES))
    assert np.abs(features).max() < 3
    assert drl.odds(np.zeros(4)) == pytest.approx([0.25] * 4)

    # A clock may have been set back since it was submitted.
    held = session(drl.Drl(), cluster(4))
    assert joined(held, 0.0, job("a", at=1000.0, low=1, high=4, gpu_seconds=100.0)).keys() == {"a"}


WEIGHTS = drl.Weights.drawn(3, np.random.default_rng(7))


def written(folder: Path) -> Path:
    drl.write_network(folder / "net.json", WEIGHTS, "python -m train", {"iterations": 2}, 7)
    return folder / "net.json"


def test_a_preference_by_hand() -> None:
    hidden = np.zeros((len(drl.FEATURES), 2))
    hidden[0] = (1.0, -1.0)
    weights = drl.Weights(hidden, np.array([0.0, 0.5]), np.array([2.0, 1.0]))
    rows = np.zeros((2, len(drl.FEATURES)))
    rows[1, 0] = 1.0
    expected = [np.tanh(0.5), 2 * np.tanh(1.0) + np.tanh(-0.5)]
    assert weights.preferences(rows) == pytest.approx(expected)


def test_equal_weights_are_written_as_equal_files(tmp_path: Path) -> None:
    path = written(tmp_path)
    result = drl.read_network(path)
    assert (result.seed, result.recipe, result.command) == (7, {"iterations": 2}, "python -m train")
    rows = np.eye(len(drl.FEATURES))
    assert result.weights.preferences(rows) == pytest.approx(WEIGHTS.preferences(rows), abs=1e-4)
    before = path.read_bytes()
    drl.write_network(path, result.weights, result.command, result.recipe, result.seed)
    assert path.read_bytes() == before

    with pytest.raises(BadInputError, match="no such file"):
        drl.Drl(network=str(tmp_path / "none.json"))

    shipped = drl.read_network(drl.SHIPPED)
    assert shipped.command.startswith("python -m experiments.ones.train --seed")
    assert shipped.recipe["iterations"] > 0
    assert drl.SHIPPED.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"seed": 8, "out": [1.0, 2.0, 3.0]}, "/digest: is not that of these weights"),
        ({"features": ["gpus"]}, "/features: is not what this pliant shows the network"),
        ({"offsets": [0.0]}, "/hidden: does not have a row of weights for each feature"),
        ({"schema": "pliant.network/2"}, "major version 2 of 'network' is unknown"),
        ({"out": [float("nan")] * 3}, "/out/0"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, changes: dict, problem: str) -> None:
    path = written(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(BadInputError) as refused:
        drl.read_network(path)
    assert problem in str(refused.value)
