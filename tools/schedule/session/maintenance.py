"""Nodes vanish, come back, are drained and resume; jobs lose their GPUs or finish on drained nodes.

A job that may finish on a drained node is *bound* to it: it is hidden from the policy, and its GPUs on other
nodes are out of service until it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, gpus_of
from pliant.tools.schedule.session.allocations import AllocationEvent, Transition, servers_in, sharing_in
from pliant.tools.schedule.session.allocator import Allocator
from pliant.tools.schedule.session.changes import SessionChanges
from pliant.tools.schedule.session.cluster import ClusterNodes
from pliant.tools.schedule.session.hidden import HiddenJobs


class Maintenance:
    """What happens to the nodes of a session, and to the jobs on them."""

    def __init__(
        self,
        cluster: ClusterNodes,
        jobs: Mapping[str, JobState],
        allocator: Allocator,
        changes: SessionChanges,
        hidden: HiddenJobs,
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._allocator = allocator
        self._changes = changes
        self._hidden = hidden

    # Nodes.

    def node_down(self, name: str, time_s: float) -> list[JobState]:
        """A node vanishes; returns the jobs that ran on it, which wait again."""
        if name in self._cluster.drained:
            return self._drained_node_down(name, time_s)
        node, time_s = self._cluster.free.node(name), self._cluster.at(time_s)
        if not node.up:
            return []
        hit = [
            job
            for job in self._jobs.values()
            if any(held == name for held, _ in (*job.placement, *job.servers))
        ]
        self._take_away(node, time_s)
        return [self.lose(job.id, time_s) for job in sorted(hit, key=lambda job: job.id)]

    def _drained_node_down(self, name: str, time_s: float) -> list[JobState]:
        vanished = self._cluster.state.vanished
        if name in vanished:
            return []
        vanished[name] = time_s = self._cluster.at(time_s)
        return [self.lose(job_id, time_s) for job_id in sorted(self._jobs) if self._is_on(job_id, name)]

    def node_up(self, name: str, time_s: float) -> None:
        """A node comes back, empty; a drained one still gets no work."""
        if name in self._cluster.drained:
            self._cluster.state.vanished.pop(name, None)
            return
        node, time_s = self._cluster.free.node(name), self._cluster.at(time_s)
        if not node.up:
            self._bring_back(node, time_s)

    def drain(self, name: str, time_s: float, *, now: bool) -> None:
        """A node gets no further work.

        :param now: its jobs leave it at the next decision; else they keep what they hold until they end.
        :raises KeyError: there is no such node.
        """
        node, time_s = self._cluster.free.node(name), self._cluster.at(time_s)
        state = self._cluster.state
        if name in state.reserved:
            state.reserved[name] = True
        with self._rebound([job_id for job_id in self._jobs if self._is_on(job_id, name)], time_s):
            if name not in state.drained and not node.up:
                state.vanished[name] = time_s
            elif name not in state.drained:
                self._take_away(node, time_s)
            state.drained[name] = now or state.drained.get(name, False)

    def undrain(self, name: str, time_s: float) -> None:
        """A drained node gets work again, and slots of the node that wait for this go back into service.

        :raises KeyError: there is no such node.
        """
        node, time_s = self._cluster.free.node(name), self._cluster.at(time_s)
        if name in self._cluster.state.reserved:
            self._cluster.state.reserved[name] = False
        elif name in self._cluster.drained:
            self._undrain(node, time_s)
        self._cluster.resume_slots(name, time_s)

    def reserve(self, name: str, time_s: float) -> None:
        """A node is drained until its reservation ends; its jobs leave it at the next decision."""
        was_drained = name in self._cluster.drained
        self.drain(name, time_s, now=True)
        self._cluster.state.reserved[name] = was_drained

    def return_reserved(self, name: str, time_s: float) -> None:
        """The reservation of a node has ended."""
        if not self._cluster.state.reserved.pop(name):
            self._undrain(self._cluster.free.node(name), time_s)

    def _undrain(self, node: NodeState, time_s: float) -> None:
        name, state = node.name, self._cluster.state
        there = [job_id for job_id in self._jobs if self._is_on(job_id, name)]
        with self._rebound(there, time_s):
            del state.drained[name]
            if state.vanished.pop(name, None) is None:
                self._bring_back(node, time_s)
                taken = sum(_taken_on(name, self._jobs[job_id]) for job_id in there)
                self._cluster.free.take(((name, taken),))

    def _take_away(self, node: NodeState, time_s: float) -> None:
        self._cluster.take_away(node, time_s)
        self._cluster.update_room(self._jobs.values())

    def _bring_back(self, node: NodeState, time_s: float) -> None:
        self._cluster.bring_back(node, time_s)
        self._cluster.update_room(self._jobs.values())

    # Jobs.

    def lose(self, job_id: str, time_s: float) -> JobState:
        """A job lost its GPUs without the policy's doing (crash, node gone) and waits again."""
        state, time_s = self._jobs[job_id], self._cluster.at(time_s)
        partner = self.give_back(job_id, time_s)
        if state.gpus:
            self._allocator.leave(state, time_s)
            self._allocator.set(state, time_s, ())
            self._changes.note("lost", time_s, job=state)
        self.keep_others_from(partner, time_s)
        self._unbind(job_id, time_s)
        return state

    def set_allocations(self, events: Sequence[AllocationEvent], time_s: float) -> list[Transition]:
        """Apply what jobs hold from ``time_s`` on; no policy is asked.

        All change at once, so jobs may take over each other's GPUs; on an error, nothing changes.

        :raises KeyError: a job is not active.
        :raises ValueError: a node is unknown, down or has too few free GPUs.
        """
        time_s = self._cluster.at(time_s)
        servers = [servers_in(each) for each in events]
        on_gpus = [each for each in events if self._jobs[each.job].requested]
        partners = sharing_in(on_gpus, self._jobs, self._room_on)
        if not self._cluster.drained:
            return self._set_all(events, servers, partners, time_s)
        with self._rebound((event.job for event in events), time_s):
            return self._set_all(events, servers, partners, time_s)

    def _set_all(
        self,
        events: Sequence[AllocationEvent],
        servers: Sequence[NodeGpus],
        partners: Mapping[str, str],
        time_s: float,
    ) -> list[Transition]:
        for event in events:
            self._allocator.leave(self._jobs[event.job], time_s)
        transitions = []
        for event, hosts in zip(events, servers, strict=True):
            job, place = self._jobs[event.job], event.placement or ()
            other = self._jobs.get(partners.get(job.id, ""))
            if other is None and job.requested:
                self._cluster.free.take(self._cluster.in_service(place))
            batch = event.global_batch or job.global_batch
            change = self._allocator.change(job, place, batch, time_s, hosts, beside=other)
            transitions.append(change)
        return [transition for transition in transitions if transition is not None]

    def evictions(self, *, elastic: bool) -> dict[str, NodeGpus]:
        """What jobs that must give up GPUs at once keep of them.

        These jobs are held, wait for a limit or another job, or sit on a drained node.

        :param elastic: jobs may keep what they hold on other nodes.
        """
        hidden, drained, confined = self._hidden, self._cluster.drained, self._cluster.confined
        if not hidden.any and not drained and not confined:
            return {}
        kept: dict[str, NodeGpus] = {job_id: () for job_id in hidden.must_wait() if self._jobs[job_id].gpus}
        leaving = {name for name, at_once in drained.items() if at_once}
        for job_id, job in self._jobs.items() if leaving or confined else ():
            gone = leaving.union(confined.get(job_id, ()))
            rest = tuple((name, count) for name, count in job.placement if name not in gone)
            if job_id in hidden.held or hidden.keeps_waiting(job_id) or job_id in hidden.reserved:
                continue
            serves = any(name in confined.get(job_id, ()) for name, _ in job.servers)
            if rest == job.placement and not serves:
                continue
            gpus = gpus_of(rest)
            stays = not serves and elastic and job.spec.elastic != "none" and gpus >= job.spec.min_gpus
            stays = stays and job.spec.gpus.allows(gpus) and job.beside is None
            kept[job_id] = rest if stays else ()
        return kept

    def counted(self, job: JobState) -> NodeGpus:
        """What a job takes of the GPUs in service; nothing if it is bound."""
        return () if job.id in self._hidden.bound else self._cluster.in_service(_taken(job))

    # Jobs that are bound to drained nodes.

    @contextmanager
    def _rebound(self, job_ids: Iterable[str], time_s: float) -> Iterator[None]:
        """Around a change of these jobs or their nodes: see afterwards which of them are bound.

        For the policy, a job that becomes bound is cancelled, and one that is released arrives.
        """
        ids = list(dict.fromkeys(job_ids))
        for job_id in ids:
            self.give_back(job_id, time_s)
        yield
        for job_id in ids:
            job = self._jobs[job_id]
            name = self._cluster.binding(job)
            if name is None:
                self._unbind(job_id, time_s)
            else:
                self._changes.note("cancelled", time_s, job=job)
                self._hidden.bound[job_id] = name
                self._resize_others(job_id, -1, time_s)

    def _unbind(self, job_id: str, time_s: float) -> None:
        if self._hidden.bound.pop(job_id, None) is not None:
            self._changes.note("arrived", time_s, job=self._jobs[job_id])

    def give_back(self, job_id: str, time_s: float) -> str | None:
        """Return a bound job's GPUs on other nodes to service.

        Returns the bound job that keeps them alone once this one has left, if any.
        """
        if job_id not in self._hidden.bound:
            return None
        self._resize_others(job_id, 1, time_s)
        job = self._jobs[job_id]
        return job.beside if _taken(job) else None

    def keep_others_from(self, job_id: str | None, time_s: float) -> None:
        """A bound job keeps shared GPUs alone: those on other nodes stay out of service."""
        if job_id is not None and job_id in self._hidden.bound:
            self._resize_others(job_id, -1, time_s)

    def _resize_others(self, job_id: str, sign: int, time_s: float) -> None:
        for name, count in self._cluster.in_service(_taken(self._jobs[job_id])):
            self._cluster.resize(self._cluster.free.node(name), sign * count, time_s)

    def _room_on(self, name: str) -> int:
        """GPUs of a node that no job holds, drained or not; 0 for an unknown node."""
        cluster = self._cluster
        if name in cluster.drained:
            taken = sum(_taken_on(name, job) for job in self._jobs.values())
            return 0 if name in cluster.state.vanished else cluster.free.node(name).gpus - taken
        return cluster.free.free_on(name) if name in cluster.index else 0

    def _is_on(self, job_id: str, name: str) -> bool:
        return any(held == name for held, _ in self._jobs[job_id].placement)


def _taken(job: JobState) -> NodeGpus:
    """GPUs that a job takes, in service or not; shared GPUs count for one of the two."""
    return job.placement if job.counts_gpus and job.requested else ()


def _taken_on(name: str, job: JobState) -> int:
    return dict(_taken(job)).get(name, 0)
