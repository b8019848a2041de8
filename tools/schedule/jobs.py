"""Facts: what a job asked for and how far it is; what a node has and whether it is up.

The caller owns these objects; a policy reads them and must not write to them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from pliant.schemas.checks import capacities
from pliant.schemas.job import EpochWork, GpuTimeWork, Job

if TYPE_CHECKING:
    from pliant.schemas.cluster import Cluster

NodeGpus = tuple[tuple[str, int], ...]
"""((node name, GPUs on it), …): where a job sits."""


class Place(tuple[tuple[str, int], ...]):
    """A placement on many nodes that keeps what would be counted again with every step of its job.

    It equals the plain tuple, which any other placement is.
    """

    gpus: int
    shape: tuple[int, ...]
    """GPUs on each node, descending."""
    each: int
    """GPUs on every node; 0: they differ."""
    indices: list[int]
    """Indices of its nodes in the cluster."""
    span: slice | None
    """The same where the nodes follow each other."""
    hashed: int
    """Its hash, which a tuple computes from all its nodes each time."""

    @classmethod
    def of(cls, names: Sequence[str], picks: Sequence[tuple[int, int]]) -> Place:
        """:param names: of all nodes.
        :param picks: (index of a node, GPUs on it).
        """
        place = cls([(names[index], count) for index, count in picks])
        counts = [count for _, count in picks]
        place.indices = indices = [index for index, _ in picks]
        follow = indices == list(range(indices[0], indices[0] + len(indices)))
        place.span = slice(indices[0], indices[-1] + 1) if follow else None
        place.gpus, place.shape = sum(counts), tuple(sorted(counts, reverse=True))
        place.each = counts[0] if len(set(counts)) == 1 else 0
        place.hashed = tuple.__hash__(place)
        return place

    def __hash__(self) -> int:
        return self.hashed

    def __reduce__(self) -> tuple[type[tuple[Any, ...]], tuple[tuple[Any, ...]]]:
        """A plain tuple: other processes hash texts in another way."""
        return tuple, (tuple(self),)


HALF: Final = 0.5
"""The part of a shared GPU that counts for each of its two jobs."""


class Observation(NamedTuple):
    """A job's own measurement of its speed in one configuration."""

    placement: tuple[int, ...]
    """GPUs on each of its nodes, descending: ``(4, 2)``."""
    local_batch: int
    """Samples per GPU and micro-step."""
    accum: int
    """Micro-steps per optimizer step, 1 without accumulation."""
    step_seconds: float
    """One optimizer step, all of its micro-steps included."""
    sync_seconds: float | None = None
    """The part of it that waited for the all-reduce; None: not measured."""
    gpu_type: str | None = None
    """None: the source does not say."""


SAMPLES_WITHOUT_GPU: Final = 1.0
"""Samples per second of a job without GPUs, so that work in GPU-seconds is its time."""


class BatchChange(NamedTuple):
    """A batch that a job has changed to by itself."""

    samples_done: float
    batch: int


class EpochEnd(NamedTuple):
    """What a job reported at the end of an epoch."""

    epoch: int
    samples_done: float
    loss: float | None = None
    """Training loss, the mean over the epoch."""
    metric: float | None = None


class JobKind:
    """All on which the speed of a job depends: on equal GPUs, jobs of one kind are equally fast.

    That is its model, its reference batch and whether it states that (then more GPUs than samples are
    infeasible), the largest part of one GPU, the GPUs of a replica, the sizes and the GPU types that it may
    have, and by GPU type the most workers that nodes have CPUs, memory and bandwidth for, in all and on each.
    Of each kind there is one object, so that a table of speeds need not look at the values.
    """

    __slots__ = ("__weakref__", "_values")
    _values: tuple[Hashable, ...]
    _known: ClassVar[WeakValueDictionary[tuple[Hashable, ...], JobKind]] = WeakValueDictionary()
    """Kinds that anything refers to: a service sees new kinds for as long as it runs."""

    @classmethod
    def of(cls, job: JobState) -> JobKind:
        if (known := job.kind) is not None:
            return known
        batch, gpus, room, by_node = job.spec.batch, job.spec.gpus, job.room, job.room_by_node
        kind = job.kind = cls._of(
            job.spec.model,
            job.reference_batch,
            batch.size is not None,
            batch.per_gpu_max,
            gpus.per_replica,
            gpus.sizes,
            job.types,
            None if room is None or (job.types and job.any_node) else tuple(room.items()),
            None if by_node is None else tuple(by_node.items()),
        )
        return kind

    @property
    def model(self) -> Hashable:
        return self._values[0]

    @classmethod
    def renew(cls, models: Container[str]) -> None:
        """The speeds of these models have changed: their jobs are of new kinds from now on."""
        for values in [values for values in cls._known if values[0] in models]:
            del cls._known[values]

    @classmethod
    def _of(cls, *values: Hashable) -> JobKind:
        kind = cls._known.get(values)
        if kind is None:
            kind = cls._known[values] = cls()
            kind._values = values
        return kind

    def __reduce__(self) -> tuple[Callable[..., JobKind], tuple[Hashable, ...]]:
        """A copy is the same object."""
        return JobKind._of, self._values


