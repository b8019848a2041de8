"""How a worker sees plans, at once and never half, and how all agree on the step to act on one."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership import switch_step
from pliant.tools.run.elastic.membership.process_group import released
from pliant.tools.run.elastic.membership.regrouping import Recurrence
from pliant.tools.run.elastic.membership.switch_step import VOTE_INTERVAL_S, PlanWatch, StopSignal, Vote
from pliant.tools.run.elastic.membership.worker_exit import described
from pliant.tools.run.elastic.state.training import Cursor, EpochPhase
from pliant.tools.run.statedir.contract.plan import ENV_NOTICES, LOST_PEER
from tests.tools.run.elastic.alone import Clock
from tests.tools.run.elastic.gang import plan, put

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_notices")]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(1000.0)
    monkeypatch.setattr(switch_step, "time", made)
    return made


class TestPlans:
    def test_a_newer_plan_is_seen(self, tmp_path: Path) -> None:
        job = put(tmp_path, plan(3))
        watch = PlanWatch(WorkerContext(job, plan(3), 0))
        assert watch.newest().generation == 3
        put(tmp_path, plan(4, abort=True))
        assert watch.newest().abort
        put(tmp_path, plan(2))
        assert watch.newest().generation == 4, "an older one is not for it"
        job.plan.unlink()
        assert watch.newest().generation == 4
        job.plan.write_text("{")
        assert watch.newest().generation == 4
        put(tmp_path, plan(5))
        assert watch.newest().generation == 5

    def test_a_plan_that_only_others_see_is_waited_for(self, tmp_path: Path) -> None:
        watch = PlanWatch(WorkerContext(put(tmp_path, plan(1)), plan(1), 0))
        with pytest.raises(ServiceMissingError, match=r"plan-2\.json was announced by another worker"):
            watch.exactly(2, timeout_s=0.05)
        put(tmp_path, plan(2))
        put(tmp_path, plan(3))
        assert watch.exactly(2, timeout_s=60).generation == 2

    def test_a_plan_is_in_force_when_its_new_workers_are_ready(
        self, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, lives = put(tmp_path, plan(1)), ["none"]
        states = {job.attempt(1).presence(2): lives}
        monkeypatch.setattr(switch_step, "life", lambda path: states[path][0])
        context = WorkerContext(job, plan(1), 0)
        context.settle()
        watch = PlanWatch(context)

        def in_force() -> int:
            clock.now_s += 1.0
            return watch.in_force().generation

        put(tmp_path, plan(2, range(3)))
        assert in_force() == 1
        lives[0] = "alive"
        assert in_force() == 2
        lives[0] = "dead"
        put(tmp_path, plan(3, range(3)))
        assert in_force() == 2


def test_a_waiting_worker_looks_for_the_end_seldom(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    monkeypatch.setattr(WorkerContext, "is_done", lambda _: looks.append(None))
    watch = PlanWatch(WorkerContext(put(tmp_path, plan()), plan(), 0))
    for expected in (1, 2, 3):
        for _ in range(100):
            watch.check_needed(fresh=True)
        assert len(looks) == expected
        clock.now_s += 1


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [
        (0.0, 1),
        (10.0, 1),
        (VOTE_INTERVAL_S, 1),
        (VOTE_INTERVAL_S / 4, 4),
        (1e-6, switch_step.MAX_STEPS_BETWEEN_VOTES),
    ],
)
def test_short_steps_leave_out_votes(step_s: float, steps: int) -> None:
    assert switch_step.steps_between_votes(step_s) == steps


class Pair:
    """Two workers whose all-reduces are made here."""

    def __init__(self) -> None:
        self.votes = [Vote(), Vote()]

    def step(self, *usual_s: float, forced: bool = False) -> int | None:
        """One step of both: what was agreed; None: there was no vote."""
        due = [vote.is_due() or forced for vote in self.votes]
        assert due[0] == due[1]
        if not due[0]:
            return None
        for number, (vote, step_s) in enumerate(zip(self.votes, usual_s, strict=True)):
            vote.cast(7 + number)
            vote._numbers[1] = -switch_step.steps_between_votes(step_s)
        largest = [max(pair) for pair in zip(*(vote._numbers.tolist() for vote in self.votes), strict=True)]
        for vote in self.votes:
            vote._numbers[:] = largest
        (agreed,) = {vote.result() for vote in self.votes}
        assert not any(vote.is_open for vote in self.votes)
        return agreed


def test_workers_vote_as_often_as_the_slower_one_would() -> None:
    """One that is alone votes at every step."""
    vote = Vote()
    for number in (2, 3):
        assert vote.is_due()
        vote.cast(number, 1e-6)
        assert vote.result() == number
    assert vote.result() == 0
    both, quick = Pair(), VOTE_INTERVAL_S / 8
    got = [both.step(quick, VOTE_INTERVAL_S / 3) for _ in range(7)]
    assert got == [8, None, None, 8, None, None, 8]
    assert both.step(quick, VOTE_INTERVAL_S / 3, forced=True) == 8, "out of turn"
    assert [both.step(quick, VOTE_INTERVAL_S / 3) for _ in range(3)] == [None, None, 8]
    assert both.step(1e-6, 1e-6) is None
    for vote in both.votes:
        vote.drop()
    assert both.step(1e-6, 1e-6) == 8, "the first step after a meeting"


def test_a_vote_carries_each_worker_s_own_step_time_and_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = SimpleNamespace(wait=lambda: None)
    world = SimpleNamespace(allreduce=lambda *_: sent)  # it is made here
    monkeypatch.setattr(switch_step, "world", lambda: world)
    votes = [Vote() for _ in range(3)]
    for rank, vote in enumerate(votes):
        vote.drop(rank, 3)
        vote.cast(2, own_step_s=[0.1, 0.0, 0.25][rank], losses=[(-1.5, 2.0), (0.0, 0.0), (4.0, 3.0)][rank])
    largest = [max(each) for each in zip(*(vote._numbers.tolist() for vote in votes), strict=True)]
    for vote in votes:
        vote._numbers[:] = largest
        assert vote.result() == 2
        assert vote.own_s == [0.1, 0.0, 0.25], "0: not known"
        assert vote.losses == (2.5, 5.0)
    votes[0].drop(0, 2)
    assert votes[0].own_s == [0.0, 0.0], "of other workers it says nothing"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("too large\nby far"), "ValueError: too large"),
        (KeyError(), "KeyError"),
        (RuntimeError("in loading Net:\n\tsize mismatch"), "RuntimeError: in loading Net: size mismatch"),
        (
            RuntimeError("a/gloo/pair.cc: closed by peer"),
            f"{LOST_PEER}: RuntimeError: a/gloo/pair.cc: closed by peer",
        ),
        (RuntimeError("a/gloo/pair.cc: 8 vs 4"), "RuntimeError: a/gloo/pair.cc: 8 vs 4"),
    ],
)
def test_the_reason_of_a_crash_is_one_line(error: Exception, words: str) -> None:
    assert described(type(error), error, alone=False) == words


def test_an_error_that_comes_again_though_all_live_is_raised() -> None:
    place, later = Cursor(0, 7, EpochPhase.STEPS), Cursor(0, 8, EpochPhase.STEPS)
    error, got = RuntimeError("gloo"), Recurrence()
    for each in (place, later, place):  # a step that was trained meanwhile
        got.check(error, (0, 1), (0, 1), each)
    for number in range(3, 9):  # the loss of a worker
        got.check(error, tuple(range(number)), tuple(range(number - 1)), place)
    got.check(error, (0, 1), (0, 1), later)
    with pytest.raises(RuntimeError, match="gloo") as raised:
        got.check(error, (0, 1), (0, 1), later)
    assert raised.value is error
    assert "all workers are alive" in raised.value.__notes__[0]


def test_what_an_error_remembers_holds_no_connection() -> None:
    class Connection:
        pass

    def fails() -> None:
        connection = Connection()
        raise RuntimeError(f"{type(connection).__name__} closed by peer")

    try:
        fails()
    except RuntimeError as caught:
        error = released(caught)
    trace = error.__traceback__
    assert trace is not None and trace.tb_next is not None  # noqa: PT018
    assert trace.tb_next.tb_frame.f_code.co_name == "fails"
    assert trace.tb_next.tb_frame.f_locals == {}


def test_a_notice_waits_for_the_launcher_s_answer(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it is a request to stop."""
    stop = StopSignal()
    signal.raise_signal(signal.SIGUSR1)
    assert stop.received
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    monkeypatch.setenv(ENV_NOTICES, "1")
    stop = StopSignal()
    signal.raise_signal(signal.SIGUSR1)
    clock.now_s += switch_step.NOTICE_TIMEOUT_S - 1.0
    assert not stop.received
    clock.now_s += 2.0
    assert stop.received, "the launcher is not there"
    stop.new_plan()
    assert not stop.received, "it was only slow, and says what to do"
    signal.raise_signal(signal.SIGTERM)
    assert stop.received, "Slurm waits no longer"
