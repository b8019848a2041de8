"""The Slurm backend: a lease job on each node, and in it a step for each unit.

What runs is known by the files of an attempt first: they are there whether or not Slurm answers. Slurm is
asked for the state of nodes and leases, and for what its keeper cannot say any more. No accounting is needed.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError
from pliant.schemas.text import counted
from pliant.tools.run.backends.local import LaunchRecord, StartedUnit, newest_attempts, write_record
from pliant.tools.run.backends.protocol import Handle, NodeInfo, StopLevel, Unit, UnitStatus
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm.controller import Controller, Later, View
from pliant.tools.run.backends.slurm.parsing import Addresses, SlurmNode
from pliant.tools.run.backends.slurm.units import Leases, Place, Seen, SlurmUnit, no_orders, record_of
from pliant.tools.run.statedir.contract.folders import FolderCache, make_log_folder
from pliant.tools.run.statedir.contract.presence import Heartbeats
from pliant.tools.run.statedir.directory import StateDir

BEAT_S: Final = 1.0
"""Between two looks at whether keepers live."""
DEAD_NODE_S: Final = 60.0
"""For so long a node gets no work on which keepers were found silent, though Slurm says that they run, or
nothing could be started."""


@dataclass(slots=True)
class _Attempt:
    """The units of one attempt."""

    units: list[SlurmUnit]
    folder: FolderCache
    beats: Heartbeats = field(default_factory=Heartbeats)
    looked_s: float = float("-inf")


class SlurmBackend:
    """Steps on the nodes of a Slurm.

    :param dirs: of the state directory; all nodes see it under the same path.
    """

    name = "slurm"
    in_place = True
    shares_slots = False

    def __init__(self, cluster: Cluster, dirs: StateDir) -> None:
        self._cluster, self._dirs = cluster, dirs
        self._nodes = {node.name: node for node in cluster.expanded()}
        self._controller = Controller(self._nodes)
        self.leases = Leases(cluster, dirs.path)
        self._attempts: dict[Handle, _Attempt] = {}
        self._ended: list[SlurmUnit] = []
        """Units that have ended, and whose srun has not."""
        self._unseen: set[Handle] = set()
        """Attempts that were found, and not looked at yet: they may run anywhere."""
        self._serves = dict.fromkeys(self._nodes, True)
        self._is_used = False
        """Whether something shall run, so that leases are needed."""
        self._looked_at: View | None = None
        self._dead_s: dict[str, float] = {}
        """When the keepers of a node were found silent, by node."""
        self._addresses = Addresses()

    # Nodes.

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes of the cluster file, with what Slurm says of them.

        A node serves while Slurm gives it work, and this directory a lease on it.

        :raises BadInputError: Slurm does not know a node, or it has fewer GPUs than the file says, or an
            address that is public.
        :raises ServiceMissingError: Slurm does not answer.
        """
        if self._controller.view is None:
            self._check(self._controller.first())
        self._look()
        view = self._controller.first()
        return [self._info(node, view.nodes.get(name)) for name, node in self._nodes.items()]

    def _info(self, node: Node, found: SlurmNode | None) -> NodeInfo:
        reason = self._why_down(node.name, found) or self._addresses.look_up(node, found)
        address = self._addresses.of(node.name)
        devices = None if self._cluster.slots == "cpu" else tuple(map(str, range(node.gpus)))
        return NodeInfo(node.name, node.gpus, not reason, address, devices, reason)

    def _why_down(self, name: str, found: SlurmNode | None) -> str:
        """Why a node gets no jobs; empty: it does."""
        if found is None:
            return "Slurm does not know it"
        if found.serves is not None:
            self._serves[name] = found.serves and (found.responds or self._beats_on(name))
        if time.monotonic() - self._dead_s.get(name, float("-inf")) < DEAD_NODE_S and not self._beats_on(
            name
        ):
            return "nothing is heard of it"
        if not self._serves[name]:
            return f"Slurm says {'+'.join(sorted(found.state))}{f': {found.reason}' if found.reason else ''}"
        return "" if self.leases.serves(name) or not self._is_used else self.leases.why_not(name)

    def _is_busy(self, name: str) -> bool:
        """Whether something may run on a node."""
        if self._unseen:
            return True
        units = (unit for attempt in self._attempts.values() for unit in attempt.units)
        return any(unit.node == name and unit.ended() is None for unit in units)

    def _beats_on(self, name: str) -> bool:
        """Whether a keeper on a node shows that it runs."""
        units = [(attempt, unit) for attempt in self._attempts.values() for unit in attempt.units]
        own = [(attempt, unit) for attempt, unit in units if unit.node == name and unit.is_taken_over()]
        return any(attempt.beats.silence_s(unit.beat_file, 3.0) == 0.0 for attempt, unit in own)

    def _check(self, view: View) -> None:
        """Compare the cluster file with what Slurm says."""
        for name, node in self._nodes.items():
            found = view.nodes.get(name)
            if found is None:
                raise _bad(f"Slurm knows no node {name}")
            if node.devices:
                raise _bad(f"node {name} names its devices: on Slurm a slot is a place in what Slurm gives")
            has = found.gpu_count(self._cluster.slurm.gres)
            if self._cluster.slots == "gpu" and node.gpus > has:
                raise _bad(f"{counted(node.gpus, 'GPU')} on node {name}, Slurm says {has}")

    # Units.

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        """The lease job of each node, and the step of each unit in it."""
        by_name = dict.fromkeys(unit.node for unit in units)
        leases = [
            command_lines.lease_of(self._cluster, self._nodes[name], self._dirs.path) for name in by_name
        ]
        lines = [command_lines.sbatch_lease(lease, self._cluster.slurm, self._dirs.path) for lease in leases]
        for number, unit in enumerate(units):
            wanted = SlurmUnit(handle, number, StartedUnit.of(unit))
            place = self._place_in(f"LEASE_OF_{unit.node}", wanted)
            env = [f"{name}={value}" for name, value in unit.env.items()]
            lines.append(("env", *env, *wanted.argv(place)))
        return [shlex.join(line) for line in lines]

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """Have all units started, or none, as soon as their leases run; an attempt may have some already."""
        make_log_folder(handle.files.logs)
        before = record_of(handle, self.name)
        first = len(before.units) if before else 0
        started = [StartedUnit.of(unit) for unit in units]
        no_orders(handle, range(first, first + len(started)))
        whole = (*(before.units if before else ()), *started)
        write_record(
            handle, LaunchRecord(job=handle.job, attempt=handle.attempt, backend=self.name, units=whole)
        )
        if handle in self._attempts:
            units_there = self._attempts[handle].units
            units_there += [SlurmUnit(handle, number, unit) for number, unit in enumerate(started, first)]
        self._is_used = True
        self.poll([handle])

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """Write down for each keeper what it is to do; what does not heed a kill is ended through Slurm."""
        self._look()
        for unit in self._attempt(handle).units:
            if (only is None or unit.number in only) and unit.ended() is None and unit.give_order(level):
                step = self._seen(unit).step
                if step is not None:
                    Later(command_lines.scancel_step(step.id))
        if all(unit.ended() is not None for unit in self._attempts[handle].units):
            self._forget(handle)

    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        """What became of the units, and the next step for those that are still to be started."""
        self._look()
        now_s = time.monotonic()
        for unit in self._ended:
            unit.reap(now_s)
        self._ended = [unit for unit in self._ended if unit.srun is not None]
        return {handle: self._statuses(handle, now_s) for handle in handles}

    def _statuses(self, handle: Handle, now_s: float) -> tuple[UnitStatus, ...]:
        attempt = self._attempt(handle)
        self._unseen.discard(handle)
        attempt.folder.look()
        if now_s - attempt.looked_s >= BEAT_S:
            attempt.looked_s = now_s
            attempt.beats.look((unit.beat_file for unit in attempt.units), now_s)
        statuses = tuple(self._status(attempt, unit, now_s) for unit in attempt.units)
        if all(status.state != "running" for status in statuses):
            self._forget(handle)
        return statuses

    def _forget(self, handle: Handle) -> None:
        """Nothing of an attempt runs any more; the ends of its sruns are still taken note of."""
        self._ended += [unit for unit in self._attempts.pop(handle).units if unit.srun is not None]

    def _status(self, attempt: _Attempt, unit: SlurmUnit, now_s: float) -> UnitStatus:
        unit.reap(now_s)
        ended = attempt.folder.get(f"exit {unit.number}", unit.ended)
        if ended is not None:
            return ended
        seen = self._seen(unit)
        if attempt.folder.get(f"keeper {unit.number}", unit.is_taken_over):
            status = unit.kept(attempt.beats, seen, now_s)
            if status.state == "lost" and seen.step is not None:
                self._dead_s[unit.node] = now_s
            return status
        status = unit.starting(self._place(unit), seen, os.environ, now_s, asking=self._asks_for(unit.node))
        if status.displaced:
            self._dead_s[unit.node] = now_s
        return status

    def _asks_for(self, name: str) -> bool:
        """Whether a node may get its lease in a moment; else that takes as long as Slurm likes."""
        return self._serves.get(name, False) and not self._controller.failure and self.leases.asks_for(name)

    def _seen(self, unit: SlurmUnit) -> Seen:
        """What Slurm said of a unit; where the lease has ended, so has the step."""
        view = self._controller.view
        if view is None or self._controller.failure:
            return Seen(float("-inf"), None)
        return Seen(view.asked_s, view.steps.get(f"{self.leases.id_of(unit.node)}/{unit.name}"))

    def _place(self, unit: SlurmUnit) -> Place | None:
        """Where a unit may be started now; None: its node has no lease that runs."""
        lease_id = self.leases.id_of(unit.node)
        if lease_id is None or not self._is_used or self._controller.failure:
            return None
        return self._place_in(lease_id, unit)

    def _place_in(self, lease_id: str, unit: SlurmUnit) -> Place:
        options, size, slots = self._cluster.slurm, self.leases.size_of(unit.node), unit.slots
        gres = command_lines.step_gres(options, size, len(slots))
        if not size:
            return Place(lease_id, gres, "none")
        if options.gpu_choice == "slot":
            return Place(lease_id, gres, ",".join(slots))
        view = self._looked_at
        whole = view.nodes[unit.node].cpus if view is not None and unit.node in view.nodes else size
        cpus = self.leases.cpus_of(unit.node) or whole
        return Place(lease_id, gres, "slurm", max(1, cpus * len(slots) // size))

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        """The newest attempt of every job that is not over; what was still to be started there will be."""
        found = newest_attempts(self._dirs.jobs, over)
        self._unseen.update(found)
        self._is_used = self._is_used or bool(found)
        return found

    @property
    def held_nodes(self) -> int:
        """Nodes with a lease that runs or waits in Slurm's queue."""
        return self.leases.held

    def release(self, over: Container[str] = ()) -> int:
        """Give back the leases of all nodes on which nothing runs; returns how many.

        :raises ServiceMissingError: Slurm does not answer.
        """
        self._is_used = False
        busy = {
            unit.node
            for handle in newest_attempts(self._dirs.jobs, over)
            for unit, status in zip(self._attempt(handle).units, self.poll([handle])[handle], strict=False)
            if status.state == "running"
        }
        return self.leases.give_back(busy)

    # What is known.

    def _look(self) -> None:
        """Take up the newest view of Slurm; leases follow it."""
        self._controller.look()
        view = self._controller.view
        if view is not None and view is not self._looked_at:
            self._looked_at = view
            self.leases.look(view, renew=self._is_used)
            for name, serves in self._serves.items() if self._is_used else ():
                if not serves and self.leases.id_of(name) is not None and not self._is_busy(name):
                    self.leases.drop(name)  # who drains a node waits for it

    def _attempt(self, handle: Handle) -> _Attempt:
        if handle not in self._attempts:
            record = record_of(handle, self.name)
            units = [SlurmUnit(handle, n, unit) for n, unit in enumerate(record.units if record else ())]
            self._attempts[handle] = _Attempt(units, FolderCache(handle.folder))
        return self._attempts[handle]


def _bad(message: str) -> BadInputError:
    return BadInputError.one("cluster", message, pointer="/nodes")
