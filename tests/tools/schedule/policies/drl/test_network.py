"""The file of a trained network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pliant.schemas.errors import BadInputError
from pliant.tools.schedule.policies.drl import FEATURES, SHIPPED, Weights, read_network, write_network

WEIGHTS = Weights.drawn(3, np.random.default_rng(7))


def written(folder: Path, **changes: object) -> Path:
    """A good file with some fields replaced."""
    path = folder / "net.json"
    write_network(path, WEIGHTS, "python -m train", {"iterations": 2}, 7)
    if changes:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_a_preference_by_hand() -> None:
    hidden = np.zeros((len(FEATURES), 2))
    hidden[0] = (1.0, -1.0)
    weights = Weights(hidden, np.array([0.0, 0.5]), np.array([2.0, 1.0]))
    rows = np.zeros((2, len(FEATURES)))
    rows[1, 0] = 1.0
    expected = [np.tanh(0.5), 2 * np.tanh(1.0) + np.tanh(-0.5)]
    assert weights.preferences(rows) == pytest.approx(expected)


def test_what_is_written_is_read_and_equal_weights_are_equal_files(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = read_network(path)
    assert (found.seed, found.recipe, found.command) == (7, {"iterations": 2}, "python -m train")
    rows = np.eye(len(FEATURES))
    assert found.weights.preferences(rows) == pytest.approx(WEIGHTS.preferences(rows), abs=1e-4)
    before = path.read_bytes()
    write_network(path, found.weights, found.command, found.recipe, found.seed)
    assert path.read_bytes() == before


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
    with pytest.raises(BadInputError) as refused:
        read_network(written(tmp_path, **changes))
    assert problem in str(refused.value)


def test_the_shipped_network_says_where_it_comes_from_and_is_small() -> None:
    shipped = read_network(SHIPPED)
    assert shipped.command.startswith("python -m experiments.ones.train --seed")
    assert shipped.recipe["iterations"] > 0
    assert SHIPPED.stat().st_size < 1_000_000
