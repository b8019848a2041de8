"""The Slurm backend: a lease job on each node, and in it a step for each unit.

Where several accounts share a run, leases and steps are root's, and each step's supervisor starts its unit as
the unit's account (see ``step.py``). No file of theirs is read here.

What runs is known from the files of an attempt, whether or not Slurm answers. Slurm is asked for the state of
nodes and leases, and for what a silent supervisor cannot say. A lease is a job of one node, because a failed
node shrinks a job of several nodes permanently; it is found again by its name.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster, LeaseLimits, LeaseRule, Node, NodeReservation
from pliant.schemas.errors import UsageError
from pliant.schemas.text import counted
from pliant.tools.run.backends.protocol import (
    Handle,
    LaunchRecord,
    NodeInfo,
    StartedUnit,
    StopLevel,
    Unit,
    UnitStatus,
    bad_cluster,
    newest_attempts,
    write_record,
)
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.commands import Controller, ControllerView, Later, Lease, ask
from pliant.tools.run.backends.slurm.lease_demand import LeasedNode, LeasePlan, LeaseState, lease_plan
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmNode
from pliant.tools.run.backends.slurm.units import (
    SlurmUnit,
    StepPlace,
    UnitReport,
    own_folder,
    prepare,
    record_of,
    units_of,
)
from pliant.tools.run.statedir.contract.as_user import files_of, with_own_files
from pliant.tools.run.statedir.contract.folders import FolderCache, make_log_folder, refuse_public
from pliant.tools.run.statedir.contract.liveness import Heartbeats
from pliant.tools.run.statedir.directory import StateDir

HEARTBEAT_POLL_S: Final = 1.0
"""Seconds between two checks of supervisors' heartbeats."""
DEAD_NODE_S: Final = 60.0
"""Seconds without work for a node after a failed start or silent supervisors."""
LEASE_AGAIN_S: Final = 3.0
"""Seconds between two submissions of a lease that ends at once; doubled each time, up to the next."""
LONGEST_S: Final = 300.0
STEADY_S: Final = 60.0
"""Seconds of running after which a lease did not end at once."""
REFUSED_S: Final = 15.0
"""Seconds between two submissions of a lease that Slurm refuses."""
LEAST_NOTICE_S: Final = 600.0
"""Seconds after an announced end at which a lease that still runs gives its node work again."""
TOUCH_S: Final = 30.0
"""Seconds between two touches of the file of a node that is in use."""
ENDS_S: Final = 15.0
"""Seconds after which a lease is given back once more that Slurm still lists."""
WAIT_S: Final = 30.0
"""Seconds for which a node counts as up while its lease waits."""
_NOT_LOOKED_AT: Final = ("", "None")
"""Reasons of a job that has only just begun to wait."""
NAME_AGAIN_S: Final = 60.0
"""Seconds between two lookups of an unknown name."""
_log = logging.getLogger("pliant")


@dataclass(slots=True)
class _Attempt:
    units: list[SlurmUnit]
    folder: FolderCache
    beats: Heartbeats = field(default_factory=Heartbeats)
    looked_s: float = float("-inf")


