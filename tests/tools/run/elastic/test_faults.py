"""What goes wrong within a step: what is survived, and what ends the job with its own reason."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.gradients import at_end_of_backward
from pliant.tools.run.elastic.loop.tolerant import TolerantGroup
from pliant.tools.run.elastic.membership.exit import described
from pliant.tools.run.elastic.membership.failure import Recurrence, released
from pliant.tools.run.elastic.state.cursor import IN_EPOCH, Cursor
from pliant.tools.run.elastic.state.parameters import check_same, outline
from pliant.tools.run.statedir.contract.outcome import LOST_PEER
from tests.tools.run.elastic.gang import Gang, assert_same_weights, plain

pytestmark = pytest.mark.torch
FAULTY = Path(__file__).with_name("faulty.py")
EPOCHS, SAMPLES = 3, 47
Make = Callable[..., Gang]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Make]:
    made: list[Gang] = []

    def make(**options: Any) -> Gang:
        made.append(Gang(tmp_path, script=FAULTY, **options))
        made[-1].patience_s = 60
        return made[-1]

    yield make
    for each in made:
        each.kill()


def killed(job: Gang, number: int, **plan: Any) -> None:
    """Wait until a worker has killed itself, and go on without it."""
    job.until(lambda: job.workers[number].poll() == -signal.SIGKILL, "kill")
    job.publish([one for one in range(len(job.workers)) if one != number], **plan)


@pytest.mark.parametrize("unused", [False, True])
def test_a_worker_killed_in_a_step_costs_no_step(gang: Make, tmp_path: Path, unused: bool) -> None:
    plain(tmp_path / "alone", script=FAULTY, unused=unused)
    job = gang(unused=unused, die=[2, 4])
    job.start(3)
    killed(job, 2)
    assert job.end() == [0, 0, -signal.SIGKILL]
    assert [job.outcome(number).outcome for number in (0, 1)] == ["done", "done"]
    assert job.outcome(0).samples_done == EPOCHS * SAMPLES
    assert_same_weights(tmp_path, tmp_path / "alone")


def test_an_exchange_that_fails_on_live_workers_ends_the_job_with_its_own_reason(
    gang: Make, tmp_path: Path
) -> None:
    job = gang(broken=[1, 4])
    job.patience_s = 1
    job.start(2)
    assert job.end() == [1, 1]
    assert job.outcome(1).message == "RuntimeError: the network library has a defect"
    assert "all workers are alive" in job.errors()
    tries = [row["index"] for row in rows(tmp_path, worker=1) if row["epoch"] == 0]
    assert tries[3] == tries[4], "the step is tried again once"
    assert len(tries) == 5


@pytest.mark.parametrize("accum", [1, 2])
def test_a_void_step_leaves_no_trace_in_running_statistics_and_generators(
    gang: Make, tmp_path: Path, accum: int
) -> None:
    """Rows are written when a pass ends, the steps in them without a void one."""
    job = gang(noisy=True, samples=48, die=[2, 2 * accum])
    job.start(3, accum=accum, global_batch=12)
    killed(job, 2, accum=accum, global_batch=12)
    assert job.end() == [0, 0, -signal.SIGKILL]
    for number in (0, 1):
        passes = rows(tmp_path, worker=number)
        step = passes[: 3 * accum]
        assert [row["steps"] for row in step[accum - 1 :: accum]] == [1, 1, 2], "the second one is void"
        first, void, again = (row["began"] for row in step[::accum])
        assert void == again
        assert first != void


def test_a_void_step_that_the_script_leaves_the_loader_in_leaves_no_trace_either(
    gang: Make, tmp_path: Path
) -> None:
    job = gang(noisy=True, samples=48, die=[2, 2], leaves=2)
    job.start(3, global_batch=12)
    killed(job, 2, global_batch=12)
    assert job.end() == [0, 0, -signal.SIGKILL]
    for number in (0, 1):
        first, void, again, later = rows(tmp_path, worker=number)[:4]
        assert [row["steps"] for row in (first, void, again, later)] == [1, 1, 2, 3]
        assert void["began"] == again["began"]
        assert first["began"] != void["began"]


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_scheduler_acts_at_the_end_of_an_epoch_that_was_left_in_a_void_or_unfinished_step(
    gang: Make, tmp_path: Path, unfinished: bool
) -> None:
    accum = 2 if unfinished else 1
    job = gang(samples=48, die=[2, 2], breaks=3 if unfinished else 2, decays=True)
    job.start(3, accum=accum, global_batch=12)
    killed(job, 2, accum=accum, global_batch=12)
    assert job.end() == [0, 0, -signal.SIGKILL]
    rates = [(tmp_path / f"rate-{number}").read_text() for number in (0, 1)]
    assert rates == [f"{0.05 * 0.5**EPOCHS} {EPOCHS}"] * 2


def test_what_is_not_a_number_ends_no_training_and_is_recorded_as_null(gang: Make) -> None:
    job = gang(nan=True)
    job.start(2, checkpoint_s=1e-9)
    assert job.end() == [0, 0]
    assert job.outcomes() == ["done", "done"]
    assert job.outcome(0).epoch == 1, (
        "left with patience, after an epoch that is complete and one that is not"
    )
    [complete, left] = job.events("epoch")
    assert (complete.loss, complete.metric, left.metric) == (None, None, None)
    assert complete.detail == {
        "epoch": 0,
        "warning": "loss is nan, metric is nan after step 5, recorded as null",
    }
    assert all(event.loss is None for event in job.events("progress"))
    said = [line for line in job.errors().splitlines() if "this is said once" in line]
    assert len(said) == 2, "of the loss, and of the metric"


def rows(folder: Path, worker: int) -> list[dict[str, Any]]:
    """What a worker wrote of its passes."""
    found = [json.loads(line) for path in folder.glob("seen-*") for line in path.read_text().splitlines()]
    return [row for row in found if row["worker"] == worker]


def test_a_worker_whose_model_differs_says_in_what(gang: Make) -> None:
    job = gang(unlike="wider")
    job.patience_s = 1
    job.start(2)
    assert job.end() == [1, 1]
    found = "parameter 0 is trunk.weight (float64, 17 x 8) here, trunk.weight (float64, 16 x 8) there"
    expected = f"UsageError: the model differs from that of the other workers: {found}"
    assert job.outcome(1).message == expected
    assert job.outcome(0).samples_done == 0


def test_a_worker_that_freezes_something_else_trains_what_the_others_train(
    gang: Make, tmp_path: Path
) -> None:
    plain(tmp_path / "alone", script=FAULTY)
    job = gang(unlike="frozen")
    assert job.run(2) == ["done", "done"]
    assert_same_weights(tmp_path, tmp_path / "alone")


def test_a_model_with_a_parameter_more_is_not_the_same() -> None:
    one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    other.register_parameter("scale", nn.Parameter(torch.ones(())))
    check_same(one, outline(one))
    with pytest.raises(UsageError, match=r"parameter 2 is missing here, scale \(float32, a number\) there"):
        check_same(one, outline(other))


class Group:
    """A process group of two whose all-reduces go well until they are to fail."""

    def __init__(self) -> None:
        self.fails_at: str | None = None
        self.begun = 0

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def _get_backend(self, device: torch.device) -> Group:
        return self

    def allreduce(self, tensors: list[torch.Tensor]) -> Group:
        self.begun += 1
        if self.fails_at == "begin":
            raise RuntimeError("at its begin")
        return self

    broadcast = allreduce

    def wait(self) -> bool:
        if self.fails_at == "wait":
            raise RuntimeError("at its end")
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        if self.fails_at == "wait":
            future.set_exception(RuntimeError("at its end"))
        else:
            future.set_result([])
        return future


@pytest.mark.parametrize("fails_at", ["begin", "wait"])
@pytest.mark.parametrize("way", ["wait", "get_future"])
def test_an_all_reduce_that_fails_ends_quietly_and_no_other_begins(fails_at: str, way: str) -> None:
    inner, gradient = Group(), torch.ones(3)
    group = TolerantGroup(inner)  # type: ignore[arg-type]
    inner.fails_at = fails_at
    work = group.allreduce([gradient])
    if way == "wait":
        assert work.wait()
    else:
        assert work.get_future().wait() is gradient
    assert "at its" in str(group.error)
    first = group.error
    assert group.allreduce([gradient]).get_future().wait() is gradient
    assert (group.error, inner.begun) == (first, 1)


def test_an_all_reduce_has_the_answer_of_its_tensor_also_where_a_pass_exchanges_others() -> None:
    """As once DDP has put its buckets into another order, and after parameters were frozen."""
    group = TolerantGroup(Group())  # type: ignore[arg-type]
    few, many = [torch.ones(1)], [torch.ones(2), torch.ones(3)]
    for buckets in (few, few, many, many, many[::-1], few, many):
        x = torch.ones(len(buckets), requires_grad=True)
        found: list[torch.futures.Future[Any]] = []

        def exchange(_: torch.Tensor, buckets: list[torch.Tensor] = buckets) -> None:
            found.extend(group.allreduce([bucket]).get_future() for bucket in buckets)  # noqa: B023

        x.register_hook(exchange)
        x.sum().backward()
        assert [future.value() for future in found] == buckets


def test_a_backward_pass_within_another_waits_for_what_was_begun_before_it() -> None:
    """As with activation checkpointing: DDP may want all gradients at the end of the inner pass."""
    group = TolerantGroup(Group())  # type: ignore[arg-type]
    outer, inner = (nn.Parameter(torch.ones(2)) for _ in range(2))
    begun: list[torch.futures.Future[Any]] = []
    through: list[bool] = []

    def exchange(parameter: torch.Tensor) -> None:
        begun.append(group.allreduce([parameter]).get_future())

    def exchange_last(parameter: torch.Tensor) -> None:
        exchange(parameter)
        at_end_of_backward(lambda: through.extend(one.done() for one in begun))

    outer.register_post_accumulate_grad_hook(exchange)
    inner.register_post_accumulate_grad_hook(exchange_last)
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        (checkpoint(lambda x: x * inner, x, use_reentrant=True) * outer).sum().backward()
    assert through == [True] * 2 + [True] * 4


def test_a_broadcast_that_fails_is_noted_and_raised() -> None:
    inner = Group()
    group = TolerantGroup(inner)  # type: ignore[arg-type]
    group.broadcast([torch.ones(3)])
    inner.fails_at = "wait"
    with pytest.raises(RuntimeError, match="at its end"):
        group.broadcast([torch.ones(3)])
    assert "at its end" in str(group.error)


class TestRecurrence:
    """Twice at one place, and no worker died."""

    place, later = Cursor(0, 7, IN_EPOCH), Cursor(0, 8, IN_EPOCH)
    error = RuntimeError("gloo")

    def test_an_error_that_comes_again_though_all_live_is_raised(self) -> None:
        found = Recurrence()
        found.check(self.error, (0, 1), (0, 1), self.place)
        with pytest.raises(RuntimeError, match="gloo") as raised:
            found.check(self.error, (0, 1), (0, 1), self.place)
        assert raised.value is self.error
        assert "all workers are alive" in raised.value.__notes__[0]

    def test_a_step_that_was_trained_meanwhile_forgives_it(self) -> None:
        found = Recurrence()
        for place in (self.place, self.later, self.place):
            found.check(self.error, (0, 1), (0, 1), place)

    def test_the_loss_of_a_worker_explains_it_each_time(self) -> None:
        found = Recurrence()
        for number in range(3, 9):
            found.check(self.error, tuple(range(number)), tuple(range(number - 1)), self.place)


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
def test_the_reason_of_a_crash_is_one_line_that_says_something(error: Exception, words: str) -> None:
    assert described(type(error), error, alone=False) == words


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
    assert trace is not None
    assert trace.tb_next is not None
    assert trace.tb_next.tb_frame.f_code.co_name == "fails"
    assert trace.tb_next.tb_frame.f_locals == {}
