"""State directories of runs that began a while ago, made of their logs alone."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster, write_schedule
from pliant.schemas.job import Job
from pliant.schemas.schedule import PolicyUse, Schedule
from pliant.tools.replay.engine.costs import FREE
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import decision_event, run_event, submit_event
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import job


def live_state(
    folder: Path,
    jobs: Iterable[Job],
    nodes: Cluster,
    *,
    policy: str = "fifo",
    ago_s: float = 100.0,
    lasted_s: float = 0.0,
    owners: Mapping[str, int] | None = None,
) -> Path:
    """A state directory whose run began ``ago_s`` ago and took up these jobs; their times count from then.

    :param lasted_s: the log ends after that time; by then it is as a replay says.
    :param owners: the accounts that submitted jobs, where several share the run.
    """
    origin_s = time.time() - ago_s
    specs = [job.model_copy(update={"submit_time": origin_s + job.submit_time}) for job in jobs]
    found = make_policy(policy)
    session = Session(found, nodes, throughput_for(None, nodes))
    engine = Engine(session, specs, SimulatedCluster(start_cost=FREE, rescale_cost=FREE))
    engine.run(lambda time_s: time_s <= origin_s + lasted_s)
    by_id = {job.id: job for job in specs}
    used = PolicyUse(name=policy, parameters=dict(found.parameters))
    schedule = Schedule(time=origin_s, policy=used, cluster=nodes)
    events = [run_event(schedule, "hash", origin_s), decision_event(origin_s, 0.0, policy, 0.001)]
    for event in engine.log.events():
        is_new = event.event == "submit" and event.job is not None
        uid = (owners or {}).get(event.job or "")
        detail = None if uid is None else {"uid": uid}
        events.append(submit_event(by_id[event.job or ""], event.time, detail) if is_new else event)
    with State(folder) as held:
        held.record(events)
    dirs = StateDir(folder)
    write_cluster(nodes, dirs.cluster)
    write_schedule(schedule, dirs.schedule)
    return folder


def a_queue(count: int, seconds: Sequence[float] = (100.0,), gpus: int = 4) -> list[Job]:
    works = [gpus * seconds[index % len(seconds)] for index in range(count)]
    return [job(f"j{index}", gpus=gpus, gpu_seconds=work) for index, work in enumerate(works)]
