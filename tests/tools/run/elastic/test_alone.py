"""Where a job may be stopped, saved or left, by a job of one worker in this process."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.tools.run import elastic
from pliant.tools.run.elastic import EarlyStopping, ElasticJob, report
from pliant.tools.run.elastic.loop.prepared import checked, guard_optimizer
from pliant.tools.run.elastic.membership import process_group
from pliant.tools.run.elastic.state import checkpoint
from pliant.tools.run.elastic.state.checkpoint import Checkpoints, Written
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, WorkerOutcome
from tests.tools.run.elastic.alone import Alone, Author, Clock

pytestmark = pytest.mark.torch
STEPS = 5
"""Of an epoch of 47 samples in batches of 10."""


def at_pass(author: Author, number: int, action: Any) -> Any:
    return lambda: action() if author.passes == number else None


def give_up() -> None:
    sys.exit("diverged")


def crash() -> None:
    raise RuntimeError("out of memory")


def test_the_launcher_learns_of_training_before_a_report(job: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[bool] = []
    write = report.EventWriter

    def written(path: Path) -> Any:
        known.append(job.dir.attempt(job.attempt).reached.exists())
        return write(path)

    monkeypatch.setattr(report, "EventWriter", written)
    assert job.run(Author()).outcome == "done"
    assert known == [True]


class TestLeaving:
    @pytest.mark.parametrize("place", ["in_pass", "at_epoch_end"])
    def test_giving_up_counts_by_its_exit_code(self, job: Alone, place: str) -> None:
        author = Author()
        setattr(author, place, at_pass(author, STEPS, give_up))
        end = job.run(author)
        assert (end.outcome, end.exit_counts) == ("done", True)
        assert job.events("checkpoint") == [], "there is nothing to go on from"


@pytest.mark.parametrize("leaves", [False, True])
def test_an_end_is_recorded_before_the_script_goes_on(job: Alone, *, leaves: bool) -> None:
    """It may end without a last word: os._exit, exec, a handler that another module has registered."""
    recorded: list[WorkerOutcome | None] = []

    def author(elastic_job: ElasticJob) -> None:
        one = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(one.parameters())
        model, optimizer, loader = elastic_job.prepare(one, optimizer, torch.ones(47, 1))
        for _ in elastic_job.epochs(3):
            for x in loader:
                model(x).sum().backward()
                optimizer.step()
            if leaves:
                break
        recorded.append(WorkerOutcome.read(job.dir.attempt(1).outcome(0)))

    end = job.run(author)
    assert recorded == [end.model_copy(update={"goes_on": True, "exit_counts": True})]
    assert (end.outcome, end.goes_on, end.samples_done) == ("done", False, 47 if leaves else 3 * 47)


def test_a_training_without_a_step_is_warned_of(job: Alone) -> None:
    def asks_for_none(elastic_job: ElasticJob) -> None:
        elastic_job.prepare(*(one := nn.Linear(1, 1), torch.optim.SGD(one.parameters()), [torch.ones(1)]))
        assert list(elastic_job.epochs(0)) == []

    def never_steps(elastic_job: ElasticJob) -> None:
        *_, loader = elastic_job.prepare(
            *(one := nn.Linear(1, 1), torch.optim.SGD(one.parameters()), [torch.ones(1)])
        )
        for _ in elastic_job.epochs(1):
            list(loader)

    assert [job.run(asks_for_none).outcome, job.run(never_steps).outcome] == ["done", "done"]
    warnings = [(event.detail or {}).get("warning", "") for event in job.events("progress")]
    assert [text for text in warnings if "nothing is trained" in text] == [
        "nothing is trained: the script asks for 0 epochs or steps",
        "nothing is trained: no optimizer of job.prepare was called in 1 steps",
    ]


def test_a_torn_checkpoint_is_passed_over(job: Alone) -> None:
    author = Author()
    author.in_pass = at_pass(author, 8, lambda: job.publish(abort=True))
    assert job.run(author, checkpoint_s=1e-9).outcome == "stopped"
    *_, newest = sorted(job.dir.checkpoints.iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    assert job.run(author).outcome == "done"
    details = [event.detail or {} for event in job.events("progress")]
    warnings = [detail["warning"] for detail in details if "warning" in detail]
    assert warnings == [f"{newest}: the checkpoint is torn or damaged"]
    assert author.passes == 3 * STEPS + 1, "the step of the torn one is trained again"


def test_a_job_that_cannot_be_saved_crashes_at_its_end(job: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry mends it. With nothing new to save a job needs no disk."""
    tried: list[int] = []

    def full(self: Checkpoints, state: Any, step: int, **how: object) -> Written:
        tried.append(step)
        raise ServiceMissingError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write", full)
        end = job.run(Author(), checkpoint_s=1e-9)
    assert (end.outcome, end.samples_done) == ("crashed", 0)
    assert end.message == "the checkpoint of step 15 failed: no space left"
    assert (tried[:2], tried[-1]) == ([1, 2], 15)
    assert len(job.events("epoch")) == 3
    assert job.run(Author()).outcome == "done"
    monkeypatch.setattr(Checkpoints, "write", None)
    assert job.run(Author()).outcome == "done"