MOST_EPOCH_ENDS: Final = 128
"""Kept of one job; of more, every second, then every fourth, and so on, and the last."""


class Trajectory(Protocol):
    """Progress along a known curve: a job whose rate differs from epoch to epoch."""

    def samples_done(self, since_s: float, time_s: float) -> float:
        """Samples trained until ``time_s`` if it trains since ``since_s``, those before that included."""
        ...

    @property
    def seconds(self) -> float:
        """From its start to the end of the work."""
        ...


class Phase(StrEnum):
    """Where an active job stands."""

    WAITING = "waiting"
    """Never held a GPU."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Held GPUs before and holds none now."""


WAITING: Final = Phase.WAITING
RUNNING: Final = Phase.RUNNING
"""Constant for hot paths: to look up a member of an enumeration takes as long as a call."""


_OF_SPEC: Final = (
    *("spec", "priority", "requested", "per_replica", "min_gpus", "any_number", "is_elastic", "takes_room"),
    *("types", "room", "room_most", "any_node", "barred", "room_now", "room_by_node", "kind"),
    "is_speed_guessed",
)
"""Fields of a job's state that follow from its spec and the cluster."""


@dataclass(slots=True)
class JobProgress:
    """How far a job was at the last change of what it holds, and how it goes on."""

    samples_done: float = 0.0
    attained_gpu_s: float = 0.0
    holds_since_s: float = 0.0
    """Time since which its service is not in ``attained_gpu_s``."""
    trains_since_s: float = 0.0
    """Time since which its training is not in ``samples_done``; later than now while it restarts."""
    trajectory: Trajectory | None = None
    """What it follows; None: it trains at a constant rate."""

    def __copy__(self) -> JobProgress:
        since_s = self.holds_since_s, self.trains_since_s
        return JobProgress(self.samples_done, self.attained_gpu_s, *since_s, self.trajectory)

    def __deepcopy__(self, memo: object) -> JobProgress:
        """A trajectory never changes. Forecasts copy all jobs: the default takes ten times as long."""
        return copy(self)


