"""A small world to try policies in, and a session whose every decision is checked from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from pliant.schemas.checks import Capacities, constraint_of
from pliant.schemas.cluster import ANY_TYPE, Cluster, Preemptible
from pliant.schemas.errors import PliantError
from pliant.schemas.job import Gpus, Job, updated
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Policy, PolicyError
from pliant.tools.schedule.predict_start import Coming, advance, in_order_of_arrival
from pliant.tools.schedule.registry import parameter_defaults, parameter_types, union_members
from pliant.tools.schedule.session.allocations import AllocationEvent, allocation_event
from pliant.tools.schedule.session.session import Session

if TYPE_CHECKING:
    import numpy as np


_CURVES: Final = {"saturating": {1: 1.0, 2: 1.8, 4: 2.8, 8: 3.6}, "flat": {1: 1.0, 8: 1.0}}

_SHARING: Final = {"unmeasured": "together", "speed": 0.8}
_SPEEDS: Final = {"fast": 2.0, "b": 2.0}
"""Some GPU types are faster, so that jobs have a reason to change the type."""
_CENT: Final = 0.01
"""Rounding of what a team owns."""


def require(holds: bool, complaint: str) -> None:
    """:raises AssertionError: with the complaint, unless it ``holds``; also under ``python -O``."""
    if not holds:
        raise AssertionError(complaint)


def as_held(job: JobState, time_s: float) -> AllocationEvent:
    """The event by which a job holds what it holds now."""
    batch, servers, beside = job.global_batch, job.servers, job.beside
    return allocation_event(job, job.placement, time_s, global_batch=batch, servers=servers, beside=beside)


def node(gpus: int, count: int = 1, gpu_type: str = "gpu") -> dict[str, Any]:
    return {"name": f"{gpu_type}-{gpus}-{{}}", "gpus": gpus, "count": count, "gpu_type": gpu_type}


def cluster(*nodes: dict[str, Any]) -> Cluster:
    """A cluster on which any two jobs fit one GPU together."""
    return Cluster.model_validate({"nodes": tuple(nodes), "sharing": _SHARING})


def job(job_id: str, at: float = 0.0, gpus: int = 1, **more: Any) -> Job:
    """A job of 100 GPU-seconds that cannot be resized, unless ``more`` says otherwise."""
    return _job({"id": job_id, "submit_time": at, "gpus": {"requested": gpus}} | more)


def elastic(job_id: str, at: float = 0.0, gpus: int = 1, low: int = 1, high: int = 8, **more: Any) -> Job:
    limits = {"requested": gpus, "min": low, "max": high}
    return _job({"id": job_id, "submit_time": at, "gpus": limits, "elastic": "size"} | more)


def _job(record: dict[str, Any]) -> Job:
    defaults = {"model": "linear", "batch": {"size": 64}, "work": {"gpu_seconds": 100.0}}
    return Job.model_validate(defaults | record)


def some_jobs(count: int) -> list[Job]:
    """A fixed mix of sizes, limits, models, works (some unknown) and arrival times."""
    return [_one_of_some(index) for index in range(count)]


@cache
def _one_of_some(index: int) -> Job:
    more: dict[str, Any] = {
        "model": ("linear", "saturating", "flat")[index % 3],
        "work": None if index % 7 == 6 else {"gpu_seconds": 20.0 + 37.0 * (index % 11)},
    }
    size, at = 1 + index % 4, 5.0 * (index // 2)
    make = job if index % 5 == 4 else elastic
    return make(f"j{index}", at, size, **more)


def with_replicas(jobs: Iterable[Job]) -> list[Job]:
    """The same jobs, small ones, with replicas of one to three GPUs."""
    jobs_with_replicas = []
    for index, each in enumerate(jobs):
        gpus, asked = 1 + index % 3, 1 + each.gpus.requested % 2
        limits: dict[str, Any] = {} if each.elastic == "none" else {"min": gpus, "max": 3 * gpus}
        sizes = Gpus(requested=asked * gpus, per_replica=gpus, **limits)
        jobs_with_replicas.append(each.model_copy(update={"gpus": sizes}))
    return jobs_with_replicas


def constrained(jobs: Iterable[Job]) -> list[Job]:
    """The same jobs; most may run on one GPU type only, need much memory, or some nodes by label or name."""
    types, memory = (None, ("a",), ("b",), ("b", "a")), (None, 20 * 10**9, None)
    nodes = ((), ("nvlink",), ("rack in (r1,r2)",), (), ("!nvlink",))
    return [
        each.model_copy(
            update={
                "nodes": nodes[at % len(nodes)],
                "exclude": ("b-2-1",) if at % 7 == 0 else (),
                "gpus": each.gpus.model_copy(
                    update={"types": types[at % len(types)], "memory": memory[at % len(memory)]}
                ),
            }
        )
        for at, each in enumerate(jobs)
    ]


def jobs_for(policy: Policy, count: int) -> list[Job]:
    """:func:`some_jobs`; all of known work where the policy needs that."""
    jobs = some_jobs(count)
    return [each for each in jobs if each.work is not None] if "demand" in policy.traits.needs else jobs


class CheckedSession:
    """A session whose every decision is checked by what jobs and nodes say."""

    def __init__(
        self, policy: Policy, nodes: Cluster, seed: int = 0, preemptible: Preemptible = "all"
    ) -> None:
        speeds = CurveThroughput(_CURVES, _SPEEDS)
        self.session = Session(policy, nodes, speeds, seed=seed, preemptible=preemptible)
        self.time_s = 0.0

    @property
    def jobs(self) -> dict[str, JobState]:
        return self.session.jobs

    def submit(self, jobs: Iterable[Job]) -> None:
        for each in in_order_of_arrival(jobs):
            self.session.submit(each, self.time_s)

    def decide(self) -> None:
        before = {state.id: dict(state.placement) for state in self.jobs.values()}
        stay = {state.id: state.placement for state in self.jobs.values() if state.stays}
        teams = self._gpus_of_teams()
        unasked = self.session.leaves_unasked(self.time_s)
        try:
            changed = self.session.decide(self.time_s)
        except PolicyError as error:
            raise AssertionError(str(error)) from error
        names = ", ".join(each.job.id for each in changed)
        require(not (unasked and changed), f"outlasts_ends was said, but mere ends change {names}")
        self._check_nodes()
        self._check_drained(before)
        self._check_teams(teams)
        for job_id, place in () if self.session.cluster.drained else stay.items():
            moved = job_id in self.jobs and self.jobs[job_id].placement != place
            require(not moved, f"{job_id} cannot save and does not keep {place}")
        for state in self.jobs.values():
            _check_job(self.session, state)

    def advance(self, coming: Coming | None = None) -> bool:
        """Go to the next moment; False if there is none."""
        next_s = advance(self.session, self.time_s, coming)
        self.time_s = self.time_s if next_s is None else next_s
        return next_s is not None

    def _check_drained(self, before: Mapping[str, Mapping[str, int]]) -> None:
        for name, at_once in self.session.cluster.drained.items():
            for state in self.jobs.values():
                held = dict(state.placement).get(name, 0)
                most = 0 if at_once else before.get(state.id, {}).get(name, 0)
                require(held <= most, f"{state.id} holds {held} GPUs of {name}, which is drained")

    def _gpus_of_teams(self) -> Counter[tuple[str, str]]:
        """GPUs by team and type ("*": of any) that jobs hold, those that finish on drained nodes included."""
        gpus_held, shares = Counter[tuple[str, str]](), self.session.cluster.spec.shares
        for state in self.jobs.values() if shares is not None else ():
            if shares is not None and state.gpus and state.counts_gpus:
                for kind in (ANY_TYPE, state.gpu_type or ""):
                    gpus_held[shares.team_of(state.spec), kind] += state.gpus
        return gpus_held

    def _check_teams(self, before: Counter[tuple[str, str]]) -> None:
        """No team exceeds its maximum; one that may not borrow gets no more than its own."""
        shares, now = self.session.cluster.spec.shares, self._gpus_of_teams()
        if shares is None:
            return
        standings = self.session.policy_host.standings(self.time_s)
        for name, team in shares.teams.items():
            for kind, most in team.max.items():
                held = now[name, kind]
                require(held <= most, f"team {name} holds {held} GPUs of type {kind}, its maximum is {most}")
            held, own = now[name, ANY_TYPE], sum(each.own for each in standings if each.team == name)
            within = team.borrows or held <= max(before[name, ANY_TYPE], own + _CENT)
            require(within, f"team {name} holds {held} GPUs, {own} are its own, and it may not borrow")

    def _check_nodes(self) -> None:
        held: Counter[str] = Counter()
        for state in self.jobs.values():
            for name, count in self.session.maintenance.counted(state):
                held[name] += count
        for each in self.session.cluster.nodes:
            most = each.gpus if each.up else 0
            given = held.pop(each.name, 0)
            require(given <= most, f"{given} GPUs of node {each.name} are given away, it has {most}")
            free = self.session.cluster.free.free_on(each.name)
            require(free == most - given, f"{free} GPUs of node {each.name} are free, {given} of {most} held")
        require(not held, f"GPUs of nodes that do not exist are given away: {sorted(held)}")


def _check_job(session: Session, state: JobState) -> None:
    placed = sum(count for _, count in state.placement)
    require(not state.gpus or state.id not in session.hidden.held, f"{state.id} is held and holds GPUs")
    require(placed == state.gpus, f"{state.id} holds {state.gpus} GPUs but is placed on {placed}")
    if not state.gpus or not state.requested:
        return
    low, high = state.spec.min_gpus, state.max_gpus(session.cluster.spec.total_gpus)
    require(low <= state.gpus <= high, f"{state.id} got {state.gpus} GPUs, its limits are {low} to {high}")
    rigid = "none" in (state.spec.elastic, session.policy.traits.elasticity)
    asked = state.spec.gpus.requested
    require(not rigid or state.gpus == asked, f"{state.id} got {state.gpus} GPUs, as a gang it takes {asked}")
    each = state.per_replica
    require(state.gpus % each == 0, f"{state.id} got {state.gpus} GPUs, its replicas have {each} each")
    own = state.spec.gpus
    require(own.allows(state.gpus), f"{state.id} got {state.gpus} GPUs, its sizes are {own.sizes}")
    split = session.cluster.free.splits(state.placement, each)
    require(not split, f"{state.id} has a replica of {each} GPUs on several nodes: {state.placement}")
    _check_company(session, state)
    nodes = [session.cluster.free.node(name) for name, _ in state.placement]
    constraint = constraint_of(state.spec, session.cluster.speeds.gpu_types)
    allowed = constraint is None or all(map(constraint.allows, nodes))
    require(allowed, f"{state.id} may run on {constraint and constraint.words}, and is on {state.placement}")
    types = {node.gpu_type for node in nodes}
    require(len(types) == 1, f"{state.id} mixes GPU types {sorted(types)}")
    fixed = session.policy.traits.elasticity != "size+batch" or state.spec.elastic != "size+batch"
    require(not fixed or state.global_batch == state.reference_batch, f"the batch of {state.id} changed")


def _check_company(session: Session, state: JobState) -> None:
    if state.beside is None:
        return
    other, pair = session.jobs.get(state.beside), f"{state.id} and {state.beside}"
    require(session.policy.traits.packs, f"{pair} share GPUs, and the policy declares not to pack")
    require(other is not None and other.beside == state.id, f"{pair} share GPUs, and one does not know it")
    if other is not None:
        require(other.placement == state.placement, f"{pair} share GPUs, but not all of them")
        require(other.spec.shares_gpus and state.spec.shares_gpus, f"{pair} share GPUs, and one refuses to")


TEXTS: Final = ("", "linear", "saturating,flat", "0.01", "0.01,0.05", "1,16")
"""Tried for a parameter of text: models of the checks' jobs, and ascending numbers."""
_FACTORS: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 10.0)
_NUMBERS: Final = (0.0, 0.5, 1.0, 5.0, 60.0)
"""Tried for a number whose default is none or 0."""
_ATTEMPTS: Final = 20
"""Draws of parameters that a policy may refuse in a row."""