class TestEndOfEpoch:
    @pytest.mark.parametrize("number", [1, 4, 5, 6, 10, 13, 14, 15])
    def test_a_stop_after_any_step_can_be_gone_on_from(self, job: Alone, number: int) -> None:
        author = Author()
        # the plan is looked at when a step begins: this one is seen by the next step, or epoch end
        author.in_pass = at_pass(author, number, lambda: job.publish(abort=True))
        first = job.run(author)
        assert first.outcome == ("stopped" if number < 3 * STEPS - 1 else "done")
        if first.outcome == "stopped":
            assert job.run(author).outcome == "done"
        assert author.epochs_ended == [0, 1, 2]
        assert author.passes == 3 * STEPS

    def test_every_checkpoint_can_be_gone_on_from(self, job: Alone) -> None:
        author = Author()
        while job.attempt < 3 * STEPS:
            before = author.passes
            author.in_pass = at_pass(author, before + 2, crash)
            end = job.run(author, checkpoint_s=1e-9)
            if author.passes != before + 2:
                break
            assert end.message == "RuntimeError: out of memory"
        assert author.epochs_ended == [0, 1, 2]
        assert job.events("checkpoint")[-1].samples_done == 141

    def test_a_stop_in_a_validation_acts_at_its_end(self, job: Alone) -> None:
        author = Author()
        author.at_epoch_end = at_pass(author, STEPS, lambda: job.publish(abort=True))
        outcome = job.run(author)
        assert (outcome.outcome, outcome.samples_done, outcome.epoch) == ("stopped", 47, 1)
        author.at_epoch_end = at_pass(author, 3 * STEPS, lambda: job.publish(abort=True))
        end = job.run(author)
        ends = (end.outcome, end.samples_done, end.epoch, end.exit_counts)
        assert ends == ("done", 141, 3, True), "in that of the last epoch it comes too late"

    def test_a_batch_larger_than_the_rest_is_a_smaller_step(self, job: Alone) -> None:
        author = Author(drop_last=True)
        author.in_pass = at_pass(author, 2, lambda: job.publish(abort=True))
        end = job.run(author)
        assert (end.outcome, end.samples_done) == ("stopped", 30)
        assert job.run(author, global_batch=20).outcome == "done"
        assert author.epochs_ended == [0, 1, 2]
        assert [event.samples_done for event in job.events("epoch")] == [47, 87, 127]

    @pytest.mark.parametrize(
        ("times_s", "saved"),
        [((1.0, 0.0, 10.0), [40, 87, 134, 141]), ((10.0, 1.5, 110.0), [40, 134, 141])],
        ids=["a small state", "a large state"],
    )
    def test_before_an_epoch_s_last_step_a_checkpoint_is_due_earlier(
        self, job: Alone, monkeypatch: pytest.MonkeyPatch, times_s: tuple[float, ...], saved: list[int]
    ) -> None:
        """``times_s``: of a step, of a checkpoint, and between two of these."""
        step_s, took_s, checkpoint_s = times_s
        author, clock, write = Author(), Clock(), Checkpoints.write

        def slow(self: Checkpoints, *state: Any, **how: Any) -> Written:
            clock.now_s += took_s
            return write(self, *state, **how)

        def step() -> None:
            clock.now_s += step_s

        monkeypatch.setattr(checkpoint, "time", clock)
        monkeypatch.setattr(Checkpoints, "write", slow)
        author.in_pass = step
        job.run(author, checkpoint_s=checkpoint_s, history_s=1e-9)
        assert [event.samples_done for event in job.events("checkpoint")] == saved


