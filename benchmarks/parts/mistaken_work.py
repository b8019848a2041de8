"""shadow-price with wrong estimates of work: for studies of how much a forecast matters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final
from unittest.mock import patch

import numpy as np

from pliant.tools.schedule import registry
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.shadow_price.job_estimates import Knowledge
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice

NAME: Final = "shadow-price-mistaken"


class MistakenWork(Knowledge):
    """What is left of each job is taken to be a lognormal factor of the truth, the same all along."""

    def __init__(self, policy: ShadowPrice, sigma: float, seed: int) -> None:
        super().__init__(policy.ahead_s, policy.rescale_s, policy.unknown_noise, policy.caution)
        self._sigma = sigma
        self._seed = seed

    def left(self, job: JobState, time_s: float) -> float | None:
        """Not the truth."""
        left = super().left(job, time_s)
        if left is None:
            return None
        text = f"{self._seed} {job.id}".encode()
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:8], "big"))
        return left * float(np.exp(self._sigma * rng.standard_normal()))


class Mistaken(ShadowPrice):
    """shadow-price that errs about work.

    sigma: the standard deviation of the logarithm of what it takes to be left, over the truth.
    error_seed: which errors.
    """

    name: ClassVar[str] = NAME

    def __init__(self, *, sigma: float = 1.0, error_seed: int = 0) -> None:
        super().__init__(retune="free")  # as under --compat pollux
        self.sigma = sigma
        self.error_seed = error_seed
        self._known = MistakenWork(self, sigma, error_seed)


@contextmanager
def registered() -> Iterator[str]:
    """The name by which replays find it meanwhile."""
    with patch.dict(registry.BUILT_IN, {NAME: f"{__name__}:Mistaken"}):
        yield NAME
