"""Where a job may be stopped, saved or left, by a job of one worker in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.elastic import report
from pliant.tools.run.elastic.membership import process_group
from pliant.tools.run.elastic.state import checkpoint
from pliant.tools.run.elastic.state.checkpoint import Checkpoints, Written
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
    def test_a_script_that_ends_after_its_training_is_done(self, job: Alone) -> None:
        end = job.run(Author())
        assert (end.outcome, end.samples_done, end.epoch, end.exit_counts) == ("done", 141, 3, True)

    @pytest.mark.parametrize("place", ["in_pass", "at_epoch_end"])
    def test_giving_up_counts_by_its_exit_code(self, job: Alone, place: str) -> None:
        author = Author()
        setattr(author, place, at_pass(author, STEPS, give_up))
        end = job.run(author)
        assert (end.outcome, end.exit_counts) == ("done", True)
        assert job.events("checkpoint") == [], "there is nothing to go on from"

    def test_a_break_is_the_end_of_training_with_what_was_trained(self, job: Alone) -> None:
        author = Author()
        author.at_epoch_end = at_pass(author, 2 * STEPS, give_up)

        def script(elastic: Any) -> None:
            with pytest.raises(SystemExit):
                author(elastic)

        end = job.run(script)
        assert (end.outcome, end.samples_done) == ("done", 94)

    def test_a_break_after_an_epoch_reports_its_metric(self, job: Alone) -> None:
        def script(elastic: Any) -> None:
            net = torch.nn.Linear(1, 1)
            data = torch.utils.data.TensorDataset(torch.zeros(40, 1))
            _, _, loader = elastic.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), data)
            for epoch in elastic.epochs(9):
                for _ in loader:
                    assert elastic.agree(lambda: 1.0) == 1.0
                elastic.log(metric=epoch / 10)
                if elastic.agree(epoch == 2):
                    break

        end = job.run(script)
        assert (end.outcome, end.samples_done) == ("done", 120)
        ends = [(event.metric, event.detail) for event in job.events("epoch")]
        assert ends == [(epoch / 10, {"epoch": epoch}) for epoch in range(3)]


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

    @pytest.mark.parametrize(("epochs", "end"), [(1, ("stopped", 47, 1)), (3, ("done", 141, 3))])
    def test_a_stop_in_a_validation_acts_at_its_end(self, job: Alone, epochs: int, end: object) -> None:
        """In that of the last epoch it comes too late."""
        author = Author()
        author.at_epoch_end = at_pass(author, epochs * STEPS, lambda: job.publish(abort=True))
        outcome = job.run(author)
        assert (outcome.outcome, outcome.samples_done, outcome.epoch) == end

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
