"""The reference system of Ares: generalized processor sharing (GPS) in virtual time.

Ares, section 3.2. ``M`` GPUs are shared equally, at every instant and without limit of divisibility, by
the ``N(t)`` jobs active *in GPS*, which are not the jobs active in the real cluster. Virtual time grows by
``dV/dt = M/N(t)`` and stands still while no job (or no GPU) is there. A job of demand ``L`` that arrives
at ``a`` gets the virtual finish time ``F = V(a) + L``, which never changes. It leaves when ``V`` reaches
``F``, so jobs leave in order of ``F`` and one heap serves every event in O(log N).
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush


class VirtualTime:
    """Virtual time and the jobs that GPS still serves.

    ``V`` is advanced only at events that change its slope, from departure to departure and never in one
    step over several of them. Asking in between changes nothing, so the number of decisions made on the
    way leaves no trace in the state, not even a rounding error.
    """

    def __init__(self, time_s: float = 0.0, virtual: float = 0.0, active: Mapping[str, float] | None = None):
        self.time_s = time_s
        """Real time up to which ``virtual`` is known, seconds."""
        self.virtual = virtual
        """V at ``time_s``, GPU-seconds."""
        self.active: dict[str, float] = dict(active or {})
        """F of the jobs that are active in GPS, by id."""
        self._heap = [(finish, job_id) for job_id, finish in self.active.items()]
        heapify(self._heap)

    def advance(self, to_s: float, gpus: int) -> list[tuple[float, str]]:
        """Go on to the real time ``to_s`` with ``gpus`` GPUs; returns (real time, id) of the departures.

        A time before ``time_s`` is taken as ``time_s``: what is past stays as it was.
        """
        departures: list[tuple[float, str]] = []
        while self._heap and gpus and to_s > self.time_s:
            finish, job_id = self._heap[0]
            if self.active.get(job_id) != finish:  # withdrawn, and perhaps back with another F
                heappop(self._heap)
                continue
            share = gpus / len(self.active)
            leaves_s = self.time_s + (finish - self.virtual) / share
            if leaves_s > to_s:
                self.virtual = min(finish, self.virtual + (to_s - self.time_s) * share)
                break
            heappop(self._heap)
            del self.active[job_id]
            self.time_s, self.virtual = leaves_s, finish
            departures.append((leaves_s, job_id))
        self.time_s = max(self.time_s, to_s)
        return departures

    def enter(self, job_id: str, demand_gpu_s: float) -> float:
        """A job arrives now with its demand in GPU-seconds; returns its virtual finish time."""
        finish = self.virtual + demand_gpu_s
        self.active[job_id] = finish
        heappush(self._heap, (finish, job_id))
        return finish

    def leave(self, job_id: str) -> None:
        """A job ends before its time (cancelled, failed); does nothing if GPS has served it already."""
        self.active.pop(job_id, None)
