"""Jobs as bids for slots to come: what pliant knows of a job, as the market of OASiS wants it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pliant.tools.schedule.jobs import JobState, NodeState
from pliant.tools.schedule.policies.multi_resource.model import Bid, Floats, Ints
from pliant.tools.schedule.policies.multi_resource.nodes import Nodes
from pliant.tools.schedule.speeds import Speeds

_ROUNDING: Final = 1e-6
"""Of a unit of work, by which what is left may be more than a whole number and count as that."""
_UNITS: Final = 64
"""Work of a slot at the fastest size, at least."""
_EVERY: Final = 16
"""Every size up to this one is offered; of larger ones those that are this much larger than the last:"""
_STEP: Final = 1.125


class Exchange(Nodes):
    """The nodes of a cluster as servers, and jobs as bids.

    :param slot_s: seconds of a slot.
    :param by_size: work advances as fast as the size of a job lets it, at the sizes at which more workers are
        faster. False: in proportion to its workers, at the speed that one has where a worker is slowest.
    :param rescale_s: what a change of its workers costs a job whose profile has not measured it. Workers may
        change with each slot, so of each slot that much is not planned, at most half of it. None: all is.
    """

    def __init__(
        self,
        nodes: Sequence[NodeState],
        speeds: Speeds,
        slot_s: float,
        *,
        by_size: bool = True,
        rescale_s: float | None = None,
    ) -> None:
        super().__init__(nodes)
        self._speeds = speeds
        self._slot_s = slot_s
        self._by_size = by_size
        self._rescale_s = rescale_s
        self._of_type = {kind: self.of_type(kind) for kind, gpus in speeds.gpu_types.items() if gpus}

    @property
    def gpu_types(self) -> Iterable[str]:
        """Of all nodes that hold workers."""
        return self._of_type

    def bid(
        self, job: JobState, gpu_type: str, time_s: float, slots: tuple[int, int], first_part: float = 1.0
    ) -> Bid | None:
        """What a job asks for on one GPU type; None: it does not run there.

        :param slots: the first slot of the market, and how many it has.
        :param first_part: what is left of that slot.
        """
        rates, left = self.rates(job, gpu_type), job.remaining_samples(time_s)
        if not rates or left is None:
            return None
        least, most = min(rates), max(rates)
        offered = replace(
            self.demands(job),
            most_workers=most,
            least_workers=least,
            worth=self._worths(job, *slots),
            servers=self._of_type[gpu_type],
            first_part=first_part,
        )
        trains_s = self._trains_s(job)
        slowest = min(rate / size for size, rate in rates.items())
        in_proportion = max(rate / size for size, rate in rates.items()) <= slowest * (1 + _ROUNDING)
        if self._by_size and not (in_proportion and first_part >= 1):
            advance, unit = _advance(rates)
            work = max(1, math.ceil(left / (unit * trains_s) - _ROUNDING))
            return replace(offered, work=work, most_workers=len(advance) - 1, advance=advance)
        work = max(1, math.ceil(left / (slowest * trains_s) - _ROUNDING))
        return replace(offered, work=least * -(-work // least) if least == most else work)

    def _trains_s(self, job: JobState) -> float:
        """Of a slot, the seconds for which a job trains even if its workers change with it."""
        if self._rescale_s is None:
            return self._slot_s
        measured = self._speeds.rescale_seconds(job.spec.model)
        lost_s = self._rescale_s if measured is None else measured
        return self._slot_s - min(lost_s, self._slot_s / 2)

    def rates(self, job: JobState, gpu_type: str) -> dict[int, float]:
        """Samples per second by the sizes that a job may have on a type; empty: it does not run there."""
        total = self._speeds.gpu_types[gpu_type]
        sizes = [job.spec.gpus.requested]
        if job.spec.elastic != "none":
            sizes = list(range(job.spec.min_gpus, job.max_gpus(total) + 1))
        rates = {size: self._speeds.rate(job, size, gpu_type) for size in sizes if size <= total}
        return {size: rate for size, rate in rates.items() if rate > 0}

    def _worths(self, job: JobState, first: int, count: int) -> Floats:
        """[slot] what a job is worth that ends with each of ``count`` slots from ``first`` on."""
        since_s = ((first + 1 + slot) * self._slot_s - job.spec.submit_time for slot in range(count))
        return np.array([job.spec.utility.worth(max(0.0, each_s)) for each_s in since_s])


def _advance(rates: Mapping[int, float]) -> tuple[Ints, float]:
    """[workers] whole units of work that a slot does, and the samples per second of one unit.

    Sizes that are no faster than a smaller one are left out, and of large ones some. Of numbers of units that
    the fastest size may do, the one is taken that rounds down least.
    """
    useful: dict[int, float] = {}
    fastest = 0.0
    for size, rate in rates.items():
        is_offered = size <= _EVERY or size >= _STEP * max(useful, default=0) or size == max(rates)
        if is_offered and rate > fastest * (1 + _ROUNDING):
            useful[size] = fastest = rate
    shares = np.array([*useful.values()]) / fastest
    counts = np.arange(_UNITS, 2 * _UNITS + 1)
    whole = np.floor(shares * counts[:, None] * (1 + _ROUNDING))
    best = int(np.argmin((1 - whole / (shares * counts[:, None])).max(axis=1)))
    advance = np.zeros(max(useful) + 1, dtype=np.int64)
    advance[list(useful)] = whole[best]
    return advance, fastest / int(counts[best])
