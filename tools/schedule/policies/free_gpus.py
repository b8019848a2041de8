"""Free GPUs node by node while a decision is being made, for policies that place their jobs themselves."""

from __future__ import annotations

from collections.abc import Iterable

from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.snapshot import Snapshot


class Room:
    """What is free on each node once the jobs of a list have left theirs."""

    def __init__(self, snapshot: Snapshot, leaving: Iterable[JobState]) -> None:
        free = {node.name: snapshot.free.free_on(node.name) for node in snapshot.nodes if node.up}
        for job in leaving:
            for name, count in job.placement:
                if name in free:
                    free[name] += count
        self._names: dict[str, list[str]] = {}
        self._sizes: dict[str, list[int]] = {}
        for node in snapshot.nodes:
            if node.up:
                self._names.setdefault(node.gpu_type, []).append(node.name)
                self._sizes.setdefault(node.gpu_type, []).append(node.gpus)
        self._free = free

    def take_emptiest(self, gpus: int, gpu_type: str) -> NodeGpus:
        """GPUs of the nodes with most of them free, one after the other; of equal ones the first.

        There must be as many on that type.
        """
        picked: dict[str, int] = {}
        while gpus:
            gpus -= self._take(max(self._names[gpu_type], key=self._free.__getitem__), gpus, picked)
        return tuple(picked.items())

    def take_compact(self, gpus: int, gpu_type: str) -> NodeGpus:
        """GPUs of few nodes, the last part on the fullest that has room for it; there must be as many."""
        free, names, picked = self._free, self._names[gpu_type], dict[str, int]()
        while gpus:
            fitting = [name for name in names if free[name] >= gpus]
            name = min(fitting, key=free.__getitem__) if fitting else max(names, key=free.__getitem__)
            gpus -= self._take(name, gpus, picked)
        return tuple(picked.items())

    def _take(self, name: str, wanted: int, picked: dict[str, int]) -> int:
        taken = picked[name] = min(self._free[name], wanted)
        self._free[name] -= taken
        return taken

    def take_together(self, gpus: int, gpu_type: str) -> NodeGpus | None:
        """The same, unless an empty cluster would do with fewer nodes: None, and nothing is taken."""
        place = self.take_emptiest(gpus, gpu_type)
        largest_first = sorted(self._sizes[gpu_type], reverse=True)
        if sum(largest_first[: len(place) - 1]) < gpus:
            return place
        for name, count in place:
            self._free[name] += count
        return None
