"""Histories of jobs whose length is a random variable, for tests of the progress predictor."""

import numpy as np

from pliant.tools.profile.predictor import EndedJob, Epoch


def history(jobs: int, seed: int = 7, *, noise: float = 0.4) -> list[EndedJob]:
    """Jobs that run longer the larger their epochs and the higher their initial loss, give or take."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(jobs):
        size = float(rng.integers(2, 9) * 5000)
        initial = float(rng.uniform(1, 7))
        epochs = max(2, round((5 + 4 * initial + size / 4000) * float(np.exp(noise * rng.normal()))))
        made.append(EndedJob([epoch_of(size, initial, n, epochs) for n in range(1, epochs)], size * epochs))
    return made


def epoch_of(size: float, initial: float, number: int, epochs: int) -> Epoch:
    part = number / epochs
    return Epoch(size, initial, size * number, initial * (1 - 0.8 * part), 0.9 * part**0.5)


def progress_of(job: EndedJob) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([epoch.samples_done for epoch in job.epochs]) / job.total_samples
