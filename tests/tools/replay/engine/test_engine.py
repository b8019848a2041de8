import math
from pathlib import Path

import pytest

from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import parse_events
from pliant.tools.replay import output
from pliant.tools.replay.batch import Task, carry_out
from pliant.tools.replay.engine import running
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.engine.log import EventLog
from pliant.tools.replay.engine.simulated_cluster import Quirks, SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.output import parquet_bytes, unfinished
from pliant.tools.replay.progress import ProgressModel, Segment
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.las import Las
from pliant.tools.schedule.session.idle_limit import IDLE_ROUNDS
from tests.builders import cluster, curves, job
from tests.tools.replay.world import Seats, Told, ends, play, story


def timeline(engine: Engine) -> str:
    """Time, job, event and GPUs of all events but submissions."""
    return ", ".join(f"{time_s:g} {job_id} {event} {gpus}" for time_s, job_id, event, gpus in story(engine))


def reasons(engine: Engine) -> dict[str, str]:
    return {left.job: left.reason for left in unfinished(engine.session, stands_still=engine.stands_still)}


def overheads(engine: Engine) -> list[tuple[str | None, str, float]]:
    return [(e.job, e.event, e.overhead_seconds) for e in engine.log.events() if e.overhead_seconds]


def test_gangs_wait_in_turn_and_decisions_see_their_moment() -> None:
    first, second = job("a", gpus=2, gpu_seconds=20), job("b", at=1, gpus=2, gpu_seconds=30)
    engine = play(Fifo(), [first, second], cluster(2))
    assert timeline(engine) == "0 a start 2, 10 a finish 0, 10 b start 2, 25 b finish 0"
    trace = [job(i, gpu_seconds=10) for i in "abc"]
    engine = play(Fifo(), trace, cluster(1))
    assert ends(engine) == {"a": 10, "b": 20, "c": 30}
    assert play(Fifo(), trace[::-1], cluster(1)).log.json_lines() == engine.log.json_lines()
    # A decision may stop all that run.
    # a stands still for 4 s as b starts, which pays its own cost; that c comes stops none.
    policy = Told({0: {"a": 1}, 10: {"b": 1}, 12: {}})
    trace = [job("a", gpu_seconds=30), job("b", at=10, gpu_seconds=7), job("c", at=12, gpu_seconds=1)]
    simulated = SimulatedCluster(Cost(0), Cost(0), quirks=Quirks(stop_all_s=4.0))
    engine = play(policy, trace, cluster(2), simulated=simulated)
    assert ends(engine) == {"a": 34, "b": 17}
    assert overheads(engine) == [("a", "start", 4.0)]
    # a trains until 10 and from 14 to 20, and the 14 s that are left from 30 on.
    policy = Told({0: {"a": 1}, 10: {"b": 1}, 20: {"a": 0}, 30: {"a": 1}}, again_s=[20, 30])
    trace = [job("a", gpu_seconds=30), job("b", at=10, gpu_seconds=5)]
    simulated = SimulatedCluster(Cost(0), Cost(0), quirks=Quirks(stop_all_s=4.0))
    engine = play(policy, trace, cluster(2), simulated=simulated)
    stopped = next(event for event in engine.log.events() if event.event == "preempt")
    assert stopped.samples_done == 16
    assert ends(engine) == {"a": 44, "b": 15}
    # A decision sees all that happens at its moment.
    policy = Told({0: {"a": 1}})
    trace = [job("a", gpu_seconds=10), job("b", at=10, gpu_seconds=1), job("c", at=10, gpu_seconds=1)]
    play(policy, trace, cluster(1))
    assert policy.asked == [(0, ("a",)), (10, ("b", "c"))]
    # 0.1 + 0.2 is not 0.3 to a computer.
    policy = Told({0: {"a": 1}, 0.1: {"b": 1}})
    engine = play(policy, [job("a", gpu_seconds=0.3), job("b", at=0.1, gpu_seconds=0.2)], cluster(2))
    assert [time_s for time_s, _ in policy.asked] == [0, 0.1, 0.3]
    assert ends(engine) == {"a": 0.3, "b": 0.3}


