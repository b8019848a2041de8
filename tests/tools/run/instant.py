"""A backend without processes: what is started has ended well at the next look, or what a test asks for."""

import os
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import Handle, NodeInfo, StopLevel, Unit, UnitStatus
from pliant.tools.run.statedir.contract.plan import WorkerOutcome
from pliant.tools.run.statedir.directory import StateDir

Trap = Callable[[], object]
"""Raises an error."""


class InstantBackend:
    """Every unit of it exits with 0 at once, after its worker has written that it is done.

    :param traps: by operation ("start", "poll", "stop") and job: what goes wrong there.
    """

    name = "instant"
    in_place = True
    held_nodes = 0
    shares_slots = True

    def __init__(self, cluster: Cluster, traps: Mapping[tuple[str, str], Trap] | None = None) -> None:
        self._cluster = cluster
        self._traps = traps or {}
        self._units: dict[Handle, int] = {}

    def nodes(self) -> Sequence[NodeInfo]:
        return [NodeInfo(node.name, node.gpus) for node in self._cluster.expanded()]

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        return [f"{unit.node}: {unit.in_a_shell}" for unit in units]

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        self._spring("start", handle)
        outcome = WorkerOutcome(outcome="done", samples_done=1.0).model_dump_json()
        for index, unit in enumerate(units):
            for text in (*unit.argv, *unit.env, *unit.env.values()):
                os.fsencode(text)
            handle.files.outcome(index).write_text(outcome)
        self._units[handle] = len(units)

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        self._spring("stop", handle)

    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        found = {}
        for handle in handles:
            self._spring("poll", handle)
            found[handle] = (UnitStatus("exited", 0),) * self._units.get(handle, 0)
        return found

    def release(self, over: Container[str] = ()) -> int:
        return 0

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        return []

    def _spring(self, operation: str, handle: Handle) -> None:
        self._traps.get((operation, handle.job), lambda: None)()


class UndyingBackend(InstantBackend):
    """Every unit of it runs until a test says so: it hangs in the system, and no signal ends it."""

    hangs = True

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        self._units[handle] = len(units)

    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        status = UnitStatus("running") if self.hangs else UnitStatus("exited", -9)
        return {handle: (status,) * self._units.get(handle, 0) for handle in handles}

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        return [handle for handle in self._units if handle.job not in over]


def opens(traps: Mapping[tuple[str, str], Trap]) -> Callable[[str, Cluster, StateDir], InstantBackend]:
    return lambda _name, nodes, _dirs: InstantBackend(nodes, traps)
