"""What every policy must do, as plain functions: run them on yours.

Each check takes a factory of fresh policy objects and raises ``AssertionError`` saying what went wrong. ::

    from pliant.tools.schedule.testing.conformance import check_all

    def test_mine():
        check_all(Mine)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from pliant.schemas.checks import Capacities
from pliant.schemas.cluster import Cluster, Preemptible, Shares, UserLimit
from pliant.schemas.errors import BadInputError
from pliant.schemas.job import Gpus, Job, Utility
from pliant.schemas.schedule import PolicyState
from pliant.tools.schedule.jobs import NodeGpus
from pliant.tools.schedule.predict_start import happen, in_order_of_arrival
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.testing.harness import (
    CLUSTERS,
    CheckedSession,
    Factory,
    as_held,
    check_ops,
    cluster,
    constrained,
    drawn_policies,
    elastic,
    job,
    jobs_for,
    node,
    random_ops,
    require,
    some_jobs,
    with_replicas,
)

if TYPE_CHECKING:
    import numpy as np

_SHARES: Final = {
    "teams": {
        "first": {"users": ("a",), "weight": 2.0, "guaranteed": {"*": 2}},
        "second": {"users": {"b": 2.0, "c": 1.0}, "max": {"*": 5}},
        "third": {"users": ("d",), "guaranteed": {"gpu": 4, "a": 4, "b": 4}, "borrows": False},
    },
    "half_life_hours": 0.1,
}
"""One user, e, is in no team."""
_STEPS_TO_DRAIN: Final = 20_000
_DRAWS: Final = 16
_STORY: Final = 60
"""Events of each random story under drawn parameters."""
_LONE_JOBS: Final = 24


def _decided(make: Factory, nodes: Cluster, jobs: Iterable[Job]) -> CheckedSession:
    held = CheckedSession(make(), nodes)
    held.submit(jobs)
    held.decide()
    return held


def _story(
    make: Factory, jobs: Sequence[Job], nodes: Cluster, seed: int = 0, preemptible: Preemptible = "all"
) -> tuple[CheckedSession, bytes]:
    """Every allocation of every moment, from the first submission until all is over."""
    held, story = CheckedSession(make(), nodes, seed, preemptible), []
    coming = in_order_of_arrival(jobs)
    happen(held.session, held.time_s, coming)
    for _ in range(_STEPS_TO_DRAIN):
        held.decide()
        story.append([held.time_s, sorted((s.id, s.placement, s.global_batch) for s in held.jobs.values())])
        if not held.advance(coming):
            break
    return held, json.dumps(story).encode()


def _run_out(held: CheckedSession) -> None:
    for _ in range(_STEPS_TO_DRAIN):
        held.decide()
        if not held.advance():
            break


def _of_known_work(count: int) -> list[Job]:
    return [each for each in some_jobs(count) if each.work is not None]


def _at_once(make: Factory, count: int) -> list[Job]:
    return [each.model_copy(update={"submit_time": 0.0}) for each in jobs_for(make(), count)]


def _held_gpus(held: CheckedSession) -> list[int]:
    return [state.gpus for state in held.jobs.values() if state.gpus]


def _places(held: CheckedSession) -> dict[str, NodeGpus]:
    return {state.id: state.placement for state in held.jobs.values()}


def check_empty_queue(make: Factory) -> None:
    held = _decided(make, cluster(node(4, 2)), [])
    held.time_s = 60.0
    held.decide()


def check_empty_cluster(make: Factory) -> None:
    """All jobs wait or are rejected, nothing breaks."""
    for nodes in (cluster(), cluster(node(0, 2))):
        held = _decided(make, nodes, [elastic("a"), job("b", work={"samples": 100.0})])
        require(not _held_gpus(held), "GPUs were given away where there are none")


def check_one_giant_job(make: Factory) -> None:
    """A job that needs every GPU gets them when alone; one that needs more never holds any."""
    held = _decided(make, cluster(node(4, 2)), [job("whole", gpus=8)])
    require(held.jobs["whole"].gpus == 8, "a job that fits the empty cluster exactly did not start")
    held = _decided(make, cluster(node(4, 2)), [job("giant", gpus=9), job("small", gpus=1)])
    giant = held.jobs.get("giant")
    require(giant is None or not giant.gpus, "a job larger than the cluster got GPUs")


def check_gangs_are_whole(make: Factory) -> None:
    """Two gangs of eight on eight GPUs: one runs, one waits."""
    held = _decided(make, cluster(node(4, 2)), [job("a", gpus=8), job("b", gpus=8)])
    running = _held_gpus(held)
    require(running == [8], f"two gangs of eight on eight GPUs hold {running}")


def check_limits_are_kept(make: Factory) -> None:
    """Minimum or nothing, and never more than the maximum."""
    jobs = [elastic(f"j{i}", gpus=3, low=1 + i % 3, high=3 + i % 4) for i in range(9)]
    held = _decided(make, cluster(node(4, 3)), jobs)
    require(any(_held_gpus(held)), "twelve free GPUs and no job got any")


def check_everything_ends(make: Factory) -> None:
    """All jobs of known work end; none waits indefinitely beside free GPUs."""
    held, _ = _story(make, _of_known_work(40), cluster(node(4, 2)))
    require(not held.jobs, f"these jobs never end: {', '.join(sorted(held.jobs))}")


def check_input_order_is_irrelevant(make: Factory) -> None:
    """Jobs that arrive together get the same in any order of their lines."""
    jobs = _at_once(make, 30)
    first, second = (_places(_decided(make, cluster(node(4, 4)), order)) for order in (jobs, jobs[::-1]))
    require(first == second, "the order of the input lines changed the decision")


def check_same_seed_same_story(make: Factory) -> None:
    jobs, nodes = jobs_for(make(), 40), cluster(node(4, 3))
    first, second = (_story(make, jobs, nodes, seed=7)[1] for _ in range(2))
    require(first == second, "two runs with the same seed differ")


def check_state_survives(make: Factory) -> None:
    """State dumped as JSON and loaded, or rebuilt from history, decides as if kept in memory.

    Where history does not tell all (``rebuilds_state``), what is rebuilt from it still keeps every rule,
    and decides alike each time.
    """
    jobs = jobs_for(make(), 24)
    kept = _continued(make, jobs, 0, "kept")
    for stop in range(0, len(jobs), 5):
        carried, rebuilt = (_continued(make, jobs, stop, how) for how in ("carried", "rebuilt"))
        require(carried == kept, f"carried state decides otherwise after {stop} jobs")
        if make().traits.rebuilds_state:
            require(rebuilt == kept, f"state rebuilt from history decides otherwise after {stop} jobs")
        else:
            again = _continued(make, jobs, stop, "rebuilt")
            require(rebuilt == again, f"state rebuilt twice decides in two ways after {stop} jobs")


def _continued(make: Factory, jobs: Sequence[Job], stop: int, how: str) -> dict[str, object]:
    """Decide at every arrival; from ``stop`` on with the policy kept, its state carried, or rebuilt."""
    held = CheckedSession(make(), cluster(node(4, 2)))
    history: list[Callable[[Session], object]] = []
    for position, each in enumerate(jobs):
        if position == stop and how != "kept":
            held = _reopened(make, held, history, how)
        held.time_s = time_s = each.submit_time
        ends = {state.id: state.finish_time_s() for state in held.jobs.values()}
        done = [job_id for job_id, end_s in ends.items() if end_s is not None and end_s <= time_s]
        happened: list[Callable[[Session], object]] = [methodcaller("end", job_id, time_s) for job_id in done]
        happened.append(methodcaller("submit", each, time_s))
        happened += _ordered(held, position, done)
        for apply in happened:
            apply(held.session)
        held.decide()
        events = [as_held(state, time_s) for state in held.jobs.values()]
        history += [*happened, methodcaller("set_allocations", events, time_s)]
        history += [partial(_reject, job_id=job_id, time_s=time_s) for job_id in held.session.book.ended]
    return {state.id: (state.placement, state.global_batch) for state in held.jobs.values()}


def _ordered(held: CheckedSession, position: int, done: list[str]) -> list[Callable[[Session], object]]:
    """Some arrivals change a priority, hold a job, or release one."""
    time_s, active = held.time_s, [job_id for job_id in held.session.in_play if job_id not in done]
    if position % 6 == 0 and active:
        priority = position % 4 - 1.0
        return [lambda session: session.admission.prioritize(active[-1], time_s, priority)]
    if position % 6 == 2 and active:
        return [lambda session: session.admission.hold(active[0], time_s, "its owner")]
    if position % 6 == 5 and held.session.hidden.held:
        job_id = next(iter(held.session.hidden.held))
        return [lambda session: session.admission.release(job_id, time_s)]
    return []


def _reject(session: Session, job_id: str, time_s: float) -> None:
    if job_id in session.jobs:
        session.end(job_id, time_s, "rejected")


def _reopened(
    make: Factory, held: CheckedSession, history: Iterable[Callable[[Session], object]], how: str
) -> CheckedSession:
    again = CheckedSession(make(), held.session.cluster.spec)
    again.time_s = held.time_s
    for apply in history:
        apply(again.session)
    if how == "carried":
        text = held.session.policy_host.policy_state().model_dump_json()
        again.session.restore_state(PolicyState.model_validate_json(text))
    return again


def check_a_vanishing_node(make: Factory) -> None:
    """A node goes down with its jobs and comes back: none holds it meanwhile, all end."""
    held = _decided(make, cluster(node(4, 3)), _of_known_work(12))
    name = held.session.cluster.nodes[1].name
    held.time_s = 10.0
    held.session.maintenance.node_down(name, held.time_s)
    held.decide()
    require(any(_held_gpus(held)), "one node of three went down and no job runs")
    held.time_s = 20.0
    held.session.maintenance.node_up(name, held.time_s)
    _run_out(held)
    require(not held.jobs, f"after the node came back, these jobs never end: {', '.join(sorted(held.jobs))}")


def check_a_held_job(make: Factory) -> None:
    """A held job gives up its GPUs while others go on; once released, all end."""
    held = _decided(make, cluster(node(4, 2)), _of_known_work(12))
    job_id = next(state.id for state in held.jobs.values() if state.gpus)
    held.time_s = 10.0
    held.session.admission.hold(job_id, held.time_s, "its owner")
    _run_out(held)
    require(set(held.jobs) == {job_id}, f"beside a job that is held, these never end: {sorted(held.jobs)}")
    held.session.admission.release(job_id, held.time_s)
    _run_out(held)
    require(not held.jobs, f"job {job_id} never ends after it was held")


def check_jobs_past_their_work(make: Factory) -> None:
    """Jobs whose stated work is done hold their GPUs and break no rule, while others come."""
    for nodes in CLUSTERS:
        known = [each for each in jobs_for(make(), 32) if each.work is not None]
        jobs = [
            each.model_copy(
                update={"submit_time": 0.0, "utility": Utility(shape="step", target=50.0 * (1 + at % 9))}
            )
            for at, each in enumerate(known)
        ]
        held = _decided(make, nodes, jobs[:16])
        for late in (*jobs[16:], None):
            held.time_s += 60.0
            held.submit([] if late is None else [late])
            held.decide()


def check_limits_of_users(make: Factory) -> None:
    limits = {"a": UserLimit(gpus=5, jobs=2), "*": UserLimit(gpus=8)}
    nodes = cluster(node(4, 3)).model_copy(update={"user_limits": limits})
    known = [each for each in jobs_for(make(), 24) if each.work is not None]
    jobs = [each.model_copy(update={"user": "abc"[at % 3]}) for at, each in enumerate(known)]
    held, coming = CheckedSession(make(), nodes), in_order_of_arrival(jobs)
    happen(held.session, held.time_s, coming)
    for _ in range(_STEPS_TO_DRAIN):
        held.decide()
        for user in "abc":
            own = [state.gpus for state in held.jobs.values() if state.gpus and state.spec.user == user]
            limit = nodes.limit_of(user) or UserLimit()
            fits = sum(own) <= (limit.gpus or 0) and len(own) <= (limit.jobs or len(own))
            require(fits, f"jobs of user {user} hold {own} GPUs, the limit is {limit}")
        if not held.advance(coming):
            break
    require(not held.jobs, f"under limits of users, these jobs never end: {', '.join(sorted(held.jobs))}")


def check_teams(make: Factory) -> None:
    """Teams share the cluster: whatever happens, every rule is kept, and all jobs end."""
    import numpy as np

    shares = Shares.model_validate(_SHARES)
    rng = np.random.default_rng(4)
    for pool in CLUSTERS:
        nodes = pool.model_copy(update={"shares": shares})
        known = [each for each in jobs_for(make(), 18) if each.work is not None]
        jobs = [each.model_copy(update={"user": "abcde"[at % 5]}) for at, each in enumerate(known)]
        held, _ = _story(make, jobs, nodes)
        require(not held.jobs, f"where teams share the cluster, these never end: {sorted(held.jobs)}")
        check_ops(make, random_ops(rng, 60), nodes, users="abcde")


def check_mixed_types(make: Factory) -> None:
    """No job mixes GPU types, one too large for either never runs, the others all end."""
    nodes = cluster(node(4, 2, "slow"), node(4, 1, "fast"))
    held, _ = _story(make, [*_of_known_work(30), job("too-large", 40.0, 9)], nodes)
    left = sorted(set(held.jobs) - {"too-large"})
    require(not left, f"on two GPU types, these jobs never end: {', '.join(left)}")
    require("too-large" not in held.jobs or not held.jobs["too-large"].gpus, "a job mixes GPU types")


def check_replicas_are_whole(make: Factory) -> None:
    """Jobs whose replicas have several GPUs get whole ones, each on one node, and all end."""
    import numpy as np

    jobs = with_replicas(_of_known_work(24))
    for nodes in (cluster(node(4, 2), node(3)), cluster(node(4, 1, "a"), node(3, 3, "b"))):
        held, _ = _story(make, jobs, nodes)
        require(not held.jobs, f"with replicas of several GPUs, these never end: {sorted(held.jobs)}")
        check_ops(make, random_ops(np.random.default_rng(3), 150), nodes, replicas=True)


def check_where_jobs_may_run(make: Factory) -> None:
    """Jobs that may run on some GPUs only are on these, whatever happens, and all that fit there end."""
    import numpy as np

    sizes: tuple[tuple[dict[str, Any], int, dict[str, str]], ...] = (
        (node(4, 1, "a"), 40, {"nvlink": ""}),
        (node(2, 2, "b"), 16, {"rack": "r1"}),
        (node(3, 1, "b"), 24, {}),
    )
    nodes = cluster(*(each | {"gpu_memory": gb * 10**9, "labels": labels} for each, gb, labels in sizes))
    room = Capacities(nodes.nodes).room
    jobs = [job for job in constrained(_of_known_work(24)) if max(room(job).values()) >= job.gpus.requested]
    held, _ = _story(make, jobs, nodes)
    require(not held.jobs, f"where jobs may run on some GPUs only, these never end: {sorted(held.jobs)}")
    check_ops(make, random_ops(np.random.default_rng(6), 150), nodes, where=True)


def check_jobs_that_cannot_save(make: Factory) -> None:
    """They keep their GPUs where that is asked for, and all jobs end."""
    for nodes in CLUSTERS:
        held, _ = _story(make, _of_known_work(24), nodes, preemptible="stated")
        require(not held.jobs, f"where jobs keep their GPUs, these never end: {sorted(held.jobs)}")


def check_demands_of_nodes(make: Factory) -> None:
    """Alone in the cluster, a job that fits idle nodes with all that it demands ends, or is rejected."""
    import numpy as np

    rng = np.random.default_rng(5)
    for number in range(_LONE_JOBS):
        nodes, lone = _demanding(rng)
        held = _decided(make, nodes, [lone])
        _run_out(held)
        there = ", ".join(f"{each.gpus} {each.gpu_type} with {each.cpus:g} CPUs" for each in nodes.nodes)
        demand = f"{lone.gpus.model_dump(exclude_none=True)}, each with {lone.resources.worker}"
        require(not held.jobs, f"job {number} waits indefinitely: GPUs {demand}; nodes: {there}")


def _demanding(rng: np.random.Generator) -> tuple[Cluster, Job]:
    """A few nodes with CPUs, and a job that some of them have room for."""
    while True:
        gpus = rng.choice([1, 2, 4], size=int(rng.integers(2, 5))).tolist()
        made = [
            node(count, 1, str(rng.choice(["slow", "fast"]))) | {"name": f"n{at}", "cpus": count * cpus}
            for at, (count, cpus) in enumerate(zip(gpus, rng.choice([1.0, 2.0, 4.0], len(gpus)), strict=True))
        ]
        each, replicas = int(rng.choice([1, 1, 2])), int(rng.integers(1, 3))
        sizes: dict[str, Any] = {"requested": each * replicas, "per_replica": each}
        elasticity = str(rng.choice(["none", "size"]))
        if elasticity == "size":
            sizes |= {"min": each, "max": 4 * each}
        demand = {"worker": {"cpu": float(rng.choice([1.0, 2.0, 3.0]))}}
        lone = job("lone", elastic=elasticity, resources=demand, user="a")
        lone = lone.model_copy(update={"gpus": Gpus(**sizes)})
        nodes = cluster(*made)
        if max(Capacities(nodes.nodes).room(lone).values()) >= lone.gpus.requested:
            return nodes, lone


def check_ten_thousand_jobs(make: Factory) -> None:
    held = _decided(make, cluster(node(8, 64)), _at_once(make, 10_000))
    require(sum(_held_gpus(held)) > 256, "10,000 jobs wait and half the GPUs are idle")


def check_parameters(make: Factory) -> None:
    """Parameters are JSON values, and a policy made from them has the same."""
    policy = make()
    values = json.loads(json.dumps(dict(policy.parameters)))
    again = type(policy)(**values)
    require(dict(again.parameters) == dict(policy.parameters), "parameters do not survive JSON")


def check_explanations(make: Factory) -> None:
    """Every active job can be explained, in one line, which changes nothing."""
    held = _decided(make, cluster(node(4, 2)), _at_once(make, 20))
    before = _places(held)
    for job_id, why in held.session.explain(held.time_s).items():
        require(job_id in held.jobs, f"explains {job_id}, which is not active")
        require(bool(why.reason), f"gives {job_id} no reason")
        require("\n" not in why.reason, f"explains {job_id} in several lines")
    require(before == _places(held), "explaining changed something")


def check_random_events(make: Factory) -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    for nodes in CLUSTERS:
        check_ops(make, random_ops(rng, 300), nodes)


def check_drawn_parameters(make: Factory) -> None:
    """Random stories keep every rule, whatever the parameters; the clusters take turns."""
    import numpy as np

    rng = np.random.default_rng(2)
    made = type(make())
    for values, nodes in zip(drawn_policies(made, rng, _DRAWS), cycle(CLUSTERS), strict=False):
        try:
            check_ops(partial(made, **values), random_ops(rng, _STORY), nodes)
        except Exception as error:
            raise AssertionError(f"with {values}: {error}") from error


CHECKS: Final[tuple[Callable[[Factory], None], ...]] = (
    check_parameters,
    check_drawn_parameters,
    check_empty_queue,
    check_empty_cluster,
    check_one_giant_job,
    check_gangs_are_whole,
    check_limits_are_kept,
    check_everything_ends,
    check_input_order_is_irrelevant,
    check_same_seed_same_story,
    check_state_survives,
    check_a_vanishing_node,
    check_a_held_job,
    check_jobs_past_their_work,
    check_limits_of_users,
    check_teams,
    check_mixed_types,
    check_replicas_are_whole,
    check_where_jobs_may_run,
    check_jobs_that_cannot_save,
    check_demands_of_nodes,
    check_explanations,
    check_random_events,
    check_ten_thousand_jobs,
)


def check_all(make: Factory) -> None:
    """:raises AssertionError: for the first check that fails, with its name."""
    for check in CHECKS:
        try:
            check(make)
        except (AssertionError, BadInputError) as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