SOON = 10 * (1 + 2.0**-42)


@pytest.mark.parametrize(
    ("kind", "at_s", "due", "due_late"),
    [
        (running.FINISH, 10.0, True, True),
        (running.SEGMENT_END, SOON, True, True),
        (running.NODE_DOWN, 10.0, True, True),
        (running.NODE_DOWN, SOON, False, False),  # only completions are early by rounding
        (running.LATE_FINISH, 10.0, False, True),
        (running.LATE_SEGMENT_END, 10.0, False, True),
        (running.FINISH, 10.001, False, False),
    ],
)
def test_what_is_due_before_and_after_a_decision(kind, at_s, due, due_late) -> None:
    for last, found in ((running.NODE_UP, due), (running.LATE_SEGMENT_END, due_late)):
        agenda = running.Agenda()
        agenda.add(at_s, kind, "a")
        assert agenda.pop(10.0, last) == ((at_s, kind, "a", 0) if found else None)
        assert agenda.next_s() == (math.inf if found else at_s)


def test_new_plans_replace_old_ones_and_rounds_keep_time() -> None:
    agenda = running.Agenda()
    for at_s in (5.0, 8.0):
        agenda.plan(at_s, running.FINISH, "a")
        agenda.plan(at_s + 1, running.FINISH, "b")
    agenda.unplan("b")
    assert agenda.next_s() == 8.0
    assert agenda.pop(9.0)[:3] == (8.0, running.FINISH, "a")
    assert (agenda.next_s(), agenda.pop(100.0)) == (math.inf, None)
    # Rounds keep time and wishes are met.
    policy = Told({60: {"a": 1}, 420: {"b": 1}})
    trace = [job("a", at=60, gpu_seconds=100), job("b", at=361, gpu_seconds=10)]
    engine = play(policy, trace, cluster(1), interval_s=60)
    assert [time_s for time_s, _ in policy.asked] == [60, 120, 420]
    assert ends(engine) == {"a": 160, "b": 430}
    policy = Told({0: {"a": 1}})
    play(policy, [job("a", gpu_seconds=100)], cluster(1), interval_s=0.1)
    assert [time_s for time_s, _ in policy.asked] == [number * 0.1 for number in range(1000)]
    policy = Told({5: {"a": 1}}, again_s=[5, 7])
    engine = play(policy, [job("a", gpu_seconds=10)], cluster(1))
    assert [time_s for time_s, _ in policy.asked] == [0, 5, 7, 15]
    assert ends(engine) == {"a": 15}


@pytest.mark.parametrize(("resume", "resume_s"), [(None, 4), (Cost(7), 7)])
def test_a_start_and_every_later_change_have_their_cost(resume, resume_s) -> None:
    simulated = SimulatedCluster(Cost(5), Cost(2, {"big": 4}), resume)
    policy = Told({0: {"a": 1, "b": 1}, 10: {"a": 2, "b": 0}, 20: {"a": 1, "b": 1}}, again_s=[10, 20])
    trace = [job("a", low=1, high=2, gpu_seconds=100), job("b", gpu_seconds=100, model="big")]
    engine = play(policy, trace, cluster(2), simulated=simulated)
    # a: 5 s at 1 GPU, 8 s at 2 GPUs, then 79 s; b: 5 s, 10 s of nothing, then 95 s.
    assert ends(engine) == {"a": 20 + 2 + 79, "b": 20 + resume_s + 95}
    assert overheads(engine) == [
        ("a", "start", 5),
        ("b", "start", 5),
        ("a", "grow", 2),
        ("a", "shrink", 2),
        ("b", "resume", resume_s),
    ]


