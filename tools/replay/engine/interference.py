"""Jobs that span several nodes slow each other down where they share one."""

from __future__ import annotations

from pliant.tools.schedule.jobs import NodeGpus


class Interference:
    """Who disturbs whom, as the simulator of Pollux (OSDI '21) has it.

    A node is contended while two or more jobs hold GPUs on it that each hold GPUs on other nodes, too: they
    share its way to the network. Such a job loses the given part of its speed while any of its nodes is
    contended; how many neighbours it has does not matter. Jobs on one node neither disturb nor are disturbed.
    """

    def __init__(self, part: float) -> None:
        """``part``: of the speed that is lost, from 0 to below 1."""
        self._slowed = 1.0 - part
        self._nodes: dict[str, tuple[str, ...]] = {}
        """Nodes of each job that spans several."""
        self._beside: dict[str, set[str]] = {}
        """The same by node."""
        self._last: dict[str, float] = {}
        self._stale: set[str] = set()

    def place(self, job_id: str, placement: NodeGpus) -> None:
        """From now on the job holds this; nothing, if it is empty."""
        for node in self._nodes.pop(job_id, ()):
            self._beside[node].remove(job_id)
            self._stale |= self._beside[node]
        self._last.pop(job_id, None)
        if len(placement) > 1:
            self._nodes[job_id] = tuple(node for node, _ in placement)
            for node in self._nodes[job_id]:
                others = self._beside.setdefault(node, set())
                self._stale |= others
                others.add(job_id)

    def speed_factor(self, job_id: str) -> float:
        """The part of its speed that the job has now."""
        nodes = self._nodes.get(job_id, ())
        found = self._slowed if any(len(self._beside[node]) > 1 for node in nodes) else 1.0
        self._last[job_id] = found
        return found

    def changed(self) -> list[str]:
        """Jobs whose speed factor is not what :meth:`speed_factor` said last, in order of their ids."""
        stale, self._stale = self._stale, set()
        known = {job_id: self._last[job_id] for job_id in stale if job_id in self._last}
        return sorted(job_id for job_id, before in known.items() if self.speed_factor(job_id) != before)