class SlurmBackend:
    """Steps on the nodes of a Slurm, which all see the state directory under the same path."""

    name = "slurm"
    in_place = True
    shares_slots = False

    def __init__(self, cluster: Cluster, dirs: StateDir) -> None:
        self._cluster, self._dirs = cluster, dirs
        self._nodes = {node.name: node for node in cluster.expanded()}
        self._controller = Controller(self._nodes)
        self.leases = Leases(cluster, dirs.path)
        self._attempts: dict[Handle, _Attempt] = {}
        # Units that have ended, but whose srun has not.
        self._ended: list[SlurmUnit] = []
        # Adopted attempts that were not polled yet: they may run anywhere.
        self._unseen: set[Handle] = set()
        self._serves = dict.fromkeys(self._nodes, True)
        # Whether leases are needed.
        self._is_used = False
        # Whether jobs wait for GPUs, by the last decision.
        self.jobs_wait = False
        self._looked_at: ControllerView | None = None
        # When the supervisors of a node were found silent.
        self._dead_s: dict[str, float] = {}
        # Leases whose end was announced, by node, and when.
        self._announced: dict[str, tuple[str | None, float]] = {}
        self._notice_s = max(LEAST_NOTICE_S, 2 * (cluster.slurm.notice_seconds or 0.0))
        self._addresses = Addresses()

    # Nodes.

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes of the cluster file; one is up while Slurm gives it work and this directory a lease.

        :raises BadInputError: Slurm does not know a node, or knows fewer GPUs, or its address is public.
        :raises ServiceMissingError: Slurm does not answer.
        """
        if self._controller.view is None:
            self._check(self._controller.first())
        self._look()
        view = self._controller.first()
        return [self._info(node, view.nodes.get(name)) for name, node in self._nodes.items()]

    def reservations(self) -> Sequence[NodeReservation] | None:
        """As :meth:`.commands.Controller.reservations`."""
        return self._controller.reservations(self._cluster.slurm)

    def change_cluster(self, cluster: Cluster) -> None:
        """Go on with other nodes; leases of those that are gone end."""
        self._cluster = cluster
        self._nodes = {node.name: node for node in cluster.expanded()}
        self._controller.watch(self._nodes)
        self.leases.change_cluster(cluster)
        self._serves = {name: self._serves.get(name, True) for name in self._nodes}
        self._notice_s = max(LEAST_NOTICE_S, 2 * (cluster.slurm.notice_seconds or 0.0))

    def _info(self, node: Node, found: SlurmNode | None) -> NodeInfo:
        reason = self._why_down(node.name, found) or self._addresses.look_up(node, found)
        address = self._addresses.of(node.name)
        devices = None if self._cluster.slots == "cpu" else tuple(map(str, range(node.gpus)))
        return NodeInfo(node.name, node.gpus, not reason, address, devices, reason)

    def _why_down(self, name: str, found: SlurmNode | None) -> str:
        if found is None:
            return "Slurm does not know it"
        if not self._nodes[name].gpus:
            return "it has no GPUs, and so no lease"
        if found.serves is not None:
            self._serves[name] = found.serves and (found.responds or self._beats_on(name))
        dead_for_s = time.monotonic() - self._dead_s.get(name, float("-inf"))
        if dead_for_s < DEAD_NODE_S and not self._beats_on(name):
            return "nothing is heard of it"
        if self._is_to_end(name):
            return "Slurm has announced the end of its lease"
        if not self.leases.offers(name):
            return "as many nodes as slurm.leases allows are leased, or to be"
        if not self._serves[name]:
            return f"Slurm says {'+'.join(sorted(found.state))}{f': {found.reason}' if found.reason else ''}"
        return "" if self.leases.serves(name) or not self._is_used else self.leases.why_not(name)

    def _busy_nodes(self) -> set[str]:
        units = ((attempt, unit) for attempt in self._attempts.values() for unit in attempt.units)
        return {
            unit.node
            for attempt, unit in units
            if attempt.folder.get(f"exit {unit.number}", unit.ended) is None
        }

    def _is_busy(self, name: str) -> bool:
        return bool(self._unseen) or any(unit.ended() is None for _, unit in self._units_on(name))

    def _beats_on(self, name: str) -> bool:
        return any(
            attempt.beats.silence_s(unit.beat_file, 3.0) == 0.0
            for attempt, unit in self._units_on(name)
            if unit.is_taken_over()
        )

    def _units_on(self, name: str) -> list[tuple[_Attempt, SlurmUnit]]:
        units = ((attempt, unit) for attempt in self._attempts.values() for unit in attempt.units)
        return [(attempt, unit) for attempt, unit in units if unit.node == name]

    def _check(self, view: ControllerView) -> None:
        for name, node in self._nodes.items():
            shown = view.nodes.get(name)
            if shown is None:
                raise bad_cluster(f"Slurm knows no node {name}")
            if node.devices:
                raise bad_cluster(
                    f"node {name} names its devices: on Slurm a slot is a place in what Slurm gives"
                )
            has = shown.gpu_count(self._cluster.slurm.gres)
            if self._cluster.slots == "gpu" and node.gpus > has:
                raise bad_cluster(f"{counted(node.gpus, 'GPU')} on node {name}, Slurm says {has}")

    # Units.

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        state = self._dirs.path
        nodes = dict.fromkeys(unit.node for unit in units)
        leases = [command_lines.lease_of(self._cluster, self._nodes[name], state) for name in nodes]
        options = self._cluster.slurm
        lines = [command_lines.sbatch_lease(lease, options, state, options.leases) for lease in leases]
        for number, unit in enumerate(units):
            wanted = SlurmUnit(handle, number, StartedUnit.of(unit), own_folder(handle))
            place = self._place_in(f"LEASE_OF_{unit.node}", wanted)
            env = [f"{name}={value}" for name, value in unit.env.items()]
            lines.append(("env", *env, *wanted.argv(place)))
        return [shlex.join(line) for line in lines]

    @with_own_files
    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """Have the units started as soon as their leases run."""
        with files_of(handle.files):
            make_log_folder(handle.files.logs)
        talk = own_folder(handle)
        record = record_of(handle, self.name, talk)
        before = record.units if record else ()
        started = tuple(StartedUnit.of(unit) for unit in units)
        prepare(talk, handle.files, units, len(before))
        whole = LaunchRecord(
            job=handle.job, attempt=handle.attempt, backend=self.name, units=(*before, *started)
        )
        write_record(handle, whole)
        if handle in self._attempts:
            added = enumerate(started, len(before))
            self._attempts[handle].units += [SlurmUnit(handle, number, unit, talk) for number, unit in added]
        self._is_used = True
        self._attempt(handle)  # what is to run there keeps a lease from being given back
        self.poll([handle])

    @with_own_files
    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """Write an order for each supervisor. What does not heed a kill is ended through Slurm."""
        self._look()
        for unit in self._attempt(handle).units:
            if (only is None or unit.number in only) and unit.ended() is None and unit.give_order(level):
                step = self._seen(unit).step
                if step is not None:
                    Later(command_lines.scancel_step(step.id))
        if all(unit.ended() is not None for unit in self._attempts[handle].units):
            self._forget(handle)

    @with_own_files
    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        """What became of the units; those that are still to be started are taken a step further."""
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
        if now_s - attempt.looked_s >= HEARTBEAT_POLL_S:
            attempt.looked_s = now_s
            attempt.beats.look((unit.beat_file for unit in attempt.units), now_s)
        statuses = tuple(self._status(attempt, unit, now_s) for unit in attempt.units)
        if all(status.state != "running" for status in statuses):
            self._forget(handle)
        return statuses

    def _forget(self, handle: Handle) -> None:
        """Nothing of an attempt runs any more, but its sruns are still to be reaped."""
        self._ended += [unit for unit in self._attempts.pop(handle).units if unit.srun is not None]

    def _status(self, attempt: _Attempt, unit: SlurmUnit, now_s: float) -> UnitStatus:
        unit.reap(now_s)
        ended = attempt.folder.get(f"exit {unit.number}", unit.ended)
        if ended is not None:
            return ended
        seen = self._seen(unit)
        if attempt.folder.get(f"supervisor {unit.number}", unit.is_taken_over):
            status = unit.kept(attempt.beats, seen, now_s)
            if status.state == "lost" and seen.step is not None:
                self._dead_s[unit.node] = now_s
            if status.state == "running" and attempt.folder.get(f"notice {unit.number}", unit.is_noticed):
                self._announce(unit.node, now_s)
                return replace(status, noticed=True)
            return status
        status = unit.starting(
            self._place(unit), seen, os.environ, now_s, asking=self._can_lease_soon(unit.node)
        )
        if status.displaced:
            self._dead_s[unit.node] = now_s
        return status

    def _announce(self, name: str, now_s: float) -> None:
        """Note that a unit has got a notice, which all units in a lease get."""
        lease_id = self.leases.id_of(name)
        if name not in self._announced or self._announced[name][0] != lease_id:
            self._announced[name] = lease_id, now_s

    def _is_to_end(self, name: str) -> bool:
        lease_id, since_s = self._announced.get(name, (None, float("-inf")))
        return lease_id == self.leases.id_of(name) and time.monotonic() - since_s < self._notice_s

    def _can_lease_soon(self, name: str) -> bool:
        """Whether a node may get its lease in a moment, instead of waiting in Slurm's queue."""
        return (
            self._serves.get(name, False)
            and not self._controller.failure
            and self.leases.requests_lease(name)
        )

    def _seen(self, unit: SlurmUnit) -> UnitReport:
        """What Slurm said of a unit, whose step ends with its lease."""
        view = self._controller.view
        if view is None or self._controller.failure:
            return UnitReport(float("-inf"), None)
        return UnitReport(view.queried_s, view.steps.get(f"{self.leases.id_of(unit.node)}/{unit.name}"))

    def _place(self, unit: SlurmUnit) -> StepPlace | None:
        """Where a unit may be started now. Returns None if its node has no running lease."""
        lease_id = self.leases.id_of(unit.node)
        if lease_id is None or not self._is_used or self._controller.failure:
            return None
        return self._place_in(lease_id, unit)

    def _place_in(self, lease_id: str, unit: SlurmUnit) -> StepPlace:
        options, size, slots = self._cluster.slurm, self.leases.size_of(unit.node), unit.slots
        if not size or not slots:
            return StepPlace(lease_id, "", "none")
        gres = command_lines.step_gres(options, size, len(slots))
        if options.gpu_choice == "slot":
            return StepPlace(lease_id, gres, ",".join(slots))
        view = self._looked_at
        whole = view.nodes[unit.node].cpus if view is not None and unit.node in view.nodes else size
        cpus = self.leases.cpus_of(unit.node) or whole
        return StepPlace(lease_id, gres, "slurm", max(1, cpus * len(slots) // size))

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        handles = newest_attempts(self._dirs.jobs, over)
        self._unseen.update(handles)
        self._is_used = self._is_used or bool(handles) or self._cluster.slurm.leases is not None
        return handles

    @property
    def held_nodes(self) -> int:
        return self.leases.held

    def release(self, over: Container[str] = ()) -> int:
        """:raises ServiceMissingError: Slurm does not answer."""
        self._is_used = False
        busy = {
            unit.node
            for handle in newest_attempts(self._dirs.jobs, over)
            for unit, status in zip(self._attempt(handle).units, self.poll([handle])[handle], strict=False)
            if status.state == "running"
        }
        return self.leases.give_back(busy)

    def _look(self) -> None:
        """Take up the newest view of Slurm; leases follow it."""
        self._controller.look()
        view = self._controller.view
        if view is not None and view is not self._looked_at:
            self._looked_at = view
            busy = None if self._unseen else self._busy_nodes
            self.leases.look(view, renew=self._is_used, busy=busy, jobs_wait=self.jobs_wait)
            for name, serves in self._serves.items() if self._is_used else ():
                if not serves and self.leases.id_of(name) is not None and not self._is_busy(name):
                    self.leases.drop(name)  # the operator who drains the node waits for this

    def _attempt(self, handle: Handle) -> _Attempt:
        if handle not in self._attempts:
            talk = own_folder(handle)
            self._attempts[handle] = _Attempt(units_of(handle, self.name, talk), FolderCache(talk.path))
        return self._attempts[handle]


@dataclass(slots=True)
class _LeaseRequest:
    """One node's lease, as far as this process has asked for it."""

    lease: Lease
    since_s: float
    """Start of the wait for a lease; the current time while there is one."""
    submission: Later | None = None
    next_s: float = float("-inf")
    seen_from_s: float = float("-inf")
    """Only later views can show what was submitted."""
    refused: str = ""
    tries: int = 0
    """Submissions since the last steady lease."""
    runs_from_s: float = float("inf")
    id: str | None = None
    job: SlurmJob | None = None
    ending: dict[str, float] = field(default_factory=dict)
    """Leases that were given back, until Slurm no longer lists them, and when to say so again."""
    used_s: float = float("-inf")
    """When something last ran on the node, or its lease was asked for."""
    touched_s: float = float("-inf")
    """When its file was made as new as that."""


class Leases:
    """The leases of a state directory.

    :param clock: seconds that never run backwards.
    :param wall: the time of day, in seconds since the epoch.
    """

    def __init__(
        self,
        cluster: Cluster,
        state: Path,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._options, self._state = cluster.slurm, state.resolve()
        self._clock, self._wall = clock, wall
        self._asked: dict[str, _LeaseRequest] = {}
        # Whether leases of nodes that are gone may be in Slurm's queue.
        self._has_left = False
        self._plan: LeasePlan | None = None
        self._take(cluster)

    def change_cluster(self, cluster: Cluster) -> None:
        self._options, self._has_left = cluster.slurm, True
        self._plan = None if cluster.slurm.leases is None else self._plan
        self._take(cluster)

    def _take(self, cluster: Cluster) -> None:
        before, self._asked = self._asked, {}
        for node in (node for node in cluster.expanded() if node.gpus):
            lease = command_lines.lease_of(cluster, node, self._state)
            known = before.get(node.name)
            same = known is not None and known.lease == lease
            self._asked[node.name] = (
                known if known is not None and same else _LeaseRequest(lease, self._clock())
            )

    def id_of(self, node: str) -> str | None:
        return self._asked[node].id if node in self._asked else None

    @property
    def held(self) -> int:
        return sum(asked.job is not None for asked in self._asked.values())

    def size_of(self, node: str) -> int:
        """GPUs in a node's lease; 0 if its slots are CPUs."""
        return self._asked[node].lease.gpus

    def cpus_of(self, node: str) -> int | None:
        """CPUs in a node's lease. Returns None for all of the node."""
        return self._asked[node].lease.cpus

    def offers(self, node: str) -> bool:
        """Whether jobs may be placed on a node by the number of leases."""
        return self._plan is None or node in self._plan.offered

    def serves(self, node: str) -> bool:
        """Whether a node's lease runs or has not waited for long."""
        asked = self._asked.get(node)
        return asked is not None and (asked.id is not None or self._clock() - asked.since_s < WAIT_S)

    def requests_lease(self, node: str) -> bool:
        """Whether a node's lease is not in Slurm's queue yet, or Slurm has not looked at it there."""
        asked = self._asked.get(node)
        if asked is None or asked.id is not None or asked.refused:
            return False
        return asked.job is None or asked.job.reason in _NOT_LOOKED_AT

    def why_not(self, node: str) -> str:
        asked = self._asked[node]
        if asked.refused:
            return f"Slurm refuses its lease: {asked.refused}"
        if asked.job is None and asked.tries > 2:
            return "its lease ends at once, or is not called in Slurm's queue as it was asked to be"
        waits = f" ({asked.job.reason})" if asked.job is not None and asked.job.reason else ""
        return f"its lease waits in Slurm's queue{waits}"

    def look(
        self,
        view: ControllerView,
        *,
        renew: bool = True,
        busy: Callable[[], Container[str]] | None = set,
        jobs_wait: bool = False,
    ) -> None:
        """Learn from a view which leases run, and ask for those that are missing if ``renew``.

        Where leases follow the jobs, those that are of no use any more are given back.

        :param busy: the nodes on which something runs, or is to; None: that is not known yet.
        :param jobs_wait: jobs wait for GPUs.
        """
        by_name = self._by_name(view)
        if self._has_left:
            own = {asked.lease.name for asked in self._asked.values()}
            prefix = command_lines.lease_prefix(self._state)
            left = [name for name in by_name if name.startswith(prefix) and name not in own]
            if ids := [job.id for name in left for job in by_name[name]]:
                Later(command_lines.scancel_jobs(ids))
        for asked in self._asked.values():
            self._read_submission(asked)
            jobs = self._without_ending(asked, by_name.get(asked.lease.name, []))
            running = [job for job in jobs if job.state == "RUNNING"]
            now_s = self._clock()
            asked.id, before = running[0].id if running else None, asked.id
            asked.job = next(iter([*running, *jobs]), None)
            if asked.id != before:
                asked.runs_from_s = now_s if running else float("inf")
            if now_s - asked.runs_from_s >= STEADY_S:
                asked.tries = 0
            if renew:
                self._drop_second(running or jobs, jobs)
        follows = self._options.leases is not None
        if follows:
            self._plan = self._planned(view, busy, jobs_wait=jobs_wait, renew=renew)
        for node, asked in self._asked.items():
            now_s = self._clock()
            is_needed = renew and (not follows or (self._plan is not None and node in self._plan.needed))
            asked.since_s = now_s if asked.id is not None or not is_needed else asked.since_s
            if renew and not is_needed and busy is not None:
                self._end(asked)
            seen = view.nodes.get(node)
            wanted = is_needed and asked.job is None and seen is not None and seen.serves is not False
            due = asked.submission is None and now_s >= asked.next_s and view.queried_s >= asked.seen_from_s
            if wanted and due:
                asked.submission = Later(self._sbatch(asked, seen))

    def _sbatch(self, asked: _LeaseRequest, seen: SlurmNode | None) -> tuple[str, ...]:
        rule, options = self._options.leases, self._options
        if rule is None:
            return command_lines.sbatch_lease(asked.lease, options, self._state)
        partition = _partition(rule, seen)
        if partition is not None:
            options = options.model_copy(update={"partition": partition})
        self._use(asked, self._clock())
        return command_lines.sbatch_lease(asked.lease, options, self._state, _limits(rule, partition))

    def _planned(
        self,
        view: ControllerView,
        busy_nodes: Callable[[], Container[str]] | None,
        *,
        jobs_wait: bool,
        renew: bool,
    ) -> LeasePlan:
        """Which leases are of use, as the rule says; all that there are, while nobody knows what is busy."""
        now_s, rule, nodes = self._clock(), self._options.leases or LeaseRule(), list[LeasedNode]()
        renew &= busy_nodes is not None
        there = {node for node, asked in self._asked.items() if asked.job is not None}
        busy = there if busy_nodes is None else busy_nodes()
        for node, asked in self._asked.items():
            state = LeaseState.RUNNING if asked.id is not None else LeaseState.NONE
            if asked.id is None and (asked.job is not None or asked.submission is not None or asked.refused):
                late = now_s - asked.since_s >= WAIT_S
                state = LeaseState.WAITING if late else LeaseState.REQUESTED
            if (renew and node in busy) or asked.used_s == float("-inf"):
                self._use(asked, now_s, as_before=not (renew and node in busy))
            partition = _partition(rule, view.nodes.get(node))
            nodes.append(LeasedNode(node, partition, state, node in busy, now_s - asked.used_s))
        plan = lease_plan(rule, nodes, jobs_wait=jobs_wait)
        for each in nodes if renew else ():
            limit_s = _limits(rule, each.partition).idle_seconds
            if each.name in plan.needed and not each.is_busy and each.idle_s >= limit_s:
                self._use(self._asked[each.name], now_s)  # one of the least, which is kept
        return plan

    def _use(self, asked: _LeaseRequest, now_s: float, *, as_before: bool = False) -> None:
        """A node is in use now: its lease is kept, and keeps itself.

        :param as_before: it is as old as its file says, which another process has left.
        """
        file = command_lines.lease_file(self._state, asked.lease.node)
        try:
            if as_before:
                asked.used_s = now_s - max(0.0, self._wall() - file.stat().st_mtime)
                return
            asked.used_s = now_s
            if now_s - asked.touched_s >= TOUCH_S:
                asked.touched_s = now_s
                file.parent.mkdir(mode=0o700, exist_ok=True)
                file.touch()
                os.utime(file, (self._wall(),) * 2)
        except OSError:  # the lease then ends by itself only while no step runs
            asked.used_s = now_s

    def _without_ending(self, asked: _LeaseRequest, jobs: list[SlurmJob]) -> list[SlurmJob]:
        """The leases that are still to be used; those given back are cancelled again if they stay."""
        listed, now_s = {job.id for job in jobs}, self._clock()
        asked.ending = {job_id: at_s for job_id, at_s in asked.ending.items() if job_id in listed}
        if late := [job_id for job_id, at_s in asked.ending.items() if now_s >= at_s]:
            asked.ending |= dict.fromkeys(late, now_s + ENDS_S)
            Later(command_lines.scancel_jobs(late))
        return [job for job in jobs if job.id not in asked.ending]

    def _end(self, asked: _LeaseRequest) -> None:
        """Give a lease back; from now on nothing is started in it."""
        if asked.job is not None:
            asked.ending[asked.job.id] = self._clock() + ENDS_S
            Later(command_lines.scancel_jobs([asked.job.id]))
            asked.id = asked.job = None
            asked.tries, asked.next_s = 0, float("-inf")

    def give_back(self, busy: Iterable[str] = ()) -> int:
        """End the leases of all nodes except the ``busy`` ones; returns their number. Waits for Slurm.

        :raises ServiceMissingError: Slurm does not answer.
        """
        for asked in self._asked.values():
            if asked.submission is not None:  # or it would enter the queue after this
                asked.submission.wait()
        kept = {self._asked[node].lease.name for node in busy if node in self._asked}
        prefix = command_lines.lease_prefix(self._state)
        text = ask(command_lines.squeue_jobs(os.getuid()))
        own = [job for job in parsing.jobs(text) if job.name.startswith(prefix) and job.name not in kept]
        if own:
            ask(command_lines.scancel_jobs(job.id for job in own))
        return len(own)

    def drop(self, node: str) -> None:
        asked = self._asked.get(node)
        if asked is not None and asked.id is not None and self._clock() >= asked.next_s:
            asked.next_s = self._clock() + LEASE_AGAIN_S
            Later(command_lines.scancel_jobs([asked.id]))

    def _by_name(self, view: ControllerView) -> Mapping[str, list[SlurmJob]]:
        by_name: dict[str, list[SlurmJob]] = {}
        for job in sorted(view.jobs, key=_age):
            if job.state in ("PENDING", "RUNNING", "CONFIGURING", "SUSPENDED"):
                by_name.setdefault(job.name, []).append(job)
        return by_name

    def _drop_second(self, kept: list[SlurmJob], jobs: list[SlurmJob]) -> None:
        """End further leases of a node, which a late controller may cause: all steps are in the first."""
        surplus = [job.id for job in jobs if job.id != kept[0].id] if kept else []
        if surplus:
            Later(command_lines.scancel_jobs(surplus))

    def _read_submission(self, asked: _LeaseRequest) -> None:
        if asked.submission is None or not asked.submission.done:
            return
        refused, asked.submission = asked.submission.failure, None
        asked.seen_from_s = self._clock()
        asked.next_s = asked.seen_from_s + (REFUSED_S if refused else _pause_s(asked.tries))
        asked.tries += not refused
        if refused and refused != asked.refused:
            _log.warning("node %s: no lease: %s; it is asked for again", asked.lease.node, refused)
        asked.refused = refused


def _partition(rule: LeaseRule, seen: SlurmNode | None) -> str | None:
    """The first partition of the rule that a node is in."""
    return next((name for name in rule.partitions if seen is not None and name in seen.partitions), None)


def _limits(rule: LeaseRule, partition: str | None) -> LeaseLimits:
    return rule if partition is None else rule.partitions[partition]


def _pause_s(tries: int) -> float:
    """How long to wait after a submission: a controller keeps each ended job for minutes."""
    return min(LEASE_AGAIN_S * 2.0 ** min(max(0, tries - 1), 20), LONGEST_S)


def _age(job: SlurmJob) -> tuple[int, str]:
    return (int(job.id) if job.id.isdecimal() else 0, job.id)


class Addresses:
    """Addresses of nodes, each looked up until it is known."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._next_s: dict[str, float] = {}

    def of(self, node: str) -> str:
        """The address of a node, or its name while the address is not known."""
        return self._known.get(node, node)

    def look_up(self, node: Node, found: SlurmNode | None) -> str:
        """Why the address of a node is not known (a node in a cloud may get it later); empty if it is.

        :raises BadInputError: it is public, or names cannot be looked up at all.
        """
        if node.name in self._known:
            return ""
        name, now_s = node.address or (found.address if found is not None else node.name), time.monotonic()
        if now_s >= self._next_s.get(node.name, now_s):
            self._next_s[node.name] = now_s + NAME_AGAIN_S
            if (address := _address(node.name, name)) is not None:
                self._known[node.name] = address
                return ""
        return f"its address {name} is not known on this machine"


def _address(node: str, name: str) -> str | None:
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        refuse_public(address)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            return None
        raise bad_cluster(
            f"the address {name} of node {node} cannot be looked up: {error.strerror}"
        ) from None
    except UsageError as error:
        raise bad_cluster(f"node {node}: {error}") from error
    return address