@dataclass(slots=True, eq=False)
class JobState:
    """One active job: what it asked for and how far it is.

    Progress and attained service grow with time; ask for them with the snapshot's time.
    """

    spec: Job
    """Job file: ``gpus``, ``batch``, ``elastic``, ``work``, ``user``, ``labels``, …"""
    reference_batch: int
    """Global batch that the author chose; the base of the learning rate and of the demand. Of a job that
    changes its batch by itself, the present one."""
    total_samples: float | None
    """All the work in samples; None: unknown. If ``predicted``, as expected at the last decision."""
    id: str = field(init=False)
    """Id of ``spec``."""
    arrival: tuple[float, str] = field(init=False)
    """Sort key of arrival order: (submit_time, id), unless a replay keeps to another order."""
    priority: float = field(init=False)
    """Larger is more important."""
    requested: int = field(init=False)
    """GPUs that it requests: what a policy that does not resize jobs gives it."""
    per_replica: int = field(init=False)
    """GPUs of one replica: it gets whole multiples of them."""
    min_gpus: int = field(init=False)
    """The smallest size, defaults applied."""
    any_number: bool = field(init=False)
    """Whether every number of GPUs within its limits is a size: else ``spec.gpus`` says which are."""
    is_elastic: bool = field(init=False)
    """Whether it may have another number of GPUs than it requests."""
    takes_room: bool = field(init=False)
    """Whether it demands more of a node than one GPU for each worker."""
    most: int | None = None
    """The most GPUs that its user's limit allows; None: no such limit."""
    is_pinned: bool = False
    """Whether it keeps GPUs once it has them: it cannot save, and such jobs are not preempted here."""
    types: tuple[str, ...] | None = None
    """The GPU types that it may run on; None: all of them."""
    room: Mapping[str, int] | None = None
    """Most of its workers by GPU type that the nodes on which it may run have CPUs, memory and bandwidth
    for, in whole replicas; None: it demands none, its replicas have one GPU each, and it may run anywhere."""
    room_most: int | None = None
    """The largest of ``room``; None if that is None."""
    any_node: bool = True
    """Whether it may run on every node of its types, and leaves none of their CPUs, memory and bandwidth too
    few for others; False where ``room`` says more than its types."""
    barred: Sequence[int] = ()
    """The nodes with GPUs, by index, that it may not run on although it may on others of their types."""
    room_now: Mapping[str, int] | None = None
    """The same as ``room`` for the nodes that are up."""
    room_by_node: Mapping[str, Sequence[tuple[int, int]]] | None = None
    """Pairs by GPU type (workers, nodes that have room for as many), most first; None: ``any_node``."""
    phase: Phase = Phase.WAITING
    """``WAITING``: never held a GPU; ``RUNNING``; ``PREEMPTED``: held GPUs before and holds none now."""
    gpus: int = 0
    """GPUs that it holds now, 0 for none."""
    gpu_type: str | None = None
    """Type of the GPUs that it holds; None: it holds none."""
    placement: NodeGpus = ()
    """Its GPUs by node: ((node name, GPUs), …)."""
    servers: NodeGpus = ()
    """Nodes of its parameter servers: ((node name, servers), …)."""
    beside: str | None = None
    """The job that shares its GPUs; None: it has them alone."""
    global_batch: int = field(init=False)
    """Samples of a step of all its workers."""
    samples_per_second: float = 0.0
    """Present speed: measured or predicted."""
    first_start_s: float | None = None
    """None: it has never started."""
    granted_s: float = 0.0
    """Time since which a running job has held GPUs without a break."""
    changed_s: float = 0.0
    """Time of the last change of its GPUs or its batch."""
    preemptions: int = 0
    """Number of times that the policy took all its GPUs."""
    rescales: int = 0
    """Growths, shrinks and changes of the batch."""
    moves: int = 0
    """Changes to other GPUs of the same number and batch."""
    noise_scale: float | None = None
    """Gradient noise scale at the present progress, in samples (Pollux's φ): a batch B trains as much per
    sample as the reference batch B0 times (φ + B0) / (φ + B). None: unknown."""
    observations: Sequence[Observation] = ()
    """One for each configuration that it ran in, oldest first."""
    initial_loss: float | None = None
    """The first training loss that it reported; None: none yet."""
    epochs: Sequence[EpochEnd] = ()
    """Reported epoch ends, the last included: at most :data:`MOST_EPOCH_ENDS`, spread evenly."""
    batch_changes: Sequence[BatchChange] = ()
    """Batches that it has changed to by itself, oldest first; before them it had ``spec.batch.size``."""
    predicted: bool = False
    """Whether ``total_samples`` is a prediction: the job states no work, or a replay hides it."""
    is_speed_guessed: bool = False
    """Whether nothing says how long its work takes: no profile, and work not in GPU-seconds.
    Policies then take it as a job of unknown work, in order of submission: :attr:`known_samples`."""
    revealed: bool = False
    """Whether ``total_samples`` is where a replay will end the job, which no scheduler could know."""
    kind: JobKind | None = None
    """Key of what its speed depends on, once it was asked for: :meth:`JobKind.of`."""
    _hidden_samples: float | None = None
    _progress: JobProgress = field(default_factory=JobProgress)
    _alike: InitVar[JobState | None] = None
    """A job whose spec differs in its id, time, amount of work and labels alone."""

    def __post_init__(self, _alike: JobState | None) -> None:
        spec = self.spec
        self.id = job_id = spec.id
        self.priority = spec.priority
        self.arrival = (spec.submit_time, job_id)
        self.global_batch = self.reference_batch
        if _alike is None:
            gpus = spec.gpus
            self.requested, self.per_replica = gpus.requested, gpus.per_replica
            self.min_gpus = gpus.min or spec.min_gpus
            self.any_number = gpus.any_number
            self.is_elastic = spec.elastic != "none"
            self.takes_room = spec.takes_room
        else:
            self.requested = _alike.requested
            self.per_replica = _alike.per_replica
            self.min_gpus = _alike.min_gpus
            self.any_number = _alike.any_number
            self.is_elastic = _alike.is_elastic
            self.takes_room = _alike.takes_room

    def may_use(self, gpu_type: str) -> bool:
        """Whether it may run on GPUs of that type."""
        return self.types is None or gpu_type in self.types

    @property
    def stays(self) -> bool:
        """Whether it holds GPUs that no decision takes from it."""
        return self.is_pinned and self.gpus > 0

    @property
    def counts_gpus(self) -> bool:
        """Whether its GPUs count for it: shared GPUs count for the job with the smaller id."""
        return self.beside is None or self.id < self.beside

    def frees_gpus(self, leaving: Container[str]) -> bool:
        """Whether its GPUs are free, and count for it, once these jobs, itself included, have left."""
        return self.beside is None or (self.counts_gpus and self.beside in leaving)

    def fits_now(self, gpus: int, gpu_type: str) -> bool:
        """Whether nodes that are up, if empty, have CPUs, memory and bandwidth for its workers."""
        return self.room_now is None or self.room_now.get(gpu_type, 0) >= gpus

    def max_gpus(self, cluster_gpus: int) -> int:
        """The most GPUs that it may get in a cluster of ``cluster_gpus``."""
        own = self.spec.max_gpus(cluster_gpus)
        if self.room_most is not None and own > self.room_most:
            own = self.room_most
        return own if self.most is None else self.spec.gpus.whole(min(own, self.most))

    def sizes(self, cluster_gpus: int) -> Sequence[int]:
        """Every number of GPUs that it may get in a cluster of ``cluster_gpus``, ascending."""
        if self.spec.elastic == "none":
            requested = self.spec.gpus.requested
            return range(requested, 1 + min(requested, self.max_gpus(cluster_gpus)))
        return self.spec.gpus.between(self.min_gpus, self.max_gpus(cluster_gpus))

    @property
    def deadline_s(self) -> float:
        """When it is to be done, if finishing later is worth nothing to it; infinite: it has no deadline."""
        utility = self.spec.utility
        if utility.shape != "step":
            return inf
        return self.spec.submit_time + (utility.target or 0.0)

    @property
    def log_gpus(self) -> int:
        """What it holds, as a log says it: a job without GPUs holds one place on a node, and no GPU."""
        return self.gpus if self.requested else 0

    @property
    def turn(self) -> tuple[float, float, str]:
        """Sort key: higher priority first, of equal ones in order of arrival."""
        return (-self.priority, *self.arrival)

    def samples_done(self, time_s: float) -> float:
        """Samples trained until ``time_s``, never more than the total."""
        progress = self._progress
        since_s = progress.trains_since_s
        if progress.trajectory is not None:
            return progress.trajectory.samples_done(since_s, time_s)
        done = progress.samples_done
        if self.gpus and time_s > since_s:
            done += (time_s - since_s) * self.samples_per_second
        total = self._hidden_samples if self.predicted or self.revealed else self.total_samples
        return done if total is None or done <= total else total

    @property
    def losses(self) -> tuple[float, ...]:
        """Training losses of the kept epochs, where known."""
        return tuple(end.loss for end in self.epochs if end.loss is not None)

    @property
    def epoch_samples(self) -> float | None:
        """Samples of one epoch, as stated or reported; None: unknown."""
        work = self.spec.work
        if isinstance(work, EpochWork) and work.dataset_size is not None:
            return work.dataset_size
        last = self.epochs[-1] if self.epochs else None
        return last.samples_done / last.epoch if last and last.epoch and last.samples_done else None

    @property
    def known_samples(self) -> float | None:
        """All the work in samples, to compare jobs by; None: not comparable."""
        return None if self.is_speed_guessed else self.total_samples

    def remaining_samples(self, time_s: float) -> float | None:
        """Samples still to train; None: unknown."""
        if self.total_samples is None:
            return None
        left = self.total_samples - self.samples_done(time_s)
        return max(0.0, left) if self.predicted or self.revealed else left

    def attained_service_s(self, time_s: float) -> float:
        """GPU-seconds received until ``time_s``, stalls included; shared GPUs count half."""
        progress = self._progress
        if not self.gpus or time_s <= progress.holds_since_s:
            return progress.attained_gpu_s
        gpus = self.gpus if self.beside is None else self.gpus * HALF
        return progress.attained_gpu_s + gpus * (time_s - progress.holds_since_s)

    def observations_on(self, gpu_type: str) -> tuple[Observation, ...]:
        """Its measurements on GPUs of that type, and those of which the type is not known."""
        return tuple(seen for seen in self.observations if seen.gpu_type in (None, gpu_type))

    def is_restarting(self, time_s: float) -> bool:
        """Whether it holds GPUs and does not train yet, after a start or a change of its GPUs."""
        return self.gpus > 0 and time_s < self._progress.trains_since_s

    def finish_time_s(self) -> float | None:
        """When the job ends if nothing changes; None: not running, or work unknown."""
        if not self.gpus or self.total_samples is None or self.samples_per_second <= 0:
            return None
        progress = self._progress
        if progress.trajectory is not None and not self.predicted:
            return progress.trains_since_s + progress.trajectory.seconds
        left = self.total_samples - progress.samples_done
        return progress.trains_since_s + max(0.0, left) / self.samples_per_second

    # What follows is for the owner of the state (session, engine, runtime), not for policies.

    @property
    def work_samples(self) -> float | None:
        """The samples at which the job ends, whatever is predicted; None: unknown."""
        return self._hidden_samples if self.predicted or self.revealed else self.total_samples

    def limit_room(self, room: Mapping[str, int] | None) -> None:
        """Nodes have room for these workers by GPU type; None: for any number."""
        self.room, self.room_most = room, None if room is None else max(room.values(), default=0)
        self.kind = None

    def hide_work(self, work_samples: float | None = None) -> None:
        """Hide the work from policies: the given amount, or what the job states."""
        known = self.work_samples if work_samples is None else work_samples
        self._hidden_samples, self.total_samples, self.predicted = known, None, True

    def reveal_work(self, end_samples: float | None) -> None:
        """Undo :meth:`hide_work`: show policies where the job ends."""
        self.total_samples, self.predicted, self.revealed = end_samples, False, True

    def take_batch(self, batch: int, samples_done: float) -> None:
        """It has changed its batch by itself, or is back at a checkpoint from before such a change."""
        kept = tuple(change for change in self.batch_changes if change.samples_done <= samples_done)
        before = kept[-1].batch if kept else self.spec.batch.size
        self.batch_changes = kept if batch == before else (*kept, BatchChange(samples_done, batch))
        self.reference_batch = self.global_batch = batch
        self.kind = None

    def take_spec(self, new: JobState) -> None:
        """It asks for what another state of the same job asks for; what it holds and has done stays.

        So do the batch of an elastic job that states none, which would follow from the GPUs that it requests,
        and the amount of work that is stated as GPU time, which was on the GPUs that it requested at first.
        """
        for name in _OF_SPEC:
            setattr(self, name, getattr(new, name))
        if self.is_elastic and self.spec.batch.size is None:
            return
        self.reference_batch, self.global_batch = new.reference_batch, new.global_batch
        keeps_work = isinstance(self.spec.work, GpuTimeWork) and self.total_samples is not None
        if not self.predicted and not keeps_work:
            self.total_samples = new.total_samples

    def copied(self, new: JobState | None) -> JobState:
        """A copy that goes on in another cluster.

        :param new: what a new state of the same job is there; None: all stays as it is.
        """
        other = copy(self)
        other._progress = copy(self._progress)
        for name in _OF_SPEC if new is not None else ():
            setattr(other, name, getattr(new, name))
        other.spec = self.spec
        return other

    def settle(self, time_s: float) -> None:
        """Book what was done until ``time_s``; the allocation goes on."""
        progress = self._progress
        progress.samples_done = self.samples_done(time_s)
        if self.gpus:
            progress.attained_gpu_s = self.attained_service_s(time_s)
        progress.holds_since_s = time_s
        since_s = progress.trains_since_s
        progress.trains_since_s = time_s if time_s > since_s else since_s
        progress.trajectory = None

    def train_from(
        self, time_s: float, samples_per_second: float, trajectory: Trajectory | None = None
    ) -> None:
        """The job trains at this rate from ``time_s`` on, not before: rescale cost.

        :param trajectory: what it follows; it begins at the rate.
        """
        progress = self._progress
        progress.trains_since_s, progress.trajectory = time_s, trajectory
        self.samples_per_second = samples_per_second

    def observe(self, observation: Observation) -> None:
        """Keep a measurement of a configuration that is new."""
        new, gpu_type = observation[:3], observation.gpu_type
        for known in reversed(self.observations):  # most often that of the epoch before
            if known[:3] == new and known.gpu_type == gpu_type:
                return
        self.observations = (*self.observations, observation)

    def report_progress(self, time_s: float, samples: float) -> None:
        """``samples`` were done at ``time_s``, as measured."""
        progress = self._progress
        progress.samples_done, progress.trajectory = samples, None
        since_s = progress.trains_since_s
        progress.trains_since_s = time_s if time_s > since_s else since_s


