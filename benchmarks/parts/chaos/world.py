"""A run of the real loop on simulated nodes, and all that can happen to it. One deed after the other.

Every deed takes a number, which says whom it hits or how long it lasts; so a sequence of deeds is a list of
names and numbers, and the same list is the same story.
"""

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.parts.chaos.accounts import check_story
from benchmarks.parts.chaos.hazard import Death, Hazard
from pliant.schemas.cluster import Cluster, Node, Shares, Sharing, Team, UserLimit
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.event import Event
from pliant.schemas.io import read_cluster, read_events, write_cluster
from pliant.schemas.job import Job
from pliant.tools.run.backends.simulated.clock import SimulatedClock
from pliant.tools.run.backends.simulated.nodes import SAMPLES, SimulatedNodes
from pliant.tools.run.backends.simulated.workers import SimulatedWorkers
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import Loop, RunOptions
from pliant.tools.run.service.reload import ClusterFile, order_reload
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.service.submit import cancel, order_jobs, order_nodes, submit
from pliant.tools.run.statedir.contract.folders import UnreadableError
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import on_clock
from pliant.tools.run.statedir.log.fold import fold
from pliant.tools.run.statedir.requests import JobAction, NodeAction, Spool
from pliant.tools.run.statedir.state import Clock, State, read_log
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.jobs import NodeGpus
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job

T = TypeVar("T")
NODES: Final = (2, 2, 2)
POLICIES: Final = ("fair-share", "fifo", "las", "ares", "lucid")
PACKED: Final = Sharing(unmeasured="together", speed=0.8)
PATIENT: Final = Timeouts(
    abort_s=10.0, term_s=5.0, kill_s=2.0, broken_s=3.0, silent_s=12.0, exit_s=5.0, linger_s=20.0
)
# A folder in memory, where the system has one: nothing of a simulation has to survive
MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - folders of tempfile
MOST_TURNS: Final = 600
TURN_S: Final = 2.0


