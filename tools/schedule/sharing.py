"""Whether two jobs can train on the same GPUs, and how fast: what a policy that packs jobs asks.

Two jobs share whole sets: every GPU of the one is a GPU of the other, and no third job is on them. Each
trains at its speed alone times the part that it keeps beside the other.
"""

from __future__ import annotations

from functools import cached_property

from pliant.schemas.cluster import Cluster
from pliant.tools.profile.pairs import UNKNOWN, Load, PairTable, Parts
from pliant.tools.profile.throughput import Placement, Throughput


class GpuSharing:
    """Answers by what the profile has measured, else by what the cluster says (``Cluster.sharing``)."""

    def __init__(self, cluster: Cluster, throughput: Throughput) -> None:
        self._rules = cluster.sharing
        self._memory = _gpu_memory(cluster)
        self._throughput = throughput
        self._known: dict[tuple[str, Placement, Load, Load], Parts | None] = {}

    @cached_property
    def _pairs(self) -> PairTable:
        return PairTable(self._throughput.profile_rows())

    def parts(self, one: Load, other: Load, gpu_type: str, place: Placement) -> Parts | None:
        """What each keeps of its speed alone; None: they do not fit the memory together, as far as is known.

        :param place: GPUs on each node, descending.
        """
        key = (gpu_type, place, one, other)
        if key not in self._known:
            self._known[key] = self._answer(*key)
        return self._known[key]

    def _answer(self, gpu_type: str, place: Placement, one: Load, other: Load) -> Parts | None:
        found = self._pairs.measured(one, other, gpu_type, place)
        if found != UNKNOWN:
            return found
        fits = self._fits(one, other, gpu_type)
        if fits is None:
            fits = self._rules.unmeasured == "together"
        return (self._rules.speed, self._rules.speed) if fits else None

    def _fits(self, one: Load, other: Load, gpu_type: str) -> bool | None:
        """Whether the memory of one GPU holds both; None: not known."""
        taken = self._pairs.memory(one, gpu_type), self._pairs.memory(other, gpu_type)
        there = self._memory.get(gpu_type)
        if there is None or taken[0] is None or taken[1] is None:
            return None
        return taken[0] + taken[1] <= there


def _gpu_memory(cluster: Cluster) -> dict[str, int]:
    """Bytes of one GPU by type, the least of its nodes; types are left out of which a node states none."""
    stated: dict[str, list[int | None]] = {}
    for node in cluster.nodes:
        if node.gpus:
            stated.setdefault(node.gpu_type, []).append(node.gpu_memory)
    return {kind: min(size or 0 for size in sizes) for kind, sizes in stated.items() if all(sizes)}