@dataclass(slots=True, eq=False)
class NodeState:
    """One node: what is in it and whether it is up."""

    index: int
    name: str
    gpus: int
    """GPUs in service, whether the node is up or down."""
    gpu_type: str
    switch: str | None
    up: bool = True
    domains: dict[str, int] = field(default_factory=dict)
    """Its domain on each level of the network, the lowest first, by the index of its first node."""
    capacities: Mapping[str, float] = field(default_factory=dict)
    """Amounts by resource, for jobs that state demands; a missing resource is unlimited."""
    gpu_memory: int | None = None
    """Bytes of one GPU, for jobs that need as much; None: not stated."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels, for jobs that may run on nodes with certain ones only."""
    made_gpus: int = field(init=False)
    """GPUs in the cluster file, in service or not."""

    def __post_init__(self) -> None:
        self.made_gpus = self.gpus

    @property
    def for_servers(self) -> bool:
        """Whether it was made without GPUs: it can hold parameter servers and no workers."""
        return not self.made_gpus


def with_end(before: Sequence[EpochEnd], end: EpochEnd) -> Sequence[EpochEnd]:
    """The epoch ends to keep once a job has reported another one; it may do so again after a checkpoint."""
    stride = _stride(end.epoch)
    if before and _stride(last := before[-1].epoch) == stride and last < end.epoch:
        kept = before[:-1] if last % stride else before  # all before the last were kept with this stride
    else:
        kept = tuple(known for known in before if known.epoch < end.epoch and known.epoch % stride == 0)
    return (*kept, end)