@pytest.mark.parametrize(("resume", "paid_s"), [(None, 2), (Cost(7), 7), (Cost(1), 2)])
def test_a_resize_by_a_relaunch_costs_at_least_a_resume(resume, paid_s) -> None:
    policy = Told({0: {"a": 1}, 10: {"a": 2}}, again_s=[10])
    relaunched = job("a", low=1, high=2, gpu_seconds=100, resize="relaunch")
    engine = play(policy, [relaunched], cluster(2), simulated=SimulatedCluster(Cost(5), Cost(2), resume))
    assert overheads(engine) == [("a", "start", 5), ("a", "grow", paid_s)]


@pytest.mark.parametrize(
    ("orders", "end_s", "paid"),
    [
        ({0: {"a": 1}, 3: {"a": 2}}, 3 + 5 + 5, [("start", 3), ("grow", 5)]),
        # Preempted before it trained: it trains from 15 to 20 on one GPU, from 21 on two.
        (
            {0: {"a": 1}, 3: {"a": 0}, 10: {"a": 1}, 20: {"a": 2}},
            20 + 1 + 2.5,
            [("start", 3), ("resume", 5), ("grow", 1)],
        ),
    ],
)
def test_a_start_is_owed_until_the_job_trains(orders, end_s, paid) -> None:
    policy, trace = Told(orders, again_s=[*orders]), [job("a", low=1, high=2, gpu_seconds=10)]
    engine = play(policy, trace, cluster(2), simulated=SimulatedCluster(Cost(5), Cost(1)))
    assert ends(engine) == {"a": end_s}
    assert overheads(engine) == [("a", *each) for each in paid]


def test_jobs_fall_back_to_their_checkpoints_or_never_run() -> None:
    failures = (NodeEvent(150, "n0", up=False), NodeEvent(500, "n0", up=True))
    simulated = SimulatedCluster(rescale_cost=Cost(5), node_events=failures)
    engine = play(Fifo(), [job("a", gpu_seconds=300)], cluster(1, 1), simulated=simulated)
    # Checkpoints at 60 and 120 s: 30 s of work are lost, 180 s are left.
    events = "0 a start 1, 150  node_down 0, 150 a requeue 0, 150 a resume 1, 335 a finish 0"
    assert timeline(engine) == events
    failures = (NodeEvent(115, "n0", up=False),)
    simulated = SimulatedCluster(progress=lambda: SlowerFrom(100, 0.1), node_events=failures)
    engine = play(Fifo(), [job("a", gpu_seconds=200)], cluster(1), simulated=simulated)
    # Saved at 60 s with 60 samples; at 120 s it would have been saved next.
    requeued = next(event for event in engine.log.events() if event.event == "requeue")
    assert requeued.samples_done == 60
    # Jobs that can never run are left and the others finish.
    trace = [
        job("fits", gpu_seconds=10),
        job("large", gpus=16, gpu_seconds=10),
        job("ignored", gpu_seconds=10),
        job("slow", gpu_seconds=10, model="slow"),
    ]
    policy = Told({0: {"fits": 1, "slow": 1}})
    engine = play(policy, trace, cluster(4), curves(slow={1: 0.1, 2: 0.1}))
    assert set(ends(engine)) == {"fits", "slow"}
    assert reasons(engine) == {
        "ignored": 'policy "told" never starts it',
        "large": "needs at least 16 GPUs of one type, the cluster has 4",
    }


class SlowerFrom(ProgressModel):
    """From so many samples on a job has a part of its speed."""

    def __init__(self, samples: float, part: float) -> None:
        self.samples, self.part = samples, part

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        if samples_done < self.samples:
            return Segment(job.samples_per_second, until_samples=self.samples)
        return Segment(job.samples_per_second * self.part)


