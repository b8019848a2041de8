"""The generators of a worker as a part of the state."""

from __future__ import annotations

import random

import numpy as np
import torch

from pliant.tools.run.elastic.state.training import generator_states, restore_generators, seed_everything


def test_all_generators_go_on_where_they_were() -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(1)), random.random(), float(np.random.rand())]  # noqa: NPY002

    seed_everything(3)
    saved = generator_states()
    first = drawn()
    assert drawn() != first
    restore_generators(saved)
    assert drawn() == first
