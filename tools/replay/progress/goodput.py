"""Work in samples at the reference batch; the gradient noise says how much less a larger batch trains."""

from __future__ import annotations

from collections.abc import Mapping

from pliant.tools.replay.progress.protocol import ProgressModel, Segment
from pliant.tools.replay.progress.tables import Validation
from pliant.tools.replay.progress.trajectory import Pieces
from pliant.tools.schedule.jobs import JobState


class Goodput(ProgressModel):
    """Goodput of Pollux (OSDI '21): throughput times the statistical efficiency (φ + B0) / (φ + B).

    φ is the gradient noise scale, from the convergence table that the job names: that of the epoch in which
    the same part of the work was done. Where there is no table it is one number for each model. One
    trajectory covers all epochs; stepwise, each epoch is a segment of its own, so the job shows the noise of
    each.
    """

    def __init__(
        self,
        tables: Mapping[str, Validation],
        constant: Mapping[str, float] | None = None,
        *,
        stepwise: bool = False,
    ) -> None:
        """``constant``: φ in samples by model, for jobs without a table; "" stands for all other models."""
        self._tables = tables
        self._constant = constant or {}
        self._stepwise = stepwise
        self._pieces: dict[tuple[object, ...], Pieces] = {}

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        """The trajectory over all epochs; one segment where φ is constant."""
        speed = job.samples_per_second * speed_factor
        if speed <= 0:
            return Segment(0.0)
        table = self._tables.get(job.spec.convergence or "")
        if table is None or job.work_samples is None:
            noise_scale = self._constant.get(job.spec.model) or self._constant[""]
            rate = speed * efficiency(noise_scale, job.reference_batch, job.global_batch)
            return Segment(rate, noise_scale=noise_scale)
        key = (job.spec.convergence, job.reference_batch, job.global_batch, job.work_samples, speed)
        if key not in self._pieces:
            self._pieces[key] = _pieces(table, job, speed, job.work_samples)
        pieces = self._pieces[key]
        if self._stepwise:
            epoch = pieces.piece_at(samples_done)
            return pieces.segment(epoch)._replace(noise_scale=table.noise_scale(job.global_batch, epoch))
        return pieces.to_the_end(samples_done)


def efficiency(noise_scale: float, reference_batch: float, batch: float) -> float:
    """Training per sample of ``batch``, relative to the reference batch: (φ + B0) / (φ + B)."""
    if noise_scale == float("inf"):
        return 1.0
    return (noise_scale + reference_batch) / (noise_scale + batch)


def _pieces(table: Validation, job: JobState, speed: float, total: float) -> Pieces:
    batch, whole = job.global_batch, table.least_progress[-1]
    bounds = [0.0, *(total * progress / whole for progress in table.least_progress)]
    rates = [
        speed * efficiency(table.noise_scale(batch, epoch), job.reference_batch, batch)
        for epoch in range(table.epochs)
    ]
    return Pieces(bounds, rates)