@pytest.mark.parametrize(("again_s", "interval_s"), [((), 60), (range(1, 5000), None)])
def test_a_policy_that_starts_no_job_is_given_up(again_s, interval_s) -> None:
    trace = [job("a", gpu_seconds=10)]
    engine = play(Told({}, again_s=again_s), trace, cluster(1), interval_s=interval_s)
    assert reasons(engine) == {"a": 'policy "told" never starts it'}
    assert engine.counters.decisions == 1 + IDLE_ROUNDS
    for start_s in (120, 60 * IDLE_ROUNDS):  # it may take its time
        engine = play(Told({start_s: {"a": 1}}), trace, cluster(1), interval_s=60)
        assert ends(engine) == {"a": start_s + 10}


def test_policies_that_move_much_and_traces_come_to_an_end() -> None:
    trace = [job("a", gpu_seconds=100), job("b", gpu_seconds=100)]
    engine = play(Las(), trace, cluster(1), simulated=SimulatedCluster(Cost(90), Cost(90)), interval_s=60)
    why = 'policy "las" moves jobs more often than they can pay for starts and rescales'
    assert reasons(engine) == {"a": why, "b": why}
    dear = SimulatedCluster(Cost(5000))
    engine = play(Fifo(), [job("a", gpu_seconds=1)], cluster(1), simulated=dear, interval_s=1)
    assert ends(engine) == {"a": 5001}
    trace = [job("a", gpu_seconds=6e7), job("b", gpus=2, gpu_seconds=1200), job("c", at=900, gpu_seconds=60)]
    engine = play(Las(), trace, cluster(4), interval_s=60)
    assert ends(engine) == {"a": 6e7, "b": 600, "c": 960}
    assert engine.counters.decisions <= 8
    # The end of the trace is the end of the replay.
    simulated = SimulatedCluster(node_events=(NodeEvent(1e6, "n0", up=False),))
    engine = play(Fifo(), [job("a", gpu_seconds=10)], cluster(1), simulated=simulated)
    assert [event.event for event in engine.log.events()] == ["submit", "start", "finish"]
    told: list[tuple[int, int | None]] = []
    trace, session = [job(f"j{i}", gpu_seconds=1) for i in range(3)], play(Fifo(), [], cluster(2)).session
    Engine(session, trace, advance=lambda *at: told.append(at)).run()
    assert told[-1] == (3, 3)
    assert told == sorted(told)


def test_a_job_on_another_node_has_moved_and_pays_for_it() -> None:
    """Ten seconds on n0, five of rescale cost, ten on n1."""
    orders = {0: {"a": (("n0", 1),)}, 10: {"a": (("n1", 1),)}}
    trace = [job("a", gpu_seconds=20, low=1, high=1)]
    simulated = SimulatedCluster(rescale_cost=Cost(5))
    engine = play(Seats(orders, again_s=[10]), trace, cluster(1, 1), simulated=simulated)
    assert ends(engine) == {"a": 25}
    moved = engine.session.book.ended["a"]
    assert (moved.moves, moved.rescales) == (1, 0)
    # A job has trained where it moves as its rate changes.
    policy = Told({0: {"a": 1}, 15: {"a": 2}}, again_s=[15])
    simulated = SimulatedCluster(Cost(5), Cost(1), progress=lambda: SlowerFrom(10, 0.5))
    engine = play(policy, [job("a", low=1, high=2, gpu_seconds=20)], cluster(2), simulated=simulated)
    assert ends(engine) == {"a": 15 + 1 + 10}


PLACE = (("n0", 2), ("n1", 1))


def small_log() -> EventLog:
    log = EventLog()
    log.add(0.0, "decision", detail='{"policy":"fifo"}')
    log.add(0.5, "submit", "a", detail=lambda: '{"job":{"id":"a"},"words":"größer"}')
    log.add(0.5, "start", "a", gpus=3, placement=PLACE, global_batch=64, samples_done=0.0, overhead_s=1.5)
    log.add(9.0, "finish", "a", gpus=0, samples_done=100.0)
    return log


