"""Jobs as bids for slots to come: what pliant knows of a job, as the market of OASiS wants it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pliant.tools.schedule.jobs import JobState, NodeState
from pliant.tools.schedule.policies.multi_resource.model import Bid, Floats
from pliant.tools.schedule.policies.multi_resource.nodes import Nodes
from pliant.tools.schedule.speeds import Speeds

_ROUNDING: Final = 1e-6
"""Worker-slots by which the work that is left may be more than a whole number and count as that."""


class Exchange(Nodes):
    """The nodes of a cluster as servers, and jobs as bids.

    :param slot_s: seconds of a slot.
    """

    def __init__(self, nodes: Sequence[NodeState], speeds: Speeds, slot_s: float) -> None:
        super().__init__(nodes)
        self._speeds = speeds
        self._slot_s = slot_s
        self._of_type = {kind: self.of_type(kind) for kind, gpus in speeds.gpu_types.items() if gpus}

    @property
    def gpu_types(self) -> Iterable[str]:
        """Of all nodes that hold workers."""
        return self._of_type

    def bid(self, job: JobState, gpu_type: str, time_s: float, slots: tuple[int, int]) -> Bid | None:
        """What a job asks for on one GPU type; None: it does not run there.

        :param slots: the first slot of the market, and how many it has.
        """
        sizes = self._sizes(job, gpu_type)
        if sizes is None or job.total_samples is None:
            return None
        least, most = sizes
        work = max(1, math.ceil(self.worker_slots(job, gpu_type, time_s) - _ROUNDING))
        return replace(
            self.demands(job),
            work=least * -(-work // least) if least == most else work,
            most_workers=most,
            least_workers=least,
            worth=self._worths(job, *slots),
            servers=self._of_type[gpu_type],
        )

    def worker_slots(self, job: JobState, gpu_type: str, time_s: float) -> float:
        """The work that is left, at the speed of one worker where a worker is slowest; infinite: unknown."""
        sizes, remaining = self._sizes(job, gpu_type), job.remaining_samples(time_s)
        if sizes is None or remaining is None:
            return math.inf
        rate = min(self._speeds.rate(job, size, gpu_type) / size for size in sizes)
        return remaining / (rate * self._slot_s)

    def _worths(self, job: JobState, first: int, count: int) -> Floats:
        """[slot] what a job is worth that ends with each of ``count`` slots from ``first`` on."""
        since_s = ((first + 1 + slot) * self._slot_s - job.spec.submit_time for slot in range(count))
        return np.array([job.spec.utility.worth(max(0.0, each_s)) for each_s in since_s])

    def _sizes(self, job: JobState, gpu_type: str) -> tuple[int, int] | None:
        """The smallest and the largest number of workers that runs on a type; None: none does."""
        total = self._speeds.gpu_types[gpu_type]
        if job.spec.elastic == "none":
            able = [job.spec.gpus.requested]
        else:
            able = list(range(job.spec.min_gpus, job.max_gpus(total) + 1))
        runs = [size for size in able if size <= total and self._speeds.rate(job, size, gpu_type) > 0]
        return (runs[0], runs[-1]) if runs else None
