"""The baselines of elastic scaling with batch sizes: the same policy with one batch for each job."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from pliant.tools.schedule.policies.elastic_dp.curves import BatchRange, allowed_batches
from pliant.tools.schedule.policies.elastic_dp.policy import ElasticDp

if TYPE_CHECKING:
    import numpy as np

    from pliant.tools.schedule.jobs import JobState
    from pliant.tools.schedule.policy import Decision
    from pliant.tools.schedule.snapshot import Snapshot


class MaxBs(ElasticDp):
    """elastic-dp with every job at the largest batch it allows: sizes are chosen, batches are not.

    A baseline of Saxena et al., 2020, section IV-B. The batch is split over the GPUs, so a large one that no
    single GPU holds makes the smallest size large. Parameters as in elastic-dp.
    """

    name: ClassVar[str] = "max-bs"

    def batches(self, job: JobState) -> BatchRange:
        """The largest batch alone."""
        return (allowed_batches(job)[1],) * 2


class MinBs(ElasticDp):
    """elastic-dp with every job at the smallest batch it allows: sizes are chosen, batches are not.

    A baseline of Saxena et al., 2020, section IV-B. A small batch leaves each of many GPUs too little to do.
    Parameters as in elastic-dp.
    """

    name: ClassVar[str] = "min-bs"

    def batches(self, job: JobState) -> BatchRange:
        """The smallest batch alone."""
        return (allowed_batches(job)[0],) * 2


class RandomBs(ElasticDp):
    """elastic-dp with every job at a batch drawn once: uniform over all that it allows.

    The baseline of Saxena et al., 2020, section IV-B, for users who choose some batch. A job's batch follows
    from the seed and its id alone: neither other jobs nor their order matter. Parameters as in elastic-dp.
    """

    name: ClassVar[str] = "random-bs"
    _seed: int | None = None

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """As elastic-dp, with batches by a seed that is drawn once."""
        if self._seed is None:
            self._seed = int(rng.integers(2**53))
        return super().decide(snapshot, rng)

    def batches(self, job: JobState) -> BatchRange:
        """The one that was drawn for this job."""
        low, high = allowed_batches(job)
        if low == high:
            return low, high
        digest = sha256(f"{self._seed} {job.id}".encode()).digest()
        drawn = low + int.from_bytes(digest[:16]) % (high - low + 1)
        return drawn, drawn

    def dump_state(self) -> dict[str, Any]:
        """The seed, beside what elastic-dp keeps."""
        return {**super().dump_state(), "seed": self._seed}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        """Take up the seed as well."""
        super().load_state(state, jobs)
        self._seed = state["seed"]