EVENTS = (
    Event(0.0, "decision", detail={"policy": "fifo"}),
    Event(0.5, "submit", "a", detail={"job": {"id": "a"}, "words": "größer"}),
    Event(0.5, "start", "a", 3, PLACE, 64, samples_done=0.0, overhead_seconds=1.5),
    Event(9.0, "finish", "a", 0, samples_done=100.0),
)


def test_a_log_says_the_same_in_each_form_and_keeps_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = small_log()
    assert tuple(log.events()) == EVENTS
    assert parse_events(log.json_lines(), "lines") == EVENTS
    assert parse_events(parquet_bytes(log), "parquet") == EVENTS
    assert parquet_bytes(log) == parquet_bytes(log)
    log.add(10.0, "node_down", detail='{"node":"n0"}')
    assert parse_events(parquet_bytes(log), "parquet")[:-1] == EVENTS
    monkeypatch.setattr(output, "BLOCK", 3)
    assert parse_events(parquet_bytes(small_log()), "parquet") == EVENTS


def test_a_log_that_is_stored_as_it_grows_gives_the_same_file(monkeypatch, tmp_path: Path) -> None:
    trace = [job(f"j{n}", at=6.0 * n, low=1, high=4, gpu_seconds=35.0 + n) for n in range(9)]
    world, files = inputs(trace, cluster(2, 2)), {}
    run = Run("fair-share", simulated=SimulatedCluster(Cost(7.0), Cost(7.0)))
    for block in (5, 1 << 16):
        monkeypatch.setattr(output, "BLOCK", block)
        monkeypatch.setattr("pliant.tools.replay.engine.log.BLOCK", block)
        path = str(tmp_path / f"{block}.parquet")
        carry_out(world, Task(run, path, timing=False))
        files[block] = parse_events(Path(path).read_bytes(), "stored")
        assert Path(path).read_bytes() == parquet_bytes(replay(world, run).log)
    assert files[5] == files[1 << 16]
    assert len(files[5]) > 25
    assert any(0 < (each.overhead_seconds or 0) < 7 for each in files[5])
    assert files[5][0].detail is not None
    left = {each.name for each in tmp_path.iterdir() if each.suffix != ".json"}
    assert left == {"5.parquet", "65536.parquet"}


def test_ended_jobs_are_known_where_others_wait_for_them(tmp_path: Path) -> None:
    rows = (("a", 0, 9), ("b", 1, 9), ("d", 1.5, 5), ("c", 30, 5), ("e", 40, 5), ("late", 50, 5))
    waits = {"c": {"a": "ok", "b": "any"}, "d": {"c": "ok"}, "e": {"late": "ok"}}
    trace = [job(i, at=at, gpu_seconds=work, after=waits.get(i, {})) for i, at, work in rows]
    trace.append(job("big", at=2.0, gpus=3, gpu_seconds=1))
    world, path = inputs(trace, cluster(2)), str(tmp_path / "fifo.parquet")
    carry_out(world, Task(Run("fifo"), path, timing=False))
    assert Path(path).read_bytes() == parquet_bytes(replay(world, Run("fifo")).log)
    events = parse_events(Path(path).read_bytes(), path)
    starts = {each.job: each.time for each in events if each.event == "start"}
    assert 30.0 <= starts["c"] < starts["d"]
    assert starts["late"] < starts["e"]


def test_a_full_disk_names_the_file_that_was_asked_for(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pliant.tools.replay.engine.log.BLOCK", 5)
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "w+b"))  # noqa: SIM115
    world = inputs([job(f"j{n}", at=6.0 * n, gpu_seconds=9) for n in range(3)], cluster(2))
    path = str(tmp_path / "fifo.parquet")
    with pytest.raises(ServiceMissingError) as refused:
        carry_out(world, Task(Run("fifo"), path))
    assert str(refused.value) == f"{path}: cannot be written: no space left on device"