def test_the_outcome_is_written_before_the_group_is_left(job: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Giving it up may hang in a library, and others that see it look for the outcome."""
    result: list[bool] = []
    monkeypatch.setattr(process_group, "leave", lambda: result.append(job.dir.attempt(1).outcome(0).exists()))
    script = Author()
    script.at_epoch_end = result.clear
    job.run(script)
    assert result == [True]


Patch = pytest.MonkeyPatch
Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor], object]


def prepared(job: ElasticJob, make: Any = torch.optim.SGD) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    samples = torch.utils.data.TensorDataset(torch.linspace(0, 1, 40).unsqueeze(1))
    return job.prepare(net, make(net.parameters(), lr=0.1), samples)


def usual(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def with_closure(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


class TestLeavingTheLoader:
    @pytest.mark.parametrize("steps", [1, 4])
    @pytest.mark.parametrize("returns", [True, False])
    def test_the_step_before_a_break_or_return_counts(self, job: Alone, steps: int, returns: bool) -> None:
        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it)
            done = 0
            for _ in it.epochs(2):
                for (x,) in loader:
                    usual(model, optimizer, x)
                    done += 1
                    if done == steps:
                        if returns:
                            return
                        break
                if done == steps:
                    break

        end = job.run(script)
        assert (end.outcome, end.samples_done) == ("done", 10 * steps)

    def test_a_loop_after_a_break_goes_on_with_the_next_samples(self, job: Alone) -> None:
        """A batch that the optimizer has not seen does not count."""
        seen: list[int] = []

        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it)
            for _ in it.epochs(1):
                for most in (1, 0, 2, 9):
                    for number, (x,) in enumerate(loader):
                        if number == most:
                            break
                        usual(model, optimizer, x)
                        seen.extend((x.flatten() * 39).round().int().tolist())

        assert job.run(script).samples_done == 40
        assert sorted(seen) == list(range(40)), "each sample once"

    @pytest.mark.parametrize(("held", "gives_up"), [(False, False), (True, False), (True, True)])
    def test_a_break_with_the_epochs_in_a_variable_ends_it(
        self, job: Alone, held: bool, gives_up: bool
    ) -> None:
        variables: list[Iterator[int]] = []

        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it)
            variables.extend([it.epochs(5)] if held else [])
            for epoch in variables[0] if held else it.epochs(5):
                for (x,) in loader:
                    usual(model, optimizer, x)
                    assert it.agree(lambda: 1.0) == 1.0
                it.log(metric=epoch / 10)
                if epoch == 1 and gives_up:
                    sys.exit("diverged")
                if it.agree(epoch == 1):
                    break

        end = job.run(script)
        assert (end.outcome, end.samples_done, end.message, end.exit_counts) == ("done", 80, "", True)
        ends = [(event.metric, event.detail) for event in job.events("epoch")]
        assert ends == [(0.0, {"epoch": 0}), (0.1, {"epoch": 1})]


class TestClosures:
    def train(self, weights: list[Any], step: Step, make: Any) -> Callable[[ElasticJob], None]:
        """A script of one epoch that leaves its weights behind."""

        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it, make)
            for _ in it.epochs(1):
                for (x,) in loader:
                    step(model, optimizer, x)
            weights.append([value.item() for value in model.parameters()])

        return script

    @pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS])
    def test_a_closure_trains_the_same_on_one_worker(self, job: Alone, make: Any, monkeypatch: Patch) -> None:
        weights: list[list[float]] = []
        assert job.run(self.train(weights, with_closure, make), seed=5).samples_done == 40
        monkeypatch.delenv(ENV_JOB_DIR)
        for step in (with_closure, usual) if make is torch.optim.SGD else (with_closure,):
            self.train(weights, step, make)(elastic.init(batch_size=10, seed=5))
            assert weights.pop() == weights[0]

    def test_a_closure_trains_micro_steps_once(self, job: Alone) -> None:
        weights: list[list[float]] = []
        for accum in (3, 1):
            script = self.train(weights, with_closure, torch.optim.SGD)
            assert job.run(script, accum=accum, seed=5).samples_done == 40
            for path in job.dir.checkpoints.iterdir():
                path.unlink()
        assert weights[0] == pytest.approx(weights[1], rel=1e-6)
        end = job.run(self.train(weights, with_closure, torch.optim.LBFGS), accum=3)
        assert end.outcome == "crashed"
        assert "several times a step, which goes with no micro-steps" in end.message

    @pytest.mark.parametrize("failed", [False, True])
    def test_several_workers_run_a_closure_once_a_step(self, failed: bool) -> None:
        """That of a void step makes none."""
        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def once(closure: Callable[[], Any]) -> Callable[[], Any]:
            return checked(closure, accumulates=False, workers=2, failed=lambda: failed)

        guard_optimizer(optimizer, ("step",), lambda: False, checked=once)
        before = net.weight.item()

        def closure() -> torch.Tensor:
            loss = net(torch.ones(1, 1)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        assert (net.weight.item() == before) is failed
        twice = once(lambda: 1.0)
        if not failed:
            assert twice() == 1.0
            with pytest.raises(UsageError, match="several times a step"):
                twice()


Begin = Callable[[], ElasticJob]


def seeded(seed: int) -> ElasticJob:
    torch.manual_seed(seed)
    return elastic.init(batch_size=10)


def warnings(job: Alone) -> list[str]:
    return [(event.detail or {}).get("warning", "") for event in job.events("progress") if event.detail]


@pytest.mark.parametrize(
    "begin", [lambda: elastic.init(batch_size=10, seed=4), lambda: seeded(4)], ids=["init", "manual_seed"]
)
def test_without_a_seed_a_job_trains_as_plain_python(job: Alone, monkeypatch: Patch, begin: Begin) -> None:
    job.begin, planned = begin, Author()
    assert job.run(planned).outcome == "done"
    assert not any("seed" in text for text in warnings(job))
    monkeypatch.delenv(ENV_JOB_DIR)
    alone = Author()
    alone(begin())
    assert all(map(torch.equal, planned.net.parameters(), alone.net.parameters()))
    assert planned.samples == alone.samples


@pytest.mark.parametrize(
    ("begin", "place"),
    [(lambda: elastic.init(batch_size=10, seed=4), "elastic.init"), (lambda: seeded(4), "torch.manual_seed")],
)
def test_a_seed_of_the_job_that_replaces_another_one_is_named(job: Alone, begin: Begin, place: str) -> None:
    job.begin = begin
    assert job.run(Author(), seed=4).outcome == "done"
    assert not any("seed" in text for text in warnings(job)), "it is the same"
    for path in job.dir.checkpoints.iterdir():
        path.unlink()
    assert job.run(Author(), seed=7).outcome == "done"
    text = f"the job's seed 7 replaces 4, which the script gives {place}: plain python uses that one"
    assert warnings(job).count(text) == 1


def test_an_epoch_that_was_begun_with_one_seed_is_ended_with_it(job: Alone) -> None:
    """Another one in the script, or in the job, would give some of its samples twice and leave others out."""
    first, rest = Author(), Author()

    def stopped(it: ElasticJob) -> None:
        it._membership._stop.received = True  # type: ignore[union-attr]
        first(it)

    job.begin = lambda: elastic.init(batch_size=10, seed=4)
    assert job.run(stopped).outcome == "stopped"
    assert len(first.samples) < 47
    job.begin = lambda: elastic.init(batch_size=10, seed=6)
    assert job.run(rest).outcome == "done"
    assert sorted((first.samples + rest.samples)[:47]) == list(range(47))


def test_a_plan_without_a_seed_has_no_such_field(job: Alone) -> None:
    job.attempt = 1
    job.publish()
    assert "seed" not in json.loads(job.dir.plan.read_text())
    job.publish(seed=0)
    assert json.loads(job.dir.plan.read_text())["seed"] == 0


@pytest.mark.parametrize(
    ("rule", "metrics", "ends"),
    [
        ({"target": 0.9}, (0.5, 0.89, 0.9, 0.95), 3),
        ({"target": 0.1, "lower_is_better": True}, (0.5, 0.2, 0.1), 3),
        ({"patience": 2}, (0.5, 0.5, 0.6, 0.6, 0.6, 0.7), 5),
        ({"patience": 2, "least_gain": 0.2}, (0.5, 0.6, 0.69), 3),
        ({"patience": 2}, (math.nan, math.nan), 2),
    ],
)
def test_it_is_enough_at_a_target_or_after_epochs_without_gain(
    rule: dict[str, Any], metrics: tuple[float, ...], ends: int
) -> None:
    stopping = EarlyStopping(**rule)
    assert next(epoch for epoch, metric in enumerate(metrics, 1) if stopping.reached(metric)) == ends


def test_a_resize_forgets_nothing() -> None:
    first, second = EarlyStopping(patience=2), EarlyStopping(patience=2)
    assert not first.reached(0.8)
    assert not first.reached(0.7)
    second.load_state_dict(first.state_dict())
    assert second.reached(0.75)
    for nothing in ({}, {"patience": 0}):
        with pytest.raises(UsageError, match="EarlyStopping"):
            EarlyStopping(**nothing)