class World:
    """One state directory, its cluster, and the launchers that come and go.

    :param policy: number of the policy that decides.
    """

    def __init__(self, folder: Path, policy: int = 0, *, nodes: Cluster | None = None) -> None:
        self.folder = folder
        self.dirs = StateDir(folder / "state")
        self.clock = SimulatedClock()
        self.hazard = Hazard()
        self.policy = POLICIES[policy % len(POLICIES)]  # what the next launcher asks
        self.cluster = nodes or cluster(*NODES, slots="cpu" if policy % 2 else "gpu")
        if self.policy == "lucid":
            self.cluster = self.cluster.model_copy(update={"sharing": PACKED})
        self.nodes = SimulatedNodes(self.cluster, self.clock, self.dirs.jobs)
        self.nodes.before_each = self.hazard.point
        self.accepted: dict[str, float] = {}  # samples of every job that was acknowledged
        self.loop: Loop | None = None
        self._state: State | None = None
        self._ids = 0
        write_cluster(self.cluster, folder / "cluster.json")

    # The launcher.

    def turn(self, seconds: float = TURN_S) -> None:
        """Time goes by, then the launcher looks; a new one begins where none lives."""
        self.nodes.disk_is_full = self.hazard.disk_is_full
        self.nodes.go_on(seconds)
        with self.hazard.endured():
            try:
                if self.loop is None:
                    self._begin()
                else:
                    self.loop.step()
                    if (file := self.loop.reload) is not None and self._state is not None:
                        self.loop = self._prepared.reload(file, self._state, self.loop, self._open)
            except Death:
                self._end()
            except ServiceMissingError:
                if not self.hazard.disk_was_full:
                    raise
                self._end()

    def turn_until(self, condition: Callable[[], object], most: int = 90) -> None:
        """:raises AssertionError: it does not happen."""
        for _ in range(most):
            if condition():
                return
            self.turn()
        raise AssertionError("it did not happen")

    def events(self, *names: str) -> list[Event]:
        return [event for event in read_events(self.dirs.events) if event.event in names]

    def lines(self, *names: str) -> list[str]:
        """The same in short: ``start a 2``."""
        found = self.events(*names)
        return [f"{each.event} {each.job}" + ("" if each.gpus is None else f" {each.gpus}") for each in found]

    def workers(self, name: str) -> SimulatedWorkers | None:
        return next((one for one in self.nodes.training() if one.handle.job == name), None)

    def slots(self, name: str) -> set[str]:
        found = self.workers(name)
        return {slot for unit in found.units if unit.runs for slot in unit.slots} if found else set()

    def attempts(self, name: str) -> list[int]:
        return [handle.attempt for handle in self.nodes.attempts if handle.job == name]

    def _begin(self) -> None:
        begun = self.dirs.events.exists() and read_log(self.dirs.path).info is not None
        if self.dirs.events.exists():  # the file's time is that of its last line
            os.utime(self.dirs.events, (self.clock.wall(), self.clock.wall()))
        options = RunOptions(
            self.dirs.path,
            question=Question(self.policy),
            cluster=None if begun else str(self.folder / "cluster.json"),
            timeouts=PATIENT,
        )
        clock = Clock(self.clock.wall, self.clock.steady)
        self._prepared = prepared = PreparedRun.read(options, self._open, resume=True, clock=clock)
        self._state = prepared.open(past=False)
        self.nodes.change_cluster(prepared.schedule.cluster)
        self.loop = prepared.loop(self._state, follow=True)

    def _open(self, _name: str, nodes: Cluster, _dirs: StateDir) -> SimulatedNodes:
        return self.nodes if self.loop is None else self.nodes.on(nodes)

    def _end(self) -> None:
        if self._state is not None:
            self._state.close()
        self.loop = self._state = None
        self.hazard.call_off()

    # Deeds of people.

    def submit(self, number: int) -> None:
        self._ids += 1
        high, samples = number % 4 + 1, float(20 + number % 7 * 60)
        elastic = ("size", "size", "size+batch", "none")[number // 4 % 4]
        spec = job(
            f"j{self._ids}",
            gpus=high,
            low=None if elastic == "none" else 1,
            high=None if elastic == "none" else 4,
            elastic=elastic,
            **trains(samples),
        )
        with suppress(BadInputError):  # the cluster may be too small for it now
            if self._ask(lambda: self.give(spec)):
                self.accepted[spec.id] = samples

    def give(self, *jobs: Job) -> None:
        now_s = self.clock.wall()
        submit(self.dirs.path, jobs, "world", folder=self.folder, now_s=now_s, check_scripts=False)

    def ask(self, name: str, gpus: int, samples: float = 1e4, **more: Any) -> None:
        self.give(job(name, gpus=gpus, **trains(samples), **more))
        self.accepted[name] = samples

    def cancel(self, number: int) -> None:
        if victim := chosen(sorted(self.accepted), number):
            self._ask(lambda: cancel(self.dirs.path, [victim]))
            if not self.dirs.cluster.exists():  # withdrawn, without a trace
                self.accepted.pop(victim)

    def order(self, number: int) -> None:
        """Some job is held, let go, or gets another priority."""
        if job_id := chosen(sorted(self.accepted), number):
            action: JobAction = ("hold", "release", "priority")[number % 3]
            priority = float(number % 5) if action == "priority" else None
            self._ask(lambda: order_jobs(self.dirs.path, action, [job_id], priority=priority))

    def order_node(self, number: int) -> None:
        """A node is drained, its jobs are to leave or not, or it serves again."""
        if self.dirs.cluster.exists():
            action: NodeAction = ("drain", "resume")[number % 2]
            names, now = self._a_node(number), number % 3 == 0
            self._ask(lambda: order_nodes(self.dirs.path, action, names, now=now))

    def _a_node(self, number: int) -> list[str]:
        names = [each.name for each in read_cluster(self.dirs.cluster).expanded()]
        return [names[number % len(names)]]

    def give_notice(self, number: int) -> None:
        if self.dirs.cluster.exists():
            names, within_s = self._a_node(number), 1.0 + number % 60
            self._ask(lambda: order_nodes(self.dirs.path, "drain", names, now=True, within_s=within_s))

    def reload(self, number: int) -> None:
        """Nodes come, go or are of another size, and limits and rules change."""
        second = [] if number % 3 == 0 else [node_of("n1", 1 + number % 4)]
        third = [[], [node_of("n2", 2, "other")], [node_of("n2", 2), node_of("n3", 3)]][number // 3 % 3]
        changed = {
            "nodes": (node_of("n0", 2), *second, *third),
            "user_limits": {} if number % 2 else {"*": UserLimit(gpus=3)},
            "shares": Shares(teams={"a": Team(users=("u",))}) if number % 5 == 0 else None,
            "cooldown_seconds": float(number % 4),
        }
        self.go_on_with(self.cluster.model_copy(update=changed), now=number % 7 < 3)

    def go_on_with(self, changed: Cluster, *, now: bool = False) -> list[str]:
        lines = list[str]()
        if self.dirs.cluster.exists():
            file = ClusterFile(changed, "world", now=now)
            self._ask(lambda: lines.extend(order_reload(self.dirs.path, file)))
        return lines

    def _ask(self, request: Callable[[], object]) -> bool:
        """Whether it was acknowledged. The disk may be full for people, too; they are not killed."""
        if not self.hazard.disk_is_full:
            request()
            return True
        return False

    # Deeds of chance.

    def wait(self, number: int) -> None:
        for _ in range(number % 6):
            self.turn()

    def kill_worker(self, number: int) -> None:
        if unit := chosen(self.nodes.running(), number):
            unit.end(-9)

    def crash(self, number: int) -> None:
        if workers := chosen(self.nodes.training(), number):
            alive = [place for place, unit in enumerate(workers.units) if unit.runs]
            workers.crash(alive[number % len(alive)])

    def stop_worker(self, number: int) -> None:
        if unit := chosen(self.nodes.running(), number):
            unit.stands_still = True

    def wake_worker(self, number: int) -> None:
        if unit := chosen([unit for unit in self.nodes.running() if unit.stands_still], number):
            unit.stands_still = False

    def make_deaf(self, number: int) -> None:
        """One responds neither to plans nor to SIGTERM."""
        if unit := chosen(self.nodes.running(), number):
            unit.responds = False

    def make_undying(self, number: int) -> None:
        """One hangs in the system: SIGKILL ends it later."""
        if unit := chosen(self.nodes.running(), number):
            unit.dies_in_s = 1.0 + number % 40

    def lose_node(self, number: int) -> None:
        self.nodes.lose(f"n{number % len(NODES)}")

    def return_node(self, number: int) -> None:
        self.nodes.lost.discard(chosen(sorted(self.nodes.lost), number) or "")

    def refuse_starts(self, number: int) -> None:
        kind = (errno.EAGAIN, errno.ENOENT, errno.ENOMEM, errno.EACCES)[number % 4]
        self.nodes.next_starts += [OSError(kind, os.strerror(kind))] * (1 + number // 4 % 3)

    def fail_looks(self, number: int) -> None:
        """Too many files are open when the launcher looks at what runs."""
        self.nodes.next_polls += [UnreadableError("too many open files")] * (1 + number % 4)

    def hide_plan(self, number: int) -> None:
        if job_id := chosen(sorted(self.accepted), number):
            self.hazard.hidden.add(self.dirs.job(job_id).plan)

    def show_plans(self, _number: int) -> None:
        self.hazard.hidden.clear()

    def kill_loop(self, number: int) -> None:
        """The launcher dies at one of its next system calls."""
        self.hazard.kill_after(1 + number % 60)

    def end_loop(self, _number: int) -> None:
        """The launcher leaves in good order, and another one begins."""
        self._end()

    def tear_log(self, number: int) -> None:
        """The machine loses power: the launcher is gone, and the log ends in half a line."""
        self._end()
        if self.dirs.events.exists() and self.dirs.events.read_bytes().endswith(b"\n"):  # else it is torn
            with self.dirs.events.open("ab") as file:
                file.write(b'{"time": 1700000000.0, "event": "finish", "job": "j1"}'[: 1 + number % 50])

    def fill_disk(self, _number: int) -> None:
        self.hazard.disk_is_full = True

    def free_disk(self, _number: int) -> None:
        self.hazard.disk_is_full = False

    def set_clock(self, number: int) -> None:
        self.clock.set_forward((-3600.0, -30.0, 30.0, 3600.0, 86400.0)[number % 5])

    # The end.

    def settle(self) -> None:
        """Whatever was in the way is gone, and every job comes to its end."""
        self.hazard.call_off()
        self.hazard.disk_is_full = self.hazard.disk_was_full = False
        for obstacles in (self.hazard.hidden, self.nodes.lost, self.nodes.next_starts, self.nodes.next_polls):
            obstacles.clear()
        if self.accepted:
            order_jobs(self.dirs.path, "release", sorted(self.accepted))
        if self.dirs.cluster.exists():
            self.go_on_with(self.cluster)
            self.turn_until(lambda: not any(found.order for found in Spool(self.dirs).requests()))
            names = [node.name for node in read_cluster(self.dirs.cluster).expanded()]
            order_nodes(self.dirs.path, "resume", names)
        for unit in self.nodes.running():
            unit.dies_in_s = 0.0
            if unit.stands_still and not unit.is_ready:  # no file shows that it should not
                unit.stands_still = False
        for _ in range(MOST_TURNS):
            self.turn()
            loop = self.loop
            if loop and not (loop.state.log.active or loop.executor.gangs or Spool(self.dirs).requests()):
                return
        raise AssertionError(f"not settled: {self.loop and [*self.loop.state.log.active.values()]}")

    def check_agreement(self) -> None:
        """The launcher holds what its session and its log say, and the next one would begin with the same."""
        if (loop := self.loop) is None:
            return
        session, log = loop.session, loop.state.log
        assert log.origin_s is not None
        given = {
            job_id: (held.placement, held.beside)
            for job_id, held in loop.executor.targets.allocations.items()
        }
        assert given == {job_id: seen for job_id, seen in placed(session).items() if seen[0]}
        assert placed(session) == {job_id: (job.placement, job.beside) for job_id, job in log.active.items()}
        events = on_clock(read_events(self.dirs.events), log.origin_s)
        spec = session.cluster.spec
        again = session_from_events(events, make_policy(self.policy), spec, throughput_for(None, spec))
        again.cluster.at(session.changes.now_s)
        assert placed(again) == placed(session)
        assert seen_of_nodes(again) == seen_of_nodes(session)
        assert again.quarantine.out_of_service.keys() == session.quarantine.out_of_service.keys()
        assert again.book.ended.keys() == session.book.ended.keys()
        held = {job_id for job_id, job in log.active.items() if job.held is not None}
        assert again.hidden.held.keys() == session.hidden.held.keys() == held

    def check(self) -> None:
        """Nothing acknowledged is lost, nothing ran twice, all samples count, and the log says so."""
        assert self.nodes.violations == []
        assert self.loop is not None
        events = read_events(self.dirs.events)
        log = fold(events)
        assert log == self.loop.state.log, "the log folds to another state"
        assert read_log(self.dirs.path) == log, "the snapshot leads to another state"
        assert self.accepted.keys() == log.jobs.keys()
        check_story(events, sum(node.gpus for node in self.cluster.expanded()))
        for job_id, samples in self.accepted.items():
            found, trained = log.jobs[job_id], self.nodes.trained.get(job_id)
            assert found.ended, found
            ends = 0 if trained is None else trained.ends
            assert (found.phase == "finished") <= (ends == 1), found
            assert (ends == 1) <= (found.phase in ("finished", "cancelled")), found
            if found.phase == "finished" and found.job.elastic != "none":
                assert found.samples_done == samples, found
            assert found.phase in ("finished", "cancelled") or found.reason, found
        for handle, workers in self.nodes.attempts.items():
            seen, found = log.jobs[handle.job].attempt.seen.get(handle.attempt, 0), log.jobs[handle.job]
            assert seen <= workers.reported, found
            assert seen == workers.reported or found.phase != "finished", found
        assert [one.handle for one in self.nodes.training()] == []

    def close(self) -> None:
        self._end()
        self.nodes.close()


def placed(session: Session) -> dict[str, tuple[NodeGpus, str | None]]:
    """What each job holds, and with which other one."""
    return {job_id: (job.placement, job.beside) for job_id, job in session.jobs.items()}


def seen_of_nodes(session: Session) -> list[tuple[str, bool, int, bool | None]]:
    drained = session.cluster.drained
    return [
        (node.name, node.up, session.cluster.free.free_on(node.name), drained.get(node.name))
        for node in session.cluster.nodes
    ]


def node_of(name: str, gpus: int, gpu_type: str = "gpu") -> Node:
    return Node(name=name, gpus=gpus, gpu_type=gpu_type)


def trains(samples: float) -> dict[str, Any]:
    command = ("train.py", SAMPLES, str(samples))
    own = {"command": command, "workdir": "/", "work": {"samples": samples}}
    return {**own, "batch": 8, "checkpoint_seconds": 7.0}


def chosen(among: Sequence[T], number: int) -> T | None:
    return among[number % len(among)] if among else None


Deed = Callable[[World, int], None]
DEEDS: Final[dict[str, Deed]] = {
    name: getattr(World, name)
    for name in (
        *("submit", "cancel", "order", "order_node", "wait", "kill_worker", "crash", "stop_worker"),
        *("wake_worker", "make_deaf", "make_undying", "lose_node", "return_node", "refuse_starts"),
        *("kill_loop", "end_loop", "tear_log", "fill_disk", "free_disk", "set_clock"),
        *("fail_looks", "hide_plan", "show_plans", "give_notice", "reload"),
    )
}


def live_through(folder: Path, policy: int, deeds: Iterable[tuple[str, int]]) -> World:
    """Do all of it, one deed a turn, then settle and check.

    :raises AssertionError: an invariant does not hold.
    """
    world = World(folder, policy)
    try:
        for name, number in deeds:
            DEEDS[name](world, number)
            world.turn(0.5 + number % 5)
        world.check_agreement()
        world.settle()
        world.check()
    finally:
        world.close()
    return world
