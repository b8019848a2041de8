"""Jobs and GPUs with what the owner of the cluster has ordered: jobs held, priorities, nodes drained.

What is ordered is hidden from policies, so that each of them obeys without code for it. A job that is held is
not there, nor is one that is beyond the limit of its user. A node that is drained is down. Jobs that may
finish on a node that is drained are *bound* to it: they are not there either, and their GPUs on other nodes
are out of service until they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import End
from pliant.schemas.text import counted, in_gpus
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, gpus_of
from pliant.tools.schedule.session.cluster_state import ClusterState, Holding, Transition
from pliant.tools.schedule.snapshot import ChangeKind

OVER_LIMIT: Final = "beyond the limit of"
"""How reasons begin of jobs that wait for other jobs of their user."""


class OrderedState(ClusterState):
    """A cluster and its jobs under orders."""

    def __init__(self, cluster: Cluster, throughput: Throughput) -> None:
        super().__init__(cluster, throughput)
        self.held: dict[str, str] = {}
        """Active jobs that get no GPUs, and who holds them."""
        self.drained: dict[str, bool] = {}
        """Nodes that get no further work, and whether their jobs have to leave at the next decision."""
        self.bound: dict[str, str] = {}
        """Jobs that keep what they hold until they end, and the node that they finish on."""
        self.limited: dict[str, str] = {}
        """Jobs that wait for other jobs of their user to end, and the limit in words."""
        self.vanished: dict[str, float] = {}
        """Of the drained nodes those that are down, and since when."""

    @property
    def in_play(self) -> Mapping[str, JobState]:
        """Active jobs that the policy sees, in order of submission."""
        if not self.held and not self.bound and not self.limited:
            return self.jobs
        return {job_id: job for job_id, job in self.jobs.items() if not self._is_hidden(job_id)}

    # Jobs.

    def hold_back(self, job_id: str, time_s: float, by: str) -> None:
        """A job gives up its GPUs at the next decision and gets none; to the policy it has been cancelled.

        :param by: who asked for it.
        :raises KeyError: the job is not active.
        """
        job, time_s = self.jobs[job_id], self._at(time_s)
        self._note("cancelled", time_s, job=job)
        self.held[job_id] = by
        self.limited.pop(job_id, None)
        self._admit(job.spec.user, time_s)

    def let_go(self, job_id: str, time_s: float) -> None:
        """The policy sees a job again that was held: to the policy it arrives. Else nothing happens.

        :raises KeyError: the job is not active.
        """
        job, time_s = self.jobs[job_id], self._at(time_s)
        if self.held.pop(job_id, None) is not None:
            self._arrive(job, time_s)

    def prioritize(self, job_id: str, time_s: float, priority: float) -> None:
        """A job has another priority from now on.

        :raises KeyError: the job is not active.
        """
        job, time_s = self.jobs[job_id], self._at(time_s)
        if priority != job.priority:
            job.spec = job.spec.model_copy(update={"priority": priority})
            job.priority = priority
            self._note("priority", time_s, job=job)
            self._admit(job.spec.user, time_s)

    # Nodes.

    def drain(self, name: str, time_s: float, *, now: bool) -> None:
        """A node gets no further work.

        :param now: its jobs leave it at the next decision; else they keep what they hold until they end.
        :raises KeyError: there is no such node.
        """
        node, time_s = self.free.node(name), self._at(time_s)

        def take_out() -> None:
            if name not in self.drained and not node.up:
                self.vanished[name] = time_s
            elif name not in self.drained:
                self._take_away(node, time_s)
            self.drained[name] = now or self.drained.get(name, False)

        self._bind_anew([job_id for job_id in self.jobs if self._is_on(job_id, name)], take_out, time_s)

    def resume(self, name: str, time_s: float) -> None:
        """A node that was drained gets work again. Else nothing happens.

        :raises KeyError: there is no such node.
        """
        node, time_s = self.free.node(name), self._at(time_s)
        if name not in self.drained:
            return
        there = [job_id for job_id in self.jobs if self._is_on(job_id, name)]

        def take_in() -> None:
            del self.drained[name]
            if self.vanished.pop(name, None) is None:
                self._bring_back(node, time_s)
                self.free.take(((name, sum(self._taken_on(name, self.jobs[job_id]) for job_id in there)),))

        self._bind_anew(there, take_in, time_s)

    def node_down(self, name: str, time_s: float) -> list[JobState]:
        """A node vanishes; returns the jobs that ran on it, which wait again."""
        if name not in self.drained:
            return super().node_down(name, time_s)
        if name in self.vanished:
            return []
        self.vanished[name] = time_s = self._at(time_s)
        return [self.lose(job_id, time_s) for job_id in sorted(self.jobs) if self._is_on(job_id, name)]

    def node_up(self, name: str, time_s: float) -> None:
        """A node comes back, empty; one that is drained gets no work all the same."""
        if name not in self.drained:
            super().node_up(name, time_s)
        else:
            self.vanished.pop(name, None)

    def leavers(self, *, elastic: bool) -> list[Holding]:
        """What jobs shall hold that have to leave GPUs at once.

        Those are held, or on a drained node, or were held and have to wait for their user's limit since.

        :param elastic: jobs that can do with what they hold on other nodes may keep that.
        """
        if not self.held and not self.limited and not self.drained:
            return []
        found = [Holding(job_id) for job_id in (*self.held, *self.limited) if self.jobs[job_id].gpus]
        leaving = {name for name, at_once in self.drained.items() if at_once}
        for job_id, job in self.jobs.items() if leaving else ():
            rest = tuple((name, count) for name, count in job.placement if name not in leaving)
            if job_id in self.held or job_id in self.limited or rest == job.placement:
                continue
            stays = elastic and job.spec.elastic != "none" and gpus_of(rest) >= job.spec.min_gpus
            stays = stays and job.beside is None
            found.append(Holding(job_id, rest, None, job.servers) if stays else Holding(job_id))
        return found

    # Jobs whose GPUs are out of the policy's hands.

    def end(self, job_id: str, time_s: float, outcome: End = "finished") -> JobState:
        """A job leaves for good; whatever it holds is free."""
        if not self.held and not self.bound and not self.limited:
            return super().end(job_id, time_s, outcome)
        heir = self._give_back(job_id, self._at(time_s))
        state = super().end(job_id, time_s, outcome)
        self._bind_rest(heir, self.now_s)
        for hidden in (self.held, self.bound, self.limited):
            hidden.pop(job_id, None)
        self._admit(state.spec.user, self.now_s)
        return state

    def lose(self, job_id: str, time_s: float) -> JobState:
        """A job lost its GPUs without the policy's doing (crash, node gone) and waits again."""
        heir = self._give_back(job_id, self._at(time_s))
        state = super().lose(job_id, time_s)
        self._bind_rest(heir, self.now_s)
        self._show([job_id] if job_id in self.bound else (), self.now_s)
        return state

    def _take_over(
        self, holdings: Sequence[Holding], company: Mapping[str, str], time_s: float
    ) -> list[Transition]:
        """Let jobs hold what there is room for; on a drained node they are bound."""
        take_over = super()._take_over
        if not self.drained:
            return take_over(holdings, company, time_s)
        transitions: list[Transition] = []
        ids = [holding.job_id for holding in holdings]
        self._bind_anew(ids, lambda: transitions.extend(take_over(holdings, company, time_s)), time_s)
        return transitions

    def in_service(self, placement: NodeGpus) -> NodeGpus:
        """The part of a placement that counts in ``free``: that on nodes which are not drained."""
        if not self.drained:
            return placement
        return tuple((name, count) for name, count in placement if name not in self.drained)

    def counted(self, job: JobState) -> NodeGpus:
        """What a job takes of the GPUs that are in service: nothing, where it is bound."""
        return () if job.id in self.bound else self.in_service(super().counted(job))

    def _taken_on(self, name: str, job: JobState) -> int:
        """GPUs of a node that a job takes, in service or not."""
        return dict(super().counted(job)).get(name, 0)

    def _room_on(self, name: str) -> int:
        if name not in self.drained:
            return super()._room_on(name)
        taken = sum(self._taken_on(name, job) for job in self.jobs.values())
        return 0 if name in self.vanished else self.free.node(name).gpus - taken

    # Limits of users. What a job requests counts from its arrival on, so a decision can break none.

    def _arrive(self, job: JobState, time_s: float) -> None:
        """A job that holds nothing is there; it waits out of the policy's sight where its user has enough."""
        limit = self.cluster.limit_of(job.spec.user) if self.cluster.user_limits else None
        if limit is None:
            super()._arrive(job, time_s)
            return
        if limit.gpus is not None:
            job.most = job.spec.gpus.requested
        who = f"user {job.spec.user}" if job.spec.user else "jobs that name no user"
        parts = [in_gpus(limit.gpus)] if limit.gpus is not None else []
        parts += [counted(limit.jobs, "job")] if limit.jobs is not None else []
        self.limited[job.id] = f"{OVER_LIMIT} {who}: {', '.join(parts)}"
        self._admit(job.spec.user, time_s)

    def _admit(self, user: str, time_s: float) -> None:
        """Show the policy the jobs of a user that the limit has room for, in order of priority and arrival.

        A job that will have room once others have ended is not overtaken.
        """
        limit = self.cluster.limit_of(user) if self.limited else None
        if limit is None:
            return
        own = [job for job in self.jobs.values() if job.spec.user == user and job.id not in self.held]
        inside = [job for job in own if job.id not in self.limited]
        jobs, gpus = len(inside), sum(max(job.gpus, job.spec.gpus.requested) for job in inside)
        for job in sorted((job for job in own if job.id in self.limited), key=lambda job: job.turn):
            jobs, gpus = jobs + 1, gpus + job.spec.gpus.requested
            if jobs > (limit.jobs or jobs) or gpus > (limit.gpus or gpus):
                return
            del self.limited[job.id]
            self._note("arrived", time_s, job=job)

    def _is_hidden(self, job_id: str) -> bool:
        return job_id in self.held or job_id in self.bound or job_id in self.limited

    def _is_on(self, job_id: str, name: str) -> bool:
        return any(held == name for held, _ in self.jobs[job_id].placement)

    def _binding(self, job_id: str) -> str | None:
        """The drained node that a job may finish on; None: it holds nothing on one, or has to leave it."""
        held = [name for name, _ in self.jobs[job_id].placement if name in self.drained]
        return held[0] if held and not any(self.drained[name] for name in held) else None

    def _bind_anew(self, job_ids: Iterable[str], change: Callable[[], None], time_s: float) -> None:
        """Let something happen to what jobs hold, or to nodes that they are on; then see who is bound.

        To the policy a job that is bound from now on is cancelled, and one that no longer is arrives.
        """
        ids = list(dict.fromkeys(job_ids))
        for job_id in ids:
            self._give_back(job_id, time_s)
        change()
        for job_id in ids:
            name = self._binding(job_id)
            if name is None:
                self._show([job_id] if job_id in self.bound else (), time_s)
            else:
                self._note("cancelled", time_s, job=self.jobs[job_id])
                self.bound[job_id] = name
                self._resize_others(job_id, -1, time_s)

    def _show(self, job_ids: Iterable[str], time_s: float) -> None:
        """Jobs are bound no longer; to the policy they arrive, unless they are held."""
        for job_id in job_ids:
            del self.bound[job_id]
            self._note("arrived", time_s, job=self.jobs[job_id])

    def _give_back(self, job_id: str, time_s: float) -> str | None:
        """The GPUs that a bound job holds on other nodes are in service again.

        Returns the bound job that has them alone once this one has left, if there is one.
        """
        if job_id not in self.bound:
            return None
        self._resize_others(job_id, 1, time_s)
        job = self.jobs[job_id]
        return job.beside if super().counted(job) else None

    def _bind_rest(self, job_id: str | None, time_s: float) -> None:
        """A bound job that shared its GPUs has them alone: those on other nodes stay out of service."""
        if job_id is not None and job_id in self.bound:
            self._resize_others(job_id, -1, time_s)

    def _resize_others(self, job_id: str, sign: int, time_s: float) -> None:
        for name, count in self.in_service(super().counted(self.jobs[job_id])):
            self._resize(self.free.node(name), sign * count, time_s)

    def _note(
        self,
        kind: ChangeKind,
        time_s: float,
        job: JobState | None = None,
        node: NodeState | None = None,
        gpus: int = 0,
    ) -> None:
        if job is None or not self._is_hidden(job.id):  # else the policy does not know of it
            super()._note(kind, time_s, job, node, gpus)