def drawn_policies(policy: type[Policy], rng: np.random.Generator, count: int) -> Iterator[dict[str, Any]]:
    """Up to ``count`` sets of parameters that the policy accepts; each leaves about half at their defaults.

    Parameters in ``clock_parameters`` stay at their defaults. A set is refused by ``ValueError`` or
    ``UsageError`` from ``__init__``; then others are drawn.
    """
    types, defaults = parameter_types(policy), parameter_defaults(policy)
    types = {key: kind for key, kind in types.items() if key not in policy.traits.clock_parameters}
    for _ in range(count if types else 0):
        for _ in range(_ATTEMPTS):
            chosen = {
                key: _value(kind, defaults[key], rng) for key, kind in types.items() if rng.random() < 0.5
            }
            if _accepts(policy, chosen):
                yield chosen
                break


def _accepts(policy: type[Policy], values: dict[str, Any]) -> bool:
    try:
        policy(**values)
    except (ValueError, PliantError):
        return False
    return True


def _value(annotation: Any, default: Any, rng: np.random.Generator) -> Any:
    choices = [choice for member in union_members(annotation) for choice in _choices(member, default)]
    return choices[int(rng.integers(len(choices)))]


def _choices(kind: Any, default: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if kind is bool:
        return [False, True]
    if kind is type(None):
        return [None]
    if kind in (int, float):
        is_scale = isinstance(default, int | float) and bool(default)
        numbers = [factor * default for factor in _FACTORS] if is_scale else _NUMBERS
        return sorted({kind(number) for number in numbers})
    return list(TEXTS)


Factory = Callable[[], Policy]
OpKind = Literal[
    "submit", "finish", "cancel", "lose", "down", "up", "withdraw", "hold", "hold_back", "let_go",
    "prioritize", "update", "revive", "drain", "resume", "wait",
]  # fmt: skip
_KINDS: Final[tuple[OpKind, ...]] = (
    *("submit", "submit", "submit", "finish", "cancel", "lose"),
    *("down", "up", "withdraw", "hold", "hold_back", "let_go", "prioritize", "update", "revive"),
    *("drain", "resume", "wait"),
)
CLUSTERS: Final = (cluster(node(4, 2), node(2)), cluster(node(4, 1, "a"), node(2, 2, "b")))
"""Clusters of one GPU type, and of two."""


@dataclass(frozen=True, slots=True)
class Op:
    """Something that happens to the job or node chosen by ``index``."""

    kind: OpKind
    index: int = 0
    seconds: float = 1.0
    """Time that passes before it."""


def random_ops(rng: np.random.Generator, count: int) -> list[Op]:
    """A random story of that many events, mostly arrivals."""
    return [
        Op(_KINDS[rng.integers(len(_KINDS))], int(rng.integers(1000)), float(rng.integers(0, 90)))
        for _ in range(count)
    ]


def check_ops(
    make: Factory,
    ops: Iterable[Op],
    nodes: Cluster = CLUSTERS[0],
    *,
    replicas: bool = False,
    where: bool = False,
    users: Sequence[str] = ("",),
) -> None:
    """Any sequence of events, each followed by a decision, keeps every rule.

    :param replicas: those of some jobs have several GPUs.
    :param where: jobs may run on some GPUs only.
    :param users: whose the jobs are, in turn.
    """
    held = CheckedSession(make(), nodes)
    pool = jobs_for(held.session.policy, 200)
    pool = with_replicas(pool) if replicas else pool
    if where:
        room = Capacities(nodes.nodes).room
        pool = [each for each in constrained(pool) if any(room(each).values())]
    pool = [each.model_copy(update={"user": users[at % len(users)]}) for at, each in enumerate(pool)]
    for op in ops:
        held.time_s += op.seconds
        _happen(held, op, pool)
        held.decide()


def _happen(held: CheckedSession, op: Op, pool: list[Job]) -> None:
    active = sorted(held.jobs)
    if op.kind == "submit" and pool:
        each = pool.pop(op.index % len(pool))
        held.session.submit(each.model_copy(update={"submit_time": held.time_s}), held.time_s)
    elif op.kind == "revive":
        ended = sorted(
            each for each in held.session.book.ended if held.session.book.outcomes.get(each) != "rejected"
        )
        for job_id in ended[op.index % max(1, len(ended)) :][:1]:
            held.session.revive(job_id, held.time_s)
            held.session.jobs[job_id].report_progress(held.time_s, 0.0)
    elif active:
        _happen_to_job(held, op, active[op.index % len(active)])
    _happen_to_node(held, op, held.session.cluster.nodes[op.index % len(held.session.cluster.nodes)].name)


def _update(session: Session, job: JobState, op: Op, time_s: float) -> None:
    """The job asks for another number of GPUs; it gives up what it may not keep, as in a run."""
    replicas = 1 + op.index % 4
    most = job.per_replica * replicas
    least = most if job.spec.elastic == "none" else job.per_replica * min(replicas, 1 + op.index % 2)
    gpus = {"requested": most, "min": least, "max": most, "sizes": None}
    spec = updated(job.spec, {"gpus": gpus})
    session.update(job.id, time_s, spec)
    as_asked = session.policy.traits.elasticity != "none" or job.gpus == most
    if job.gpus and not (as_asked and job.gpus in spec.sizes(job.gpus)):
        session.maintenance.lose(job.id, time_s)


def _happen_to_node(held: CheckedSession, op: Op, name: str) -> None:
    session, time_s = held.session, held.time_s
    match op.kind:
        case "down":
            session.maintenance.node_down(name, time_s)
        case "up":
            session.maintenance.node_up(name, time_s)
        case "drain":
            session.maintenance.drain(name, time_s, now=op.index % 2 == 0)
        case "resume":
            session.maintenance.undrain(name, time_s)
        case "withdraw" if session.cluster.free.free_on(name):
            session.cluster.withdraw(f"{name}/{op.index}", time_s, time_s + op.index)


def _happen_to_job(held: CheckedSession, op: Op, job_id: str) -> None:
    session, time_s = held.session, held.time_s
    match op.kind:
        case "hold":
            session.quarantine.hold(job_id, time_s + op.index)
        case "hold_back":
            session.admission.hold(job_id, time_s, "its owner")
        case "let_go" if session.hidden.held:
            session.admission.release(
                sorted(session.hidden.held)[op.index % len(session.hidden.held)], time_s
            )
        case "prioritize":
            session.admission.prioritize(job_id, time_s, op.index % 5 - 2.0)
        case "update":
            _update(session, session.jobs[job_id], op, time_s)
        case "lose":
            session.maintenance.lose(job_id, time_s)
        case "finish":
            session.end(job_id, time_s)
        case "cancel":
            session.end(job_id, time_s, "cancelled")
