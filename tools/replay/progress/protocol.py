"""The protocol of progress models: how a job's work advances while it holds GPUs."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pliant.tools.schedule.jobs import EpochEnd, JobState, Observation, Trajectory


class EndingTrajectory(Trajectory, Protocol):
    """A trajectory that also says when its end is noticed."""

    def is_late(self, end_s: float) -> bool:
        """Whether a decision at the very moment of the end still sees the job."""
        ...


class Segment(NamedTuple):
    """A time in which a job advances at one rate, or along a trajectory to the end of its work."""

    samples_per_second: float
    until_samples: float | None = None
    """Progress at which the rate changes next, above the present one; None: not before the work is done."""
    trajectory: EndingTrajectory | None = None
    """All that comes, if nothing happens to the job; the rate above is that of its beginning."""
    noise_scale: float | None = None
    """Gradient noise scale that the job measures in it, in samples; None: the model knows of none."""
    observation: Observation | None = None
    """What the job measures of its own speed in it; None: what the throughput model says."""
    epoch_end: EpochEnd | None = None
    """What the job reports where it ends, if that is the end of an epoch."""


def regime(job: JobState, samples_done: float) -> tuple[int | None, float | None]:
    """(batch, progress at which it ends) of the regime of a job that changes its batch by itself.

    The batch is None for a job that does not, the end where no other regime follows. Of work that is not
    known, no part is done.
    """
    work, regimes = job.work_samples, job.spec.batch.regimes
    past = [each for each in regimes if work is not None and work * each.after <= samples_done]
    ahead = regimes[len(past) :] if work is not None else ()
    batch = past[-1].size if past else job.spec.batch.size
    return batch if regimes else None, work * ahead[0].after if work is not None and ahead else None


class ProgressModel(Protocol):
    """How fast a job advances, in samples as ``JobState.total_samples``. A model changes no state."""

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        """The segment that begins at ``samples_done`` on the GPUs and the batch that the job has now.

        Asked when its allocation or batch has changed and where the last segment ended. ``speed_factor`` is
        the part of ``job.samples_per_second`` that other jobs leave to this one.
        """
        ...

    def all_samples(self, job: JobState) -> float | None:
        """Samples of all the work, also of a job that states none; None: not known."""
        return job.work_samples

    def end_samples(self, job: JobState, samples_done: float) -> float | None:
        """Progress at which the job ends if it trains on as it does now; None: not known."""
        del samples_done
        return self.all_samples(job)

    def initial_loss(self, job: JobState) -> float | None:
        """Training loss that the job reports before it trains; None: none."""
        del job
        return None


class SampleProgress(ProgressModel):
    """Work is a number of samples: the batch size changes the speed and nothing else."""

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        return Segment(job.samples_per_second * speed_factor)

    def end_samples(self, job: JobState, samples_done: float) -> float | None:
        return job.work_samples