def _stride(epoch: int) -> int:
    """Every how many of the epochs that lead to this one are kept."""
    return 1 << (epoch // MOST_EPOCH_ENDS).bit_length()


def gpus_of(placement: NodeGpus) -> int:
    if len(placement) == 1:
        return placement[0][1]
    return placement.gpus if isinstance(placement, Place) else sum([count for _, count in placement])


def gpus_by_type(nodes: Iterable[NodeState]) -> dict[str, int]:
    """GPUs of nodes that are up, in order of the first node of each type."""
    totals: dict[str, int] = {}
    for node in nodes:
        if node.up:
            totals[node.gpu_type] = totals.get(node.gpu_type, 0) + node.gpus
    return totals


def node_states(cluster: Cluster) -> list[NodeState]:
    """A node without the label of a level is a domain of its own there."""
    first: dict[tuple[str, str], int] = {}
    return [
        NodeState(
            index,
            node.name,
            node.gpus,
            node.gpu_type,
            node.switch,
            domains={
                level: first.setdefault((level, node.labels[level]), index) if level in node.labels else index
                for level in cluster.levels
            },
            capacities=capacities(node),
            gpu_memory=node.gpu_memory,
            labels=node.labels,
        )
        for index, node in enumerate(cluster.expanded())
    ]
